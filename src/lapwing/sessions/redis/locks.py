"""Locks of Redis clients: a key with the token of its owner, in memory, until it is released or its time is over.

SET takes a lock, with NX alone; GET, DEL, TTL, PEXPIRE and their kin in `keys` see it as a string. A client releases or
extends what it owns with a script; the scripts of redis-py's `Lock` are known by their SHA-1, and there is no
interpreter for others. A restart forgets all locks, as it closes the connections of those that hold them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lapwing.records import dataclass
from lapwing.sessions.redis.replies import Reply
from lapwing.wire.resp import errors, replies
from lapwing.wire.resp.arguments import integer
from lapwing.wire.resp.errors import ErrorReply

if TYPE_CHECKING:
    from lapwing.sessions.redis.client_state import ClientState

_MOST: Final = 10_000  # locks
_LONGEST: Final = 1024  # bytes of a key, and of a token
_FEW: Final = 100  # locks that are taken between two looks for ended ones, at least
_MS: Final = 1_000_000  # ns
_LONGEST_SPAN: Final = (1 << 62) * _MS  # so that an end is a whole number of 64 bits for any client
_PAUSE: Final = 100 * _MS  # between two looks for ended locks: they go through all
_UNITS: Final = {b"PX": _MS, b"EX": 1000 * _MS}
_OTHER_OPTIONS: Final = frozenset({b"XX", b"GET", b"KEEPTTL", b"EXAT", b"PXAT", b"IFEQ", b"IFNE", b"IFDEQ", b"IFDNE"})

_RELEASE: Final = b"c3f8721cbb97f72bc19e972846bd7aaf91901658"  # redis-py, since 3.5 at least
_EXTEND: Final = b"a4e8783852e6b949f9ef3a97212805108459a890"
_REACQUIRE: Final = b"1cac51482acf5858da00f6d685d68f886cd6b6b2"
_WORDS: Final = {_RELEASE: 1, _EXTEND: 3, _REACQUIRE: 2}  # arguments of each script, its one key apart

_LOCKS_ONLY: Final = "ERR SET takes locks only, with NX: there are no other strings here, only streams"
_NO_INTERPRETER: Final = "ERR there is no interpreter: only the scripts of redis-py's Lock are known"
_NO_SCRIPT: Final = "NOSCRIPT No matching script. There is no interpreter: only those of redis-py's Lock are known"


@dataclass(slots=True)
class Lock:
    """A lock that a client holds."""

    token: bytes
    end: int | None  # ns; None: when it is released


class Locks:
    """The locks of all clients, by database and key."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, bytes], Lock] = {}
        self._full = _FEW  # locks at which the next look for ended ones is due
        self._next_look = 0  # ns, the earliest time of it

    def find(self, database: int, key: bytes, now: int) -> Lock | None:
        """Return the lock of a key; None if nobody holds it."""
        lock = self._held.get((database, key))
        if lock is None or lock.end is None or lock.end > now:
            return lock
        del self._held[database, key]
        return None

    def take(self, database: int, key: bytes, token: bytes, *, end: int | None, now: int) -> bool:
        """Take a lock unless it is held. Raises `ErrorReply` when there are too many, or for an end that is too far."""
        if self.find(database, key, now) is not None:
            return False
        _check_end(end, now)
        if len(self._held) >= self._full and now >= self._next_look:
            self._next_look = now + _PAUSE
            self._held = {place: lock for place, lock in self._held.items() if lock.end is None or lock.end > now}
            self._full = min(max(2 * len(self._held), _FEW), _MOST)
        if len(self._held) >= _MOST:
            raise ErrorReply(f"OOM {_MOST} locks are held, and there may be no more")
        self._held[database, key] = Lock(token, end)
        return True

    def release(self, database: int, key: bytes, now: int) -> bool:
        """End a lock; return whether it was held."""
        if self.find(database, key, now) is None:
            return False
        del self._held[database, key]
        return True

    def set_end(self, database: int, key: bytes, end: int | None, *, now: int) -> bool:
        """Have a lock end then; return whether it is held. Raises `ErrorReply` for an end that is too far."""
        if (lock := self.find(database, key, now)) is None:
            return False
        _check_end(end, now)
        lock.end = end
        return True

    def clear(self, database: int) -> None:
        """End all locks of a database."""
        self._held = {place: lock for place, lock in self._held.items() if place[0] != database}

    def keys(self, database: int, now: int) -> Iterator[bytes]:
        """Yield the keys of the locks that are held in a database."""
        for place in list(self._held):
            if place[0] == database and self.find(*place, now) is not None:
                yield place[1]


