"""Parse the line of a command and the size of its body; answer each mistake in NSQ's words."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lapwing import kernel, names
from lapwing.errors import ProtocolError
from lapwing.ids import LENGTH as ID_LENGTH
from lapwing.records import dataclass
from lapwing.wire.nsq.commands import (
    WORDS,
    Auth,
    Cls,
    Command,
    Dpub,
    Fins,
    Hmpub,
    Hpub,
    Identify,
    Mpub,
    Nop,
    Pub,
    Rdy,
    Rej,
    Req,
    Sub,
    Touch,
    shorten,
)
from lapwing.wire.nsq.json import JsonKind, read_members
from lapwing.wire.nsq.limits import Limits
from lapwing.wire.nsq.quoting import percent_decoded, quoted, raw
from lapwing.wire.nsq.state import LEGAL, State

if TYPE_CHECKING:
    from lapwing.wire.nsq.connection import BrokerConnection

_MILLISECOND: Final = 1_000_000  # ns
_WORD: Final = 1 << 64
_SIGN: Final = 1 << 63
_TELLING: Final = 64  # digits: 10 ** 64 is a multiple of 2 ** 64, so whatever stands before them does not count
_KNOWN_LINES: Final = 8192
_LONGEST_PUB: Final = len("PUB ") + names.LONGEST + 1  # bytes; surplus words do not make a line worth keeping

Authorize = Callable[[str, str, str], None]  # command word, topic, channel; raises ProtocolError


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a command: its field, its limit, and the words for its errors."""

    word: str
    field: str = "body"
    code: str = "E_BAD_BODY"
    noun: str = "body"
    big: str = "body"
    message: bool = False  # a single message: the smaller limit holds
    most: int = 1 << 31  # bytes, if that is less than the limit
    beside: int = 0  # bytes that a message may have beside its body

    def limit(self, limits: Limits) -> int:
        return min(limits.max_message + self.beside if self.message else limits.max_body, self.most)

    def refusal(self, size: int, limits: Limits) -> ProtocolError:
        if size <= 0:
            return ProtocolError(self.code, f"{self.word} invalid {self.noun} size {size}")
        most = self.limit(limits) - self.beside
        return ProtocolError(self.code, f"{self.word} {self.big} too big {size} > {most}")

    def unread_size(self) -> ProtocolError:
        return ProtocolError(self.code, f"{self.word} failed to read {self.noun} size")

    def unread(self) -> ProtocolError:
        return ProtocolError(self.code, f"{self.word} failed to read {self.noun}")


MPUB: Final = Body("MPUB")
_BODIES: Final[dict[bytes, Body]] = {
    b"IDENTIFY": Body("IDENTIFY"),
    b"AUTH": Body("AUTH", field="secret"),
    b"PUB": Body("PUB", code="E_BAD_MESSAGE", noun="message body", big="message", message=True),
    b"DPUB": Body("DPUB", code="E_BAD_MESSAGE", noun="message body", big="message", message=True),
    b"MPUB": MPUB,
}


KNOWN_PUBS: Final[dict[bytes, str]] = {}  # topics by whole PUB lines that were found good; no others ever get in
NO_PUBS: Final[dict[bytes, str]] = {}  # for a connection that may not publish yet


def remember_pub(line: bytes, topic: str) -> None:
    """Keep the line of a PUB, so that the next one like it needs no parsing."""
    if len(KNOWN_PUBS) >= _KNOWN_LINES:
        KNOWN_PUBS.clear()
    if len(line) <= _LONGEST_PUB:
        KNOWN_PUBS[line] = topic


def decimal(raw: bytes) -> int | None:
    """Return the unsigned number in ASCII digits, modulo 2 ** 64; None for anything else. No digits are 0."""
    if raw.isdigit():
        return int(raw[-_TELLING:]) % _WORD
    return None if raw else 0


