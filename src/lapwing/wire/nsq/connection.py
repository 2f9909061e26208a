"""Both ends of a connection: bytes in, commands or frames out."""

import re
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final

from lapwing import kernel
from lapwing.errors import HangUp, ProtocolError
from lapwing.records import dataclass
from lapwing.wire.nsq import frames, parse_mpub
from lapwing.wire.nsq.commands import MAGIC, WORDS, Command, Fins, Nop, Pub, Req, Reqs
from lapwing.wire.nsq.limits import Limits
from lapwing.wire.nsq.parse_line import (
    EXTRA_WORDS,
    KNOWN_PUBS,
    LAWFUL_WITH,
    LAWFUL_WITHOUT_TLS,
    MPUB,
    NO_PUBS,
    Authorize,
    Body,
    remember_pub,
)
from lapwing.wire.nsq.quoting import raw
from lapwing.wire.nsq.state import NEXT, State

__all__ = [
    "BrokerConnection", "ClientConnection", "ErrorFrame", "HangUp", "Limits", "MessageRow", "Messages", "Response",
]  # fmt: skip

_SIZE: Final = Struct(">i").unpack_from
_REQ: Final = len(b"REQ ") + 16  # bytes of a line up to the end of the id
_REQUEUES: Final = re.compile(rb"REQ [0-9A-Za-z]{16}( [^\n]*\n)(?:REQ [0-9A-Za-z]{16}\1)*+")  # lines like one another
_NONE: Final = Nop()  # while no body is awaited
_HTTP: Final = int.from_bytes(b"HTTP", "big")