def _check_end(end: int | None, now: int) -> None:
    if end is not None and abs(end - now) > _LONGEST_SPAN:
        raise ErrorReply("ERR invalid expire time")


# --- commands ------------------------------------------------------------------------------------------------------


def set_lock(session: ClientState, words: list[bytes], now: int) -> Reply:
    """SET key token NX [PX ms | EX s]."""
    _, key, token, *options = words
    end: int | None = None
    exclusive = False
    while options:
        option = options.pop(0).upper()
        if option == b"NX":
            exclusive = True
        elif option in _UNITS and options and end is None:
            span = integer(options.pop(0))
            if span <= 0:
                raise ErrorReply("ERR invalid expire time in 'set' command")
            end = now + span * _UNITS[option]
        else:
            raise ErrorReply(_LOCKS_ONLY) if option in _OTHER_OPTIONS else errors.syntax_error()
    if not exclusive:
        raise ErrorReply(_LOCKS_ONLY)
    if len(key) > _LONGEST or len(token) > _LONGEST:
        raise ErrorReply(f"ERR the key and the token of a lock may have {_LONGEST} bytes each")
    if session.context.find(key, session.database) is not None:
        return replies.null(session.protocol)  # a stream has the key
    taken = session.context.locks.take(session.database, key, token, end=end, now=now)
    return replies.OK if taken else replies.null(session.protocol)


def evaluate(session: ClientState, words: list[bytes], now: int) -> Reply:
    """EVAL script numkeys key token [..]: of redis-py's `Lock` only."""
    sha = _sha(words[1])
    if sha not in _WORDS:
        raise ErrorReply(_NO_INTERPRETER)
    return _run(session, sha, words, now)


def evaluate_loaded(session: ClientState, words: list[bytes], now: int) -> Reply:
    """EVALSHA sha1 numkeys key token [..]."""
    sha = words[1].lower()
    if sha not in _WORDS:
        raise ErrorReply(_NO_SCRIPT)
    return _run(session, sha, words, now)


def load(session: ClientState, words: list[bytes], now: int) -> Reply:
    """SCRIPT LOAD script: it has to be one of those that are known."""
    sha = _sha(words[2])
    if sha not in _WORDS:
        raise ErrorReply(_NO_INTERPRETER)
    return replies.bulk(sha)


def loaded(session: ClientState, words: list[bytes], now: int) -> Reply:
    """SCRIPT EXISTS sha1 .."""
    return replies.array([replies.integer(int(word.lower() in _WORDS)) for word in words[2:]])


def _sha(script: bytes) -> bytes:
    return hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()


def _run(session: ClientState, sha: bytes, words: list[bytes], now: int) -> Reply:
    """Release, extend or reacquire the lock whose token the client has; 0 if it has not."""
    if integer(words[2]) != 1 or len(words) != 4 + _WORDS[sha]:
        raise ErrorReply(f"ERR this script of redis-py's Lock takes one key and {_WORDS[sha]} arguments")
    key, token = words[3], words[4]
    database, locks = session.database, session.context.locks
    lock = locks.find(database, key, now)
    if lock is None or lock.token != token:
        return replies.integer(0)
    if sha == _RELEASE:
        return replies.integer(int(locks.release(database, key, now)))
    span = integer(words[5]) * _MS
    if sha == _EXTEND:
        if lock.end is None:
            return replies.integer(0)
        end = (lock.end if words[6] == b"0" else now) + span
    else:
        end = now + span
    return replies.integer(int(locks.set_end(database, key, end, now=now)))
