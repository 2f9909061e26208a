"""The door for Redis clients: one connection, from its first byte to its last."""

from __future__ import annotations

import asyncio
import os
import resource
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from lapwing.broker.broker import Broker
from lapwing.errors import HangUp, LapwingError, LogError, ProtocolError
from lapwing.net.logs import Log
from lapwing.net.sockets.listen import join
from lapwing.net.sockets.tls import common_name
from lapwing.nsqd.doors.connection import NEW_TOPIC, ClientProtocol, Connection
from lapwing.nsqd.stats import memory
from lapwing.nsqd.turn import Turn
from lapwing.records import dataclass
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

_MAX_AHEAD: Final = 1 << 20  # bytes that a client may send ahead while a command waits
_OVERHEAD: Final = 64 * 1024  # bytes of a request beside its entry
_MAX_STREAMS: Final = 10_000  # that XADDs are taken for where they are received
_LONG: Final = 200  # words of a request that may have to wait for the next turn
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
    connections: set[Connection] = field(default_factory=set)
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

            self.intake = RedisIntake(self.intakes.round, self.limits.max_entry, _refusal, self.broker.work)
            self.context.let_in = self._let_in

    def connect(self) -> Connection:
        """Return the connection of a new client."""
        return Connection(self, partial(RedisProtocol, self))

    def _let_in(self, key: bytes, stream: RedisStream) -> None:
        """Have plain XADDs to a stream of database 0 taken where they are received from now on."""
        assert self.intake is not None
        known = self.intake.streams.get(key)
        if known is not None and known.stream is stream and known.inlet.open:
            return
        inlet = stream.topic.let_in()
        if inlet is not None:
            if len(self.intake.streams) >= _MAX_STREAMS:
                self.intake.streams.clear()
            self.intake.open(key, stream, inlet)

    def renew_shares(self) -> None:
        """Let requests have many words again: a turn ends."""
        self.words = 0

    def postpones(self, request: list[bytes]) -> bool:
        """Return whether a long request has to wait for the next turn: this one has had many words already."""
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