class BrokerConnection:
    """The broker's end: bytes of a client in, its commands out.

    The session sets what is not in the bytes: whether the connection is `secure`, whether `heartbeats` are on, what
    IDENTIFY has to `grant`, and who may publish where (`authorize`, asked for MPUB alone, as NSQ does that before it
    reads the body; the session itself asks for the other commands).
    """

    __slots__ = (
        "_at", "_command", "_content", "_data", "_finishes", "_gathered", "_headers", "_lawful", "_missing", "_over",
        "_publishes", "_reject", "_rule", "_size", "_tls", "authorize", "heartbeats", "limits", "state",
    )  # fmt: skip

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.heartbeats = True
        self.authorize: Authorize | None = None
        self._data = b""  # received, and parsed up to `_at`
        self._at = 0
        self._rule: Body | None = None  # of the command whose body is awaited, then also the next five
        self._command: Command = _NONE
        self._size = 0  # 0 until it can be read
        self._missing = 0  # bytes to gather before it is worth looking again
        self._gathered = bytearray()
        self._content: parse_mpub.Content | None = None
        self._over = False
        self._tls = False
        self._reject = False
        self._headers = False
        self._enter(State.MAGIC)  # a SUB or CLS changes the state as soon as it is handed out

    def secure(self) -> None:
        """Note that the connection is encrypted, for a broker that insists on it."""
        self._tls = True
        self._enter(self.state)

    def grant(self, *, reject: bool = False, headers: bool = False) -> None:
        """Note what IDENTIFY has granted: whether the client may send REJ, and whether HPUB and HMPUB."""
        self._reject, self._headers = reject, headers
        self._enter(self.state)

    def _enter(self, state: State) -> None:
        self.state = state
        insecure = self.limits.tls_required and not self._tls
        self._lawful = LAWFUL_WITHOUT_TLS if insecure else LAWFUL_WITH[self._reject, self._headers][state]
        self._publishes = NO_PUBS if insecure else KNOWN_PUBS
        self._finishes = b"FIN" in self._lawful

    def receive(self, data: bytes) -> None:
        """Add bytes of the client; `commands` parses them."""
        if self._at < len(self._data):
            data = self._data[self._at :] + data
        self._data = data
        self._at = 0

    def commands(self) -> Iterator[Command]:
        """Yield each whole command in order, runs of FINs or REQs as one; raise `ProtocolError` or `HangUp` at garbage.

        Lazy on purpose: what came before the garbage is carried out before the error is raised. It may be left at any
        command and taken up again later, with another call. After an error nothing more is understood.
        """
        if self._over:
            self.take_rest()
            return
        try:
            if self.state is State.MAGIC and not self._greeted():
                return
            while (command := self._next()) is not None:
                yield command
        except (ProtocolError, HangUp):
            self._over = True
            self._rule = None
            raise

    @property
    def at_rest(self) -> bool:
        """Whether the next byte begins a command, and publishes need nobody's leave."""
        return (
            self._publishes is KNOWN_PUBS
            and self._rule is None
            and self._at >= len(self._data)
            and self.state is not State.MAGIC
            and self.authorize is None
            and not self._over
        )

    def eof(self) -> ProtocolError | None:
        """Return the answer to a client that sends no more, or took too long; None if no command is unfinished."""
        rule = self._rule
        if rule is None:
            return None
        if not self._size:
            return rule.unread_size()
        if rule is not MPUB:
            return rule.unread()
        content = self._content or parse_mpub.Content(self.limits)
        return content.unread(self._gathered)

    def take_rest(self) -> bytes:
        """Return and forget the bytes that were received and not handed out."""
        rest = self._data[self._at :]
        self._data = b""
        self._at = 0
        return rest

    def _greeted(self) -> bool:
        if len(self._data) < len(MAGIC):
            return False
        if not self._data.startswith(MAGIC):
            raise ProtocolError("E_BAD_PROTOCOL")
        self._at = len(MAGIC)
        self._enter(State.INIT)
        return True

    def _next(self) -> Command | None:
        if self._rule is not None:
            return self._body()
        data, at, limits = self._data, self._at, self.limits
        if self._finishes and data.startswith(b"FIN ", at):
            end = kernel.fin_run(data, at)
            if end != at:
                self._at = end
                return Fins(data[at:end])
        end = data.find(b"\n", at, at + limits.longest_line)
        if end < 0:
            if len(data) - at >= limits.longest_line:
                raise HangUp(f"no line feed within {limits.longest_line} bytes")
            self._data = data[at:]  # so that a small rest does not hold on to much
            self._at = 0
            return None
        line = data[at:end]
        self._at = end + 1
        topic = self._publishes.get(line)
        if topic is not None and len(data) >= end + 5:  # the way of nearly every PUB
            begin = end + 5
            end = begin + _SIZE(data, end + 1)[0]
            if begin < end <= len(data) and end - begin <= limits.max_message:
                self._at = end
                return Pub(topic, data[begin:end])
        return self._command_of(line)

    def _command_of(self, line: bytes) -> Command | None:
        """Return the command in the line just passed, if it has no body or the body is there too."""
        words = (line[:-1] if line.endswith(b"\r") else line).split(b" ")
        lawful = self._lawful.get(words[0])
        if lawful is None:
            raise self._unlawful(words[0])
        parse, rule = lawful
        command = parse(self, words)
        if rule is None:
            if (state := NEXT.get(type(command))) is not None:
                self._enter(state)
            if type(command) is Req and len(words) == 3 and self._data.startswith(b"REQ ", self._at):
                return self._more_like(command, line[_REQ:] + b"\n")
            return command
        if type(command) is Pub:
            remember_pub(line, command.topic)
        self._rule, self._command, self._size, self._content = rule, command, 0, None
        return self._body()

    def _more_like(self, command: Req, tail: bytes) -> Command:
        """Return a REQ with those that follow it, as long as their lines differ in the id alone."""
        data, at, step = self._data, self._at, _REQ + len(tail)
        run = _REQUEUES.match(data, at) if data[at + _REQ : at + step] == tail else None
        if run is None:
            return command
        self._at = run.end()
        return Reqs([command.id, *[data[place : place + 16] for place in range(at + 4, self._at, step)]], command.delay)

    def _unlawful(self, word: bytes) -> ProtocolError:
        if self.limits.tls_required and not self._tls and word != b"IDENTIFY":
            return ProtocolError("E_INVALID", f"cannot {raw(word)} in current state (TLS required)")
        granted = (self._reject and word == b"REJ") or (self._headers and EXTRA_WORDS.get(word) == "headers")
        if word in WORDS or granted:
            return ProtocolError("E_INVALID", f"cannot {raw(word)} in current state")
        return ProtocolError("E_INVALID", f"invalid command {raw(word)}")

    def _body(self) -> Command | None:
        """Return the command whose body is awaited, once the body is there."""
        rule = self._rule
        assert rule is not None
        if not self._size:
            begin = self._at + 4
            if len(self._data) < begin:
                return None
            size = int.from_bytes(self._data[self._at : begin], "big", signed=True)
            if not 0 < size <= rule.limit(self.limits):
                raise rule.refusal(size, self.limits)
            self._at = begin
            self._size = self._missing = size
        body = self._batch() if rule is MPUB else self._gather()
        if body is None:
            return None
        command, self._command = self._command, _NONE  # its body may be large
        setattr(command, rule.field, body)
        self._rule = None
        return command

    def _gather(self) -> bytes | None:
        """Return the body if all of it is there, else gather what is there."""
        data, at, missing = self._data, self._at, self._missing
        end = at + missing
        if len(data) < end:
            self._gathered += memoryview(data)[at:]
            self._missing = end - len(data)
            self._data = b""
            self._at = 0
            return None
        self._at = end
        self._missing = 0
        if not self._gathered:
            return data[at:end]
        self._gathered += memoryview(data)[at:end]
        body = bytes(self._gathered)
        self._gathered = bytearray()
        return body

    def _batch(self) -> bytes | None:
        """Return the body of an MPUB when every message that its count announces is there.

        The declared size is gathered first. The messages may reach beyond it, but not end before it.
        """
        if len(self._gathered) >= self._size:
            return self._behind_the_body()
        body = self._gather()
        if self._content is None:
            self._content = parse_mpub.Content(self.limits)
        missing = self._content.missing(self._gathered if body is None else body)
        if not missing and self._content.end < self._size:
            raise self._content.surplus(self._size)
        if body is None or not missing:
            return body
        self._gathered = bytearray(body)
        self._missing = missing
        return self._behind_the_body()

    def _behind_the_body(self) -> bytes | None:
        """Gather messages that were counted and lie behind the declared body; return all when they are there."""
        content, gathered = self._content, self._gathered
        assert content is not None
        while self._missing:
            piece = self._data[self._at : self._at + self._missing]
            if not piece:
                return None
            gathered += piece
            self._at += len(piece)
            self._missing = content.missing(gathered)
        self._gathered = bytearray()
        return bytes(gathered)


