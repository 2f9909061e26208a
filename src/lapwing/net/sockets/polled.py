"""Connections of one daemon in one epoll set: the event loop watches the set, and one call receives from all of them.

`PolledTransport` is an asyncio transport like any other, so a protocol does not notice who serves it. The event loop's
own transports cost a callback per connection and turn; this one costs a callback per turn. It needs Linux and the
compiled module; where `available` is false, the event loop's transports do the same.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from lapwing.kernel._receiver import Partial, Receiver

try:
    from lapwing.net.sockets._sockets import LIMIT, SocketSet

    available = True
except ImportError:  # not Linux, or no compiler where this was installed
    available = False

__all__ = ["LIMIT", "PolledConnections", "PolledTransport", "available"]

_ACCEPTED: Final = 64  # connections taken from one listening socket before others have their turn
_NO_PROTOCOL: Final = asyncio.Protocol()
_NO_EXTRA: Final[dict[str, Any]] = {}  # one for all transports: `get_extra_info` asks the socket
_PAUSE: Final = 0.1  # seconds without accepting when there are no descriptors left
_SENT: Final = 1 << 20  # bytes that are sent at once to a socket that was slow
_SMALL: Final = 1 << 18  # bytes up to which what waits for a slow socket is put together


class PolledConnections:
    """The epoll set of one daemon, with the connections that it has accepted.

    `begin` and `end` are called around each round of received bytes, so that a daemon can end its turn in the same
    call of the event loop. `taken` is called in between, when the receivers of connections have taken what they do, and
    before the connections get the rest.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        begin: Callable[[], None] = lambda: None,
        end: Callable[[], None] = lambda: None,
        taken: Callable[[], None] = lambda: None,
    ) -> None:
        self.sockets = SocketSet()
        self.loop = loop
        self._begin = begin
        self._end = end
        self._taken = taken
        self._listening: set[int] = set()
        loop.add_reader(self.sockets.fileno(), self._receive)

    def _receive(self) -> None:
        self._begin()
        try:
            try:
                found = self.sockets.receive()
            finally:
                try:
                    self._taken()
                except Exception as error:  # the connections get what came for them all the same
                    context = {"message": "what receivers have taken could not be reported", "exception": error}
                    self.loop.call_exception_handler(context)
            for transport, what in found:
                transport.give(what)
        finally:
            self._end()

    def accept(self, listening: socket.socket, factory: Callable[[], asyncio.Protocol]) -> None:
        """Take connections from a listening socket; each gets a protocol from `factory`."""
        self._listening.add(listening.fileno())
        self.loop.add_reader(listening.fileno(), self._accept, listening, factory)

    def stop_accepting(self) -> None:
        """Take no more connections. To be called before the listening sockets are closed."""
        for descriptor in self._listening:
            self.loop.remove_reader(descriptor)
        self._listening.clear()

    def close(self) -> None:
        """Drop all connections, and the set."""
        self.stop_accepting()
        self.loop.remove_reader(self.sockets.fileno())
        self.sockets.close()

    def _accept(self, listening: socket.socket, factory: Callable[[], asyncio.Protocol]) -> None:
        for _ in range(_ACCEPTED):
            try:
                client, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # out of descriptors, most likely: others may free some
                self.loop.remove_reader(listening.fileno())
                self.loop.call_later(_PAUSE, self._accept_again, listening, factory)
                return
            client.setblocking(False)
            with suppress(OSError):  # a Unix socket has no such option
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            PolledTransport(self, client, factory())

    def _accept_again(self, listening: socket.socket, factory: Callable[[], asyncio.Protocol]) -> None:
        if listening.fileno() in self._listening:
            self.loop.add_reader(listening.fileno(), self._accept, listening, factory)


