"""The door for Redis clients: one connection, from its first byte to its last."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from lapwing import kernel
from lapwing.broker.broker import Broker, Change
from lapwing.errors import HangUp, LapwingError, ProtocolError
from lapwing.net.listen import far_end, join
from lapwing.net.logs import Log
from lapwing.nsqd.turn import Turn
from lapwing.sessions import redis_gathered, redis_server
from lapwing.sessions.redis import RedisSession
from lapwing.sessions.redis_context import RedisContext, ServerFacts
from lapwing.wire.resp.requests import RequestLimits, RequestParser, XaddRun

if TYPE_CHECKING:
    from lapwing.nsqd.auth import Authenticator, Authorizations
    from lapwing.nsqd.publishing import TopicAnnouncer

_HIGH_WATER: Final = 1 << 20  # bytes that may wait for a slow socket
_MOST_BUFFERED: Final = 1 << 20  # bytes that a client may send ahead while a command waits
_SHARE: Final = 2048  # commands of one client before others have their turn
_LINGER: Final = 1.0  # seconds that a client has to read the last reply
_OVERHEAD: Final = 64 * 1024  # bytes of a request beside its entry
_MAX_CLIENTS: Final = "max number of clients reached"


@dataclass(slots=True)
class RedisDoor:
    """The state that all Redis connections of one broker share."""

    broker: Broker
    turn: Turn
    log: Log
    auth: Authenticator | None = None
    announcer: TopicAnnouncer | None = None
    port: int = 0
    started: int = 0  # ns
    connections: set[RedisConnection] = field(default_factory=set)
    context: RedisContext = field(init=False)
    limits: RequestLimits = field(init=False)
    gathers: bool = field(init=False)  # publish XADDs of several clients together: no reply waits beyond its turn

    def __post_init__(self) -> None:
        options = self.broker.options
        self.context = RedisContext(self.broker, facts=self._facts)
        self.gathers = options.durability != "fsync"
        self.limits = RequestLimits(max(options.max_body_size, options.max_msg_size) + _OVERHEAD, options.max_msg_size)

    def connect(self) -> RedisConnection:
        """Return the protocol of a new connection."""
        return RedisConnection(self)

    def publish_gathered(self) -> None:
        """Publish the XADDs that clients sent in this turn."""
        if self.context.gathered:
            self.context.publish_gathered(self.turn.clock.now())

    def end_turn(self) -> None:
        """Answer the commands that wait for what this turn has brought."""
        self.context.wake(self.turn.clock.now())

    def _facts(self) -> ServerFacts:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return ServerFacts(
            process_id=os.getpid(),
            port=self.port,
            started=self.started,
            memory=_resident(),
            cpu_user=usage.ru_utime,
            cpu_system=usage.ru_stime,
            system=f"{os.uname().sysname} {os.uname().release} {os.uname().machine}",
        )


def _resident() -> int:
    """Return the bytes of memory that the process has now."""
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes where there is no /proc


class RedisConnection(asyncio.Protocol):
    """One Redis client."""

    def __init__(self, door: RedisDoor) -> None:
        self._door = door
        self._turn = door.turn
        self._clock = door.turn.clock
        self._session = RedisSession(
            door.context,
            on_ready=self._add_to_turn,
            on_free=self._resume,
            hang_up=self.hang_up,
            authenticate=self._authenticate if door.auth is not None else None,
        )
        self._parser = RequestParser(door.limits, authenticated=door.auth is None)
        self._transport: asyncio.Transport | None = None
        self._question: asyncio.Task[None] | None = None  # to the auth server
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0
        self._lingering: asyncio.TimerHandle | None = None
        self._behind = False  # some of what came waits for the next turn
        self._free = False  # nothing is special, so that a run of XADDs can be added without a look at anything else
        self._ready = self._session.replies.ready
        self._slots = self._session.replies.slots
        self._gathered = door.context.gathered
        self._max_entry = door.limits.max_entry
        self._muted = False  # nothing is read from the socket
        self._blocked = False  # the socket takes no more
        self._half_closed = False
        self._ending = False
        self._unannounced = 0  # topics that this client created and that others cannot find yet

    # --- asyncio's side --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a client in, unless there are too many."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        peer = self._session.peer
        peer.address = far_end(transport)[1]
        peer.local_address = _local(transport)
        peer.connected = peer.active = self._clock.now()
        limit = self._door.broker.options.max_connections
        if 0 < limit <= len(self._door.connections):
            self._door.context.counts.rejected += 1
            self._session.refuse(ProtocolError("ERR", _MAX_CLIENTS))
            self._turn.add(self)
            return
        self._door.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._free and not self._slots:
            count, end, key = kernel.xadd_run(data, 0, self._max_entry)
            if count and end == len(data) and self._add(key, count, data):
                self._turn.add(self)
                return
        if self._ending or self._session.closing:
            return
        self._parser.receive(data)
        self._handle()
        self._turn.add(self)

    def _add(self, key: bytes, count: int, data: bytes) -> bool:
        """Add the entries of a run of plain XADDs; return False if that is not possible, and nothing was done."""
        if len(data) <= redis_gathered.MOST and self._door.gathers:
            runs = self._gathered.get(key) or self._door.context.gathering(key)
            if runs is not None:
                runs.add(self._session, data, count)
                return True
        return self._session.add_run(XaddRun(key, count, data), now=self._clock.now())

    def eof_received(self) -> bool:
        """End the connection once the replies are sent: the client sends no more."""
        self._half_closed = True
        self._free = False
        self._turn.add(self)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """Release everything: the client is gone."""
        self._ending = True
        self._free = False
        for timer in (self._timer, self._lingering):
            if timer is not None:
                timer.cancel()
        if self._question is not None:
            self._question.cancel()
        self._door.connections.discard(self)
        self._session.leave()
        self._turn.schedule_flush()

    def pause_writing(self) -> None:
        """Handle nothing more: the client does not read the replies."""
        self._blocked = True
        self._free = False
        self._heed()

    def resume_writing(self) -> None:
        """Carry on: the socket takes bytes again."""
        self._blocked = False
        self._resume()

    # --- requests --------------------------------------------------------------------------------------------------

    def _handle(self) -> None:
        """Carry out what has come, but no more than one client's share of a turn."""
        self._behind = self._free = False
        session = self._session
        changes = self._door.broker.changes
        before = len(changes)
        try:
            self._carry_out()
        except ProtocolError as error:
            session.refuse(error)
        except HangUp:
            session.closing = True
        if len(changes) > before:
            self._await_announced(changes[before:])
        self._heed()
        self._arm()
        busy = self._behind or self._blocked or self._question is not None or session.busy
        self._free = not (busy or self._parser.buffered or self._unannounced or self._half_closed) and session.plain

    def _carry_out(self) -> None:
        session, parser = self._session, self._parser
        if session.busy or session.closing or self._blocked or self._question is not None:
            return
        now = self._clock.now()
        if self._expired(now):
            return
        parser.authenticated = session.authenticated
        share = _SHARE
        for request in parser.requests():
            session.handle(request, now=now)
            if session.closing or session.busy:
                return
            parser.authenticated = session.authenticated
            share -= request.count if isinstance(request, XaddRun) else 1
            if share <= 0:
                self._behind = True
                asyncio.get_running_loop().call_soon(self._resume)
                return

    def _resume(self) -> None:
        """Carry on with what came before."""
        if not self._ending and self._transport is not None:
            self._handle()
            self._turn.add(self)

    def _heed(self) -> None:
        """Stop or resume reading from a client that is far ahead, or does not read the replies."""
        ahead = self._session.busy and self._parser.buffered > _MOST_BUFFERED
        muted = self._behind or self._blocked or ahead
        transport = self._transport
        if muted == self._muted or transport is None or self._ending or self._half_closed or transport.is_closing():
            return
        self._muted = muted
        if muted:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _await_announced(self, changes: list[Change]) -> None:
        """Hold the replies until new topics can be found by others."""
        announcer = self._door.announcer
        for kind, topic, _, created in changes:
            settling = announcer.settling(topic) if announcer is not None and created and kind == "topic" else None
            if settling is not None:
                self._unannounced += 1
                settling.add_done_callback(self._announced)

    def _announced(self, _: object) -> None:
        self._unannounced -= 1
        self._turn.add(self)

    # --- time ------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Be there when the command that waits has to be looked at."""
        due = self._session.next_due
        if due is None or self._ending:
            return
        if self._timer is not None:
            if self._timer_due == due:
                return
            self._timer.cancel()
        self._timer_due = due
        delay = max(due - self._clock.now(), 0) / 1e9
        self._timer = asyncio.get_running_loop().call_later(delay, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        now = self._clock.now()
        self._session.pass_time(now if now > self._timer_due else self._timer_due)
        self._turn.add(self)
        self._arm()

    # --- AUTH ------------------------------------------------------------------------------------------------------

    def _authenticate(self, secret: bytes) -> None:
        self._question = asyncio.get_running_loop().create_task(self._admit(secret))

    async def _admit(self, secret: bytes) -> None:
        grants = await self._ask(secret)
        self._question = None
        if self._session.wait is None:
            return  # the client is gone
        if grants is None:
            redis_server.deny(self._session)
        else:
            redis_server.admit(self._session, grants, grants.identity)

    async def _ask(self, secret: bytes) -> Authorizations | None:
        """Return what the auth servers grant; None if they grant nothing."""
        assert self._door.auth is not None
        assert self._transport is not None
        host = self._session.peer.address.rpartition(":")[0].strip("[]")
        encrypted = self._transport.get_extra_info("ssl_object") is not None
        try:
            grants = await self._door.auth.query(
                secret=secret, remote_ip=host, tls=encrypted, common_name=_common_name(self._transport)
            )
        except LapwingError as error:
            self._door.log.warn(f"{self._session.peer.address}: auth server: {error}")
            return None
        return grants if grants.authorizations else None

    def _expired(self, now: int) -> bool:
        """Return whether the permissions have to be asked for again, which is done then."""
        grants = cast("Authorizations | None", self._session.grants)
        if grants is None or not grants.expired(now):
            return False
        self._question = asyncio.get_running_loop().create_task(self._renew(grants.secret))
        return True

    async def _renew(self, secret: bytes) -> None:
        self._session.grants = await self._ask(secret)
        self._question = None
        self._resume()

    # --- replies ---------------------------------------------------------------------------------------------------

    def _add_to_turn(self) -> None:
        self._turn.add(self)

    def flush(self) -> None:
        """Send the replies of this turn; then end the conversation if it is over."""
        if self._free and len(self._ready) == 1:
            self._transport.write(self._ready.pop())  # type: ignore[union-attr]
            return
        session, transport = self._session, self._transport
        if self._ending or transport is None:
            session.replies.ready.clear()
            return
        if self._unannounced:
            return
        ready = session.replies.ready
        if ready:
            transport.write(ready[0] if len(ready) == 1 else b"".join(ready))
            ready.clear()
        if session.streaming is None and not session.closing and not self._half_closed:
            return
        while session.streaming is not None and not self._blocked:
            try:
                piece = session.next_piece()
            except LapwingError as error:  # the log was cut under a reply whose length is promised
                self._door.log.warn(f"{session.peer.address}: a reply cannot be completed: {error}")
                transport.abort()
                return
            if piece is None:
                break
            transport.write(piece)
        over = session.closing or (self._half_closed and not self._behind)
        answered = session.streaming is None and not session.replies.waiting
        if (over and answered) or (self._half_closed and session.wait is not None):
            self._farewell()  # nobody is there for what a client waits for that has ended its side

    def _farewell(self) -> None:
        """Close so that the last reply is read: bytes of the client that nobody reads would turn it into a reset."""
        assert self._transport is not None
        self._ending = True
        self._free = False
        self._session.leave()
        if self._half_closed or not self._transport.can_write_eof():
            self.hang_up()
            return
        try:
            self._transport.write_eof()
        except OSError:
            self._transport.abort()
            return
        self._lingering = asyncio.get_running_loop().call_later(_LINGER, self.hang_up)

    def hang_up(self) -> None:
        """Close the connection; replies that were written still leave."""
        self._ending = True
        self._free = False
        if self._transport is not None:
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self._lingering = asyncio.get_running_loop().call_later(_LINGER, self._transport.abort)


def _local(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("sockname")
    return join(str(name[0]), name[1]) if isinstance(name, tuple) else str(name or "")


def _common_name(transport: asyncio.BaseTransport) -> str:
    certificate: dict[str, Any] = transport.get_extra_info("peercert") or {}
    names = dict(pair for part in certificate.get("subject", ()) for pair in part)
    return str(names.get("commonName", ""))
