"""The words of commands about connections and keys: HELLO, AUTH, CLIENT, SCAN."""

from __future__ import annotations

from typing import Final

from lapwing.records import dataclass
from lapwing.wire.resp import errors
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.numbers import integer, maybe_integer

_CLIENT_TYPES: Final = frozenset({b"normal", b"master", b"slave", b"replica", b"pubsub"})


@dataclass(slots=True)
class Hello:
    """HELLO."""

    protocol: int | None = None
    user: bytes | None = None
    password: bytes = b""
    name: bytes | None = None


@dataclass(slots=True)
class Scan:
    """SCAN."""

    pattern: bytes | None = None
    type: bytes | None = None


@dataclass(slots=True)
class ClientFilter:
    """The connections that CLIENT LIST or CLIENT KILL is about."""

    ids: frozenset[int] | None = None
    type: bytes | None = None
    address: bytes | None = None
    local_address: bytes | None = None
    user: bytes | None = None
    max_age: int | None = None  # s
    skip_me: bool = True


def parse_hello(words: list[bytes]) -> Hello:
    """Return the meaning of `HELLO [version [AUTH user password] [SETNAME name]]`. Raises `ErrorReply`."""
    hello = Hello()
    if len(words) > 1:
        hello.protocol = integer(words[1], "ERR Protocol version is not an integer or out of range")
        if hello.protocol not in (2, 3):
            raise ErrorReply("NOPROTO unsupported protocol version")
    at = 2
    while at < len(words):
        word, more = words[at].upper(), len(words) - at - 1
        if word == b"AUTH" and more >= 2:
            hello.user, hello.password = words[at + 1], words[at + 2]
            at += 3
        elif word == b"SETNAME" and more:
            hello.name = words[at + 1]
            check_label(hello.name, "Client names")
            at += 2
        else:
            raise ErrorReply(f"ERR Syntax error in HELLO option '{errors.text(words[at])}'")
    return hello


def check_label(label: bytes, what: str) -> None:
    """Raise `ErrorReply` for a name that would break the lines of CLIENT LIST."""
    if any(not 33 <= byte <= 126 for byte in label):
        raise ErrorReply(f"ERR {what} cannot contain spaces, newlines or special characters.")


def parse_scan(words: list[bytes]) -> Scan:
    """Return the meaning of `SCAN cursor [MATCH p] [COUNT n] [TYPE t]`. Raises `ErrorReply`."""
    if not words[1].isdigit() or int(words[1]) >= 2**64:
        raise ErrorReply("ERR invalid cursor")
    scan = Scan()
    for at in range(2, len(words), 2):
        word = words[at].upper()
        if at + 1 == len(words):
            raise errors.syntax_error()
        if word == b"COUNT":
            if integer(words[at + 1]) < 1:
                raise errors.syntax_error()
        elif word == b"MATCH":
            scan.pattern = words[at + 1]
        elif word == b"TYPE":
            scan.type = words[at + 1].lower()
        else:
            raise errors.syntax_error()
    return scan


def parse_client_list(words: list[bytes]) -> ClientFilter:
    """Return the meaning of `CLIENT LIST [TYPE t | ID n ..]`. Raises `ErrorReply`."""
    if len(words) == 2:
        return ClientFilter()
    word = words[2].upper()
    if word == b"TYPE" and len(words) == 4:
        return ClientFilter(type=_client_type(words[3]))
    if word == b"ID" and len(words) > 3:
        numbers = [maybe_integer(each) for each in words[3:]]
        if any(number is None for number in numbers):
            raise ErrorReply("ERR Invalid client ID")
        return ClientFilter(ids=frozenset(number for number in numbers if number is not None))
    raise errors.syntax_error()


def parse_client_kill(words: list[bytes]) -> ClientFilter:
    """Return the meaning of `CLIENT KILL addr:port` or `CLIENT KILL filter value ..`. Raises `ErrorReply`."""
    if len(words) == 3:
        return ClientFilter(address=words[2], skip_me=False)
    chosen = ClientFilter()
    for at in range(2, len(words), 2):
        if at + 1 == len(words):
            raise errors.syntax_error()
        word, value = words[at].upper(), words[at + 1]
        if word == b"ID":
            number = maybe_integer(value)
            if number is None or number < 1:
                raise ErrorReply("ERR client-id should be greater than 0")
            chosen.ids = frozenset([number])
        elif word == b"TYPE":
            chosen.type = _client_type(value)
        elif word == b"ADDR":
            chosen.address = value
        elif word == b"LADDR":
            chosen.local_address = value
        elif word == b"USER":
            chosen.user = value
        elif word == b"MAXAGE":
            chosen.max_age = integer(value)
        elif word == b"SKIPME" and value.upper() in (b"YES", b"NO"):
            chosen.skip_me = value.upper() == b"YES"
        else:
            raise errors.syntax_error()
    return chosen


def _client_type(word: bytes) -> bytes:
    if word.lower() not in _CLIENT_TYPES:
        raise ErrorReply(f"ERR Unknown client type '{errors.text(word)}'")
    return word.lower()
