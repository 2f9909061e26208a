"""Commands about the connection and the server: HELLO, AUTH, CLIENT, CONFIG, WAIT and their kin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lapwing.sessions.redis import info as redis_info
from lapwing.sessions.redis.client_state import ClientState, Wait
from lapwing.sessions.redis.context import VERSION
from lapwing.sessions.redis.keys import compile_pattern
from lapwing.sessions.redis.replies import Reply
from lapwing.sessions.replies import Slot
from lapwing.wire.resp import errors, keys, replies
from lapwing.wire.resp.arguments import integer, timeout
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.parse_server import (
    ClientFilter,
    Hello,
    check_label,
    parse_client_kill,
    parse_client_list,
    parse_hello,
)
from lapwing.wire.resp.requests import LONGEST_WORD

_MAX_PATTERNS: Final = 66  # words of CONFIG GET
_MS: Final = 1_000_000  # ns
_SECOND: Final = 1_000_000_000  # ns

_NO_PASSWORD: Final = (
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration "
    "is correct?"
)
_HELLO_FIRST: Final = (
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> "
    "option can be used to authenticate the client and select the RESP protocol version at the same time"
)


# --- the conversation ----------------------------------------------------------------------------------------------


def ping(session: ClientState, words: list[bytes], now: int) -> Reply:
    """PING [message]."""
    if len(words) > 2:
        raise errors.wrong_arity("ping")
    return replies.bulk(words[1]) if len(words) == 2 else replies.PONG


def echo(session: ClientState, words: list[bytes], now: int) -> Reply:
    return replies.bulk(words[1])


def leave(session: ClientState, words: list[bytes], now: int) -> Reply:
    """QUIT."""
    session.quit()
    return replies.OK


def reset(session: ClientState, words: list[bytes], now: int) -> Reply:
    """RESET: the connection is as a new one."""
    session.reset()
    return replies.simple("RESET")


def select(session: ClientState, words: list[bytes], now: int) -> Reply:
    """SELECT index."""
    number = integer(words[1])
    if not 0 <= number < keys.DATABASES:
        raise ErrorReply("ERR DB index is out of range")
    session.select(number)
    return replies.OK


def hello(session: ClientState, words: list[bytes], now: int) -> Reply:
    """HELLO [version [AUTH user password] [SETNAME name]]."""
    asked = parse_hello(words)
    if asked.user is None:
        if not session.authenticated:
            raise ErrorReply(_HELLO_FIRST)
        return _welcome(session, asked)
    if session.authenticate is None:
        _check_open(asked.user)
        return _welcome(session, asked)
    return _ask(session, "hello", asked.password, lambda: _welcome(session, asked))


def _welcome(session: ClientState, asked: Hello) -> bytes:
    session.introduce(asked.name, protocol=asked.protocol)
    return replies.fields(
        [
            ("server", replies.text("redis")),
            ("version", replies.text(VERSION)),
            ("proto", replies.integer(session.protocol)),
            ("id", replies.integer(session.id)),
            ("mode", replies.text("standalone")),
            ("role", replies.text("master")),
            ("modules", replies.EMPTY),
        ],
        session.protocol,
    )


def authenticate(session: ClientState, words: list[bytes], now: int) -> Reply:
    """AUTH [user] password."""
    if len(words) > 3:
        raise errors.syntax_error()
    if session.authenticate is None:
        if len(words) == 2:
            raise ErrorReply(_NO_PASSWORD)
        _check_open(words[1])
        return replies.OK
    return _ask(session, "auth", words[-1], lambda: replies.OK)


def _check_open(user: bytes) -> None:
    """Accept any password of the default user where no client needs one."""
    if user != b"default":
        raise ErrorReply(errors.WRONG_PASS)


def _ask(session: ClientState, command: str, password: bytes, then: Callable[[], bytes]) -> Slot:
    """Have the door ask what the client may do; `grant` or `deny` of the session is called with the answer."""
    assert session.authenticate is not None
    slot = session.begin_wait(Wait(Slot(session.sink), command))
    session.ask(password, then)
    return slot


# --- CLIENT --------------------------------------------------------------------------------------------------------


def get_name(session: ClientState, words: list[bytes], now: int) -> Reply:
    """CLIENT GETNAME."""
    return replies.bulk(session.peer.name) if session.peer.name else replies.null(session.protocol)


def set_name(session: ClientState, words: list[bytes], now: int) -> Reply:
    """CLIENT SETNAME name."""
    check_label(words[2], "Client names")
    session.introduce(words[2])
    return replies.OK


def set_info(session: ClientState, words: list[bytes], now: int) -> Reply:
    """CLIENT SETINFO <LIB-NAME | LIB-VER> text."""
    word = words[2].upper()
    if word not in (b"LIB-NAME", b"LIB-VER"):
        raise ErrorReply(f"ERR Unrecognized option '{errors.text(words[2])}'")
    check_label(words[3], word.decode())
    session.peer.note_library(words[3][:256], version=word == b"LIB-VER")
    return replies.OK


def client_id(session: ClientState, words: list[bytes], now: int) -> Reply:
    return replies.integer(session.id)


def client_info(session: ClientState, words: list[bytes], now: int) -> Reply:
    return replies.verbatim(redis_info.client_line(session, now=now), session.protocol)


def client_list(session: ClientState, words: list[bytes], now: int) -> Reply:
    """CLIENT LIST [TYPE type | ID id ..]."""
    lines = [redis_info.client_line(each, now=now) for each in _chosen(session, parse_client_list(words), now)]
    return replies.verbatim("".join(lines), session.protocol)


def client_kill(session: ClientState, words: list[bytes], now: int) -> Reply:
    """CLIENT KILL addr:port, or with filters."""
    asked = parse_client_kill(words)
    chosen = [each for each in _chosen(session, asked, now) if each is not session or not asked.skip_me]
    if len(words) == 3 and not chosen:
        raise ErrorReply("ERR No such client")
    for each in chosen:
        if each is session:
            session.quit()
        else:
            each.hang_up()
    return replies.OK if len(words) == 3 else replies.integer(len(chosen))


def _chosen(session: ClientState, asked: ClientFilter, now: int) -> list[ClientState]:
    def wanted(each: ClientState) -> bool:
        return (
            (asked.ids is None or each.id in asked.ids)
            and asked.type in (None, b"normal")
            and asked.address in (None, each.peer.address.encode())
            and asked.local_address in (None, each.peer.local_address.encode())
            and asked.user in (None, each.user.encode())
            and (asked.max_age is None or now - each.peer.connected >= asked.max_age * _SECOND)
        )

    return [each for each in session.context.sessions.values() if wanted(each)]


def switch(session: ClientState, words: list[bytes], now: int) -> Reply:
    """CLIENT NO-EVICT and CLIENT NO-TOUCH <ON | OFF>."""
    if words[2].upper() not in (b"ON", b"OFF"):
        raise errors.syntax_error()
    return replies.OK


def reply_mode(session: ClientState, words: list[bytes], now: int) -> Reply:
    """CLIENT REPLY <ON | OFF | SKIP>."""
    word = words[2].upper()
    if word in (b"ON", b"OFF"):
        session.mute(word == b"OFF")
    elif word == b"SKIP":
        session.skip_replies(2)  # of this command and the next
    else:
        raise errors.syntax_error()
    return replies.OK


def unblock(session: ClientState, words: list[bytes], now: int) -> Reply:
    """CLIENT UNBLOCK id [TIMEOUT | ERROR]."""
    mode = words[3].upper() if len(words) > 3 else b"TIMEOUT"
    if mode not in (b"TIMEOUT", b"ERROR") or len(words) > 4:
        raise ErrorReply("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
    other = session.context.sessions.get(integer(words[2]))
    if other is None or other.wait is None or not other.wait.on_timeout:
        return replies.integer(0)
    error = replies.error("UNBLOCKED client unblocked via CLIENT UNBLOCK")
    other.end_wait(error if mode == b"ERROR" else other.wait.on_timeout)
    return replies.integer(1)


# --- the server ----------------------------------------------------------------------------------------------------


def info(session: ClientState, words: list[bytes], now: int) -> Reply:
    """INFO [section ..]."""
    sections = [word.decode("latin-1").lower() for word in words[1:]]
    return replies.verbatim(redis_info.info(session.context, sections, now=now), session.protocol)


def time(session: ClientState, words: list[bytes], now: int) -> Reply:
    seconds, rest = divmod(now + session.broker.skew, _SECOND)
    return replies.bulks([b"%d" % seconds, b"%d" % (rest // 1000)])


def who_am_i(session: ClientState, words: list[bytes], now: int) -> Reply:
    """ACL WHOAMI."""
    return replies.text(session.user)


def cluster(session: ClientState, words: list[bytes], now: int) -> Reply:
    """CLUSTER: there is none."""
    raise ErrorReply("ERR This instance has cluster support disabled")


def wait(session: ClientState, words: list[bytes], now: int) -> Reply:
    """WAIT replicas ms: there are no replicas, so the time passes if any are asked for."""
    wanted, patience = integer(words[1]), timeout(words[2])
    nobody = replies.integer(0)
    if wanted <= 0 or session.in_transaction:
        return nobody
    deadline = now + patience * _MS if patience else None
    return session.begin_wait(Wait(Slot(session.sink), "wait", deadline, nobody))


def wait_aof(session: ClientState, words: list[bytes], now: int) -> Reply:
    """WAITAOF local replicas ms: with `fsync` all that was answered is synced; there are no replicas."""
    local, wanted = integer(words[1]), integer(words[2])
    patience = timeout(words[3])
    if local < 0 or local > 1 or wanted < 0:
        raise errors.not_an_integer()
    kept = session.broker.options.answers_wait
    if local and not kept:
        raise ErrorReply("ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.")
    reached = replies.array([replies.integer(int(kept)), replies.integer(0)])
    if not wanted or session.in_transaction:
        return reached
    deadline = now + patience * _MS if patience else None
    return session.begin_wait(Wait(Slot(session.sink), "waitaof", deadline, reached))


def config_get(session: ClientState, words: list[bytes], now: int) -> Reply:
    """CONFIG GET pattern .."""
    known = settings(session)
    if len(words) > _MAX_PATTERNS:
        raise ErrorReply(f"ERR CONFIG GET takes {_MAX_PATTERNS - 2} patterns at a time")
    patterns = [compile_pattern(word.lower()) for word in words[2:]]
    found = [(name, value) for name, value in known.items() if any(each.fullmatch(name.encode()) for each in patterns)]
    return replies.mapping([(replies.text(name), replies.text(value)) for name, value in found], session.protocol)


def config_set(session: ClientState, words: list[bytes], now: int) -> Reply:
    """CONFIG SET name value ..: known names are accepted, without an effect."""
    if len(words) % 2:
        raise errors.wrong_arity("config|set")
    known = settings(session)
    for word in words[2::2]:
        if word.decode("latin-1").lower() not in known:
            name = errors.text(word)
            raise ErrorReply(f"ERR Unknown option or number of arguments for CONFIG SET - '{name}'")
    return replies.OK


def settings(session: ClientState) -> dict[str, str]:
    """Return what CONFIG GET shows: what clients ask for, in terms of this broker."""
    options = session.broker.options
    return {
        "appendfsync": "always" if options.answers_wait else "everysec",
        "appendonly": "yes" if options.answers_wait else "no",  # as WAITAOF has it
        "databases": str(keys.DATABASES),
        "maxclients": str(options.max_connections or 10000),
        "maxmemory": "0",
        "maxmemory-policy": "noeviction",
        "notify-keyspace-events": "",
        "port": str(session.context.facts().port),
        "proto-max-bulk-len": str(min(options.max_body_size, LONGEST_WORD)),
        "replica-read-only": "yes",
        "save": "",
        "slave-read-only": "yes",
        "stream-node-max-bytes": "4096",
        "stream-node-max-entries": "100",
        "timeout": "0",
    }
