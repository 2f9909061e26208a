"""One conversation with a client: one command, one call; domain errors become answers.

What it answers is gathered in `outbox` and leaves at the end of the turn, after the log write it depends on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lapwing import kernel
from lapwing.broker.broker import Broker
from lapwing.broker.channel import Channel
from lapwing.broker.subscriber import Subscriber
from lapwing.broker.topic import Topic
from lapwing.errors import (
    BrokerError,
    CommandFailed,
    Exiting,
    LapwingError,
    ProtocolError,
    PublishRefused,
)
from lapwing.wire.nsq import frames, parse_mpub
from lapwing.wire.nsq.commands import Cls, Command, Dpub, Fins, Mpub, Nop, Pub, Rdy, Req, Sub, Touch
from lapwing.wire.nsq.limits import Limits

INIT, SUBSCRIBED, CLOSING = 0, 3, 4  # as NSQ's stats number them

_WORDS: Final[dict[int, str]] = {0: "PUB", 1: "MPUB", 2: "DPUB"}
_PUB, _MPUB, _DPUB = 0, 1, 2


@dataclass(slots=True)
class About:
    """Who is at the other end: what it said of itself, and how the connection is made."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    remote_address: str = ""
    connected: int = 0  # Unix seconds
    deflate: bool = False
    snappy: bool = False
    tls: bool = False
    tls_version: str = ""
    tls_cipher: str = ""
    tls_protocol: str = ""
    authed: bool = False
    auth_identity: str = ""
    auth_identity_url: str = ""
    topology_region: str = ""
    topology_zone: str = ""


