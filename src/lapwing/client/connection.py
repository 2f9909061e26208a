"""One connection to an nsqd: the handshake, then frames in, commands out, and heartbeats answered.

Reading never waits: frames are handed on at once, so a slow consumer costs no heartbeat. Commands of one turn of the
event loop leave in one write.
"""

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final, Protocol, cast

from lapwing.client.address import Address
from lapwing.client.errors import Refused, Unreachable
from lapwing.client.options import ClientOptions
from lapwing.errors import ConfigError, ProtocolError
from lapwing.wire.nsq.commands import MAGIC, Auth, Identify
from lapwing.wire.nsq.compression import Codec, DeflateCodec, SnappyCodec
from lapwing.wire.nsq.connection import ClientConnection, ErrorFrame, MessageRow, Messages, Response

log: Final = logging.getLogger("lapwing.client")

HANDSHAKE: Final = 10.0  # s for IDENTIFY, the upgrades and AUTH together
HEARTBEAT: Final = b"_heartbeat_"
_NOP: Final = b"NOP\n"


@dataclass(frozen=True, slots=True)
class IdentifyAnswer:
    """The answer to IDENTIFY; the defaults are for servers that answer a bare OK."""

    version: str = ""
    max_rdy_count: int = 2500
    msg_timeout: float = 60.0  # s
    max_msg_timeout: float = 900.0  # s
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 6
    snappy: bool = False
    auth_required: bool = False
    reject: bool = False  # REJ is understood
    headers: bool = False  # HPUB and HMPUB are understood, and messages come with their headers
    message_ids: tuple[str, ...] = ()  # names and patterns of topics that recognise a repeated message-id
    max_attempts: int = 0  # failures after which the broker gives a message up; 0: it does not
    retries: bool = False  # the broker chooses when a failed message of the channel is delivered again

    @classmethod
    def of(cls, answer: dict[str, Any]) -> "IdentifyAnswer":
        """Return the answer, with the default of what the server leaves out. Raises `ValueError` or `TypeError`."""
        kinds: dict[str, Any] = {spec.name: type(spec.default) for spec in fields(cls)}
        found: dict[str, Any] = {
            name: kind(answer[name]) for name, kind in kinds.items() if answer.get(name) is not None
        }
        for name in ("msg_timeout", "max_msg_timeout"):  # ms
            if name in found:
                found[name] /= 1000
        return cls(**found)


class ConnectionOwner(Protocol):
    """The user of a connection. Its methods are called on the event loop and must not block."""

    def messages(self, rows: Sequence[MessageRow]) -> None: ...
    def answered(self, payload: bytes) -> None: ...
    def refused(self, reason: str) -> None: ...
    def lost(self, reason: str) -> None: ...
    def writable(self) -> None: ...


