"""One client's connection: when its socket is read, its one write a turn, and how it ends. It knows no protocol."""

from __future__ import annotations

import asyncio
import ssl
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from lapwing.broker.broker import Broker
from lapwing.errors import ProtocolError
from lapwing.net.logs import Log
from lapwing.net.sockets.listen import far_end
from lapwing.net.sockets.polled import PolledTransport
from lapwing.nsqd.doors.heartbeat import ClientTimer
from lapwing.nsqd.turn import Turn
from lapwing.sessions.replies import Replies

if TYPE_CHECKING:
    from lapwing.nsqd.doors.layers import Encrypted, Layers
    from lapwing.nsqd.lookupd.peer import Peers

_HANDSHAKE: Final = 5_000_000_000  # ns for TLS
_LINGER: Final = 1_000_000_000  # ns that a refused client has to read why
_LAST_BYTES: Final = 10_000_000_000  # ns for the last bytes to leave after the broker has hung up
HIGH_WATER: Final = 1 << 20  # bytes that may wait for a slow socket
FULL: Final = 4 * HIGH_WATER  # more than deliveries alone leave waiting: then not even a consumer is read from
MAX_WAITING: Final = 10_000  # answers of one client that wait for a sync before nothing more is read from it
_LARGE: Final = 1 << 15  # bytes of a piece that is not copied to be sent with others
_SHARE: Final = 2048  # commands of one client, or as many times 256 bytes unpacked, before others have their turn
NEW_TOPIC: Final = 256  # commands that one which creates a topic counts for: it makes files


class Mode(Enum):
    """The meaning of the bytes that a client sends."""

    GREETING = auto()  # the handshake of TLS
    PLAIN = auto()  # commands that are carried out as they come
    WAITING = auto()  # commands that wait: for an answer, for the next turn, or for the client to read
    CLOSING = auto()  # nothing that anybody looks at: the connection ends


class ClientSession(Protocol):
    """The parts of a session that a connection needs."""

    replies: Replies
    doomed: bool  # the connection ends as soon as everything is answered

    def refuse(self, error: ProtocolError) -> None:
        """Answer an error that ends the connection."""


class Door(Protocol):
    """The parts of the daemon that a connection needs."""

    broker: Broker
    turn: Turn
    log: Log
    connections: set[Connection]  # that `--max-connections` counts
    announcer: Peers | None


class ClientProtocol:
    """The protocol of one client: a parser, and a session that carries out the commands. Made for a `Connection`."""

    connection: Connection
    session: ClientSession
    intake_waits = False  # what an intake takes is answered when it is synced, behind answers that wait too

    @property
    def waits(self) -> bool:
        """Whether further commands have to wait."""
        return False

    @property
    def waits_for_others(self) -> bool:
        """Whether an answer waits for what may never happen, so that nobody is there for it when the client is gone."""
        return False

    @property
    def gets_ahead(self) -> bool:
        """Whether the client has sent so much ahead that nothing more is read from it."""
        return False

    @property
    def consumes(self) -> bool:
        """Whether the client gets messages, so that it must be read from although it does not read."""
        return False

    @abstractmethod
    def opened(self, host: str, address: str, now: int) -> None:
        """Take note of a new client."""

    @abstractmethod
    def too_many(self, limit: int) -> ProtocolError:
        """Return the error for a client beyond `limit`."""

    @abstractmethod
    def receive(self, data: bytes) -> None:
        """Give bytes of the client to the parser."""

    @abstractmethod
    def execute(self, share: int) -> int:
        """Carry out up to `share` commands; return how many more may be."""

    @abstractmethod
    def intake(self) -> Any:
        """Return the receiver that may take what comes from now on; None if a command needs a look."""

    def end_of_input(self) -> None:
        """Note that the client sends no more, and has no command left: the connection ends."""
        self.session.doomed = True

    def on_drained(self) -> None:
        """Note that the socket has taken everything."""

    def on_answered(self) -> None:
        """Note that every answer was written."""

    @abstractmethod
    def closed(self) -> None:
        """Release everything that the client had: it is gone, or about to be; called twice at times."""

    def send_heartbeat(self) -> None:
        """Send a heartbeat, where the protocol has any."""

    def on_silence(self) -> None:
        """Give up a client that sends nothing."""


