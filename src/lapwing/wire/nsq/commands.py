"""The commands of a client."""

import struct
from collections.abc import Iterable
from typing import Final

from lapwing.records import dataclass
from lapwing.wire.nsq.json import compact_json
from lapwing.wire.nsq.quoting import percent_encoded

MAGIC: Final = b"  V2"

LONGEST_ERROR: Final = 4096  # bytes of a consumer's error text

_MILLISECOND: Final = 1_000_000  # ns
_INT32: Final = struct.Struct(">i")


def _with_body(line: bytes, body: bytes) -> bytes:
    return b"".join((line, _INT32.pack(len(body)), body))


@dataclass(slots=True)
class Identify:
    """The identity of the client and the features it asks for, in JSON."""

    body: bytes

    def encode(self) -> bytes:
        return _with_body(b"IDENTIFY\n", self.body)


@dataclass(slots=True)
class Auth:
    """The secret that the auth server knows the client by."""

    secret: bytes

    def encode(self) -> bytes:
        return _with_body(b"AUTH\n", self.secret)


@dataclass(slots=True)
class Sub:
    """Consume a channel of a topic."""

    topic: str
    channel: str

    def encode(self) -> bytes:
        return f"SUB {self.topic} {self.channel}\n".encode("ascii")


@dataclass(slots=True)
class Pub:
    """Publish one message."""

    topic: str
    body: bytes

    def encode(self) -> bytes:
        return _with_body(f"PUB {self.topic}\n".encode("ascii"), self.body)


@dataclass(slots=True)
class Mpub:
    """Publish many messages, all or none."""

    topic: str
    body: bytes  # their count, then the size and the bytes of each

    @classmethod
    def of(cls, topic: str, bodies: Iterable[bytes]) -> "Mpub":
        """Return the command that publishes `bodies` in this order."""
        return cls(topic, batch(bodies))

    def encode(self) -> bytes:
        return _with_body(f"MPUB {self.topic}\n".encode("ascii"), self.body)