class Connection(asyncio.Protocol):
    """An open, negotiated connection, as `connect` returns it."""

    def __init__(self, address: Address, options: ClientOptions, identity: Mapping[str, Any]) -> None:
        self.address = address
        self.options = options
        self._identity = {**options.identity(), **identity}
        self.granted = IdentifyAnswer()
        self.owner: ConnectionOwner | None = None
        self.thread = threading.get_ident()
        self.received_at = 0.0  # time of the last bytes, by the clock of the loop
        self.closed = False  # no more is sent
        self.full = False  # the write buffer is full
        self._loop = asyncio.get_running_loop()
        self._lost = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._wire = ClientConnection()
        self._codec: Codec | None = None
        self._opening = True
        self._waiter: asyncio.Future[None] | None = None
        self._reason = ""
        self._fins: list[bytes] = []
        self._out: list[bytes] = []
        self._scheduled = False
        self._full_since = 0.0
        self._unsent = 0
        self._watch: asyncio.TimerHandle | None = None

    # -- called by the owner

    def start(self, owner: ConnectionOwner) -> None:
        """Hand frames to `owner` from now on, beginning with those since the handshake."""
        self.owner = owner
        self._opening = False
        self._read()
        if self._lost.done():
            owner.lost(self._reason)

    def finish(self, message_id: bytes) -> None:
        """Queue a FIN; it is written at the end of this turn of the event loop."""
        self._fins.append(message_id)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def send(self, command: bytes) -> None:
        """Queue any other command, in order with the FINs."""
        if self._fins:
            self._fold()
        self._out.append(command)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write the queued commands."""
        self._scheduled = False
        if self._fins:
            self._fold()
        if not self._out:
            return
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        self.write(data)

    def write(self, data: bytes) -> None:
        """Write now, after the queued commands."""
        if self._out or self._fins:
            self.send(data)
            self.flush()
            return
        transport = self._transport
        if transport is None or self.closed:
            return
        transport.write(self._codec.encode(data) if self._codec is not None else data)

    def _fold(self) -> None:
        self._out.append(b"FIN " + b"\nFIN ".join(self._fins) + b"\n")
        self._fins.clear()

    async def close(self, grace: float = 2.0) -> None:
        """Write the queued commands, then close; a peer that does not read them within `grace` seconds is cut off."""
        if not self.closed:
            self.flush()
            self.closed = True
            self._reason = self._reason or "closed by us"
            if self._transport is not None:
                self._transport.close()
        if self._transport is not None and not self._lost.done():
            await asyncio.wait([self._lost], timeout=grace)
            if not self._lost.done():
                self._transport.abort()
                await asyncio.wait([self._lost], timeout=grace)

    def abort(self, reason: str) -> None:
        """Close at once; the owner gets `reason`."""
        if not self.closed:
            self.closed = True
            self._reason = reason
            if self._transport is not None:
                self._transport.abort()

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of that class
        self.received_at = self._loop.time()
        self._watch = self._loop.call_later(self._watch_interval(), self._look)

    def data_received(self, data: bytes) -> None:
        self.received_at = self._loop.time()
        try:
            if self._codec is not None:
                for piece in self._codec.pieces(data):
                    self._take(piece)
            else:
                self._take(data)
        except ProtocolError as error:
            self.abort(f"nsqd sent something that is not its protocol: {error.text or error.code}")

    def _take(self, data: bytes) -> None:
        self._wire.receive(data)
        if self._opening:
            self._wake()
        else:
            self._read()

    def _read(self) -> None:
        owner = self.owner
        if owner is None:
            return
        try:
            for frame in self._wire.frames():
                if type(frame) is Messages:
                    owner.messages(frame.messages)
                elif type(frame) is Response:
                    if frame.payload == HEARTBEAT:
                        self.write(_NOP)
                    else:
                        owner.answered(frame.payload)
                elif type(frame) is ErrorFrame:
                    owner.refused(frame.payload.decode("utf-8", "replace"))
        except ProtocolError as error:
            self.abort(f"nsqd sent something that is not its protocol: {error.text or error.code}")

    def eof_received(self) -> None:
        self._reason = self._reason or "nsqd closed the connection"

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._watch is not None:
            self._watch.cancel()
        if not self._reason:
            self._reason = f"connection lost: {error}" if error is not None else "nsqd closed the connection"
        if not self._lost.done():
            self._lost.set_result(None)
        self._wake()
        if self.owner is not None and not self._opening:
            self.owner.lost(self._reason)

    def pause_writing(self) -> None:
        self.full = True
        self._full_since = self._loop.time()
        self._unsent = self._buffered()

    def resume_writing(self) -> None:
        self.full = False
        if self.owner is not None:
            self.owner.writable()

    def _buffered(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _watch_interval(self) -> float:
        return min(1.0, self.options.read_timeout / 4, self.options.write_timeout / 4)

    def _look(self) -> None:
        """Abort the connection if the peer is silent or does not read. The clock is monotonic."""
        now = self._loop.time()
        limit = self.options.read_timeout
        if self.options.heartbeat_interval > 0 and now - self.received_at > limit:
            self.abort(f"no bytes for {limit:g} s, not even a heartbeat: the host is down or the network is cut")
            return
        if self.full:
            unsent = self._buffered()
            if unsent < self._unsent:
                self._unsent, self._full_since = unsent, now
            elif now - self._full_since > self.options.write_timeout:
                self.abort(f"nsqd took none of {unsent} bytes for {self.options.write_timeout:g} s")
                return
        self._watch = self._loop.call_later(self._watch_interval(), self._look)

    # -- the handshake

    async def open(self) -> None:
        """Send IDENTIFY, make the upgrades it grants, send AUTH. Raises `Refused` or `Unreachable`."""
        options = self.options
        try:
            context = options.tls_context() if options.tls else None
        except ConfigError as error:  # a file is missing, or was replaced by a bad one since
            raise self._refusal(str(error)) from error
        self.write(MAGIC + Identify(json.dumps(self._identity).encode()).encode())
        payload = await self._answer()
        if payload != b"OK":
            try:
                self.granted = IdentifyAnswer.of(json.loads(payload))
            except (ValueError, TypeError, AttributeError) as error:
                raise Unreachable(str(self.address), f"IDENTIFY was answered with {payload[:80]!r}") from error
        granted = self.granted
        if context is not None:
            if not granted.tls_v1:
                raise self._refusal("nsqd offers no TLS: give it --tls-cert and --tls-key, or connect without tls")
            await self._start_tls(context)
            await self._expect_ok()
        if granted.deflate and options.deflate:
            await self._compress(DeflateCodec(granted.deflate_level))
        elif granted.snappy and options.snappy:
            await self._compress(SnappyCodec())
        elif options.deflate or options.snappy:
            log.warning("(%s) nsqd offers no compression; the connection is not compressed", self.address)
        if granted.auth_required:
            if not options.auth_secret:
                raise self._refusal("nsqd wants AUTH: set auth_secret")
            self.write(Auth(options.auth_secret.encode()).encode())
            await self._answer()

    async def _start_tls(self, context: Any) -> None:
        assert self._transport is not None
        host = None if self.address.unix and not context.check_hostname else self.address.host
        try:
            transport = await self._loop.start_tls(self._transport, self, context, server_hostname=host)
        except (OSError, asyncio.IncompleteReadError) as error:  # ssl.SSLError is an OSError
            self.abort("TLS handshake failed")
            hint = "check tls_ca_file, tls_cert_file and the host name"
            raise self._refusal(f"TLS handshake failed: {error}; {hint}") from error
        if transport is None:
            raise self._refusal("TLS handshake failed: connection closed")
        self._transport = transport

    async def _compress(self, codec: Codec) -> None:
        rest = self._wire.take_rest()
        self._codec = codec
        if rest:
            self._wire.receive(codec.decode(rest))
        await self._expect_ok()

    async def _expect_ok(self) -> None:
        payload = await self._answer()
        if payload != b"OK":
            raise self._refusal(f"upgrade was answered with {payload[:80]!r}, expected OK")

    async def _answer(self) -> bytes:
        """Return the next answer of the handshake; heartbeats before it are answered."""
        while True:
            for frame in self._wire.frames():
                if isinstance(frame, Response):
                    if frame.payload == HEARTBEAT:
                        self.write(_NOP)
                        continue
                    return frame.payload
                if isinstance(frame, ErrorFrame):
                    raise self._refusal(frame.payload.decode("utf-8", "replace"))
                raise self._refusal("a message arrived before SUB")
            if self._lost.done():
                raise Unreachable(str(self.address), f"{self._reason} during the handshake")
            self._waiter = self._loop.create_future()
            await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _refusal(self, reason: str) -> Refused:
        if "TLS required" in reason:
            reason += ": set tls"
        return Refused(str(self.address), reason)


async def connect(
    address: Address, options: ClientOptions, identity: Mapping[str, Any] = MappingProxyType({})
) -> Connection:
    """Return a negotiated connection; `identity` is added to IDENTIFY.

    Raises `Unreachable` within the deadlines, or `Refused` where trying again will not help.
    """
    loop = asyncio.get_running_loop()

    def make() -> Connection:
        return Connection(address, options, identity)

    try:
        async with asyncio.timeout(options.dial_timeout):
            if address.unix:
                _, connection = await loop.create_unix_connection(make, address.host)
            else:
                local = _local(options.local_addr)
                _, connection = await loop.create_connection(make, address.host, address.port, local_addr=local)
    except TimeoutError as error:
        raise Unreachable(
            str(address), f"no connection within {options.dial_timeout:g} s: is the host up, and the port open?"
        ) from error
    except (OSError, UnicodeError) as error:  # a host name may be no name at all
        raise Unreachable(str(address), _explained(error, address, options.local_addr)) from error
    try:
        async with asyncio.timeout(min(HANDSHAKE, options.read_timeout)):
            await connection.open()
    except TimeoutError as error:
        connection.abort("handshake took too long")
        raise Unreachable(str(address), "connected, but not answered: is it an nsqd, and does it respond?") from error
    except ProtocolError as error:
        connection.abort(str(error))
        raise Unreachable(str(address), error.text or error.code) from error
    except BaseException:
        connection.abort("handshake failed")
        raise
    return connection


def _explained(error: OSError | UnicodeError, address: Address, local: str | None) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: is nsqd running there, and is this its TCP port (4150 by default, not HTTP's 4151)?"
    if isinstance(error, (socket.gaierror, UnicodeError)):
        names = f"{address.host!r}" + (f" or local_addr {local!r}" if local else "")
        return f"host name {names} does not resolve: {error.strerror if isinstance(error, OSError) else error}"
    if isinstance(error, FileNotFoundError):
        return "no such socket: is nsqd running with this --tcp-address?"
    return error.strerror or str(error) or type(error).__name__


def _local(text: str | None) -> tuple[str, int] | None:
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    return (host, int(port)) if colon and port.isdigit() else (text, 0)
