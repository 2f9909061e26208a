"""The door for NSQ's protocol: IDENTIFY with its layers, AUTH, heartbeats, and commands for the session."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from lapwing import names
from lapwing.broker.channel.subscription import UNSENT
from lapwing.errors import LapwingError, ProtocolError
from lapwing.net.sockets.polled import PolledTransport
from lapwing.nsqd.doors.authorization import Gate, Guarded
from lapwing.nsqd.doors.context import ListenerContext
from lapwing.nsqd.doors.stream import ATTRIBUTES, NEW_TOPIC, Stream
from lapwing.nsqd.doors.upgrade import Encrypted, Layers, compression
from lapwing.sessions.nsq import PublishSlot, Session
from lapwing.wire.nsq import frames, identify
from lapwing.wire.nsq.commands import Auth, Command, Dpub, Hpub, Identify
from lapwing.wire.nsq.connection import BrokerConnection, HangUp
from lapwing.wire.nsq.state import State

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.topic.topic import Topic

_SECOND: Final = 1_000_000_000
_HANDSHAKE: Final = 5_000_000_000  # ns for TLS
_LARGE_IDENTIFY: Final = 16384  # bytes of a body that is read in several turns


class Connection(Stream):
    """One client that speaks NSQ's protocol."""

    _context: ListenerContext
    _session: Session

    def __init__(self, context: ListenerContext) -> None:
        session = Session(context.broker, context.limits, on_ready=self._on_ready, hang_up=self.hang_up)
        super().__init__(context, session)
        self._wire = BrokerConnection(context.limits)
        self._layers = Layers()
        self._granted: identify.ClientSettings | None = None  # layers to add as soon as the answer is written
        self._handshake: Encrypted | None = None
        self._settings = context.terms.settings()
        self._identified = False
        self._pieces: Iterator[bytes] | None = None  # bytes that came through the layers and are not parsed yet
        self._finishing: Channel | None = None  # whose FINs the intake may take
        self._polled: PolledTransport | None = None  # the transport, where intakes take what it receives
        self._gate = Gate(context.auth, session.about, self._clock.now, context.log)

    def _opened(self, host: str, address: str, now: int) -> None:
        if self._context.intakes is not None and isinstance(self._transport, PolledTransport):
            self._polled = self._transport
        self._agree(self._context.terms.settings(host))
        about = self._session.about
        about.client_id = about.hostname = host
        about.remote_address = address
        about.connected = now // _SECOND
        if self._gate.closed:
            self._wire.authorize = self._gate.authorize
        if self._context.options.magic_timeout > 0:
            self._timer.arm(self._context.options.magic_timeout, self.hang_up)

    def _too_many(self, limit: int) -> ProtocolError:
        return ProtocolError("E_TOO_MANY_CONNECTIONS", f"this broker takes {limit} connections at a time")

    # --- input -------------------------------------------------------------------------------------------------

    def eof_received(self) -> bool:
        """Note that the client sends no more, which ends a handshake."""
        if self._handshake is not None or (self._granted is not None and self._granted.tls):
            self._handshake_failed("EOF")
        return super().eof_received()

    @property
    def _waits(self) -> bool:
        return self._busy is not None or self._granted is not None or self._handshake is not None

    def _feed(self, data: bytes) -> None:
        if self._handshake is not None:
            self._shake(data)
        elif self._layers:
            self._pieces = self._layers.pieces(data)
        else:
            self._wire.receive(data)

    def _feed_more(self) -> int:
        if self._pieces is None or self._waits:
            return 0
        try:
            piece = next(self._pieces, None)
        except ssl.SSLError as error:
            self._context.log.debug(f"{self._session.about.remote_address}: TLS: {error}")
            self._session.doomed = True
            return 0
        if piece is None:
            self._pieces = None
            self._answer_tls()
            return 0
        self._wire.receive(piece)
        return 1 + (len(piece) >> 8)

    def _digest(self) -> None:
        super()._digest()
        transport, intakes = self._polled, self._context.intakes
        if transport is None or intakes is None:
            return
        halted = self._behind or self._waits or self._ending or self._session.doomed
        if halted or self._layers or not self._wire.at_rest:
            transport.receiver = None
        elif transport.receiver is None:
            transport.receiver = intakes.nsq
            transport.published, transport.timer = self._session.publish_counts, self._timer
        channel = self._session.finishing
        if channel is not self._finishing:
            self._finishing = channel
            transport.finishes = None if channel is None else intakes.finishes(channel)

    def publish_failed(self, word: str, error: LapwingError) -> None:
        """Refuse publishes that the intake has taken."""
        self._session.publish_failed(word, error)
        self._turn.add(self)

    def await_sync(self, topic: Topic, word: str, messages: int, commands: int) -> PublishSlot:
        """Return the place of the answer to publishes that the intake has taken and that wait for a sync."""
        self._timer.last_command = self._clock.now()
        slot = self._session.taken(topic, word, messages, commands)
        if self._too_many_waiting:
            self._heed()
        return slot

    def finished(self, block: bytes, now: int) -> None:
        """Carry out a run of FINs that the intake has taken."""
        session = self._session
        if self._ending or session.doomed:
            return
        self._timer.last_command = now
        try:
            session.finish_run(block, now=now)
        except ProtocolError as error:
            session.refuse(error)
        if session.replies.ready or session.doomed:
            self._turn.add(self)

    def _obey(self, share: int) -> int:
        """Carry out commands up to the first error, or one that has to wait."""
        session, timer = self._session, self._timer
        now = self._clock.now()
        guarded = self._gate.closed
        changes = session.broker.changes
        changed = len(changes)
        try:
            for command in self._wire.commands():
                if type(command) in _SPECIAL:
                    timer.last_command = now
                    self._special(command, now)
                    if self._waits:
                        return share
                elif guarded and isinstance(command, Guarded) and not self._allowed(command):
                    return share
                else:
                    session.handle(command, now=now)
                timer.last_command = now
                if session.doomed:
                    return share
                share -= ATTRIBUTES if type(command) in _WITH_ATTRIBUTES else 1
                if len(changes) > changed:
                    share -= NEW_TOPIC
                    changed = len(changes)
                if share <= 0:
                    break
        except ProtocolError as error:
            session.refuse(error)
        except HangUp:
            session.doomed = True  # without an error, but commands before it have their answers
        if not timer.started and self._wire.state is not State.MAGIC:
            timer.last_command = now
            timer.start(self._settings.heartbeat_interval, now=now)
        return share

    def _special(self, command: Command, now: int) -> None:
        if isinstance(command, Identify):
            self._identify(command, now)
        elif isinstance(command, Auth):
            self._authenticate(command)

    def _answer_tls(self) -> None:
        """Send what TLS itself answers, such as a key update; follow a client that closes in TLS."""
        tls = self._layers.tls
        if tls is not None and self._transport is not None:
            own = tls.encode(b"")
            if own:
                self._transport.write(own)
            if tls.over:
                self.eof_received()

    def _end_of_input(self) -> None:
        error = self._wire.eof()
        if error is not None and not self._session.doomed:
            self._session.refuse(error)
        self._session.doomed = True

    # --- IDENTIFY ----------------------------------------------------------------------------------------------

    def _identify(self, command: Identify, now: int) -> None:
        if len(command.body) > _LARGE_IDENTIFY:
            self._wait_for(self._identify_later(command.body))
        else:
            self._introduce(identify.parse(command.body), now)

    async def _identify_later(self, body: bytes) -> None:
        reader = identify.IdentityReader(body)
        identity = reader.advance()
        while identity is None:
            await asyncio.sleep(0)  # other clients get their turn
            identity = reader.advance()
        self._introduce(identity, self._clock.now())

    def _introduce(self, identity: identify.Identity, now: int) -> None:
        """Agree on what the client asks for, and answer its IDENTIFY."""
        current, max_attempts, retries = self._settings, None, False
        if names.valid(identity.topic) and names.valid(identity.channel):
            there = self._session.broker.settings.for_names(identity.topic, identity.channel)
            max_attempts = there.max_attempts
            retries = bool(there.max_attempts or there.retry_first)
            if self._session.msg_timeout is None:
                current = replace(current, msg_timeout=there.msg_timeout)
        message_ids = self._session.broker.settings.dedup_topics() if identity.headers else ()
        settings, answer = identify.negotiate(
            identity, self._context.terms, current,
            max_attempts=max_attempts, retries=retries, message_ids=message_ids,
        )  # fmt: skip
        session, about = self._session, self._session.about
        self._agree(settings)
        about.client_id, about.hostname, about.user_agent = settings.client_id, settings.hostname, settings.user_agent
        about.topology_region, about.topology_zone = settings.topology_region, settings.topology_zone
        self._wire.heartbeats = settings.heartbeat_interval > 0
        self._wire.grant(reject=settings.reject, headers=settings.headers)
        session.headers = settings.headers
        if identity.msg_timeout:
            session.touch_timeout = settings.msg_timeout
        if not self._identified:  # deliveries and heartbeats go by the first one
            self._identified = True
            if identity.msg_timeout:
                session.msg_timeout = settings.msg_timeout
            session.sample_rate = settings.sample_rate
            session.locality = self._context.locality(settings)
            self._timer.start(settings.heartbeat_interval, now=now)
        session.replies.add(frames.response(answer))
        if identity.feature_negotiation:
            self._upgrade(settings)

    def _agree(self, settings: identify.ClientSettings) -> None:
        self._settings = settings
        self._session.heartbeats = settings.heartbeat_interval > 0
        self._timer.allow_silence(2 * settings.heartbeat_interval)

    def _upgrade(self, settings: identify.ClientSettings) -> None:
        """Have the granted layers added at the end of the turn, behind the answers before."""
        if not (settings.tls or settings.snappy or settings.deflate):
            return
        if self._layers:
            raise ProtocolError("E_IDENTIFY_FAILED", "IDENTIFY failed the connection is upgraded already")
        self._granted = settings

    def _add_layers(self, settings: identify.ClientSettings) -> None:
        """Continue inside the layers; for TLS, with the handshake."""
        self._granted = None
        rest = self._wire.take_rest()
        if settings.tls:
            assert self._context.tls is not None
            self._handshake = Encrypted(self._context.tls)
            self._timer.arm(_HANDSHAKE, lambda: self._handshake_failed("i/o timeout"))
            if rest:
                self._shake(rest)
        else:
            self._compress()
            self._pieces = self._layers.pieces(rest)
        self._catch_up()

    def _shake(self, data: bytes) -> None:
        layer = self._handshake
        assert layer is not None
        assert self._transport is not None
        try:
            done, answer = layer.handshake(data)
        except ssl.SSLError as error:
            self._transport.write(layer.alert)
            self._handshake_failed(error.reason or str(error))
            return
        if answer:
            self._transport.write(answer)
        if not done:
            return
        self._handshake = None
        self._layers.append(layer)
        self._wire.secure()
        about = self._session.about
        about.tls, about.tls_version, about.tls_cipher = True, layer.version, layer.cipher
        about.tls_protocol, self._gate.common_name = layer.protocol, layer.common_name
        self._timer.start(self._settings.heartbeat_interval, now=self._clock.now())
        self._session.replies.add(frames.OK)
        self._write()
        self._compress()
        self._pieces = self._layers.pieces(b"")  # bytes that came with the end of the handshake
        self._turn.add(self)

    def _handshake_failed(self, reason: str) -> None:
        self._handshake = self._granted = None
        self._session.refuse(ProtocolError("E_IDENTIFY_FAILED", f"IDENTIFY failed {reason}"))
        self._turn.add(self)

    def _compress(self) -> None:
        settings, about = self._settings, self._session.about
        layer = compression(settings)
        if layer is None:
            return
        self._layers.append(layer)
        about.snappy, about.deflate = settings.snappy, settings.deflate
        self._session.replies.add(frames.OK)

    # --- AUTH --------------------------------------------------------------------------------------------------

    def _authenticate(self, command: Auth) -> None:
        self._gate.check_auth()
        self._wait_for(self._admit(command.secret))

    async def _admit(self, secret: bytes) -> None:
        self._session.replies.add(frames.response(await self._gate.admit(secret)))

    def _allowed(self, command: Guarded) -> bool:
        """Return whether a command may be carried out now; else ask the auth server, and carry it out then. Raises."""
        if self._gate.expired:
            self._wait_for(self._renew(command))
            return False
        self._gate.check(command)
        return True

    async def _renew(self, command: Guarded) -> None:
        await self._gate.renew()
        self._gate.check(command)
        self._session.handle(command, now=self._clock.now())

    # --- heartbeats --------------------------------------------------------------------------------------------

    def send_heartbeat(self) -> None:
        """Send a heartbeat."""
        self._session.replies.push(frames.HEARTBEAT)

    def on_silence(self) -> None:
        """Give up a client that sends nothing, with an error if a command is unfinished."""
        if self._polled is not None and (unfinished := self._polled.take_unfinished()):
            self.data_received(unfinished)
        error = self._wire.eof()
        if error is not None:
            self._session.refuse(error)
            self._turn.add(self)
        else:
            self.hang_up()

    # --- output ------------------------------------------------------------------------------------------------

    def _encode(self, data: bytes) -> bytes:
        return self._layers.encode(data) if self._layers else data

    @property
    def _consumes(self) -> bool:
        return self._session.subscription is not None

    def _drained(self) -> None:
        """Deliver to a consumer again whose socket was slow."""
        subscription, channel = self._session.subscription, self._session.channel
        if subscription is None or channel is None:
            return
        held_back, subscription.unsent = subscription.unsent >= UNSENT, 0
        if held_back:
            self._context.broker.mark_ready(channel)
            self._turn.schedule_flush()

    def flush(self) -> None:
        """Write what this turn brought; nothing waits before the next answer then, in most cases."""
        super().flush()
        transport, intakes = self._polled, self._context.intakes
        if transport is not None and transport.receiver is not None and intakes is not None:
            replies = self._session.replies
            waits = replies.ready or (replies.slots and not intakes.waits) or self._blocked or self._unannounced
            transport.direct = not (waits or self._ending)

    def _answered_all(self) -> None:
        if self._granted is not None:
            self._add_layers(self._granted)

    @property
    def _can_half_close(self) -> bool:
        return not self._layers

    def _closed(self) -> None:
        session = self._session
        if self._polled is not None:
            self._polled.receiver = self._polled.finishes = self._finishing = None
        if session.refusal is not None:
            self._context.log.error(f"client({session.about.remote_address}) - {session.refusal}")
            session.refusal = None
        session.leave(now=self._clock.now())


_SPECIAL: Final = frozenset({Identify, Auth})
_WITH_ATTRIBUTES: Final = frozenset({Dpub, Hpub})
