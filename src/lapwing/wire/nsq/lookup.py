"""The discovery protocol's few commands, for either end.

An nsqd sends the magic and then lines; nsqlookupd gives each exactly one answer, a length and as many bytes.
"""

import struct
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Final

from lapwing import names
from lapwing.errors import ProtocolError
from lapwing.records import dataclass
from lapwing.wire.nsq.connection import HangUp
from lapwing.wire.nsq.json import JsonKind, compact_json, read_members
from lapwing.wire.nsq.quoting import raw

MAGIC: Final = b"  V1"

_INT32: Final = struct.Struct(">i")
_LONGEST_LINE: Final = 16 * 1024  # bytes; NSQ has no limit, and no command comes near this one
_LONGEST_IDENTIFY: Final = 64 * 1024  # bytes; NSQ has no limit here either


def answer(payload: bytes) -> bytes:
    """Return an answer as it is sent."""
    return _INT32.pack(len(payload)) + payload


OK: Final = answer(b"OK")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInfo:
    """The identity that an nsqd and an nsqlookupd send each other."""

    broadcast_address: str = ""
    hostname: str = ""
    http_port: int = 0
    tcp_port: int = 0
    topology_region: str = ""
    topology_zone: str = ""
    version: str = ""

    @property
    def complete(self) -> bool:
        """Whether all members are there that an nsqlookupd needs."""
        return bool(self.broadcast_address and self.http_port and self.tcp_port and self.version)

    def welcome(self) -> bytes:
        """Return the payload with which an nsqlookupd answers IDENTIFY."""
        shown = ("broadcast_address", "hostname", "http_port", "tcp_port", "version")
        return compact_json({name: getattr(self, name) for name in shown})


_MEMBERS: Final = {field.name: JsonKind.INT64 if field.type is int else JsonKind.TEXT for field in fields(PeerInfo)}


def parse_peer(payload: bytes) -> PeerInfo:
    """Return the identity in an IDENTIFY or in the answer to it; raise `ValueError` if it is not JSON."""
    return PeerInfo(**read_members(payload, _MEMBERS))


@dataclass(frozen=True, slots=True)
class Identify:
    """An nsqd introduces itself."""

    peer: PeerInfo

    def encode(self) -> bytes:
        body = compact_json(asdict(self.peer))
        return b"IDENTIFY\n" + _INT32.pack(len(body)) + body


@dataclass(frozen=True, slots=True)
class Register:
    """The nsqd has this topic, or this channel of it."""

    topic: str
    channel: str = ""

    def encode(self) -> bytes:
        return _line("REGISTER", self.topic, self.channel)


@dataclass(frozen=True, slots=True)
class Unregister:
    """The nsqd no longer has this channel; without one: the topic and all its channels."""

    topic: str
    channel: str = ""

    def encode(self) -> bytes:
        return _line("UNREGISTER", self.topic, self.channel)


@dataclass(frozen=True, slots=True)
class Ping:
    """The nsqd is alive."""

    def encode(self) -> bytes:
        return b"PING\n"


Command = Identify | Register | Unregister | Ping


def _line(word: str, topic: str, channel: str) -> bytes:
    return (f"{word} {topic} {channel}\n" if channel else f"{word} {topic}\n").encode("ascii")