def batch(bodies: Iterable[bytes]) -> bytes:
    """Join bodies into the body of an MPUB."""
    pieces = [b""]
    for body in bodies:
        pieces += (_INT32.pack(len(body)), body)
    pieces[0] = _INT32.pack(len(pieces) // 2)
    return b"".join(pieces)


def bodies(batch: bytes) -> list[bytes]:
    """Split the body of an MPUB that was checked before into bodies."""
    found = []
    at = 4
    while at < len(batch):
        (size,) = _INT32.unpack_from(batch, at)
        found.append(batch[at + 4 : at + 4 + size])
        at += 4 + size
    return found


@dataclass(slots=True)
class Dpub:
    """Publish one message that is delivered only after a while."""

    topic: str
    delay: int  # ns
    body: bytes

    def encode(self) -> bytes:
        return _with_body(f"DPUB {self.topic} {self.delay // _MILLISECOND}\n".encode("ascii"), self.body)


@dataclass(slots=True)
class Hpub:
    """Publish one message with headers, perhaps delivered only after a while; lawful once IDENTIFY grants `headers`."""

    topic: str
    delay: int  # ns; 0: none
    body: bytes  # length of the headers, the headers as JSON, and the bytes of the message

    @classmethod
    def of(cls, topic: str, headers: bytes, body: bytes, *, delay: int = 0) -> "Hpub":
        """Return the command that publishes `body` with `headers`, which are JSON or nothing."""
        return cls(topic, delay, b"".join((_INT32.pack(len(headers)), headers, body)))

    def encode(self) -> bytes:
        delay = f" {self.delay // _MILLISECOND}" if self.delay else ""
        return _with_body(f"HPUB {self.topic}{delay}\n".encode("ascii"), self.body)


@dataclass(slots=True)
class Hmpub:
    """Publish many messages with headers, all or none; lawful once IDENTIFY grants `headers`."""

    topic: str
    body: bytes  # their count, then the size and the body, as that of an HPUB, of each

    @classmethod
    def of(cls, topic: str, messages: Iterable[tuple[bytes, bytes]]) -> "Hmpub":
        """Return the command that publishes messages, each as (headers, body), in this order."""
        pieces = [b""]
        for headers, body in messages:
            pieces += (_INT32.pack(4 + len(headers) + len(body)), _INT32.pack(len(headers)), headers, body)
        pieces[0] = _INT32.pack(len(pieces) // 4)
        return cls(topic, b"".join(pieces))

    def encode(self) -> bytes:
        return _with_body(f"HMPUB {self.topic}\n".encode("ascii"), self.body)


@dataclass(slots=True)
class Rdy:
    """Set how many messages may be in flight to the client at once."""

    count: int

    def encode(self) -> bytes:
        return b"RDY %d\n" % self.count


@dataclass(slots=True)
class Fins:
    """A run of finished messages: the very lines, `FIN <id>` and a line feed each."""

    block: bytes

    @classmethod
    def of(cls, ids: Iterable[bytes]) -> "Fins":
        """Return the run that finishes `ids` in this order."""
        return cls(b"".join([b"FIN %b\n" % message_id for message_id in ids]))

    def encode(self) -> bytes:
        return self.block


@dataclass(slots=True)
class Fin:
    """One message is finished; to the broker's end it is a run of one."""

    id: bytes

    def encode(self) -> bytes:
        return b"FIN %b\n" % self.id


@dataclass(slots=True)
class Req:
    """Deliver a message again after a while: it failed, or (`free`) the consumer releases it through no fault of its.

    A server that knows neither `free` nor `error` ignores them.
    """

    id: bytes
    delay: int  # ns
    free: bool = False
    error: str = ""  # what went wrong, for people

    def encode(self) -> bytes:
        line = b"REQ %b %d" % (self.id, self.delay // _MILLISECOND)
        if self.free:
            line += b" free"
        elif self.error:
            line += b" error=" + percent_encoded(shorten(self.error))
        return line + b"\n"


@dataclass(slots=True)
class Rej:
    """Give a message up for good: no consumer shall get it again. Lawful once IDENTIFY has granted `reject`."""

    id: bytes
    body: bytes  # JSON: `reason` and `error`

    @classmethod
    def of(cls, message_id: bytes, reason: str, error: str = "") -> "Rej":
        """Return the command that rejects a message for a reason."""
        members = {"reason": shorten(reason).decode(), "error": shorten(error).decode()}
        return cls(message_id, compact_json({key: text for key, text in members.items() if text}))

    def encode(self) -> bytes:
        return _with_body(b"REJ %b\n" % self.id, self.body)


def shorten(text: str) -> bytes:
    """Return at most 4 KiB of a text as UTF-8, without half a character at its end."""
    raw = text.encode("utf-8", "replace")
    return raw if len(raw) <= LONGEST_ERROR else raw[:LONGEST_ERROR].decode("utf-8", "ignore").encode()


@dataclass(slots=True)
class Touch:
    """Restart the timeout of a message that needs more time."""

    id: bytes

    def encode(self) -> bytes:
        return b"TOUCH %b\n" % self.id


@dataclass(slots=True)
class Cls:
    """No more messages, please; those in flight are still answered for."""

    def encode(self) -> bytes:
        return b"CLS\n"


@dataclass(slots=True)
class Nop:
    """Nothing but a sign of life."""

    def encode(self) -> bytes:
        return b"NOP\n"


@dataclass(slots=True)
class Reqs:
    """A run of failed messages, delivered again after the same while."""

    ids: list[bytes]
    delay: int  # ns

    def encode(self) -> bytes:
        return b"".join([Req(message_id, self.delay).encode() for message_id in self.ids])


Command = (
    Identify | Auth | Sub | Pub | Mpub | Dpub | Hpub | Hmpub | Rdy | Fins | Fin | Req | Reqs | Rej | Touch | Cls | Nop
)

WORDS: Final[dict[bytes, type[Command]]] = {
    b"IDENTIFY": Identify, b"AUTH": Auth, b"SUB": Sub, b"PUB": Pub, b"MPUB": Mpub, b"DPUB": Dpub, b"RDY": Rdy,
    b"FIN": Fin, b"REQ": Req, b"TOUCH": Touch, b"CLS": Cls, b"NOP": Nop,
}  # fmt: skip  # REJ, HPUB and HMPUB are no words unless they were negotiated
