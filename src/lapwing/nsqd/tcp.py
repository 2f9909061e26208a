"""One connection: transport to session and back, one write a turn."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from typing import Final, cast

from lapwing.broker.broker import Change
from lapwing.broker.subscription import UNSENT
from lapwing.errors import ProtocolError
from lapwing.net.listen import far_end
from lapwing.nsqd.authorization import Gate, Guarded
from lapwing.nsqd.heartbeat import Patience
from lapwing.nsqd.listener_context import ListenerContext
from lapwing.nsqd.upgrade import Compressed, Encrypted, Layers
from lapwing.sessions.nsq import Session
from lapwing.wire.nsq import frames, identify
from lapwing.wire.nsq.commands import Auth, Command, Identify
from lapwing.wire.nsq.connection import BrokerConnection, HangUp
from lapwing.wire.nsq.state import State

_SECOND: Final = 1_000_000_000
_LINGER: Final = 1.0  # seconds a refused client has to read why
_HANDSHAKE: Final = 5.0  # seconds for TLS
_HIGH_WATER: Final = 1 << 20  # bytes a slow socket may have waiting
_FULL: Final = 4 * _HIGH_WATER  # more than deliveries alone can leave waiting: then not even a consumer is heard
_GOODBYE: Final = 10.0  # seconds for what was written to leave after we have hung up
_MOST_WAITING: Final = 10_000  # answers of one client that wait for a sync before nothing more is read from it
_LARGE_IDENTIFY: Final = 16384  # bytes of a body that is read in several turns
_SHARE: Final = 2048  # commands of one client, or as many times 256 bytes unpacked, before others have their turn


class Connection(asyncio.Protocol):
    """One client, from its first byte to its last."""

    def __init__(self, door: ListenerContext) -> None:
        self._door = door
        self._turn = door.turn
        self._clock = door.turn.clock
        self._wire = BrokerConnection(door.limits)
        self._session = Session(door.broker, door.limits, on_ready=self._on_ready, hang_up=self.hang_up)
        self._layers = Layers()
        self._granted: identify.Settings | None = None  # layers to put on as soon as the answer has left
        self._handshake: Encrypted | None = None
        self._settings = door.terms.settings()
        self._identified = False
        self._transport: asyncio.Transport | None = None
        self._patience = Patience(self._clock, self)
        self._busy: asyncio.Task[None] | None = None  # a question to the auth server that commands wait for
        self._pieces: Iterator[bytes] | None = None  # what came through the layers and was not looked at yet
        self._behind = False  # some of what came waits for the next turn
        self._muted = False  # nothing is read from the socket
        self._blocked = False  # the socket takes no more
        self._half_closed = False
        self._at_rest = False  # what comes next may be a run of publishes that needs no parser
        self._unsettled = 0  # topics this client made that others cannot find yet
        self._ending = False
        self._gate = Gate(door.auth, self._session.about, self._clock.now, door.log)

    # --- asyncio's side ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_HIGH_WATER)
        host, address = far_end(transport)
        now = self._clock.now()
        self._patience.heard = now
        self._agree(self._door.terms.settings(host))
        about = self._session.about
        about.client_id = about.hostname = host
        about.remote_address = address
        about.connected = now // _SECOND
        if self._gate.closed:
            self._wire.authorize = self._gate.authorize
        limit = self._door.options.max_connections
        if 0 < limit <= len(self._door.connections):
            self._session.refuse(
                ProtocolError("E_TOO_MANY_CONNECTIONS", f"this broker takes {limit} connections at a time")
            )
            self._turn.add(self)
            return
        self._door.connections.add(self)
        if self._door.options.magic_timeout > 0:
            self._patience.arm(self._door.options.magic_timeout, self.hang_up)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._ending or self._session.doomed:
            return
        if self._at_rest:
            now = self._clock.now()
            if self._session.publish_run(data, now=now):
                self._patience.heard = now
                self._turn.add(self)
                return
        if self._handshake is not None:
            self._shake(data)
        elif self._layers:
            self._pieces = self._layers.receive(data)
        else:
            self._wire.receive(data)
        self._digest()
        self._turn.add(self)

    def eof_received(self) -> bool:
        """The client sends no more; what it still gets is flushed at the end of the turn."""
        if self._handshake is not None or (self._granted is not None and self._granted.tls):
            self._handshake_failed("EOF")
        self._half_closed = True
        if self._busy is None and self._granted is None and not self._behind:
            self._end_of_input()
        self._turn.add(self)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """The client is gone."""
        self._ending = True
        self._log_refusal()
        self._patience.part()
        if self._busy is not None:
            self._busy.cancel()
        self._door.connections.discard(self)
        self._session.leave(now=self._clock.now())
        self._turn.stir()

    def pause_writing(self) -> None:
        """The socket takes no more for now: deliver nothing more to it."""
        self._blocked = True
        self._heed()
        assert self._transport is not None
        self._patience.watch(self._transport)

    def resume_writing(self) -> None:
        """The socket takes bytes again."""
        self._blocked = False
        self._sent()
        self._heed()
        self._patience.resume()
        self._turn.add(self)

    # --- commands ----------------------------------------------------------------------------------------------

    def _digest(self) -> None:
        """Carry out what has come, but no more than one client's share of a turn; the rest follows in the next ones.

        So nobody waits for a flood of commands, nor for the few bytes that unpack to one.
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
                if self._waits or self._pieces is None:
                    break
                piece = next(self._pieces, None)
                if piece is None:
                    self._pieces = None
                    self._talk_tls()
                    break
                self._wire.receive(piece)
                share -= len(piece) >> 8
        except ProtocolError as error:
            self._session.refuse(error)
        except ssl.SSLError as error:
            self._door.log.debug(f"{self._session.about.remote_address}: TLS: {error}")
            self._session.doomed = True
        self._at_rest = not (self._behind or self._waits or self._layers) and self._wire.at_rest
        self._heed()

    @property
    def _waits(self) -> bool:
        """Whether further commands have to wait for something else."""
        return self._busy is not None or self._granted is not None or self._handshake is not None

    def _catch_up(self) -> None:
        """Go on with what was left for this turn."""
        self._digest()
        if self._half_closed and not self._waits and not self._behind:
            self._end_of_input()
        self._turn.add(self)

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
        return self._session.replies.waiting >= _MOST_WAITING

    def _overfull(self) -> bool:
        """Whether more waits for the socket than a client is allowed that still wants to be heard."""
        assert self._transport is not None
        return self._session.subscription is None or self._transport.get_write_buffer_size() > _FULL

    def _carry_out(self, share: int) -> int:
        """Carry out up to `share` commands; how many more may be. Who makes a topic hears when others can find it."""
        changes = self._door.broker.changes
        before = len(changes)
        share = self._obey(share)
        if len(changes) > before:
            self._await_settled(changes[before:])
        return share

    def _await_settled(self, changes: list[Change]) -> None:
        newcomers = self._door.newcomers
        for kind, topic, _, created in changes:
            made = created and kind == "topic"
            settling = newcomers.settling(topic) if newcomers is not None and made else None
            if settling is not None:
                self._unsettled += 1
                settling.add_done_callback(self._settled)

    def _settled(self, _: object) -> None:
        self._unsettled -= 1
        self._turn.add(self)

    def _obey(self, share: int) -> int:
        """Carry out commands up to the first error or question to somebody else; what is left of the share."""
        session, patience = self._session, self._patience
        now = self._clock.now()
        guarded = self._gate.closed
        try:
            for command in self._wire.commands():
                if type(command) in _SPECIAL:
                    patience.heard = now
                    self._special(command, now)
                    if self._waits:
                        return share
                elif guarded and isinstance(command, Guarded) and not self._allowed(command):
                    return share
                else:
                    session.handle(command, now=now)
                patience.heard = now
                if session.doomed:
                    return share
                share -= 1
                if share <= 0:
                    break
        except ProtocolError as error:
            session.refuse(error)
        except HangUp:
            session.doomed = True  # without a word of it, but what came before has its answers
        if not patience.begun and self._wire.state is not State.MAGIC:
            patience.heard = now
            patience.begin(self._settings.heartbeat_interval, now=now)
        return share

    def _special(self, command: Command, now: int) -> None:
        if isinstance(command, Identify):
            self._identify(command, now)
        elif isinstance(command, Auth):
            self._authenticate(command)

    def _talk_tls(self) -> None:
        """Send what TLS itself has to say, such as an answer to a key update; follow a client that closes in TLS."""
        tls = self._layers.tls
        if tls is not None and self._transport is not None:
            own = tls.send(b"")
            if own:
                self._transport.write(own)
            if tls.over:
                self.eof_received()

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
            await asyncio.sleep(0)  # others get their turn
            identity = reader.advance()
        self._introduce(identity, self._clock.now())

    def _introduce(self, identity: identify.Identity, now: int) -> None:
        """Agree on what the client asks for, and answer its IDENTIFY."""
        settings, answer = identify.negotiate(identity, self._door.terms, self._settings)
        session, about = self._session, self._session.about
        self._agree(settings)
        about.client_id, about.hostname, about.user_agent = settings.client_id, settings.hostname, settings.user_agent
        about.topology_region, about.topology_zone = settings.topology_region, settings.topology_zone
        self._wire.heartbeats = settings.heartbeat_interval > 0
        session.touch_timeout = settings.msg_timeout
        if not self._identified:  # deliveries and heartbeats go by the first one
            self._identified = True
            session.msg_timeout = settings.msg_timeout
            session.sample_rate = settings.sample_rate
            session.locality = self._door.locality(settings)
            self._patience.begin(settings.heartbeat_interval, now=now)
        session.replies.add(frames.response(answer))
        if identity.feature_negotiation:
            self._upgrade(settings)

    def _agree(self, settings: identify.Settings) -> None:
        self._settings = settings
        self._patience.allow(2 * settings.heartbeat_interval)

    def _upgrade(self, settings: identify.Settings) -> None:
        """Have the layers that were granted put on at the end of the turn: what is answered before leaves before."""
        if not (settings.tls or settings.snappy or settings.deflate):
            return
        if self._layers:
            raise ProtocolError("E_IDENTIFY_FAILED", "IDENTIFY failed the connection is upgraded already")
        self._granted = settings

    def _put_on(self, settings: identify.Settings) -> None:
        """Go on inside the layers; for TLS, with the handshake."""
        self._granted = None
        rest = self._wire.take_rest()
        if settings.tls:
            assert self._door.tls is not None
            self._handshake = Encrypted(self._door.tls)
            self._patience.arm(int(_HANDSHAKE * _SECOND), lambda: self._handshake_failed("i/o timeout"))
            if rest:
                self._shake(rest)
        else:
            self._compress()
            self._pieces = self._layers.receive(rest)
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
        self._wire.tls = True
        about = self._session.about
        about.tls, about.tls_version, about.tls_cipher = True, layer.version, layer.cipher
        about.tls_protocol, self._gate.common_name = layer.protocol, layer.common_name
        self._patience.begin(self._settings.heartbeat_interval, now=self._clock.now())
        self._session.replies.add(frames.OK)
        self._write()
        self._compress()
        self._pieces = self._layers.receive(b"")  # what came with the end of the handshake
        self._turn.add(self)

    def _handshake_failed(self, reason: str) -> None:
        self._handshake = self._granted = None
        self._session.refuse(ProtocolError("E_IDENTIFY_FAILED", f"IDENTIFY failed {reason}"))
        self._turn.add(self)

    def _compress(self) -> None:
        from lapwing.wire.nsq.compression import DeflateCodec, SnappyCodec  # few ask for them: not while starting

        settings, about = self._settings, self._session.about
        if settings.snappy:
            self._layers.append(Compressed(SnappyCodec()))
        elif settings.deflate:
            self._layers.append(Compressed(DeflateCodec(settings.deflate_level)))
        else:
            return
        about.snappy, about.deflate = settings.snappy, settings.deflate
        self._session.replies.add(frames.OK)

    # --- AUTH --------------------------------------------------------------------------------------------------

    def _authenticate(self, command: Auth) -> None:
        self._gate.check_auth()
        self._wait_for(self._admit(command.secret))

    async def _admit(self, secret: bytes) -> None:
        self._session.replies.add(frames.response(await self._gate.admit(secret)))

    def _allowed(self, command: Guarded) -> bool:
        """Whether a command may be carried out at once; raises if never, else asks first and carries it out then."""
        if self._gate.expired:
            self._wait_for(self._renew(command))
            return False
        self._gate.check(command)
        return True

    async def _renew(self, command: Guarded) -> None:
        await self._gate.renew()
        self._gate.check(command)
        self._session.handle(command, now=self._clock.now())

    def _wait_for(self, question: object) -> None:
        """Hold further commands back until somebody else has answered."""
        self._busy = asyncio.get_running_loop().create_task(self._answered(question))

    async def _answered(self, question: object) -> None:
        try:
            await question  # type: ignore[misc]
        except ProtocolError as error:
            self._session.refuse(error)
        self._busy = None
        if self._transport is not None and not self._ending:
            self._catch_up()

    # --- patience ----------------------------------------------------------------------------------------------

    @property
    def excused(self) -> bool:
        """Whether the client is silent because nothing is read from it until the broker has answered."""
        return self._busy is not None or self._too_many_waiting

    def beat(self) -> None:
        """Send a heartbeat."""
        self._session.replies.push(frames.HEARTBEAT)

    def silent(self) -> None:
        """Give up a client that says nothing."""
        error = self._wire.deadline_passed()
        if error is not None:
            self._session.refuse(error)
            self._turn.add(self)
        else:
            self.hang_up()

    def deaf(self) -> None:
        """Give up a client that reads nothing."""
        self._door.log.info(f"{self._session.about.remote_address}: reads nothing, hanging up")
        if self._transport is not None:
            self._transport.abort()

    # --- output ------------------------------------------------------------------------------------------------

    def _on_ready(self) -> None:
        self._turn.add(self)

    def flush(self) -> None:
        """Send what this turn brought; then end the conversation if it is over."""
        replies = self._session.replies
        if self._ending:
            replies.ready.clear()
            return
        if self._transport is None or self._unsettled:
            return
        self._write()
        if self._muted:
            self._heed()
        if replies.waiting:
            return
        if self._session.doomed:
            self._farewell()
        elif self._granted is not None:
            self._put_on(self._granted)

    def _write(self) -> None:
        ready = self._session.replies.ready
        if not ready or self._transport is None:
            return
        data = ready[0] if len(ready) == 1 else b"".join(ready)
        ready.clear()
        self._transport.write(self._layers.send(data) if self._layers else data)
        self._sent()
        if self._blocked:
            self._heed()

    def _sent(self) -> None:
        """Let a consumer have more once the socket has taken what it was given."""
        subscription, channel = self._session.subscription, self._session.channel
        if subscription is None or channel is None or self._blocked:
            return
        held_back, subscription.unsent = subscription.unsent >= UNSENT, 0
        if held_back:
            self._door.broker.touch(channel)
            self._turn.stir()

    def _end_of_input(self) -> None:
        error = self._wire.eof()
        if error is not None and not self._session.doomed:
            self._session.refuse(error)
        self._session.doomed = True

    def _farewell(self) -> None:
        """Close so that the last frame is read: bytes of the peer that nobody reads would turn it into a reset."""
        assert self._transport is not None
        self._ending = True
        self._log_refusal()
        self._session.leave(now=self._clock.now())
        self._turn.stir()
        if self._half_closed or self._layers or not self._transport.can_write_eof():
            self.hang_up()
            return
        try:
            self._transport.write_eof()
        except OSError:
            self._transport.abort()
            return
        self._patience.arm(int(_LINGER * _SECOND), self.hang_up)

    def _log_refusal(self) -> None:
        session = self._session
        if session.refusal is not None:
            self._door.log.error(f"client({session.about.remote_address}) - {session.refusal}")
            session.refusal = None

    def hang_up(self) -> None:
        """Close without a word; what was already written still leaves."""
        self._ending = True
        transport = self._transport
        if transport is not None:
            transport.close()
            if transport.get_write_buffer_size():
                self._patience.arm(int(_GOODBYE * _SECOND), transport.abort)  # one who never reads would stay forever


_SPECIAL: Final = frozenset({Identify, Auth})
