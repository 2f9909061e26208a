"""Test consumers without a server: the real broker in this process, without sockets or disk, and a clock of its own.

    from lapwing.testing import Broker

    async def test_a_declined_card_is_tried_again_after_a_minute():
        broker = Broker()
        broker.channel("orders", "billing", max_attempts=3, retry_first="1m")
        broker.publish("orders", b'{"card": "declined"}')

        (first,) = await broker.handle("orders", "billing", bill)
        assert first.answer == "failed"
        assert await broker.handle("orders", "billing", bill) == []     # it waits
        broker.advance(60)
        (second,) = await broker.handle("orders", "billing", bill)
        assert second.attempts == 2
"""

import asyncio
import contextlib
import inspect
import itertools
import math
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from lapwing import kernel
from lapwing.broker.broker import Broker as BrokerCore
from lapwing.broker.channel.channel import Channel
from lapwing.broker.keeper.storage import Storage
from lapwing.broker.settings.definitions import default_dead_topic
from lapwing.broker.settings.options import Options as BrokerOptions
from lapwing.client.app import App
from lapwing.client.bodies import Body
from lapwing.client.bodies import encode as encode_body
from lapwing.client.headers import CONTENT_TYPE, encode, headers_of_each
from lapwing.client.inbox import CORRELATION_ID, REPLY_TO, RequestTimeout, reply_headers
from lapwing.client.message import Message, Row
from lapwing.client.options import check_name
from lapwing.client.producer import Producer
from lapwing.client.publish_batches import checked
from lapwing.client.workers import answer, ends_task
from lapwing.durations import parse as parse_duration
from lapwing.errors import NoSuchChannel, NoSuchTopic
from lapwing.net.options import DURATION
from lapwing.net.options import settings as describe
from lapwing.sessions.nsq import Session, limits_of
from lapwing.wire.nsq.commands import Command, Dpub, Fins, Hpub, Mpub, Pub, Rdy, Rej, Req, Sub, Touch

SECOND: Final = 1_000_000_000  # ns
_NODE: Final = 1
_INBOX: Final = "inbox.testing#ephemeral"  # topic and channel of replies
_START: Final = 1_700_000_000 * SECOND  # a fixed time, so that tests see the same timestamps each time