class RedisProtocol(ClientProtocol):
    """RESP, with one Redis client."""

    session: RedisSession

    def __init__(self, door: RedisDoor, connection: Connection) -> None:
        self.connection = connection
        self.session = RedisSession(
            door.context,
            on_ready=lambda: door.turn.add(connection),
            on_free=connection.resume,
            hang_up=connection.hang_up,
            authenticate=self._authenticate if door.auth is not None else None,
        )
        self._door = door
        self._now = door.turn.clock.now
        self._parser = RequestParser(door.limits, authenticated=door.auth is None)
        self._alarm: asyncio.TimerHandle | None = None  # for the command that waits
        self._alarm_due = 0
        self._postponed: Request | None = None  # a long request that waits for the next turn

    def opened(self, host: str, address: str, now: int) -> None:
        peer, transport = self.session.peer, self.connection.transport
        peer.address = address
        peer.local_address = _local(transport)
        peer.connected = peer.active = now
        if self.connection.polled is not None:
            self.connection.polled.peer = peer

    def too_many(self, limit: int) -> ProtocolError:
        self._door.context.counts.rejected += 1
        return ProtocolError("ERR", _MAX_CLIENTS)

    # --- requests --------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        self._parser.receive(data)

    @property
    def waits(self) -> bool:
        """Whether a command waits, or its reply is being sent, or the client reads no replies."""
        session = self.session
        return session.wait is not None or session.streaming is not None or self.connection.blocked

    @property
    def waits_for_others(self) -> bool:
        return self.session.wait is not None

    @property
    def gets_ahead(self) -> bool:
        """Whether the client has sent very much behind a command that waits."""
        return self.session.busy and self._parser.buffered > _MAX_AHEAD

    def intake(self) -> RedisIntake | None:
        """Return the intake of plain XADDs; None where each needs a look, or in the middle of a request."""
        return self._door.intake if self.session.plain and not self._parser.buffered else None

    def execute(self, share: int) -> int:
        """Carry out requests up to one that has to wait."""
        session, parser, door = self.session, self._parser, self._door
        now = self._now()
        if session.grants is not None and self._expired(now):
            return share
        changes = door.broker.changes
        changed = len(changes)
        request, self._postponed = self._postponed, None
        try:
            while True:
                if request is None:
                    if session.authenticate is not None:
                        parser.authenticated = session.authenticated
                    request = parser.next_request()
                    if request is None:
                        break
                if type(request) is list and len(request) > _LONG and door.postpones(request):
                    self._postponed = request
                    return 0
                session.handle(request, now=now)
                share -= request.count if type(request) is XaddRun else 1
                if len(changes) > changed:
                    share -= NEW_TOPIC
                    changed = len(changes)
                if share <= 0 or session.doomed or session.wait is not None or session.streaming is not None:
                    break
                request = None
        except HangUp:
            session.doomed = True
        if session.wait is not None:
            self._arm()
        return share

    # --- time ------------------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        """Be there when the command that waits has to be looked at."""
        due = self.session.next_due
        if due is None or self.connection.ending:
            return
        if self._alarm is not None:
            if self._alarm_due == due:
                return
            self._alarm.cancel()
        self._alarm_due = due
        delay = max(due - self._now(), 0) / 1e9
        self._alarm = asyncio.get_running_loop().call_later(delay, self._time_is_up)

    def _time_is_up(self) -> None:
        self._alarm = None
        now = self._now()
        self.session.pass_time(now if now > self._alarm_due else self._alarm_due)
        self._door.turn.add(self.connection)
        self._arm()

    # --- AUTH ------------------------------------------------------------------------------------------------------

    def _authenticate(self, secret: bytes) -> None:
        self.connection.wait_for(self._admit(secret))

    async def _admit(self, secret: bytes) -> None:
        grants = await self._ask(secret)
        if self.session.wait is None:
            return  # the client is gone
        if grants is None:
            self.session.deny()
        else:
            self.session.grant(grants, grants.identity)

    async def _ask(self, secret: bytes) -> Authorizations | None:
        """Return what the auth servers grant; None if they grant nothing."""
        assert self._door.auth is not None
        assert self.connection.transport is not None
        host = self.session.peer.address.rpartition(":")[0].strip("[]")
        encrypted = self.connection.transport.get_extra_info("ssl_object") is not None
        name = common_name(self.connection.transport.get_extra_info("peercert"))
        try:
            grants = await self._door.auth.query(secret=secret, remote_ip=host, tls=encrypted, common_name=name)
        except LapwingError as error:
            self._door.log.warn(f"{self.session.peer.address}: auth server: {error}")
            return None
        return grants if grants.authorizations else None

    def _expired(self, now: int) -> bool:
        """Return whether the permissions have to be asked for again, which is done then."""
        grants = cast("Authorizations", self.session.grants)
        if not grants.expired(now):
            return False
        self.connection.wait_for(self._renew(grants.secret))
        return True

    async def _renew(self, secret: bytes) -> None:
        self.session.grants = await self._ask(secret)

    # --- replies ---------------------------------------------------------------------------------------------------

    def on_answered(self) -> None:
        """Send more of a large reply, as much as the socket takes."""
        session, transport = self.session, self.connection.transport
        while session.streaming is not None and transport is not None and not self.connection.blocked:
            try:
                piece = session.next_piece()
            except LapwingError as error:  # the log was cut under a reply whose length is promised
                self._door.log.warn(f"{session.peer.address}: a reply cannot be completed: {error}")
                transport.abort()
                return
            if piece is None:
                break
            transport.write(piece)

    def closed(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self.session.leave()


def _local(transport: asyncio.BaseTransport | None) -> str:
    name = transport.get_extra_info("sockname") if transport is not None else None
    return join(str(name[0]), name[1]) if isinstance(name, tuple) else str(name or "")


def _refusal(error: Exception) -> bytes:
    """Return the reply to an XADD that could not be written."""
    known = error if isinstance(error, LapwingError) else LogError(f"{type(error).__name__}: {error}")
    return replies.error(write_failed(known))