class Session:
    """What the broker knows of one connection, and what it has to say to it.

    `stirred` is called when there is something to send that no command of this turn asked for.
    """

    def __init__(
        self, broker: Broker, limits: Limits, *, stirred: Callable[[], None], hang_up: Callable[[], None]
    ) -> None:
        self.broker = broker
        self.limits = limits
        self.outbox: list[bytes] = []
        self.doomed = False  # an error was answered that ends the conversation
        self.state = INIT
        self.subscriber: Subscriber | None = None
        self.channel: Channel | None = None
        self.publish_counts: dict[str, int] = {}
        self.msg_timeout = broker.options.msg_timeout  # ns that a delivery gives
        self.touch_timeout = broker.options.msg_timeout  # ns that a TOUCH gives
        self.sample_rate = 0
        self.locality = 0
        self.holds = 0  # publishes whose sync the answers wait for
        self.about = About()
        self._stirred = stirred
        self._hang_up = hang_up
        broker.sessions[self] = None

    def handle(self, command: Command, *, now: int) -> None:
        """Carry out one command; raises `ProtocolError` when the conversation must end."""
        _HANDLERS[type(command)](self, command, now)

    # --- publishing --------------------------------------------------------------------------------------------

    def _pub(self, command: Pub, now: int) -> None:
        topic = self._topic(command.topic, _PUB)
        self._publish(lambda token: topic.publish(command.body, self, token, now=now), topic, _PUB, 1)

    def _dpub(self, command: Dpub, now: int) -> None:
        topic = self._topic(command.topic, _DPUB)
        publish = topic.publish
        self._publish(lambda token: publish(command.body, self, token, now=now, defer=command.delay), topic, _DPUB, 1)

    def _mpub(self, command: Mpub, now: int) -> None:
        limits = self.limits
        try:
            if command.topic not in self.broker.topics:  # what is refused leaves nothing behind, not even a topic
                kernel.frame_mpub(command.body, 0, 0, limits.max_count, limits.max_message)
            topic = self._topic(command.topic, _MPUB)
            self._publish(lambda token: topic.publish_batch(command.body, self, token, now=now), topic, _MPUB, None)
        except PublishRefused as error:
            raise parse_mpub.refusal(error, len(command.body), limits) from error

    def _topic(self, name: str, word: int) -> Topic:
        topic = self.broker.topics.get(name)
        if topic is not None:
            return topic
        try:
            return self.broker.topic(name)
        except LapwingError as error:
            raise _failed(word, error) from error

    def _publish(self, publish: Callable[[int], int | None], topic: Topic, word: int, count: int | None) -> None:
        outbox = self.outbox
        token = len(outbox) << 2 | word
        try:
            taken = publish(token)
        except BrokerError as error:
            raise _failed(word, error) from error
        outbox.append(frames.OK)
        if self.broker.options.durability == "fsync":
            self.holds += 1
        counts = self.publish_counts
        counts[topic.name] = counts.get(topic.name, 0) + (count or taken or 0)

    def published(self, token: int, error: LapwingError | None) -> None:
        """A publish of this turn is settled: a failed one takes its OK, and all that was said after it, back."""
        if self.holds:
            self.holds -= 1
            if not self.holds:
                self._stirred()
        if error is not None and (not self.doomed or token >> 2 < len(self.outbox)):
            del self.outbox[token >> 2 :]
            self.refuse(_failed(token & 3, error))

    # --- consuming ---------------------------------------------------------------------------------------------

    def _sub(self, command: Sub, now: int) -> None:
        try:
            topic = self.broker.topic(command.topic)
            channel = self.broker.create_channel(topic, command.channel, now=now)
            subscriber = Subscriber(
                self.send,
                self._hang_up,
                timeout=self.msg_timeout,
                sample_rate=self.sample_rate,
                locality=self.locality,
                owner=self,
            )
            channel.subscribe(subscriber)
        except LapwingError as error:
            raise ProtocolError("E_SUB_FAILED", f"SUB failed {error}") from error
        self.channel, self.subscriber, self.state = channel, subscriber, SUBSCRIBED
        self.outbox.append(frames.OK)

    def send(self, data: bytes) -> None:
        """Take message frames for the consumer."""
        outbox = self.outbox
        if not outbox:
            self._stirred()
        outbox.append(data)

    def _rdy(self, command: Rdy, now: int) -> None:
        if self.subscriber is None or self.channel is None or self.state == CLOSING:
            return  # a late RDY is lawful, and ignored
        if command.count != self.subscriber.ready:
            self.subscriber.ready = command.count
            self.broker.touch(self.channel)

    def _fins(self, command: Fins, now: int) -> None:
        channel, subscriber = self._consuming()
        for message_id in channel.finish_run(command.block, subscriber, now=now):
            holder = channel.holder(channel.topic.sequence_of(message_id))
            self._soft("FIN", message_id, "client does not own message" if holder else "ID not in flight")

    def _req(self, command: Req, now: int) -> None:
        channel, subscriber = self._consuming()
        try:
            channel.requeue(channel.topic.sequence_of(command.id), subscriber, delay=command.delay, now=now)
        except CommandFailed as error:
            self._soft("REQ", command.id, str(error))

    def _touch(self, command: Touch, now: int) -> None:
        channel, subscriber = self._consuming()
        try:
            channel.touch(channel.topic.sequence_of(command.id), subscriber, timeout=self.touch_timeout, now=now)
        except CommandFailed as error:
            self._soft("TOUCH", command.id, str(error))

    def _cls(self, command: Cls, now: int) -> None:
        _, subscriber = self._consuming()
        subscriber.ready = 0
        self.state = CLOSING
        self.outbox.append(frames.CLOSE_WAIT)

    def _nop(self, command: Nop, now: int) -> None:
        return

    def _consuming(self) -> tuple[Channel, Subscriber]:
        if self.channel is None or self.subscriber is None:
            raise ProtocolError("E_INVALID", "not subscribed")
        return self.channel, self.subscriber

    def _soft(self, word: str, message_id: bytes, reason: str) -> None:
        payload = b"E_%s_FAILED %s %s failed %s" % (word.encode(), word.encode(), message_id, reason.encode())
        self.outbox.append(frames.error(payload))

    # --- the end -----------------------------------------------------------------------------------------------

    def refuse(self, error: ProtocolError) -> None:
        """Answer an error that ends the conversation."""
        if not self.outbox:
            self._stirred()
        self.outbox.append(frames.error(error.payload))
        self.doomed = True

    def leave(self, *, now: int) -> None:
        """The connection is gone."""
        self.doomed = True
        self._stirred = self._hang_up = _nothing  # else we and the connection hold each other for good
        self.broker.sessions.pop(self, None)
        if self.channel is not None and self.subscriber is not None:
            self.broker.leave(self.channel, self.subscriber, now=now)
            self.channel = self.subscriber = None


def _nothing() -> None:
    """There is nobody any more who could be told."""


def _failed(word: int, error: LapwingError) -> ProtocolError:
    reason = "exiting" if isinstance(error, Exiting) else str(error)
    return ProtocolError(f"E_{_WORDS[word]}_FAILED", f"{_WORDS[word]} failed {reason}")


_HANDLERS: Final[dict[type, Callable[..., None]]] = {
    Pub: Session._pub,
    Mpub: Session._mpub,
    Dpub: Session._dpub,
    Sub: Session._sub,
    Rdy: Session._rdy,
    Fins: Session._fins,
    Req: Session._req,
    Touch: Session._touch,
    Cls: Session._cls,
    Nop: Session._nop,
}