def signed(number: int) -> int:
    """Return the lowest 64 bits of `number` as a signed integer."""
    number %= _WORD
    return number - _WORD if number >= _SIGN else number


def nanoseconds(milliseconds: int) -> int:
    """Milliseconds as signed nanoseconds; what does not fit wraps around, as it does in NSQ."""
    return signed(milliseconds * _MILLISECOND)


def _name(name: bytes) -> str | None:
    """Return the name as text; None if it is not valid."""
    return name.decode("ascii") if names.valid(name) else None


def _topic(word: str, words: list[bytes], needed: int = 1) -> str:
    if len(words) <= needed:
        raise ProtocolError("E_INVALID", f"{word} insufficient number of parameters")
    topic = _name(words[1])
    if topic is None:
        raise ProtocolError("E_BAD_TOPIC", f"{word} topic name {quoted(words[1])} is not valid")
    return topic


def _message_id(word: str, words: list[bytes], needed: int = 1) -> bytes:
    if len(words) <= needed:
        raise ProtocolError("E_INVALID", f"{word} insufficient number of params")
    if len(words[1]) != ID_LENGTH:
        raise ProtocolError("E_INVALID", "invalid message ID")
    return words[1]


def _delay(word: str, digits: bytes) -> int:
    milliseconds = decimal(digits)
    if milliseconds is None:
        raise ProtocolError("E_INVALID", f"{word} could not parse timeout {raw(digits)}")
    return milliseconds


def _auth(on: BrokerConnection, words: list[bytes]) -> Command:
    if len(words) != 1:
        raise ProtocolError("E_INVALID", "AUTH invalid number of parameters")
    return Auth(b"")


def _sub(on: BrokerConnection, words: list[bytes]) -> Command:
    if not on.heartbeats:
        raise ProtocolError("E_INVALID", "cannot SUB with heartbeats disabled")
    topic = _topic("SUB", words, needed=2)
    channel = _name(words[2])
    if channel is None:
        raise ProtocolError("E_BAD_CHANNEL", f"SUB channel name {quoted(words[2])} is not valid")
    return Sub(topic, channel)


def _mpub(on: BrokerConnection, words: list[bytes]) -> Command:
    try:
        topic = _topic("MPUB", words)
    except ProtocolError as error:
        if error.code != "E_BAD_TOPIC":
            raise
        raise ProtocolError(error.code, str(error)) from None  # NSQ writes this code twice
    if on.authorize is not None:
        on.authorize("MPUB", topic, "")
    return Mpub(topic, b"")


def _dpub(on: BrokerConnection, words: list[bytes]) -> Command:
    topic = _topic("DPUB", words, needed=2)
    return Dpub(topic, _deferral(on, "DPUB", words[2]), b"")


def _deferral(on: BrokerConnection, word: str, digits: bytes) -> int:
    milliseconds = _delay(word, digits)
    delay = nanoseconds(milliseconds)
    longest = on.limits.max_defer or on.limits.max_req_timeout
    if not 0 <= delay <= longest:
        text = f"{word} timeout {milliseconds} out of range 0-{longest // _MILLISECOND}"
        raise ProtocolError("E_INVALID", text)
    return delay


def _hpub(on: BrokerConnection, words: list[bytes]) -> Command:
    topic = _topic("HPUB", words)
    return Hpub(topic, _deferral(on, "HPUB", words[2]) if len(words) > 2 else 0, b"")


def _rdy(on: BrokerConnection, words: list[bytes]) -> Command:
    if on.state is State.CLOSING:
        return Nop()  # too late to matter; not even looked at
    number = 1 if len(words) < 2 else decimal(words[1])
    if number is None:
        raise ProtocolError("E_INVALID", f"RDY could not parse count {raw(words[1])}")
    count = signed(number)
    if not 0 <= count <= on.limits.max_rdy:
        raise ProtocolError("E_INVALID", f"RDY count {count} out of range 0-{on.limits.max_rdy}")
    return Rdy(count)