Answer = Literal["finished", "failed", "released", "rejected", "none"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One delivery and the answer of the handler."""

    body: bytes
    id: str
    attempts: int
    answer: Answer  # none: the handler did not answer, and the message is still in flight
    error: str = ""  # of a failure or rejection
    reason: str = ""  # of a rejection
    delay: float | None = None  # s until the next delivery, if the handler chose it
    topic: str = ""
    channel: str = ""


class Broker:
    """A broker in memory. Time stands still until `advance`.

    Keyword arguments are the options of nsqd, such as `msg_timeout`; times are seconds, or texts such as "1m". Not for
    use by several threads.
    """

    def __init__(self, **options: Any) -> None:
        self.now = _START  # ns
        self._options = BrokerOptions(**{"min_free_bytes": 0, "node_id": _NODE, **_in_ns(options)})
        self._core = BrokerCore(self._options, Storage(_NODE))
        self._core.restore(now=self.now)
        self._publisher = _Connection(self)
        self._consumers: dict[tuple[str, str], _Connection] = {}
        self._requests: dict[str, tuple[asyncio.Future[Message], int]] = {}  # with their deadlines, ns
        self._numbers = itertools.count(1)

    # ---- the test's side ----

    def publish(
        self, topic: str, *bodies: Body, headers: Mapping[str, str] | None = None, defer: float = 0.0
    ) -> None:
        """Publish messages, with the same headers each; with `defer` they are delivered after so many seconds."""
        check_name("topic", topic)
        encoded = [encode_body(body) for body in bodies]
        found = [checked(topic, body) for body, _ in encoded]
        if headers or any(kind for _, kind in encoded):
            delay = round(max(defer, 0.0) * SECOND)
            for body, kind in encoded:
                text = encode({**({CONTENT_TYPE: kind} if kind else {}), **(headers or {})})
                self._publisher.send(Hpub.of(topic, text, body, delay=delay))
        elif defer > 0:
            self._publisher.send(*(Dpub(topic, round(defer * SECOND), body) for body in found))
        else:
            self._publisher.send(Pub(topic, found[0]) if len(found) == 1 else Mpub.of(topic, found))
        self._pass_on_replies()

    def channel(self, topic: str, channel: str, **settings: Any) -> None:
        """Create a channel, and set its settings, such as `max_attempts=3`."""
        check_name("topic", topic)
        check_name("channel", channel)
        core = self._core
        found = core.topic(topic).create_channel(channel, now=self.now)
        if settings:
            core.settings.change_channel(found, settings, now=self.now)
        self._commit()

    def advance(self, seconds: float) -> None:
        """Turn the clock: deferred messages become ready, and messages in flight time out."""
        if seconds < 0:
            raise ValueError(f"advance by {seconds} s: the clock does not go back")
        self._publish_scheduled(self.now + round(seconds * SECOND))
        while self._core.scan(self.now):
            self._commit()
        self._commit()
        for future, deadline in self._requests.values():
            if deadline <= self.now and not future.done():
                future.set_exception(RequestTimeout("no reply came in time: does a handler reply?"))

    def _publish_scheduled(self, end: int) -> None:
        """Turn the clock, from one time of a schedule to the next."""
        while True:
            due = self._core.schedules.step(now=self.now)
            self._commit()
            if due is None or due > end:
                break
            self.now = due
        self.now = end

    async def request(
        self, topic: str, body: Body, *, headers: Mapping[str, str] | None = None, timeout: float = 10.0
    ) -> Message:
        """Publish a request and return the reply to it. Raises `RequestTimeout` when the clock is turned so far."""
        name = f"request-{next(self._numbers)}"
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.deliver(_INBOX, _INBOX)  # subscribe, before the reply is published
        self._requests[name] = future, self.now + round(timeout * SECOND)
        try:
            self.publish(topic, body, headers={**(headers or {}), REPLY_TO: _INBOX, CORRELATION_ID: name})
            return await future
        finally:
            del self._requests[name]

    def _pass_on_replies(self) -> None:
        while self._requests and (message := self.deliver(_INBOX, _INBOX)) is not None:
            waiting = self._requests.get(message.headers.get(CORRELATION_ID, ""))
            if waiting is not None and not waiting[0].done():
                waiting[0].set_result(message)
            message.finish()

    @contextlib.asynccontextmanager
    async def run(self, app: App) -> AsyncIterator["RunningApp"]:
        """Run an application on this broker, as it is; its messages are handled when the test calls `handle`."""
        async with contextlib.AsyncExitStack() as stack:
            async with app._started(TestProducer(self)):
                stack.push_async_callback(app.stop)
            for declared in app.declared:
                self.channel(declared.topic, declared.channel, **declared.settings)
            for scheduled in app.scheduled:
                self._core.schedules.put(scheduled.name, scheduled.document(), now=self.now)
            yield RunningApp(self, app)

    def producer(self) -> "TestProducer":
        """Return a producer for handlers that publish; it has the methods of `lapwing.Producer`."""
        return TestProducer(self)

    async def handle(
        self, topic: str, channel: str, handler: Callable[[Message], Any], *, limit: int = 1000
    ) -> list[Outcome]:
        """Deliver every message that is ready, one after the other, and return what the handler answered to each.

        The handler may be a function or a coroutine function; its exceptions are answers, as in a `Consumer`. A message
        that it fails without a delay may be delivered again at once; `limit` ends that.
        """
        outcomes: list[Outcome] = []
        while len(outcomes) < limit and (message := self.deliver(topic, channel)) is not None:
            source = message._source
            assert isinstance(source, _Source)
            error: BaseException | None = None
            try:
                result = handler(message)
                if inspect.isawaitable(result):
                    await result
            except BaseException as raised:
                if ends_task(raised):
                    raise
                error = raised
            answer(message, error)
            outcomes.append(replace(source.outcome(message), topic=topic, channel=channel))
        return outcomes

    def deliver(self, topic: str, channel: str) -> Message | None:
        """Deliver one message and return it, or None if none is ready; the test answers it."""
        consumer = self._consumers.get((topic, channel))
        if consumer is None:
            check_name("topic", topic)
            check_name("channel", channel)
            consumer = self._consumers[topic, channel] = _Connection(self)
            consumer.send(Sub(topic, channel))
        return consumer.receive(topic)

    def disconnect(self, topic: str, channel: str) -> None:
        """Lose the connection of the channel's consumer, as when it crashes: its messages are delivered again."""
        consumer = self._consumers.pop((topic, channel), None)
        if consumer is not None:
            consumer.leave()

    # ---- what is there ----

    def depth(self, topic: str, channel: str) -> int:
        """Return the number of messages that are ready."""
        return self._channel(topic, channel).depth

    def in_flight(self, topic: str, channel: str) -> int:
        """Return the number of messages that are delivered and not answered."""
        return self._channel(topic, channel).in_flight_count

    def deferred(self, topic: str, channel: str) -> int:
        """Return the number of messages that wait for their time."""
        return len(self._channel(topic, channel).ledger.deferred)

    def messages(self, topic: str) -> list[bytes]:
        """Return the bodies of every message of a topic, finished or not, oldest first; none of an unknown topic."""
        return [body for _, body in self._bodies(topic)]

    def dead_letters(self, topic: str, channel: str) -> list[bytes]:
        """Return the bodies of the messages that the channel gave up."""
        own = self._channel(topic, channel).effective.dead_topic
        dead_topic = default_dead_topic(topic, channel) if own is None else own
        found = self._bodies(dead_topic)
        if not found:
            return []
        log = self._core.existing(dead_topic).log
        origins = {
            extra.sequence: (extra.headers.get("dead-topic"), extra.headers.get("dead-channel"))
            for extra in log.extras(log.first, log.end)
        }
        return [body for sequence, body in found if origins.get(sequence) == (topic, channel)]

    def _bodies(self, topic: str) -> list[tuple[int, bytes]]:
        """Return the messages of a topic with their sequences; none of an unknown topic."""
        try:
            log = self._core.existing(topic).log
        except NoSuchTopic:
            return []
        found: list[tuple[int, bytes]] = []
        for first, _, frames in log.blocks(log.first, log.end, 1 << 20):
            rows = kernel.decode_messages(frames, 0, len(frames))[0]
            found += [(sequence, row[3]) for sequence, row in enumerate(rows, first)]
        return found

    def _channel(self, topic: str, channel: str) -> Channel:
        try:
            return self._core.existing_channel(topic, channel)
        except (NoSuchTopic, NoSuchChannel) as error:
            raise LookupError(f"{topic}/{channel}: no such channel: `channel` creates it") from error

    def _commit(self) -> None:
        self._core.commit(self.now)


class RunningApp:
    """An application that runs on a broker for tests."""

    def __init__(self, broker: Broker, app: App) -> None:
        self.broker = broker
        self.app = app

    async def handle(self, *, limit: int = 1000) -> list[Outcome]:
        """Have the handlers of all consumers answer what is ready, and what they publish meanwhile.

        Returns the answers in their order. `limit` ends handlers that publish to themselves.
        """
        outcomes: list[Outcome] = []
        while True:
            before = len(outcomes)
            for declared in self.app.declared:
                rest = limit - len(outcomes)
                outcomes += await self.broker.handle(declared.topic, declared.channel, declared.handler, limit=rest)
            if len(outcomes) in (before, limit):
                return outcomes

    async def advance(self, seconds: float) -> list[Outcome]:
        """Turn the clock, and handle what has become ready."""
        self.broker.advance(seconds)
        return await self.handle()


def _in_ns(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of nsqd with times as nsqd has them."""
    times = {setting.name for setting in describe(BrokerOptions) if setting.kind is DURATION}
    return {name: duration(value) if name in times else value for name, value in options.items()}


def duration(value: float | str) -> int:
    """Return the ns of a number of seconds, or of a text such as `1m30s`."""
    return parse_duration(value) if isinstance(value, str) else round(value * SECOND)


class TestProducer(Producer):
    """A `lapwing.Producer` on a broker for tests."""

    __test__ = False  # not a test, whatever its name looks like to pytest

    def __init__(self, broker: Broker) -> None:
        super().__init__("127.0.0.1:1")  # which it never connects to
        self._broker = broker

    async def start(self) -> None:
        """Do nothing: there is no connection."""

    async def _begin_within(self, timeout: float | None) -> None:
        return

    async def stop(self, timeout: float | None = None) -> None:
        """Do nothing: everything is confirmed."""

    def submit(
        self,
        topic: str,
        body: Body,
        *,
        headers: Mapping[str, str] | None = None,
        defer: float | None = None,
        timeout: float | None = None,
        context: Mapping[str, str] | None = None,
    ) -> "asyncio.Future[None]":
        """Publish one message; the future is done."""
        self._broker.publish(topic, body, headers={**(context or {}), **(headers or {})}, defer=defer or 0.0)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.set_result(None)
        return future

    async def _publish_many(
        self,
        topic: str,
        bodies: Sequence[Body],
        headers: Mapping[str, str] | Sequence[Mapping[str, str]] | None,
        context: Mapping[str, str],
        defer: float | None,
        timeout: float | None,
    ) -> None:
        if not headers and not context:
            self._broker.publish(topic, *bodies, defer=defer or 0.0)
            return
        for own, body in zip(headers_of_each(topic, headers, len(bodies)), bodies, strict=True):
            self._broker.publish(topic, body, headers={**context, **own}, defer=defer or 0.0)

    async def request(
        self, topic: str, body: Body, *, headers: Mapping[str, str] | None = None, timeout: float = 10.0
    ) -> Message:
        """Publish a request and return the reply to it; the clock of the broker decides when it is too late."""
        return await self._broker.request(topic, body, headers=headers, timeout=timeout)

    async def reply(self, request: Message, body: Body, *, headers: Mapping[str, str] | None = None) -> None:
        """Reply to a request that was consumed. Raises `ValueError` for a message that is no request."""
        topic, own = reply_headers(request, headers)
        self._broker.publish(topic, body, headers=own)

    @property
    def connections(self) -> list[str]:
        """The one broker."""
        return [_Source.address]


class _Connection:
    """A session of the broker, without a socket."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        core = broker._core
        self._session = Session(core, limits_of(broker._options), on_ready=lambda: None, hang_up=lambda: None)
        self._session.headers = True

    def send(self, *commands: Command) -> None:
        for command in commands:
            self._session.handle(command, now=self._broker.now)
        self._broker._commit()

    def leave(self) -> None:
        self._session.leave(now=self._broker.now)
        self._broker._commit()

    def receive(self, topic: str) -> Message | None:
        """Ask for one message, and return it if one is ready."""
        assert self._session.subscription is not None
        held = len(self._session.subscription.holder.in_flight)
        self.send(Rdy(held + 1))
        self.send(Rdy(0))
        for row in self._rows():
            return Message(row, _Source(self, topic), self._broker.now / SECOND)
        return None

    def deadline(self, message_id: bytes) -> float:
        """Return when a message in flight times out, in seconds; 0 for one that is not in flight."""
        session = self._session
        if session.subscription is None or session.channel is None:
            return 0.0
        lease = session.subscription.holder.in_flight.get(session.channel.topic.sequence_of(message_id))
        if lease is None:
            return 0.0
        return lease.deadline / SECOND if lease.deadline is not None else math.inf

    def _rows(self) -> list[Row]:
        ready = self._session.replies.ready
        data = b"".join(ready)
        ready.clear()
        assert self._session.subscription is not None
        self._session.subscription.unsent = 0
        rows: list[Row] = []
        at = 0
        while at < len(data):
            found, end = kernel.decode_messages(data, at, len(data))
            headed, end = kernel.decode_headed(data, end, len(data))
            rows += [*found, *headed]
            at = end if end > at else at + 4 + int.from_bytes(data[at : at + 4], "big")
        return rows


class _Source:
    """The source of a message of the broker for tests: it notes the answer and sends it to the broker."""

    limited = True  # the handler is called whatever the attempts are
    address = "lapwing.testing"

    def __init__(self, connection: _Connection, topic: str) -> None:
        self.topic = topic
        self.thread = threading.get_ident()
        self._connection = connection
        self._answer: Answer = "none"
        self._error = self._reason = ""
        self._delay: float | None = None

    def outcome(self, message: Message) -> Outcome:
        """Return the answer to `message`."""
        return Outcome(
            message.body, message.id, message.attempts, self._answer, self._error, self._reason, self._delay
        )

    def finish(self, message: Message) -> None:
        self._answer = "finished"
        self._connection.send(Fins.of([message._row[2]]))

    def fail(self, message: Message, delay: float | None, backoff: bool, error: str) -> None:
        self._answer, self._error, self._delay = "failed", error, delay
        self._connection.send(Req(message._row[2], round((delay or 0.0) * SECOND), error=error))

    def release(self, message: Message, delay: float) -> None:
        self._answer, self._delay = "released", delay
        self._connection.send(Req(message._row[2], round(delay * SECOND), free=True))

    def reject(self, message: Message, reason: str, error: str) -> None:
        self._answer, self._reason, self._error = "rejected", reason, error
        self._connection.send(Rej.of(message._row[2], reason, error))

    def touch(self, message: Message) -> None:
        self._connection.send(Touch(message._row[2]))

    def deadline(self, message: Message) -> float:
        """Return when the message times out by the clock of the test; 0 when it has, or is answered."""
        return self._connection.deadline(message._row[2])

    def now(self) -> float:
        return self._connection._broker.now / SECOND

    def call(self, what: Callable[..., None], *arguments: Any) -> None:
        """Answer from another thread: the test waits for the handler, so that is as good as from its own."""
        self.thread = threading.get_ident()
        what(*arguments)