class LookupConnection:
    """The end of nsqlookupd: bytes of an nsqd in, its commands out.

    An error is answered with its payload, as any command is, and then the connection is closed.
    """

    __slots__ = ("_awaiting", "_data", "_greeted", "_size", "identified")

    def __init__(self) -> None:
        self.identified = False  # an IDENTIFY was handed out
        self._data = bytearray()
        self._greeted = False
        self._awaiting = False  # the body of an IDENTIFY
        self._size = -1  # of that; -1 until it can be read

    def receive(self, data: bytes) -> None:
        """Add bytes of the nsqd; `commands` parses them."""
        self._data += data

    def commands(self) -> Iterator[Command]:
        """Yield each whole command in order; raise `ProtocolError` or `HangUp` at garbage, and not before it."""
        if not self._greeted:
            if len(self._data) < len(MAGIC):
                return
            if self._take(len(MAGIC)) != MAGIC:
                raise ProtocolError("E_BAD_PROTOCOL")
            self._greeted = True
        while (command := self._next()) is not None:
            yield command

    def eof(self) -> ProtocolError | None:
        """Return the answer to an nsqd that sends no more; None if no command is unfinished."""
        if not self._awaiting:
            return None
        return ProtocolError("E_BAD_BODY", f"IDENTIFY failed to read body{' size' if self._size < 0 else ''}")

    def _take(self, count: int) -> bytes:
        taken = bytes(self._data[:count])
        del self._data[:count]
        return taken

    def _next(self) -> Command | None:
        if self._awaiting:
            return self._identify()
        end = self._data.find(b"\n", 0, _LONGEST_LINE)
        if end < 0:
            if len(self._data) >= _LONGEST_LINE:
                raise HangUp(f"no line feed within {_LONGEST_LINE} bytes")
            return None
        word, *words = self._take(end + 1).strip().split(b" ")
        if word == b"PING":
            return Ping()
        if word == b"IDENTIFY":
            if self.identified:
                raise ProtocolError("E_INVALID", "cannot IDENTIFY again")
            self._awaiting = True
            return self._identify()
        if word == b"REGISTER":
            return Register(*self._registration("REGISTER", words))
        if word == b"UNREGISTER":
            return Unregister(*self._registration("UNREGISTER", words))
        raise ProtocolError("E_INVALID", f"invalid command {raw(word)}")

    def _registration(self, word: str, words: list[bytes]) -> tuple[str, str]:
        if not self.identified:
            raise ProtocolError("E_INVALID", "client must IDENTIFY")
        if not words:
            raise ProtocolError("E_INVALID", f"{word} insufficient number of params")
        topic, channel = words[0], words[1] if len(words) > 1 else b""
        if not names.valid(topic):
            raise ProtocolError("E_BAD_TOPIC", f"{word} topic name '{raw(topic)}' is not valid")
        if channel and not names.valid(channel):
            raise ProtocolError("E_BAD_CHANNEL", f"{word} channel name '{raw(channel)}' is not valid")
        return topic.decode("ascii"), channel.decode("ascii")

    def _identify(self) -> Identify | None:
        if self._size < 0:
            if len(self._data) < 4:
                return None
            (size,) = _INT32.unpack(self._take(4))
            if size < 0:
                raise ProtocolError("E_BAD_BODY", f"IDENTIFY invalid body size {size}")
            if size > _LONGEST_IDENTIFY:
                raise ProtocolError("E_BAD_BODY", f"IDENTIFY body too big {size} > {_LONGEST_IDENTIFY}")
            self._size = size
        if len(self._data) < self._size:
            return None
        try:
            peer = parse_peer(self._take(self._size))
        except ValueError as error:
            raise ProtocolError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from error
        if not peer.complete:
            raise ProtocolError("E_BAD_BODY", "IDENTIFY missing fields")
        self._awaiting = False
        self.identified = True
        return Identify(peer)


class LookupClient:
    """The end of an nsqd: the bytes of nsqlookupd in, the payloads of its answers out."""

    __slots__ = ("_data", "_max_answer")

    def __init__(self, max_answer: int = 5 * 1024 * 1024) -> None:
        self._max_answer = max_answer  # bytes
        self._data = bytearray()

    def receive(self, data: bytes) -> None:
        """Add bytes of nsqlookupd; `answers` parses them."""
        self._data += data

    def answers(self) -> Iterator[bytes]:
        """Yield the payload of each whole answer in order; raise `ProtocolError` at one that cannot be."""
        while len(self._data) >= 4:
            (size,) = _INT32.unpack_from(self._data)
            if not 0 <= size <= self._max_answer:
                raise ProtocolError("E_BAD_BODY", f"answer of {size} bytes, 0 to {self._max_answer} accepted")
            if len(self._data) < 4 + size:
                return
            payload = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            yield payload