def _fin(on: BrokerConnection, words: list[bytes]) -> Command:
    return Fins(b"FIN %b\n" % _message_id("FIN", words))  # a line that is out of the ordinary, put in order


def _req(on: BrokerConnection, words: list[bytes]) -> Command:
    message_id = _message_id("REQ", words, needed=2)
    delay = nanoseconds(_delay("REQ", words[2]))
    delay = min(max(delay, 0), on.limits.max_req_timeout)
    if len(words) > 3:
        if words[3] == b"free":
            return Req(message_id, delay, free=True)
        if words[3].startswith(b"error="):
            error = percent_decoded(words[3][len(b"error=") :])
            return Req(message_id, delay, error=shorten(error.decode("utf-8", "replace")).decode())
    return Req(message_id, delay)


def rejection(body: bytes) -> tuple[str, str]:
    """Return the reason and the error that the body of a REJ holds. Raises `ProtocolError` when it is not JSON."""
    try:
        members = read_members(body, {"reason": JsonKind.LONG_TEXT, "error": JsonKind.LONG_TEXT})
    except ValueError as error:
        raise ProtocolError("E_BAD_BODY", "REJ failed to decode JSON body") from error
    return shorten(members.get("reason", "")).decode(), shorten(members.get("error", "")).decode()


Parse = Callable[["BrokerConnection", list[bytes]], Command]
Lawful = dict[bytes, tuple[Parse, Body | None]]

_PARSE: Final[dict[bytes, Parse]] = {
    b"IDENTIFY": lambda on, words: Identify(b""),
    b"AUTH": _auth,
    b"SUB": _sub,
    b"PUB": lambda on, words: Pub(_topic("PUB", words), b""),
    b"MPUB": _mpub,
    b"DPUB": _dpub,
    b"RDY": _rdy,
    b"FIN": _fin,
    b"REQ": _req,
    b"TOUCH": lambda on, words: Touch(_message_id("TOUCH", words)),
    b"CLS": lambda on, words: Cls(),
    b"NOP": lambda on, words: Nop(),
}
LAWFUL: Final[dict[State, Lawful]] = {
    state: {word: (parse, _BODIES.get(word)) for word, parse in _PARSE.items() if WORDS[word] in legal}
    for state, legal in LEGAL.items()
}
_REJECTING: Final[Lawful] = {
    b"REJ": (lambda on, words: Rej(_message_id("REJ", words), b""), Body("REJ", most=64 * 1024)),
}
_HPUB_BODY: Final = Body(
    "HPUB", code="E_BAD_MESSAGE", noun="message body", big="message", message=True, beside=4 + kernel.MAX_HEADERS
)
_HEADED: Final[Lawful] = {
    b"HPUB": (_hpub, _HPUB_BODY),
    b"HMPUB": (lambda on, words: Hmpub(_topic("HMPUB", words), b""), Body("HMPUB")),
}
EXTRA_WORDS: Final = {b"REJ": "reject", b"HPUB": "headers", b"HMPUB": "headers"}  # and what has to be granted first


def _granted(state: State, *, reject: bool, headers: bool) -> Lawful:
    """Return the commands that are lawful in a state once IDENTIFY has granted features."""
    lawful = LAWFUL[state]
    if reject and Req in LEGAL[state]:
        lawful = lawful | _REJECTING
    return lawful | _HEADED if headers and Pub in LEGAL[state] else lawful


LAWFUL_WITH: Final[dict[tuple[bool, bool], dict[State, Lawful]]] = {  # by whether `reject` and `headers` are granted
    (reject, headers): {state: _granted(state, reject=reject, headers=headers) for state in State}
    for reject in (False, True)
    for headers in (False, True)
}
LAWFUL_WITHOUT_TLS: Final[Lawful] = {b"IDENTIFY": LAWFUL[State.INIT][b"IDENTIFY"]}  # where TLS is required