class Connection(asyncio.Protocol):
    """One client, from its first byte to its last: a transport, a protocol, a mode, and layers around the bytes."""

    def __init__(self, door: Door, protocol: Callable[[Connection], ClientProtocol]) -> None:
        self.mode = Mode.PLAIN
        self.turn = door.turn
        self.transport: asyncio.Transport | None = None
        self.layers: Layers | None = None
        self.timer = ClientTimer(door.turn.clock, self)
        self.task: asyncio.Task[None] | None = None  # that further commands wait for
        self.blocked = False  # the socket takes no more
        self.half_closed = False  # the client sends no more
        self.ending = False
        self._door = door
        self.polled: PolledTransport | None = None  # the transport, where intakes take what it receives
        self._address = ""
        self._greeting: tuple[Encrypted, Callable[[Encrypted], None]] | None = None  # a handshake, and what follows it
        self._pieces: Iterator[bytes] | None = None  # that came through the layers and are not parsed yet
        self._behind = False  # some of what came waits for the next turn
        self._muted = False  # nothing is read from the socket
        self._unannounced = 0  # topics created by this client that nsqlookupd does not know yet
        self.protocol = protocol(self)
        self._session = self.protocol.session

    # --- asyncio's side ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        self.transport = transport
        if isinstance(transport, PolledTransport):
            self.polled = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)
        host, self._address = far_end(transport)
        now = self.turn.clock.now()
        self.timer.last_command = now
        self.protocol.opened(host, self._address, now)
        door = self._door
        limit = door.broker.options.max_connections
        if 0 < limit <= len(door.connections):
            self._session.refuse(self.protocol.too_many(limit))
            self.update()
            self.turn.add(self)
            return
        door.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self.mode is Mode.CLOSING or self._session.doomed:
            return
        if self.mode is Mode.GREETING:
            self._handshake(data)
        elif self.layers is not None:
            self._pieces = self.layers.pieces(data)
        else:
            self.protocol.receive(data)
        if self.mode is Mode.PLAIN:
            self._execute()
        else:
            self.update()
        self.turn.add(self)

    def eof_received(self) -> bool:
        """Note that the client sends no more; what it still gets is written at the end of the turn."""
        self.half_closed = True
        if self._greeting is not None:
            self.fail_handshake("EOF")
        self._end_input()
        self.turn.add(self)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """Release everything: the client is gone."""
        self._end()
        self.timer.close()
        if self.task is not None:
            self.task.cancel()
        self._door.connections.discard(self)
        self.turn.schedule_flush()
        del self.protocol  # break the reference cycle

    def pause_writing(self) -> None:
        """Deliver nothing more for now: the socket takes no more."""
        self.blocked = True
        self.update()
        assert self.transport is not None
        self.timer.watch_reading(self.transport)

    def resume_writing(self) -> None:
        """Send again: the socket takes bytes."""
        self.blocked = False
        self.protocol.on_drained()
        self.timer.resume()
        self.resume()

    # --- input -------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Carry out commands that had to wait."""
        if self.ending:
            return
        self._behind = False
        self.update()
        if self.mode is Mode.PLAIN:
            self._execute()
        if self.half_closed:
            self._end_input()
        self.turn.add(self)

    def _end_input(self) -> None:
        if not (self._behind or self.task is not None or self._greeting is not None or self.protocol.waits):
            self.protocol.end_of_input()
        self.update()

    def _execute(self) -> None:
        """Carry out commands, but no more than one client's share of a turn; the rest follows in the next ones.

        So no client waits for a flood of commands, nor for the few bytes that unpack to one. A command that creates a
        topic is answered once nsqlookupd knows the topic.
        """
        protocol, changes = self.protocol, self._door.broker.changes
        share, known = _SHARE, len(changes)
        try:
            while True:
                share = protocol.execute(share)
                if len(changes) > known:
                    self._await_announcement(known)
                    known = len(changes)
                if share <= 0:
                    self._behind = True
                    asyncio.get_running_loop().call_soon(self.resume)
                    break
                if self._pieces is None:
                    break
                self.update()
                if self.mode is not Mode.PLAIN or (cost := self._unpack()) <= 0:
                    break
                share -= cost
        except ProtocolError as error:
            self._session.refuse(error)
        self.update()

    def _await_announcement(self, known: int) -> None:
        announcer = self._door.announcer
        if announcer is None:
            return
        for kind, topic, _, created in self._door.broker.changes[known:]:
            announced = announcer.settling(topic) if created and kind == "topic" else None
            if announced is not None:
                self._unannounced += 1
                announced.add_done_callback(self._announced)

    def _announced(self, _: object) -> None:
        self._unannounced -= 1
        self.update()
        self.turn.add(self)

    def wait_for(self, task: Awaitable[None]) -> None:
        """Carry out no further command until `task` is done; a `ProtocolError` of it ends the connection."""
        self.task = asyncio.get_running_loop().create_task(self._wait(task))

    async def _wait(self, task: Awaitable[None]) -> None:
        try:
            await task
        except ProtocolError as error:
            self._session.refuse(error)
        self.task = None
        if self.transport is not None and not self.ending:
            self.resume()

    def update(self) -> None:
        """Set the mode, and read from the socket or not: no client may get far ahead, or leave its answers unread."""
        polled = self.polled
        if self.ending:
            self.mode = Mode.CLOSING
            if polled is not None:
                polled.receiver = None
            return
        protocol = self.protocol
        held_up = self._behind or self.task is not None
        if self._session.doomed:
            self.mode = Mode.CLOSING
        elif self._greeting is not None:
            self.mode = Mode.GREETING
        else:
            self.mode = Mode.WAITING if held_up or protocol.waits else Mode.PLAIN
        if polled is not None:
            at_rest = self.mode is Mode.PLAIN and self.layers is None and not self._unannounced
            polled.receiver = protocol.intake() if at_rest else None
        muted = held_up or self._far_ahead or (self.blocked and self._overfull())
        if muted != self._muted:
            self._mute(muted)

    def _mute(self, muted: bool) -> None:
        transport = self.transport
        if transport is None or self.half_closed or transport.is_closing():
            return
        self._muted = muted
        if muted:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _overfull(self) -> bool:
        """Return whether so many bytes wait for the socket that the client is no longer read from."""
        assert self.transport is not None
        return not self.protocol.consumes or self.transport.get_write_buffer_size() > FULL

    @property
    def waits_for_broker(self) -> bool:
        """Whether the client is silent because nothing is read from it until the broker has answered."""
        return self.task is not None or self._far_ahead

    @property
    def _far_ahead(self) -> bool:
        """Whether so many answers wait, or so many commands, that nothing more is read from the client."""
        return len(self._session.replies.slots) >= MAX_WAITING or self.protocol.gets_ahead

    # --- layers ------------------------------------------------------------------------------------------------

    def greet(self, layer: Encrypted, rest: bytes, then: Callable[[Encrypted], None]) -> None:
        """Begin a handshake with the bytes that have come already; `then` is called when it is done."""
        if self.half_closed:
            self.fail_handshake("EOF")
            return
        self._greeting = layer, then
        self.timer.arm(_HANDSHAKE, lambda: self.fail_handshake("i/o timeout"))
        if rest:
            self._handshake(rest)
        self.update()

    def _handshake(self, data: bytes) -> None:
        assert self._greeting is not None
        assert self.transport is not None
        layer, then = self._greeting
        try:
            done, answer = layer.handshake(data)
        except ssl.SSLError as error:
            self.transport.write(layer.alert)
            self.fail_handshake(error.reason or str(error))
            return
        if answer:
            self.transport.write(answer)
        if done:
            self._greeting = None
            then(layer)
            self.update()

    def fail_handshake(self, reason: str) -> None:
        """End a connection that cannot be encrypted."""
        self._greeting = None
        self._session.refuse(ProtocolError("E_IDENTIFY_FAILED", f"IDENTIFY failed {reason}"))
        self.update()
        self.turn.add(self)

    def use_layers(self, layers: Layers, rest: bytes) -> None:
        """Have all bytes pass through layers from now on, beginning with those that have come already."""
        self.layers, self._pieces = layers, layers.pieces(rest)

    def _unpack(self) -> int:
        """Give the parser more that came through the layers, and return its cost in commands; 0 if there is no more."""
        assert self._pieces is not None
        try:
            piece = next(self._pieces, None)
        except ssl.SSLError as error:
            self._door.log.debug(f"{self._address}: TLS: {error}")
            self._session.doomed = True
            return 0
        if piece is None:
            self._pieces = None
            self._answer_tls()
            return 0
        self.protocol.receive(piece)
        return 1 + (len(piece) >> 8)

    def _answer_tls(self) -> None:
        """Send what TLS itself answers, such as a key update; follow a client that closes in TLS."""
        tls = self.layers.tls if self.layers is not None else None
        if tls is not None and self.transport is not None:
            own = tls.encode(b"")
            if own:
                self.transport.write(own)
            if tls.over:
                self.eof_received()

    # --- output ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write what this turn brought; then end the connection if it is over."""
        replies, polled = self._session.replies, self.polled
        if self.ending:
            replies.ready.clear()
            return
        if self.transport is not None and not self._unannounced:
            if replies.ready:
                self.write()
            if self._muted:
                self.update()
            if not replies.slots:
                if self._session.doomed:
                    self.close()
                else:
                    self.protocol.on_answered()
        if self.half_closed and not self.ending and self.protocol.waits_for_others:
            self.close()
        if polled is not None and polled.receiver is not None:
            waits = replies.ready or (replies.slots and not self.protocol.intake_waits) or self.blocked
            polled.direct = not waits

    def write(self) -> None:
        ready, transport, layers = self._session.replies.ready, self.transport, self.layers
        if not ready or transport is None:
            return
        if len(ready) == 1:
            pieces = [ready[0]]
        else:
            large = sum(map(len, ready)) > _LARGE * len(ready)
            pieces = [*ready] if large else [b"".join(ready)]
        ready.clear()
        for piece in pieces:
            transport.write(piece if layers is None else layers.encode(piece))
        if self.blocked:
            self.update()
        else:
            self.protocol.on_drained()

    # --- the end -----------------------------------------------------------------------------------------------

    def on_stuck(self) -> None:
        """Give up a client that reads nothing."""
        if self.transport is not None:
            self._door.log.info(f"{self._address}: reads nothing; closing the connection")
            self.transport.abort()

    def close(self) -> None:
        """Close so that the client can read its last answer: unread bytes of the client would turn it into a reset."""
        assert self.transport is not None
        self._end()
        self.turn.schedule_flush()
        if self.half_closed or self.layers is not None or not self.transport.can_write_eof():
            self.hang_up()
            return
        try:
            self.transport.write_eof()
        except OSError:
            self.transport.abort()
            return
        self.timer.arm(_LINGER, self.hang_up)

    def _end(self) -> None:
        self.ending = True
        self.update()
        self.protocol.closed()

    def hang_up(self) -> None:
        """Close without an answer; what was written still leaves."""
        self.ending = True
        self.update()
        transport = self.transport
        if transport is not None:
            transport.close()
            if transport.get_write_buffer_size():
                self.timer.arm(_LAST_BYTES, transport.abort)  # a client that never reads would stay for ever
