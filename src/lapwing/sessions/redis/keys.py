"""Commands about keys and transactions: TYPE, DEL, SCAN, MULTI and their kin."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lapwing.sessions.redis.replies import Reply
from lapwing.wire.resp import errors, replies
from lapwing.wire.resp.arguments import integer
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.keys import topic_of
from lapwing.wire.resp.parse_server import parse_scan

if TYPE_CHECKING:
    from lapwing.sessions.redis.client_state import ClientState

_WRONG_TYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
_MAX_WATCHED: Final = 1024  # keys of one client
_LONGEST_PATTERN: Final = 1024  # bytes
_MS: Final = 1_000_000  # ns
_SECOND: Final = 1_000_000_000  # ns
_NO_END: Final = (
    "ERR a stream has no end: it is a topic, which stays until it is deleted; set retention_age or message_ttl of the "
    "topic instead"
)


def _kind(session: ClientState, key: bytes, now: int) -> str:
    """Return the type of a key: a stream, or a lock, which clients see as a string."""
    if session.context.find(key, session.database) is not None:
        return "stream"
    return "none" if session.context.locks.find(session.database, key, now) is None else "string"


def _exists(session: ClientState, key: bytes, now: int) -> bool:
    return _kind(session, key, now) != "none"


def _visible(session: ClientState, now: int, kind: bytes | None = None) -> Iterator[bytes]:
    """Yield the keys of the database, with permissions those that the client has one for."""
    grants = session.grants
    if kind in (None, b"stream"):
        for key, topic in session.context.streams(session.database):
            if grants is None or grants.knows(topic.name):
                yield key
    if kind in (None, b"string"):
        for key in session.context.locks.keys(session.database, now):
            if session.context.find(key, session.database) is not None:
                continue  # a stream has the key since
            if grants is None or grants.knows(topic_of(key, session.database) or ""):
                yield key


def kind(session: ClientState, words: list[bytes], now: int) -> Reply:
    """TYPE key."""
    return replies.simple(_kind(session, words[1], now))


def exists(session: ClientState, words: list[bytes], now: int) -> Reply:
    """EXISTS and TOUCH key .."""
    return replies.integer(sum(_exists(session, key, now) for key in words[1:]))


def delete(session: ClientState, words: list[bytes], now: int) -> Reply:
    """DEL and UNLINK key .."""
    count = 0
    for key in words[1:]:
        stream = session.context.find(key, session.database)
        if stream is not None:
            stream.topic.write_pending(now=now)  # entries of this turn were added before, and have their ids
            session.broker.delete_topic(stream.topic.name)
            count += 1
        else:
            count += session.context.locks.release(session.database, key, now)
    return replies.integer(count)


def keys(session: ClientState, words: list[bytes], now: int) -> Reply:
    """KEYS pattern."""
    return replies.bulks(_matching(session, words[1], now))


def scan(session: ClientState, words: list[bytes], now: int) -> Reply:
    """SCAN cursor [MATCH pattern] [COUNT n] [TYPE type]: everything in one answer."""
    asked = parse_scan(words)
    found = _matching(session, asked.pattern, now, asked.type)
    return replies.array([replies.bulk(b"0"), replies.bulks(found)])


def random_key(session: ClientState, words: list[bytes], now: int) -> Reply:
    """RANDOMKEY."""
    key = next(_visible(session, now), None)
    return replies.null(session.protocol) if key is None else replies.bulk(key)


def size(session: ClientState, words: list[bytes], now: int) -> Reply:
    """DBSIZE."""
    return replies.integer(sum(1 for _ in _visible(session, now)))


def time_to_live(session: ClientState, words: list[bytes], now: int) -> Reply:
    """TTL, PTTL, EXPIRETIME and PEXPIRETIME key."""
    key, word = words[1], words[0].upper()
    lock = session.context.locks.find(session.database, key, now)
    if lock is None or lock.end is None:
        return replies.integer(-1 if _exists(session, key, now) else -2)
    end = lock.end - now if word in (b"TTL", b"PTTL") else lock.end + session.broker.skew
    return replies.integer(end // _MS if word.startswith(b"P") else (end + _SECOND // 2) // _SECOND)


def expire(session: ClientState, words: list[bytes], now: int) -> Reply:
    """EXPIRE and its kin: of locks; refused for streams."""
    word, key, time = words[0].upper(), words[1], integer(words[2])
    if session.context.find(key, session.database) is not None:
        raise ErrorReply(_NO_END)
    if len(words) > 3:
        raise errors.syntax_error()
    base = -session.broker.skew if word.endswith(b"AT") else now
    end = base + time * (_MS if word.startswith(b"P") else _SECOND)
    return replies.integer(int(session.context.locks.set_end(session.database, key, end, now=now)))


def persist(session: ClientState, words: list[bytes], now: int) -> Reply:
    """PERSIST key: a lock ends when it is released."""
    lock = session.context.locks.find(session.database, words[1], now)
    if lock is None or lock.end is None:
        return replies.integer(0)
    return replies.integer(int(session.context.locks.set_end(session.database, words[1], None, now=now)))


def get(session: ClientState, words: list[bytes], now: int) -> Reply:
    """GET key: the token of a lock."""
    if session.context.find(words[1], session.database) is not None:
        raise ErrorReply(_WRONG_TYPE)
    lock = session.context.locks.find(session.database, words[1], now)
    return replies.null(session.protocol) if lock is None else replies.bulk(lock.token)


def inspect(session: ClientState, words: list[bytes], now: int) -> Reply:
    """OBJECT ENCODING, REFCOUNT, IDLETIME and FREQ key."""
    kind = _kind(session, words[2], now)
    if kind == "none":
        return replies.null(session.protocol)
    word = words[1].lower()
    if word == b"encoding":
        return replies.text("stream" if kind == "stream" else "raw")
    return replies.integer(int(word == b"refcount"))


def memory_usage(session: ClientState, words: list[bytes], now: int) -> Reply:
    """MEMORY USAGE key [SAMPLES n]."""
    if len(words) > 3:
        if len(words) != 5 or words[3].upper() != b"SAMPLES":
            raise errors.syntax_error()
        integer(words[4])
    stream = session.context.find(words[2], session.database)
    if stream is None:
        return replies.null(session.protocol)
    stream.topic.write_pending(now=now)
    return replies.integer(max(stream.log.bytes, 1))


def flush(session: ClientState, words: list[bytes], now: int) -> Reply:
    """FLUSHDB and FLUSHALL: delete every stream, if the operator permits it."""
    if len(words) > 2 or (len(words) == 2 and words[1].upper() not in (b"ASYNC", b"SYNC")):
        raise errors.syntax_error()
    if not session.broker.options.redis_flush:
        raise ErrorReply(
            f"ERR {words[0].decode('latin-1').upper()} is not permitted here: delete streams one by one, or start nsqd "
            "with --redis-flush"
        )
    databases = [session.database] if words[0].upper() == b"FLUSHDB" else range(16)
    for database in databases:
        for _, topic in list(session.context.streams(database)):
            session.broker.delete_topic(topic.name)
        session.context.locks.clear(database)
    return replies.OK


def _matching(session: ClientState, pattern: bytes | None, now: int, kind: bytes | None = None) -> list[bytes]:
    """Return the keys that the client sees and that match a pattern; all of them without one."""
    found = list(_visible(session, now, kind))
    if pattern in (None, b"*"):
        return found
    assert pattern is not None
    compiled = compile_pattern(pattern)
    return [key for key in found if compiled.fullmatch(key)]


def compile_pattern(pattern: bytes) -> re.Pattern[bytes]:
    """Return a pattern of KEYS as a regular expression: `*`, `?`, `[a-z]`, `[^a]` and `\\` before a plain byte.

    The part behind a `*` is matched where it comes first and never tried elsewhere: that suffices, and no pattern takes
    long. Raises `ErrorReply`.
    """
    if len(pattern) > _LONGEST_PATTERN:
        raise ErrorReply(f"ERR a pattern may have {_LONGEST_PATTERN} bytes, this one has {len(pattern)}")
    segments: list[list[bytes]] = [[]]  # between the stars
    at = 0
    while at < len(pattern):
        byte = pattern[at : at + 1]
        at += 1
        parts = segments[-1]
        if byte == b"*":
            segments.append([])
        elif byte == b"?":
            parts.append(b".")
        elif byte == b"[":
            part, at = _bracket(pattern, at)
            parts.append(part)
        elif byte == b"\\" and at < len(pattern):
            parts.append(re.escape(pattern[at : at + 1]))
            at += 1
        else:
            parts.append(re.escape(byte))
    first, *rest = [b"".join(parts) for parts in segments]
    if not rest:
        return re.compile(first, re.DOTALL)
    middle = b"".join([b"(?>.*?%b)" % segment for segment in rest[:-1] if segment])
    return re.compile(b"%b%b.*%b" % (first, middle, rest[-1]), re.DOTALL)


def _bracket(pattern: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes that a bracket matches, as a regular expression, and where it ends in the pattern."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    chosen: set[int] = set()
    while at < len(pattern) and pattern[at : at + 1] != b"]":
        if pattern[at : at + 1] == b"\\" and at + 1 < len(pattern):
            at += 1
        if pattern[at + 1 : at + 2] == b"-" and at + 2 < len(pattern):
            low, high = sorted((pattern[at], pattern[at + 2]))
            chosen.update(range(low, high + 1))
            at += 3
        else:
            chosen.add(pattern[at])
            at += 1
    if negated:
        chosen = set(range(256)) - chosen
    body = b"".join(b"\\x%02x" % byte for byte in sorted(chosen))
    return (b"[%b]" % body if body else b"(?!)"), at + 1


# --- transactions --------------------------------------------------------------------------------------------------


def multi(session: ClientState, words: list[bytes], now: int) -> Reply:
    if session.queue is not None:
        raise ErrorReply("ERR MULTI calls can not be nested")
    session.begin_queue()
    return replies.OK


def execute(session: ClientState, words: list[bytes], now: int) -> Reply:
    """EXEC."""
    if session.queue is None:
        raise ErrorReply("ERR EXEC without MULTI")
    failed = session.queue_failed
    touched = any(state(session, *watched, now) != before for watched, before in session.watched.items())
    session.watched.clear()
    if failed or touched:
        session.discard()
        if failed:
            raise ErrorReply("EXECABORT Transaction discarded because of previous errors.")
        return replies.null_array(session.protocol)
    return session.execute(now)


def discard(session: ClientState, words: list[bytes], now: int) -> Reply:
    if session.queue is None:
        raise ErrorReply("ERR DISCARD without MULTI")
    session.discard()
    return replies.OK


def watch(session: ClientState, words: list[bytes], now: int) -> Reply:
    """WATCH key .."""
    if session.queue is not None:
        raise ErrorReply("ERR WATCH inside MULTI is not allowed")
    if len(session.watched) + len(words) - 1 > _MAX_WATCHED:
        raise ErrorReply(f"ERR a client may watch {_MAX_WATCHED} keys at a time")
    for key in words[1:]:
        session.watched.setdefault((session.database, key), state(session, session.database, key, now))
    return replies.OK


def unwatch(session: ClientState, words: list[bytes], now: int) -> Reply:
    session.watched.clear()
    return replies.OK


def state(session: ClientState, database: int, key: bytes, now: int) -> object:
    """Return something that is another thing once anybody has changed a stream or a lock."""
    stream = session.context.find(key, database)
    if stream is None:
        lock = session.context.locks.find(database, key, now)
        return None if lock is None else (lock.token, lock.end)
    topic = stream.topic
    groups = tuple((name, channel.cursor) for name, channel in topic.channels.items())
    return topic.log.identity, topic.log.next, topic.deleted.version, groups
