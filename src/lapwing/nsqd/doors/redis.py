"""The door for Redis clients: one connection, from its first byte to its last."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from dataclasses import field
from typing import TYPE_CHECKING, Final, cast

from lapwing.broker.broker import Broker
from lapwing.errors import HangUp, LapwingError, LogError, ProtocolError
from lapwing.net.logs import Log
from lapwing.net.sockets.listen import join
from lapwing.net.sockets.polled import PolledTransport
from lapwing.net.sockets.tls import common_name
from lapwing.nsqd.doors.stream import MOST_WAITING, NEW_TOPIC, Stream
from lapwing.nsqd.stats import memory
from lapwing.nsqd.turn import Turn
from lapwing.records import dataclass
from lapwing.sessions.redis import server as redis_server
from lapwing.sessions.redis.context import RedisContext, ServerFacts
from lapwing.sessions.redis.replies import write_failed
from lapwing.sessions.redis.session import RedisSession
from lapwing.wire.resp import replies
from lapwing.wire.resp.requests import Request, RequestLimits, RequestParser, XaddRun

if TYPE_CHECKING:
    from lapwing.kernel._road import RedisIntake
    from lapwing.nsqd.doors.auth import Authenticator, Authorizations
    from lapwing.nsqd.doors.intakes import Intakes
    from lapwing.nsqd.lookupd.peer import Peers
    from lapwing.sessions.redis.stream import Stream as RedisStream

_MOST_BUFFERED: Final = 1 << 20  # bytes that a client may send ahead while a command waits
_OVERHEAD: Final = 64 * 1024  # bytes of a request beside its entry
_MOST_STREAMS: Final = 10_000  # that XADDs are taken for where they are received
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
    intakes: Intakes | None = None  # where bytes are received
    context: RedisContext = field(init=False)
    limits: RequestLimits = field(init=False)
    intake: RedisIntake | None = field(init=False, default=None)  # takes plain XADDs where they are received
    words: int = field(init=False, default=0)  # of the long requests that were carried out in this turn

    def __post_init__(self) -> None:
        options = self.broker.options
        self.context = RedisContext(self.broker, facts=self._facts)
        self.limits = RequestLimits(max(options.max_body_size, options.max_msg_size) + _OVERHEAD, options.max_msg_size)
        if self.intakes is not None and not self.intakes.waits:
            from lapwing.kernel._road import RedisIntake

            self.intake = RedisIntake(self.intakes.round, self.limits.max_entry, _refusal)
            self.context.let_in = self._let_in

    def connect(self) -> RedisConnection:
        """Return the protocol of a new connection."""
        return RedisConnection(self)

    def _let_in(self, key: bytes, stream: RedisStream) -> None:
        """Have plain XADDs to a stream of database 0 taken where they are received from now on."""
        assert self.intake is not None
        known = self.intake.streams.get(key)
        if known is not None and known.stream is stream and known.inlet.open:
            return
        inlet = stream.topic.let_in()
        if inlet is not None:
            if len(self.intake.streams) >= _MOST_STREAMS:
                self.intake.streams.clear()
            self.intake.open(key, stream, inlet)

    def renew_shares(self) -> None:
        """Let requests have many words again: a turn ends."""
        self.words = 0

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
        if self.intake is not None:
            self.context.counts.commands += self.intake.commands
            self.intake.commands = 0
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

    def _opened(self, host: str, address: str, now: int) -> None:
        peer = self._session.peer
        peer.address = address
        peer.local_address = _local(self._transport)
        peer.connected = peer.active = now
        if isinstance(self._transport, PolledTransport):
            self._transport.peer = peer

    def _too_many(self, limit: int) -> ProtocolError:
        self._context.context.counts.rejected += 1
        return ProtocolError("ERR", _MAX_CLIENTS)

    # --- requests --------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client; one frequent command does without the parser."""
        if self._free and not self._slots and self._obey_alone(data):
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

    @property
    def _free(self) -> bool:
        """Whether nothing is special, so that a request can be carried out without a look at anything else."""
        return self._is_free

    @_free.setter
    def _free(self, free: bool) -> None:
        self._is_free = free
        transport = self._transport
        if isinstance(transport, PolledTransport):
            transport.receiver = self._context.intake if free else None

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
        transport = self._transport
        if self._free and len(self._ready) == 1 and transport is not None:
            transport.write(self._ready.pop())
        else:
            super().flush()
        if isinstance(transport, PolledTransport):
            transport.direct = not (self._ready or self._slots or self._unannounced)
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


def _refusal(error: Exception) -> bytes:
    """Return the reply to an XADD that could not be written."""
    known = error if isinstance(error, LapwingError) else LogError(f"{type(error).__name__}: {error}")
    return replies.error(write_failed(known))