class PolledTransport(asyncio.Transport):
    """One connection of a `PolledConnections`."""

    __slots__ = (
        "_closing", "_connections", "_eof", "_high", "_lost", "_low", "_paused_writing", "_protocol", "_reading",
        "_sent", "_socket", "_sockets", "_unsent", "_waiting", "direct", "fd", "finishes", "partial", "peer",
        "published", "receiver", "timer",
    )  # fmt: skip

    def __init__(self, connections: PolledConnections, client: socket.socket, protocol: asyncio.Protocol) -> None:
        super().__init__(_NO_EXTRA)
        self.fd = client.fileno()
        self.receiver: Receiver | None = None  # takes what needs no look at it, where the protocol has one
        self.partial: Partial | None = None  # a request that its receiver has in part
        self.direct = False  # whether it may answer at once, as no other answer waits
        self.finishes: object = None  # facts for the receiver: where it puts what it takes, and what it counts
        self.published: dict[str, int] = {}
        self.timer: Any = None  # `last_command` of it gets the time of a client's last command, ns
        self.peer: Any = None  # learns what was taken
        self._connections = connections
        self._sockets = connections.sockets
        self._socket = client
        self._protocol = protocol
        self._unsent: list[bytes | memoryview] = []  # what the socket has not taken yet
        self._sent = 0  # bytes that it has taken of the first of them
        self._waiting = 0  # bytes that it has not taken of all
        self._high, self._low = 65536, 16384
        self._reading = True
        self._paused_writing = False
        self._closing = False
        self._eof = False  # no more is written, and the peer is to know
        self._lost = False
        self._sockets.add(self.fd, self)
        protocol.connection_made(self)

    # --- events ------------------------------------------------------------------------------------------------

    def give(self, what: bytes | int | Exception | None) -> None:
        """Give the protocol what was received. A failure is reported, and ends this connection alone."""
        try:
            if isinstance(what, Exception):
                raise what
            self.received(what)
        except Exception as error:  # as the event loop does: the others must get what came for them
            message = "a protocol failed on what it received"
            context = {"message": message, "exception": error, "transport": self}
            self._connections.loop.call_exception_handler(context)
            self.abort()

    def received(self, what: bytes | int | None) -> None:
        """Pass on what the set has received for this connection."""
        self.direct = False
        if self._reading and what and type(what) is bytes and not self._closing:
            self._protocol.data_received(what)
            return
        if self._lost:
            return
        if what is None:
            self._write_buffered()
        elif isinstance(what, int):
            self._lose(OSError(what, "connection lost"))
        elif self._closing:
            if not what:
                self._lose(None)
        elif not self._reading:
            self._lose(None)  # both directions are shut, which is reported whether or not it is asked for
        else:
            self._reading = False
            self._watch()
            if not self._protocol.eof_received():
                self.close()

    def _watch(self) -> None:
        if not self._lost:
            self._sockets.watch(self.fd, reading=self._reading, writing=bool(self._unsent))

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self.partial = None
            self._sockets.remove(self.fd)
            self._unsent.clear()
            self._waiting = 0
            self._connections.loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._protocol, self.timer, self.finishes, self.peer = _NO_PROTOCOL, None, None, None  # break the cycles
            self._socket.close()

    # --- reading -----------------------------------------------------------------------------------------------

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        """Receive nothing until `resume_reading`."""
        if self._reading and not self._closing:
            self._reading = False
            self._watch()

    def take_unfinished(self) -> bytes:
        """Return what has come of a request that its receiver has in part; the receiver forgets it."""
        partial, self.partial = self.partial, None
        return partial.unfinished() if partial is not None else b""

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            self._watch()

    # --- writing -----------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; what the socket does not take now waits, as it is: nothing of it is copied."""
        if self._lost or self._eof or not data:
            return
        if type(data) is not bytes:
            data = _lasting(data)
        size = len(data)
        if self._unsent:
            self._unsent.append(data)
            self._waiting += size
        else:
            sent = self._sockets.send(self.fd, data)
            if sent == size:
                return
            if sent < 0:
                self._lose(OSError(-sent, "connection lost"))
                return
            self._unsent.append(data)
            self._sent, self._waiting = sent, size - sent
            self.direct = False
            self._watch()
        if self._waiting > self._high and not self._paused_writing:
            self._paused_writing = True
            self._protocol.pause_writing()

    def _write_buffered(self) -> None:
        unsent, left = self._unsent, _SENT
        while unsent and left > 0:
            if len(unsent) > 1 and len(unsent[0]) < _SMALL:
                self._gather()
            size = len(unsent[0])
            sent = self._sockets.send(self.fd, unsent[0], self._sent)
            if sent < 0:
                self._lose(OSError(-sent, "connection lost"))
                return
            self._sent += sent
            self._waiting -= sent
            if self._sent < size:
                break
            del unsent[0]
            self._sent = 0
            left -= sent
        if not unsent:
            self._watch()
            if self._eof:
                self._shut()
            if self._closing:
                self._lose(None)
                return
        if self._paused_writing and self._waiting <= self._low:
            self._paused_writing = False
            self._protocol.resume_writing()

    def _gather(self) -> None:
        """Make one piece of the first small ones."""
        unsent, size, count = self._unsent, 0, 0
        for piece in unsent:
            size += len(piece)
            if count and size > _SMALL:
                break
            count += 1
        if count > 1:
            unsent[:count] = [b"".join(unsent[:count])]

    def write_eof(self) -> None:
        """Send no more once the buffer is empty, and let the peer know."""
        if not self._eof:
            self._eof = True
            if not self._unsent:
                self._shut()

    def _shut(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the sizes of the buffer at which writing pauses and resumes."""
        self._high = 65536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the socket has not taken yet."""
        return self._waiting

    # --- the end -----------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Close once the buffer has left."""
        if not self._closing:
            self._closing = True
            self.receiver = None
            if self._unsent:
                self._reading = False
                self._watch()
            else:
                self._lose(None)

    def abort(self) -> None:
        """Close at once; what waits in the buffer is dropped."""
        self._lose(None)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket, or the address of either end."""
        if name == "socket":
            return self._socket
        if name in ("peername", "sockname"):
            with suppress(OSError):
                return self._socket.getpeername() if name == "peername" else self._socket.getsockname()
        return default


def _lasting(data: bytes | bytearray | memoryview) -> bytes | memoryview:
    """Return bytes that nobody changes while they wait."""
    return data if isinstance(data, memoryview) and data.readonly and data.c_contiguous else bytes(data)