@dataclass(slots=True)
class Response:
    """An answer, or a heartbeat."""

    payload: bytes


@dataclass(slots=True)
class ErrorFrame:
    """A refusal: its code, then mostly a text."""

    payload: bytes


MessageRow = tuple[int, int, bytes, bytes] | tuple[int, int, bytes, bytes, bytes]


@dataclass(slots=True)
class Messages:
    """A run of messages, each as (timestamp in ns, attempts, id, body), then its headers as JSON if it has some."""

    messages: Sequence[MessageRow]


Frame = Response | ErrorFrame | Messages


class ClientConnection:
    """The client's end: bytes of a broker in, its frames out."""

    __slots__ = ("_at", "_data", "_gathered", "_needed", "max_frame")

    def __init__(self, max_frame: int = 64 * 1024 * 1024) -> None:
        self.max_frame = max_frame  # bytes, as a frame's size counts them
        self._data = b""  # received, and parsed up to `_at`
        self._at = 0
        self._gathered = bytearray()  # the beginning of a frame, while it is shorter than `_needed`
        self._needed = 0

    def receive(self, data: bytes) -> None:
        """Add bytes of the broker; `frames` parses them."""
        if self._needed:
            if len(self._gathered) + len(data) < self._needed:
                self._gathered += data
                return
            data = b"".join((self._gathered, data))
            self._gathered = bytearray()
            self._needed = 0
        elif self._at < len(self._data):
            data = self._data[self._at :] + data
        self._data = data
        self._at = 0

    def frames(self) -> Iterator[Frame]:
        """Yield each whole frame in order, a run of messages as one; raise `ProtocolError` at garbage.

        Lazy, as `BrokerConnection.commands` is.
        """
        while (frame := self._next()) is not None:
            yield frame

    def take_rest(self) -> bytes:
        """Return and forget the bytes that were received and not handed out."""
        rest = bytes(self._gathered) + self._data[self._at :]
        self._gathered = bytearray()
        self._needed = 0
        self._data = b""
        self._at = 0
        return rest

    def _next(self) -> Frame | None:
        data, at = self._data, self._at
        if len(data) - at < 4:
            self._set_aside(4)
            return None
        size = int.from_bytes(data[at : at + 4], "big")
        self._check(size)
        if len(data) - at < 4 + size:
            self._set_aside(4 + size)
            return None
        kind = int.from_bytes(data[at + 4 : at + 8], "big")
        if kind == frames.MESSAGE:
            messages, end = kernel.decode_messages(data, at, len(data))
            if end == at:
                text = f"message frame of {size} bytes, at least {kernel.HEAD - 4} needed"
                raise ProtocolError("E_BAD_PROTOCOL", text)
            self._at = end
            return Messages(messages)
        if kind == frames.HEADED:
            headed, end = kernel.decode_headed(data, at, len(data))
            if end == at:
                text = f"message frame of {size} bytes whose headers do not fit"
                raise ProtocolError("E_BAD_PROTOCOL", text)
            self._at = end
            return Messages(headed)
        payload = data[at + 8 : at + 4 + size]
        self._at = at + 4 + size
        if kind == frames.RESPONSE:
            return Response(payload)
        if kind == frames.ERROR:
            return ErrorFrame(payload)
        raise ProtocolError("E_BAD_PROTOCOL", f"frame type {kind}, expected 0 to 3")

    def _check(self, size: int) -> None:
        if size == _HTTP:
            raise ProtocolError("E_BAD_PROTOCOL", "the peer speaks HTTP: this is not the TCP port of an nsqd")
        if size < 4:
            raise ProtocolError("E_BAD_PROTOCOL", f"frame of {size} bytes, at least 4 needed")
        if size > self.max_frame:
            raise ProtocolError("E_BAD_PROTOCOL", f"frame of {size} bytes, at most {self.max_frame} accepted")

    def _set_aside(self, needed: int) -> None:
        if self._at < len(self._data):
            self._gathered = bytearray(memoryview(self._data)[self._at :])
            self._needed = needed
        self._data = b""
        self._at = 0
