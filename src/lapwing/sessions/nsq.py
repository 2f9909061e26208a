"""A session with an NSQ client: one command, one call; errors of the broker become answers.

Answers are gathered in `replies` and leave at the end of the turn, after the log write that they depend on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lapwing import kernel
from lapwing.broker.broker import Broker
from lapwing.broker.channel.channel import Channel
from lapwing.broker.channel.ledger import Holder, Reason
from lapwing.broker.channel.subscription import Window
from lapwing.broker.client_stats import ClientInfo, ClientStats
from lapwing.broker.settings.options import Options
from lapwing.broker.topic import batch
from lapwing.broker.topic.batch import Batch
from lapwing.broker.topic.topic import Topic
from lapwing.errors import (
    CommandFailed,
    LapwingError,
    ProtocolError,
    PublishRefused,
)
from lapwing.sessions.replies import Replies, Slot, nothing
from lapwing.wire.nsq import frames, parse_mpub
from lapwing.wire.nsq.commands import (
    Cls,
    Command,
    Dpub,
    Fins,
    Hmpub,
    Hpub,
    Mpub,
    Nop,
    Pub,
    Rdy,
    Rej,
    Req,
    Reqs,
    Sub,
    Touch,
    shorten,
)
from lapwing.wire.nsq.limits import Limits
from lapwing.wire.nsq.parse_line import rejection

_ONE: Final = b"\x00\x00\x00\x01"  # the count of a batch of one message
INIT, SUBSCRIBED, CLOSING = 0, 3, 4  # as NSQ's stats number them


def limits_of(options: Options) -> Limits:
    """Return what the parser of the protocol refuses to go beyond."""
    return Limits(
        max_message=options.max_msg_size,
        max_body=options.max_body_size,
        max_rdy=options.max_rdy_count,
        max_req_timeout=options.max_req_timeout,
        max_defer=options.longest_defer,
        tls_required=options.tls_required != 0,
    )


class PublishSlot(Slot):
    """The place of the answer to a PUB, MPUB or DPUB, filled when the topic settles the publish."""

    __slots__ = ("_session", "_word", "count", "ok")

    def __init__(self, session: Session, word: str) -> None:
        self._replies = session.replies  # as Slot does it, but for one call less: there is one per PUB
        self.answer = None
        self.count = 1  # commands that it answers
        self.ok = frames.OK
        self._session = session
        self._word = word

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        """Answer OK, or end the conversation with the error."""
        if error is None:
            self.answer = self.ok if self.count == 1 else self.ok * self.count
            self._replies.advance()
        else:
            self._session.fail(self, _failed(self._word, error))


class SubscribeSlot(Slot):
    """The place of the answer to a SUB, filled when the new channel survives a power loss."""

    __slots__ = ("_session",)

    def __init__(self, session: Session) -> None:
        super().__init__(session.replies)
        self._session = session

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        """Answer OK, or end the conversation with the error."""
        if error is None:
            self.fill(frames.OK)
        else:
            self._session.fail(self, ProtocolError("E_SUB_FAILED", f"SUB failed {error}"))


class Session:
    """The broker's side of one connection: its state, and the answers and messages for it.

    `on_ready` is called when there is something to send that no command of this turn asked for.
    """

    def __init__(
        self, broker: Broker, limits: Limits, *, on_ready: Callable[[], None], hang_up: Callable[[], None]
    ) -> None:
        self.broker = broker
        self.limits = limits
        self.replies = Replies(on_ready)
        self.doomed = False  # an error was answered that ends the conversation
        self.refusal: ProtocolError | None = None  # that error
        self.state = INIT
        self.subscription: Window | None = None
        self.channel: Channel | None = None
        self.publish_counts: dict[str, int] = {}
        self.msg_timeout: int | None = None  # ns that a delivery gives; None: as the channel is set
        self.touch_timeout: int | None = None  # ns that a TOUCH gives; None: as the channel is set
        self.sample_rate = 0
        self.headers = False  # whether messages come with their headers
        self.heartbeats = True  # whether the connection ends when the client answers none
        self.locality = 0
        self.about = ClientInfo()
        self._subscribed: Slot | None = None  # where the answer to SUB waits; messages wait behind it
        self._hang_up = hang_up
        broker.clients[self] = None

    @property
    def name(self) -> str:
        """The name under which the client's messages are listed."""
        about = self.about
        return f"nsq:{about.client_id}:{about.remote_address.rpartition(':')[2]}"

    def handle(self, command: Command, *, now: int) -> None:
        """Carry out one command; raises `ProtocolError` when the conversation must end."""
        _HANDLERS[type(command)](self, command, now)

    # --- publishing --------------------------------------------------------------------------------------------

    def _pub(self, command: Pub, now: int) -> None:
        self._publish("PUB", command.topic, lambda topic: batch.single(topic, command.body, now=now), now)

    def _dpub(self, command: Dpub, now: int) -> None:
        def deferred(topic: Topic) -> Batch:
            return batch.single(topic, command.body, now=now, defer=command.delay)

        self._publish("DPUB", command.topic, deferred, now)

    def _mpub(self, command: Mpub, now: int) -> None:
        body, limits = command.body, self.limits
        self._publish(
            "MPUB", command.topic, lambda topic: batch.multiple(topic, body, now=now), now, size=len(body),
            check=lambda: kernel.frame_mpub(body, 0, 0, limits.max_count, limits.max_message),
        )  # fmt: skip

    def _hpub(self, command: Hpub, now: int) -> None:
        one = b"".join((_ONE, len(command.body).to_bytes(4, "big"), command.body))
        self._publish_headed("HPUB", command.topic, one, now, size=len(command.body), defer=command.delay)

    def _hmpub(self, command: Hmpub, now: int) -> None:
        self._publish_headed("HMPUB", command.topic, command.body, now, size=len(command.body))

    def _publish_headed(self, word: str, name: str, body: bytes, now: int, *, size: int, defer: int = 0) -> None:
        limits = self.limits
        self._publish(
            word, name, lambda topic: batch.headed(topic, body, now=now, defer=defer), now, size=size,
            check=lambda: kernel.frame_headed(body, 0, 0, limits.max_count, limits.max_message, kernel.MAX_HEADERS),
        )  # fmt: skip

    def _publish(
        self, word: str, name: str, make: Callable[[Topic], Batch], now: int, *, size: int = 0,
        check: Callable[[], object] = nothing,
    ) -> None:  # fmt: skip
        """Append what `make` returns for the topic, and keep the place of the answer; `check` what creates none."""
        try:
            if name not in self.broker.topics:
                check()  # a refused batch creates no topic
            topic, slot = self.broker.topic(name), PublishSlot(self, word)
            messages = make(topic)
            count = messages.count
            topic.append(messages, slot, now=now)
        except PublishRefused as error:
            raise parse_mpub.refusal(word, error, size, self.limits) from error
        except LapwingError as error:
            raise _failed(word, error) from error
        self._published(topic, slot, count)
        if topic.inlet is None:
            topic.let_in()

    def _published(self, topic: Topic, slot: PublishSlot, count: int) -> None:
        counts = self.publish_counts
        counts[topic.name] = counts.get(topic.name, 0) + count
        slot.ok = frames.OK_MESSAGE_ID if self.headers and topic.dedup is not None else frames.OK
        self.replies.reserve(slot)

    def taken(self, topic: Topic, word: str, messages: int, commands: int) -> PublishSlot:
        """Return the place of the answer to publishes that an intake has taken and that wait for a sync."""
        slot = PublishSlot(self, word)
        slot.count = commands
        self._published(topic, slot, messages)
        return slot

    def publish_failed(self, word: str, error: LapwingError) -> None:
        """End the conversation: a publish that an intake has taken could not be written."""
        self.refuse(_failed(word, error))

    @property
    def has_published(self) -> bool:
        """Whether the client has published anything."""
        return bool(self.publish_counts)

    def stats(self) -> ClientStats:
        """Return the client as it is now."""
        subscription = self.subscription
        holder = subscription.holder if subscription is not None else Holder()
        return ClientStats(
            about=replace(self.about),
            state=self.state,
            ready_count=subscription.size if subscription is not None else 0,
            in_flight_count=len(holder.in_flight),
            message_count=holder.delivered_count,
            finish_count=holder.finished_count,
            requeue_count=holder.requeued_count,
            published=tuple(sorted(self.publish_counts.items())),
            sample_rate=self.sample_rate,
        )

    def drop_topic(self, name: str) -> None:
        """Drop what is kept of a topic that is deleted: a client may publish to ever new ones."""
        self.publish_counts.pop(name, None)

    def fail(self, slot: Slot, error: ProtocolError) -> None:
        """End the conversation with an error in `slot`, and take back every answer behind it."""
        if self.replies.take_back_after(slot):  # else a publish before it has failed too
            self.doomed = True
            self.refusal = error
            slot.fill(frames.error(error.payload))

    # --- consuming ---------------------------------------------------------------------------------------------

    def _sub(self, command: Sub, now: int) -> None:
        try:
            topic = self.broker.topic(command.topic)
            known = command.channel in topic.channels
            channel = topic.create_channel(command.channel, now=now, sync=False)
            subscription = Window(
                Holder(self.name),
                self.send,
                self._hang_up,
                timeout=channel.effective.msg_timeout if self.msg_timeout is None else self.msg_timeout,
                default_timeout=self.msg_timeout is None,
                sample_rate=self.sample_rate,
                headers=self.headers,
                heartbeats=self.heartbeats,
                locality=self.locality,
                client=self,
            )
            channel.subscribe(subscription)
        except LapwingError as error:
            raise ProtocolError("E_SUB_FAILED", f"SUB failed {error}") from error
        self.channel, self.subscription, self.state = channel, subscription, SUBSCRIBED
        if known or channel.ephemeral or not self.broker.options.answers_wait:
            self._subscribed = self.replies.add(frames.OK)
        else:
            self._subscribed = slot = SubscribeSlot(self)
            self.replies.reserve(slot)
            self.broker.save_topic(topic, slot)

    def send(self, data: bytes) -> None:
        """Send message frames to the consumer, but not before the answer to its SUB."""
        if self._subscribed is not None:
            if self.replies.holds(self._subscribed):
                self.replies.add(data)
                return
            self._subscribed = None
        replies = self.replies
        if not replies.ready:
            replies.on_ready()
        replies.ready.append(data)

    def _rdy(self, command: Rdy, now: int) -> None:
        if self.subscription is None or self.channel is None or self.state == CLOSING:
            return  # a late RDY is lawful, and ignored
        if command.count != self.subscription.size:
            self.subscription.size = command.count
            self.broker.mark_ready(self.channel)

    @property
    def finishing(self) -> Channel | None:
        """The channel of which FINs may come; None where they need a look."""
        return self.channel if self.state == SUBSCRIBED else None

    def finish_run(self, block: bytes, *, now: int) -> None:
        """Carry out a run of FINs, given as their lines. Raises `ProtocolError` if the client consumes nothing."""
        if self.channel is None or self.subscription is None:
            raise ProtocolError("E_INVALID", "not subscribed")
        for message_id in self.channel.finish_run(block, self.subscription.holder, now=now):
            self._refuse_other("FIN", message_id)

    def _req(self, command: Req, now: int) -> None:
        channel, holder = self._consuming()
        try:
            channel.requeue(
                channel.topic.sequence_of(command.id),
                holder,
                delay=command.delay,
                now=now,
                reason=Reason.RELEASED if command.free else Reason.REQUEUED,
                error=command.error,
            )
        except CommandFailed as error:
            self._soft("REQ", command.id, str(error))

    def _reqs(self, command: Reqs, now: int) -> None:
        channel, holder = self._consuming()
        sequences = channel.topic.sequences_of(command.ids)
        for place in channel.requeue_run(sequences, holder, delay=command.delay, now=now):
            self._refuse_other("REQ", command.ids[place])

    def _rej(self, command: Rej, now: int) -> None:
        channel, holder = self._consuming()
        reason, error = rejection(command.body)
        text = shorten(f"{reason}: {error}").decode() if reason and error else reason or error
        try:
            channel.reject(channel.topic.sequence_of(command.id), holder, now=now, error=text)
        except CommandFailed as failed:
            self._soft("REJ", command.id, str(failed))

    def _touch(self, command: Touch, now: int) -> None:
        channel, holder = self._consuming()
        timeout = channel.effective.msg_timeout if self.touch_timeout is None else self.touch_timeout
        try:
            channel.touch(channel.topic.sequence_of(command.id), holder, timeout=timeout, now=now)
        except CommandFailed as error:
            self._soft("TOUCH", command.id, str(error))

    def _cls(self, command: Cls, now: int) -> None:
        channel, _ = self._consuming()
        assert self.subscription is not None
        self.subscription.size = 0
        self.state = CLOSING
        self.broker.mark_ready(channel)  # another consumer may be the active one now
        self.replies.add(frames.CLOSE_WAIT)

    def _consuming(self) -> tuple[Channel, Holder]:
        if self.channel is None or self.subscription is None:
            raise ProtocolError("E_INVALID", "not subscribed")
        return self.channel, self.subscription.holder

    def _refuse_other(self, word: str, message_id: bytes) -> None:
        """Answer that a message is not the consumer's own."""
        channel, holder = self._consuming()
        try:
            channel.ledger.check(channel.topic.sequence_of(message_id), holder)
        except CommandFailed as error:
            self._soft(word, message_id, str(error))

    def _soft(self, word: str, message_id: bytes, reason: str) -> None:
        payload = b"E_%s_FAILED %s %s failed %s" % (word.encode(), word.encode(), message_id, reason.encode())
        self.replies.add(frames.error(payload))

    # --- the end -----------------------------------------------------------------------------------------------

    def refuse(self, error: ProtocolError) -> None:
        """Answer an error that ends the conversation."""
        self.replies.add(frames.error(error.payload))
        self.doomed = True
        self.refusal = error

    def leave(self, *, now: int) -> None:
        """Release everything that the connection had: it is gone."""
        self.doomed = True
        self.replies.close()
        self._hang_up = nothing  # break the reference cycle with the connection
        self.broker.clients.pop(self, None)
        if self.channel is not None and self.subscription is not None:
            reason = Reason.CLOSED if self.state == CLOSING else Reason.DISCONNECTED
            self.broker.leave(self.channel, self.subscription, now=now, reason=reason)
            self.channel = self.subscription = None


def _failed(word: str, error: LapwingError) -> ProtocolError:
    return ProtocolError(f"E_{word}_FAILED", f"{word} failed {error}")


_HANDLERS: Final[dict[type, Callable[..., None]]] = {
    Pub: Session._pub,
    Mpub: Session._mpub,
    Dpub: Session._dpub,
    Hpub: Session._hpub,
    Hmpub: Session._hmpub,
    Sub: Session._sub,
    Rdy: Session._rdy,
    Fins: lambda session, command, now: session.finish_run(command.block, now=now),
    Req: Session._req,
    Reqs: Session._reqs,
    Rej: Session._rej,
    Touch: Session._touch,
    Cls: Session._cls,
    Nop: lambda session, command, now: None,
}
