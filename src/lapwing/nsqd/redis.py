"""The door for Redis clients: one connection, from its first byte to its last."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Final, cast

from lapwing import kernel
from lapwing.broker.broker import Broker
from lapwing.errors import HangUp, LapwingError, ProtocolError
from lapwing.net.listen import join
from lapwing.net.logs import Log
from lapwing.net.polled import PolledTransport
from lapwing.net.tls import common_name
from lapwing.nsqd import memory
from lapwing.nsqd.stream import MOST_WAITING, NEW_TOPIC, Stream
from lapwing.nsqd.turn import Turn
from lapwing.records import dataclass
from lapwing.sessions import redis_gathered, redis_server
from lapwing.sessions.redis import RedisSession
from lapwing.sessions.redis_context import RedisContext, ServerFacts
from lapwing.wire.resp.requests import Request, RequestLimits, RequestParser, XaddRun

if TYPE_CHECKING:
    from lapwing.nsqd.auth import Authenticator, Authorizations
    from lapwing.nsqd.log_tails import LogTails
    from lapwing.nsqd.peer import Peers
    from lapwing.nsqd.redis_tails import XaddRuns

_MOST_BUFFERED: Final = 1 << 20  # bytes that a client may send ahead while a command waits
_OVERHEAD: Final = 64 * 1024  # bytes of a request beside its entry
_MANY_WORDS: Final = 200  # of a request that may have to wait for the next turn
_WORDS_A_TURN: Final = 10_000  # of such requests of all clients; a single one may have more
_MAX_CLIENTS: Final = "max number of clients reached"


@dataclass(slots=True)
class RedisDoor:
    """The state that all Redis connections of one broker share."""

    broker: Broker
    turn: Turn
    log: Log
    auth: Authenticator | None = None
    announcer: Peers | None = None
    port: int = 0
    started: int = 0  # ns
    connections: set[Stream] = field(default_factory=set)
    tails: LogTails | None = None  # logs that are written to where bytes are received
    context: RedisContext = field(init=False)
    limits: RequestLimits = field(init=False)
    xadd_runs: XaddRuns | None = field(init=False, default=None)
    words: int = field(init=False, default=0)  # of the long requests that were carried out in this turn
    gathers: bool = field(init=False)  # publish XADDs of several clients together: no reply waits beyond its turn

    def __post_init__(self) -> None:
        options = self.broker.options
        self.context = RedisContext(self.broker, facts=self._facts)
        self.gathers = options.durability != "fsync"
        self.limits = RequestLimits(max(options.max_body_size, options.max_msg_size) + _OVERHEAD, options.max_msg_size)

        if self.tails is not None and self.gathers:
            from lapwing.nsqd.redis_tails import XaddRuns

            self.xadd_runs = XaddRuns(self.limits.max_entry, self.turn.clock.now, self.tails)

    def connect(self) -> RedisConnection:
        """Return the protocol of a new connection."""
        return RedisConnection(self)

    def publish_gathered(self) -> None:
        """Publish the XADDs that clients sent in this turn, which ends."""
        self.words = 0
        if self.context.gathered:
            self.context.publish_gathered(self.turn.clock.now())

    def postpones(self, request: Request) -> bool:
        """Return whether a request has to wait for the next turn: this one has had many words, and so has it."""
        if type(request) is not list or len(request) <= _MANY_WORDS:
            return False
        if self.words + len(request) > _WORDS_A_TURN and self.words:
            return True
        self.words += len(request)
        return False

    def end_turn(self) -> None:
        """Answer the commands that wait for what this turn has brought."""
        self.context.wake(self.turn.clock.now())

    def _facts(self) -> ServerFacts:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return ServerFacts(
            process_id=os.getpid(),
            port=self.port,
            started=self.started,
            memory=memory.resident(),
            cpu_user=usage.ru_utime,
            cpu_system=usage.ru_stime,
            system=f"{os.uname().sysname} {os.uname().release} {os.uname().machine}",
        )


class RedisConnection(Stream):
    """One Redis client."""

    _context: RedisDoor
    _session: RedisSession

    def __init__(self, door: RedisDoor) -> None:
        session = RedisSession(
            door.context,
            on_ready=self._on_ready,
            on_free=self._catch_up,
            hang_up=self.hang_up,
            authenticate=self._authenticate if door.auth is not None else None,
        )
        super().__init__(door, session)
        self._parser = RequestParser(door.limits, authenticated=door.auth is None)
        self._alarm: asyncio.TimerHandle | None = None  # for the command that waits
        self._alarm_due = 0
        self._postponed: Request | None = None  # a long request that waits for the next turn
        self._free = False  # nothing is special, so that a run of XADDs can be added without a look at anything else
        self._ready = session.replies.ready
        self._slots = session.replies.slots
        self._gathered = door.context.gathered
        self._max_entry = door.limits.max_entry

    def _opened(self, host: str, address: str, now: int) -> None:
        peer = self._session.peer
        peer.address = address
        peer.local_address = _local(self._transport)
        peer.connected = peer.active = now

    def _too_many(self, limit: int) -> ProtocolError:
        self._context.context.counts.rejected += 1
        return ProtocolError("ERR", _MAX_CLIENTS)

    # --- requests --------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client; a run of plain XADDs, or one frequent command, does without the parser."""
        if self._free and not self._slots:
            count, end, key = kernel.xadd_run(data, 0, self._max_entry)
            if (end == len(data) and self._add(key, count, data)) if count else self._obey_alone(data):
                self._turn.add(self)
                return
        if not (self._ending or self._session.doomed):
            self._parser.receive(data)
            self._digest()
            self._turn.add(self)

    def _obey_alone(self, data: bytes) -> bool:
        """Carry out one frequent command; return False if it is none or not alone, and nothing was done."""
        session, now = self._session, self._clock.now()
        if session.carry_out_again(data, now=now):
            return True
        words = self._parser.alone(data)
        if not words or len(words) > _MANY_WORDS or not session.carry_out_alone(words, now=now):
            return False
        session.note_request(data, words)
        if session.wait is not None or session.streaming is not None:
            self._free = False
            self._arm()
            self._heed()
        return True

    def _add(self, key: bytes, count: int, data: bytes) -> bool:
        """Add the entries of a run of plain XADDs; return False if that is not possible, and nothing was done."""
        if len(data) <= redis_gathered.MOST and self._context.gathers:
            runs = self._gathered.get(key) or self._context.context.gathering(key)
            if runs is not None:
                runs.add(self._session, data, count)
                if self._context.xadd_runs is not None and isinstance(self._transport, PolledTransport):
                    self._context.xadd_runs.note(self._transport, key, runs.stream)
                return True
        return self._session.add_run(XaddRun(key, count, data), now=self._clock.now())

    def count_added(self, entries: int, now: int) -> None:
        """Count entries that were answered where they were received."""
        peer = self._session.peer
        peer.active, peer.command = now, "xadd"
        self._context.context.counts.commands += entries

    @property
    def _waits(self) -> bool:
        session = self._session
        return session.wait is not None or session.streaming is not None or self._blocked or self._busy is not None

    @property
    def _too_many_waiting(self) -> bool:
        if len(self._slots) >= MOST_WAITING:
            return True
        return self._session.busy and self._parser.buffered > _MOST_BUFFERED

    def _feed(self, data: bytes) -> None:
        self._parser.receive(data)

    def _digest(self) -> None:
        self._free = False
        super()._digest()
        self._arm()
        busy = self._behind or self._ending or self._blocked or self._half_closed or self._unannounced
        self._free = not (busy or self._busy is not None or self._parser.buffered) and self._session.plain

    def _obey(self, share: int) -> int:
        session, parser = self._session, self._parser
        now = self._clock.now()
        if self._expired(now):
            return share
        parser.authenticated = session.authenticated
        changes = self._context.broker.changes
        changed = len(changes)
        try:
            for request in self._requests():
                if self._context.postpones(request):
                    self._postponed = request
                    return 0
                session.handle(request, now=now)
                share -= request.count if isinstance(request, XaddRun) else 1
                if len(changes) > changed:
                    share -= NEW_TOPIC
                    changed = len(changes)
                if share <= 0 or session.doomed or session.busy:
                    break
                parser.authenticated = session.authenticated
        except HangUp:
            session.doomed = True
        return share

    def _requests(self) -> Iterator[Request]:
        """Yield the request that had to wait for this turn, if one had to, and then those that have come."""
        request, self._postponed = self._postponed, None
        if request is not None:
            yield request
        yield from self._parser.requests()

    def eof_received(self) -> bool:
        """End the connection once the replies are sent: the client sends no more."""
        self._free = False
        return super().eof_received()

    def pause_writing(self) -> None:
        """Handle nothing more: the client does not read the replies."""
        self._free = False
        super().pause_writing()

    def resume_writing(self) -> None:
        """Carry on: the socket takes bytes again."""
        super().resume_writing()
        self._catch_up()

    # --- time ------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Be there when the command that waits has to be looked at."""
        due = self._session.next_due
        if due is None or self._ending:
            return
        if self._alarm is not None:
            if self._alarm_due == due:
                return
            self._alarm.cancel()
        self._alarm_due = due
        delay = max(due - self._clock.now(), 0) / 1e9
        self._alarm = asyncio.get_running_loop().call_later(delay, self._time_is_up)

    def _time_is_up(self) -> None:
        self._alarm = None
        now = self._clock.now()
        self._session.pass_time(now if now > self._alarm_due else self._alarm_due)
        self._turn.add(self)
        self._arm()

    # --- AUTH ------------------------------------------------------------------------------------------------------

    def _authenticate(self, secret: bytes) -> None:
        self._wait_for(self._admit(secret))

    async def _admit(self, secret: bytes) -> None:
        grants = await self._ask(secret)
        if self._session.wait is None:
            return  # the client is gone
        if grants is None:
            redis_server.deny(self._session)
        else:
            redis_server.admit(self._session, grants, grants.identity)

    async def _ask(self, secret: bytes) -> Authorizations | None:
        """Return what the auth servers grant; None if they grant nothing."""
        assert self._context.auth is not None
        assert self._transport is not None
        host = self._session.peer.address.rpartition(":")[0].strip("[]")
        encrypted = self._transport.get_extra_info("ssl_object") is not None
        name = common_name(self._transport.get_extra_info("peercert"))
        try:
            grants = await self._context.auth.query(secret=secret, remote_ip=host, tls=encrypted, common_name=name)
        except LapwingError as error:
            self._context.log.warn(f"{self._session.peer.address}: auth server: {error}")
            return None
        return grants if grants.authorizations else None

    def _expired(self, now: int) -> bool:
        """Return whether the permissions have to be asked for again, which is done then."""
        grants = cast("Authorizations | None", self._session.grants)
        if grants is None or not grants.expired(now):
            return False
        self._wait_for(self._renew(grants.secret))
        return True

    async def _renew(self, secret: bytes) -> None:
        self._session.grants = await self._ask(secret)

    # --- replies ---------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send the replies of this turn; then end the conversation if it is over."""
        if self._free and len(self._ready) == 1:
            transport = self._transport
            assert transport is not None
            if isinstance(transport, PolledTransport):
                transport.direct = not self._slots
            transport.write(self._ready.pop())
            return
        super().flush()
        if self._half_closed and self._session.wait is not None and not self._ending:
            self._farewell()  # nobody is there for what a client waits for that has ended its side

    def _answered_all(self) -> None:
        """Send more of a large reply, as much as the socket takes."""
        session, transport = self._session, self._transport
        while session.streaming is not None and transport is not None and not self._blocked:
            try:
                piece = session.next_piece()
            except LapwingError as error:  # the log was cut under a reply whose length is promised
                self._context.log.warn(f"{session.peer.address}: a reply cannot be completed: {error}")
                transport.abort()
                return
            if piece is None:
                break
            transport.write(piece)

    def _closed(self) -> None:
        self._free = False
        if self._alarm is not None:
            self._alarm.cancel()
        self._session.leave()

    def hang_up(self) -> None:
        """Close the connection; replies that were written still leave."""
        self._free = False
        super().hang_up()


def _local(transport: asyncio.BaseTransport | None) -> str:
    name = transport.get_extra_info("sockname") if transport is not None else None
    return join(str(name[0]), name[1]) if isinstance(name, tuple) else str(name or "")
