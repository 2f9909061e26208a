"""The words of commands about connections and keys: HELLO, AUTH, CLIENT, SCAN."""

from __future__ import annotations

from typing import Final

from lapwing.records import dataclass
from lapwing.wire.resp import errors
from lapwing.wire.resp.arguments import Options, integer, maybe_integer
from lapwing.wire.resp.errors import ErrorReply

_CLIENT_TYPES: Final = frozenset({b"normal", b"master", b"slave", b"replica", b"pubsub"})


@dataclass(slots=True)
class Hello:
    protocol: int | None = None
    user: bytes | None = None
    password: bytes = b""
    name: bytes | None = None


@dataclass(slots=True)
class Scan:
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
    options = Options(words, 2)
    for word in options:
        if word == b"AUTH" and options.left >= 2:
            hello.user, hello.password = options.take(), options.take()
        elif word == b"SETNAME" and options.left:
            hello.name = options.take()
            check_label(hello.name, "Client names")
        else:
            raise ErrorReply(f"ERR Syntax error in HELLO option '{errors.text(options.word)}'")
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
    options = Options(words, 2)
    for word in options:
        if not options.left:
            raise errors.syntax_error()
        if word == b"COUNT":
            options.integer(least=1, too_small=errors.syntax_error().line)
        elif word == b"MATCH":
            scan.pattern = options.take()
        elif word == b"TYPE":
            scan.type = options.take().lower()
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
    options = Options(words, 2)
    for word in options:
        if not options.left:
            raise errors.syntax_error()
        if word == b"ID":
            chosen.ids = frozenset([options.positive("ERR client-id should be greater than 0")])
        elif word == b"TYPE":
            chosen.type = _client_type(options.take())
        elif word == b"ADDR":
            chosen.address = options.take()
        elif word == b"LADDR":
            chosen.local_address = options.take()
        elif word == b"USER":
            chosen.user = options.take()
        elif word == b"MAXAGE":
            chosen.max_age = options.integer()
        elif word == b"SKIPME" and (answer := options.take().upper()) in (b"YES", b"NO"):
            chosen.skip_me = answer == b"YES"
        else:
            raise errors.syntax_error()
    return chosen


def _client_type(word: bytes) -> bytes:
    if word.lower() not in _CLIENT_TYPES:
        raise ErrorReply(f"ERR Unknown client type '{errors.text(word)}'")
    return word.lower()
