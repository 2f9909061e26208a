"""The door for NSQ's protocol: IDENTIFY with its layers, AUTH, heartbeats, and commands for the session."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from lapwing import names
from lapwing.broker.channel.subscription import UNSENT
from lapwing.errors import LapwingError, ProtocolError
from lapwing.nsqd.doors.authorization import Gate, Guarded
from lapwing.nsqd.doors.connection import NEW_TOPIC, ClientProtocol, Connection
from lapwing.nsqd.doors.context import ListenerContext
from lapwing.nsqd.doors.layers import Encrypted, Layers, compression
from lapwing.sessions.nsq import PublishSlot, Session
from lapwing.wire.nsq import frames, identify
from lapwing.wire.nsq.commands import Auth, Command, Dpub, Hpub, Identify
from lapwing.wire.nsq.connection import BrokerConnection, HangUp
from lapwing.wire.nsq.state import State

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.topic.topic import Topic
    from lapwing.kernel._road import NsqIntake

_SECOND: Final = 1_000_000_000
_WITH_HEADERS: Final = 4  # commands that one counts for which publishes a message with a delay or headers
_LARGE_IDENTIFY: Final = 16384  # bytes of a body that is read in several turns


class NsqProtocol(ClientProtocol):
    """NSQ's protocol, with one client."""

    session: Session

    def __init__(self, context: ListenerContext, connection: Connection) -> None:
        self.connection = connection
        self._turn = turn = context.turn
        self.session = session = Session(
            context.broker, context.limits, on_ready=partial(turn.add, connection), hang_up=connection.hang_up
        )
        self._context = context
        self._clock = turn.clock
        self._timer = connection.timer
        self._wire = BrokerConnection(context.limits)
        self._granted: identify.ClientSettings | None = None  # layers to add as soon as the answer is written
        self._settings = context.terms.settings()
        self._identified = False
        self._finishing: Channel | None = None  # whose FINs the intake may take
        self._gate = Gate(context.auth, session.about, self._clock.now, context.log)
        self.intake_waits = context.intakes is not None and context.intakes.waits

    def opened(self, host: str, address: str, now: int) -> None:
        self._agree(self._context.terms.settings(host))
        about = self.session.about
        about.client_id = about.hostname = host
        about.remote_address = address
        about.connected = now // _SECOND
        if self._gate.closed:
            self._wire.authorize = self._gate.authorize
        if self._context.options.magic_timeout > 0:
            self._timer.arm(self._context.options.magic_timeout, self.connection.hang_up)

    def too_many(self, limit: int) -> ProtocolError:
        return ProtocolError("E_TOO_MANY_CONNECTIONS", f"this broker takes {limit} connections at a time")

    # --- input -------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        self._wire.receive(data)

    @property
    def waits(self) -> bool:
        """Whether layers are to be added first."""
        return self._granted is not None

    def intake(self) -> NsqIntake | None:
        """Return the intake of publishes and FINs; None in the middle of a command, or where each needs a look."""
        intakes, transport = self._context.intakes, self.connection.polled
        if intakes is None or transport is None or not self._wire.at_rest:
            return None
        channel = self.session.finishing
        if channel is not self._finishing:
            self._finishing = channel
            transport.finishes = None if channel is None else intakes.finishes(channel)
        if transport.timer is None:
            transport.published, transport.timer = self.session.publish_counts, self._timer
            transport.peer = self
        return intakes.nsq

    def publish_failed(self, word: str, error: LapwingError) -> None:
        """Refuse publishes that the intake has taken."""
        self.session.publish_failed(word, error)
        self.connection.update()
        self._turn.add(self.connection)

    def await_sync(self, topic: Topic, word: str, messages: int, commands: int) -> PublishSlot:
        """Return the place of the answer to publishes that the intake has taken and that wait for a sync."""
        self._timer.last_command = self._clock.now()
        slot = self.session.taken(topic, word, messages, commands)
        if self.connection.waits_for_broker:
            self.connection.update()
        return slot

    def finished(self, block: bytes, now: int) -> None:
        """Carry out a run of FINs that the intake has taken."""
        session = self.session
        if self.connection.ending or session.doomed:
            return
        self._timer.last_command = now
        try:
            session.finish_run(block, now=now)
        except ProtocolError as error:
            session.refuse(error)
        if session.doomed:
            self.connection.update()
        if session.replies.ready or session.doomed:
            self._turn.add(self.connection)

    def execute(self, share: int) -> int:
        """Carry out commands up to the first error, or one that has to wait."""
        session, timer = self.session, self._timer
        now = self._clock.now()
        guarded = self._gate.closed
        changes = session.broker.changes
        changed = len(changes)
        try:
            for command in self._wire.commands():
                if type(command) in _SPECIAL:
                    timer.last_command = now
                    self._special(command, now)
                    if self._granted is not None or self.connection.task is not None:
                        return share
                elif guarded and isinstance(command, Guarded) and not self._allowed(command):
                    return share
                else:
                    session.handle(command, now=now)
                timer.last_command = now
                if session.doomed:
                    return share
                share -= _WITH_HEADERS if type(command) in _WITH_ATTRIBUTES else 1
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

    def end_of_input(self) -> None:
        """Note that the client sends no more, which is an error in the middle of a command."""
        error = self._wire.eof()
        if error is not None and not self.session.doomed:
            self.session.refuse(error)
        self.session.doomed = True

    # --- IDENTIFY ----------------------------------------------------------------------------------------------

    def _identify(self, command: Identify, now: int) -> None:
        if len(command.body) > _LARGE_IDENTIFY:
            self.connection.wait_for(self._identify_later(command.body))
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
            there = self.session.broker.settings.for_names(identity.topic, identity.channel)
            max_attempts = there.max_attempts
            retries = bool(there.max_attempts or there.retry_first)
            if self.session.msg_timeout is None:
                current = replace(current, msg_timeout=there.msg_timeout)
        message_ids = self.session.broker.settings.dedup_topics() if identity.headers else ()
        settings, answer = identify.negotiate(
            identity, self._context.terms, current,
            max_attempts=max_attempts, retries=retries, message_ids=message_ids,
        )  # fmt: skip
        session, about = self.session, self.session.about
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
        self.session.heartbeats = settings.heartbeat_interval > 0
        self._timer.allow_silence(2 * settings.heartbeat_interval)

    def _upgrade(self, settings: identify.ClientSettings) -> None:
        """Have the granted layers added at the end of the turn, behind the answers before."""
        if not (settings.tls or settings.snappy or settings.deflate):
            return
        if self.connection.layers is not None:
            raise ProtocolError("E_IDENTIFY_FAILED", "IDENTIFY failed the connection is upgraded already")
        self._granted = settings

    def on_answered(self) -> None:
        """Continue inside the layers that were granted; for TLS, with the handshake."""
        settings, self._granted = self._granted, None
        if settings is None:
            return
        rest = self._wire.take_rest()
        if settings.tls:
            assert self._context.tls is not None
            self.connection.greet(Encrypted(self._context.tls), rest, self._secured)
        else:
            self._add_layers(Layers(), rest)
        self.connection.resume()

    def _secured(self, layer: Encrypted) -> None:
        """Answer in the encrypted connection, and add the compression."""
        layers = Layers([layer])
        self._wire.secure()
        about = self.session.about
        about.tls, about.tls_version, about.tls_cipher = True, layer.version, layer.cipher
        about.tls_protocol, self._gate.common_name = layer.protocol, layer.common_name
        self._timer.start(self._settings.heartbeat_interval, now=self._clock.now())
        self.connection.use_layers(layers, b"")
        self.session.replies.add(frames.OK)
        self.connection.write()
        self._add_layers(layers, b"")  # bytes that came with the end of the handshake are in the layer
        self._turn.add(self.connection)

    def _add_layers(self, layers: Layers, rest: bytes) -> None:
        settings, about = self._settings, self.session.about
        layer = compression(settings)
        if layer is not None:
            layers.append(layer)
            about.snappy, about.deflate = settings.snappy, settings.deflate
            self.session.replies.add(frames.OK)
        self.connection.use_layers(layers, rest)

    # --- AUTH --------------------------------------------------------------------------------------------------

    def _authenticate(self, command: Auth) -> None:
        self._gate.check_auth()
        self.connection.wait_for(self._admit(command.secret))

    async def _admit(self, secret: bytes) -> None:
        self.session.replies.add(frames.response(await self._gate.admit(secret)))

    def _allowed(self, command: Guarded) -> bool:
        """Return whether a command may be carried out now; else ask the auth server, and carry it out then. Raises."""
        if self._gate.expired:
            self.connection.wait_for(self._renew(command))
            return False
        self._gate.check(command)
        return True

    async def _renew(self, command: Guarded) -> None:
        await self._gate.renew()
        self._gate.check(command)
        self.session.handle(command, now=self._clock.now())

    # --- heartbeats --------------------------------------------------------------------------------------------

    def send_heartbeat(self) -> None:
        self.session.replies.push(frames.HEARTBEAT)

    def on_silence(self) -> None:
        """Give up a client that sends nothing, with an error if a command is unfinished."""
        polled = self.connection.polled
        if polled is not None and (unfinished := polled.take_unfinished()):
            self.connection.data_received(unfinished)
        error = self._wire.eof()
        if error is not None:
            self.session.refuse(error)
            self.connection.update()
            self._turn.add(self.connection)
        else:
            self.connection.hang_up()

    # --- output ------------------------------------------------------------------------------------------------

    @property
    def consumes(self) -> bool:
        return self.session.subscription is not None

    def on_drained(self) -> None:
        """Deliver to a consumer again whose socket was slow."""
        subscription, channel = self.session.subscription, self.session.channel
        if subscription is None or channel is None:
            return
        held_back, subscription.unsent = subscription.unsent >= UNSENT, 0
        if held_back:
            self._context.broker.mark_ready(channel)
            self._turn.schedule_flush()

    def closed(self) -> None:
        session, transport = self.session, self.connection.polled
        if transport is not None:
            transport.finishes = self._finishing = None
        if session.refusal is not None:
            self._context.log.error(f"client({session.about.remote_address}) - {session.refusal}")
            session.refusal = None
        session.leave(now=self._clock.now())


_SPECIAL: Final = frozenset({Identify, Auth})
_WITH_ATTRIBUTES: Final = frozenset({Dpub, Hpub})
