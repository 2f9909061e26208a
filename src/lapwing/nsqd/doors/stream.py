"""One client's socket: when it is read, one write a turn, and how the connection ends. It knows no protocol."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, Protocol, cast

from lapwing.broker.broker import Broker, Change
from lapwing.errors import ProtocolError
from lapwing.net.logs import Log
from lapwing.net.sockets.listen import far_end
from lapwing.nsqd.doors.heartbeat import ClientTimer
from lapwing.nsqd.turn import Turn
from lapwing.sessions.replies import Replies

if TYPE_CHECKING:
    from lapwing.nsqd.lookupd.peer import Peers

_LINGER: Final = 1_000_000_000  # ns that a refused client has to read why
_GOODBYE: Final = 10_000_000_000  # ns for the last bytes to leave after the broker has hung up
HIGH_WATER: Final = 1 << 20  # bytes that may wait for a slow socket
FULL: Final = 4 * HIGH_WATER  # more than deliveries alone leave waiting: then not even a consumer is read from
MOST_WAITING: Final = 10_000  # answers of one client that wait for a sync before nothing more is read from it
_LARGE: Final = 1 << 15  # bytes of a piece that is not copied to be sent with others
_SHARE: Final = 2048  # commands of one client, or as many times 256 bytes unpacked, before others have their turn
NEW_TOPIC: Final = 256  # commands that one which creates a topic counts for: it makes files
ATTRIBUTES: Final = 4  # commands that one counts for which publishes a message with a delay or headers


class StreamSession(Protocol):
    """The parts of a session that a stream needs."""

    replies: Replies
    doomed: bool  # the connection ends as soon as everything is answered

    def refuse(self, error: ProtocolError) -> None:
        """Answer an error that ends the connection."""


class StreamContext(Protocol):
    """The parts of the daemon that a stream needs."""

    broker: Broker
    turn: Turn
    log: Log
    connections: set[Stream]  # that `--max-connections` counts
    announcer: Peers | None


class Stream(asyncio.Protocol):
    """One client, from its first byte to its last.

    A subclass is a door: it gives the bytes to its parser (`_feed`), and the commands to its session (`_obey`).
    """

    _context: StreamContext
    _session: StreamSession

    def __init__(self, context: StreamContext, session: StreamSession) -> None:
        self._context = context
        self._turn = context.turn
        self._clock = context.turn.clock
        self._session = session
        self._timer = ClientTimer(self._clock, self)
        self._transport: asyncio.Transport | None = None
        self._address = ""
        self._busy: asyncio.Task[None] | None = None  # something that further commands wait for
        self._behind = False  # some of what came waits for the next turn
        self._muted = False  # nothing is read from the socket
        self._blocked = False  # the socket takes no more
        self._half_closed = False  # the client sends no more
        self._unannounced = 0  # topics created by this client that nsqlookupd does not know yet
        self._ending = False

    # --- what a door does ----------------------------------------------------------------------------------------

    @abstractmethod
    def _opened(self, host: str, address: str, now: int) -> None:
        """Take note of a new client."""

    @abstractmethod
    def _too_many(self, limit: int) -> ProtocolError:
        """Return the error for a client beyond `limit`."""

    @abstractmethod
    def _feed(self, data: bytes) -> None:
        """Give bytes of the client to the parser."""

    def _feed_more(self) -> int:
        """Give the parser more that came before, and return its cost in commands; 0 when there is no more for now."""
        return 0

    @abstractmethod
    def _obey(self, share: int) -> int:
        """Carry out up to `share` commands; return how many more may be."""

    def _end_of_input(self) -> None:
        """Note that the client sends no more, and has no command left: the connection ends."""
        self._session.doomed = True

    def _encode(self, data: bytes) -> bytes:
        """Return the bytes that carry `data` to the client."""
        return data

    @property
    def _consumes(self) -> bool:
        """Whether the client gets messages, so that it must be read from although it does not read."""
        return False

    def _drained(self) -> None:
        """Note that the socket has taken everything."""

    def _answered_all(self) -> None:
        """Note that every answer was written."""

    @abstractmethod
    def _closed(self) -> None:
        """Release everything that the client had: it is gone, or about to be; called twice at times."""

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""

    def on_silence(self) -> None:
        """Give up a client that sends nothing."""
        self.hang_up()

    # --- asyncio's side ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a client."""
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER)
        host, self._address = far_end(transport)
        now = self._clock.now()
        self._timer.last_command = now
        self._opened(host, self._address, now)
        context = self._context
        limit = context.broker.options.max_connections
        if 0 < limit <= len(context.connections):
            self._session.refuse(self._too_many(limit))
            self._turn.add(self)
            return
        context.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._ending or self._session.doomed:
            return
        self._feed(data)
        self._digest()
        self._turn.add(self)

    def eof_received(self) -> bool:
        """Note that the client sends no more; what it still gets is written at the end of the turn."""
        self._half_closed = True
        if not self._waits and not self._behind:
            self._end_of_input()
        self._turn.add(self)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """Release everything: the client is gone."""
        self._ending = True
        self._closed()
        self._timer.close()
        if self._busy is not None:
            self._busy.cancel()
        self._context.connections.discard(self)
        self._turn.schedule_flush()

    def pause_writing(self) -> None:
        """Deliver nothing more for now: the socket takes no more."""
        self._blocked = True
        self._heed()
        assert self._transport is not None
        self._timer.watch_reading(self._transport)

    def resume_writing(self) -> None:
        """Send again: the socket takes bytes."""
        self._blocked = False
        self._drained()
        self._heed()
        self._timer.resume()
        self._turn.add(self)

    # --- input -------------------------------------------------------------------------------------------------

    @property
    def _waits(self) -> bool:
        """Whether further commands have to wait for something else."""
        return self._busy is not None

    def _digest(self) -> None:
        """Carry out commands, but no more than one client's share of a turn; the rest follows in the next ones.

        So no client waits for a flood of commands, nor for the few bytes that unpack to one.
        """
        self._behind = False
        share = _SHARE
        try:
            while not (self._ending or self._session.doomed or self._waits):
                share = self._carry_out(share)
                if share <= 0:
                    self._behind = True
                    asyncio.get_running_loop().call_soon(self._catch_up)
                    break
                cost = self._feed_more()
                if not cost:
                    break
                share -= cost
        except ProtocolError as error:
            self._session.refuse(error)
        self._heed()

    def _carry_out(self, share: int) -> int:
        """Carry out commands. One that creates a topic is answered once nsqlookupd knows the topic."""
        changes = self._context.broker.changes
        before = len(changes)
        share = self._obey(share)
        if len(changes) > before:
            self._await_announcement(changes[before:])
        return share

    def _await_announcement(self, changes: list[Change]) -> None:
        announcer = self._context.announcer
        if announcer is None:
            return
        for kind, topic, _, created in changes:
            announced = announcer.settling(topic) if created and kind == "topic" else None
            if announced is not None:
                self._unannounced += 1
                announced.add_done_callback(self._announced)

    def _announced(self, _: object) -> None:
        self._unannounced -= 1
        self._turn.add(self)

    def _catch_up(self) -> None:
        """Carry out what was left for this turn."""
        self._digest()
        if self._half_closed and not self._waits and not self._behind:
            self._end_of_input()
        self._turn.add(self)

    def _wait_for(self, task: Awaitable[None]) -> None:
        """Carry out no further command until `task` is done; a `ProtocolError` of it ends the connection."""
        self._busy = asyncio.get_running_loop().create_task(self._wait(task))

    async def _wait(self, task: Awaitable[None]) -> None:
        try:
            await task
        except ProtocolError as error:
            self._session.refuse(error)
        self._busy = None
        if self._transport is not None and not self._ending:
            self._catch_up()

    def _heed(self) -> None:
        """Stop or resume reading: nothing is read from a client that is far ahead, or that does not read answers."""
        muted = self._behind or self._busy is not None or self._too_many_waiting or (self._blocked and self._overfull())
        if muted == self._muted:
            return
        transport = self._transport
        if transport is None or self._ending or self._half_closed or transport.is_closing():
            return
        self._muted = muted
        if muted:
            transport.pause_reading()
        else:
            transport.resume_reading()

    @property
    def _too_many_waiting(self) -> bool:
        """Whether more answers wait for their sync than one client may have."""
        return self._session.replies.waiting >= MOST_WAITING

    def _overfull(self) -> bool:
        """Return whether so many bytes wait for the socket that the client is no longer read from."""
        assert self._transport is not None
        return not self._consumes or self._transport.get_write_buffer_size() > FULL

    @property
    def waits_for_broker(self) -> bool:
        """Whether the client is silent because nothing is read from it until the broker has answered."""
        return self._busy is not None or self._too_many_waiting

    # --- output ------------------------------------------------------------------------------------------------

    def _on_ready(self) -> None:
        self._turn.add(self)

    def flush(self) -> None:
        """Write what this turn brought; then end the connection if it is over."""
        replies = self._session.replies
        if self._ending:
            replies.ready.clear()
            return
        if self._transport is None or self._unannounced:
            return
        if replies.ready:
            self._write()
        if self._muted:
            self._heed()
        if replies.slots:
            return
        if self._session.doomed:
            self._farewell()
        else:
            self._answered_all()

    def _write(self) -> None:
        ready = self._session.replies.ready
        if not ready or self._transport is None:
            return
        if len(ready) == 1:
            pieces = [ready[0]]
        else:
            large = sum(map(len, ready)) > _LARGE * len(ready)
            pieces = [*ready] if large else [b"".join(ready)]
        ready.clear()
        for piece in pieces:
            self._transport.write(self._encode(piece))
        if self._blocked:
            self._heed()
        else:
            self._drained()

    # --- the end -----------------------------------------------------------------------------------------------

    def on_stuck(self) -> None:
        """Give up a client that reads nothing."""
        if self._transport is not None:
            self._context.log.info(f"{self._address}: reads nothing, hanging up")
            self._transport.abort()

    def _farewell(self) -> None:
        """Close so that the client can read its last answer: unread bytes of the client would turn it into a reset."""
        assert self._transport is not None
        self._ending = True
        self._closed()
        self._turn.schedule_flush()
        if self._half_closed or not self._can_half_close or not self._transport.can_write_eof():
            self.hang_up()
            return
        try:
            self._transport.write_eof()
        except OSError:
            self._transport.abort()
            return
        self._timer.arm(_LINGER, self.hang_up)

    @property
    def _can_half_close(self) -> bool:
        """Whether the protocol lets the broker end its side alone."""
        return True

    def hang_up(self) -> None:
        """Close without an answer; what was written still leaves."""
        self._ending = True
        transport = self._transport
        if transport is not None:
            transport.close()
            if transport.get_write_buffer_size():
                self._timer.arm(_GOODBYE, transport.abort)  # a client that never reads would stay for ever
