"""Consume a channel on every nsqd that has the topic."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Unpack

from lapwing.client.address import Address
from lapwing.client.connection import connect
from lapwing.client.connections import Connections
from lapwing.client.errors import ClientError, Stopped
from lapwing.client.message import Message
from lapwing.client.options import ClientOptions, ClientSettings, check_name
from lapwing.client.rdy import RdyController
from lapwing.client.subscription import Subscription
from lapwing.client.tracing import telemetry
from lapwing.client.workers import (
    AnswerPolicy,
    Handler,
    InProcesses,
    LoopWorkers,
    RunIn,
    ThreadWorkers,
    where_to_run,
)
from lapwing.errors import ConfigError

log: Final = logging.getLogger("lapwing.client")

CLOSE_WAIT: Final = 5.0  # s that nsqd has to answer CLS


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """Counts of a consumer since its start."""

    received: int
    finished: int
    requeued: int
    in_flight: int
    connections: int

    def plus(self, subscription: Subscription) -> "ConsumerStats":
        """Return the counts with those of one more subscription."""
        return replace(
            self,
            received=self.received + subscription.received,
            finished=self.finished + subscription.finished,
            requeued=self.requeued + subscription.requeued,
        )


class MessageQueue:
    """Messages that a program which iterates over a consumer has not taken yet."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._changed = asyncio.Event()

    def put(self, batch: list[Message]) -> None:
        """Add messages."""
        self._messages.extend(batch)
        self.wake()

    def take(self) -> Message | None:
        """Return the next message that is not answered yet, or None."""
        while self._messages:
            message = self._messages.popleft()
            if message._source is not None:
                return message
        return None

    async def wait(self) -> None:
        """Return when messages may have come."""
        self._changed.clear()
        await self._changed.wait()

    def wake(self) -> None:
        """Let every waiting reader look again."""
        self._changed.set()

    def release(self) -> None:
        """Give all messages back."""
        while self._messages:
            self._messages.popleft().release()


class Consumer:
    """Consume the messages of a channel, with a handler or by iteration.

    With a handler::

        async def handle(message):
            ...                                    # returning finishes, an exception fails

        async with Consumer("orders", "billing", handle, nsqd="127.0.0.1:4150") as consumer:
            await consumer.wait()                  # until stop() is called

    Without one::

        async with Consumer("orders", "billing", lookupd="127.0.0.1:4161") as consumer:
            async for message in consumer:
                with message:                      # finishes; an exception fails
                    ...

    `nsqd` are TCP addresses (or Unix socket paths), `lookupd` HTTP addresses of nsqlookupd. Coroutine handlers run on
    the event loop, `concurrency` at a time, which raises `max_in_flight` if that is lower; plain functions run in that
    many threads, or in processes with `run="processes"`, or, when they never block, on the loop with `run="loop"`. All
    other keywords are `ClientOptions`.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Handler | None = None,
        *,
        nsqd: str | Iterable[str] = (),
        lookupd: str | Iterable[str] = (),
        concurrency: int = 1,
        run: RunIn = "auto",
        auto_finish: bool = True,
        on_giving_up: Callable[[Message], Any] | None = None,
        address_filter: Callable[[str], bool] | None = None,
        options: ClientOptions | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        check_name("topic", topic)
        check_name("channel", channel)
        if not isinstance(concurrency, int) or concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency!r}, expected a number of at least 1")
        self.topic = topic
        self.channel = channel
        self.options = (options or ClientOptions()).but(**settings)
        if concurrency > self.options.max_in_flight > 0:  # else handlers would wait for each other without need
            self.options = self.options.but(max_in_flight=concurrency)
        self._connections = Connections(
            self._subscribe,
            self.options,
            nsqd=nsqd,
            lookupd=lookupd,
            topic=topic,
            label=f"{topic}/{channel}",
            admits=address_filter,
            eager=True,
        )
        if self.options.heartbeat_interval <= 0:
            raise ConfigError("heartbeat_interval is off: nsqd refuses subscribers without heartbeats")
        self._concurrency = concurrency
        self._run_in: RunIn = where_to_run(handler, run) if handler is not None else "loop"
        self._telemetry = telemetry(child=self.options.trace_as_child)
        if handler is not None and self._telemetry is not None and self._run_in != "processes":
            handler = self._telemetry.traced(handler, channel)
        self._handler = handler
        self._answers = AnswerPolicy(
            channel, max_attempts=self.options.max_attempts, auto_finish=auto_finish, giving_up=on_giving_up
        )
        self.rdy = RdyController(self.options, label=f"{topic}/{channel}")
        self._processes: InProcesses | None = None
        self._workers: LoopWorkers | ThreadWorkers | None = None
        self._queue = MessageQueue()  # for iteration
        self._subscriptions: set[Subscription] = set()
        self._past = ConsumerStats(0, 0, 0, 0, 0)
        self._started = False
        self._stopping = False
        self._left = False  # nobody takes messages any more
        self._reading_task: asyncio.Task[Any] | None = None
        self._stopper: asyncio.Task[None] | None = None
        self._touching: asyncio.Task[None] | None = None

    # -- start and stop

    async def start(self, *, need: Literal["one", "every", "none"] = "one") -> None:
        """Connect. Raises `Unreachable` when fewer of the given nsqds can be reached than `need`.

        Connections that are lost later are made again in the background. Addresses from nsqlookupd never fail a start:
        the topic may be created later.
        """
        if need not in ("one", "every", "none"):
            raise ConfigError(f"need is {need!r}, expected one, every or none")
        if self._stopping:
            raise Stopped("the consumer was stopped; create a new one")
        if self._started:
            self._check_loop()
            return
        self._started = True
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self.rdy.start()
        self._start_workers()
        if self.options.auto_touch:
            self._touching = asyncio.create_task(self._touch(), name="lapwing-consumer-touch")
        try:
            await self._connect_all(need)
        except BaseException:
            await self.stop()
            raise

    def _check_started(self) -> None:
        if not self._started:
            raise ClientError("the consumer is not started: use `async with`, or await start() first")
        self._check_loop()

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise ClientError("the consumer was started on another event loop; SyncConsumer serves every thread")

    async def _connect_all(self, need: str) -> None:
        pool = self._connections
        await pool.start()
        errors = await pool.first_failures(pool.given)
        if errors and (need == "every" or (need == "one" and len(errors) == len(pool.given) and not pool.lookupds)):
            raise errors[0]

    async def stop(self) -> None:
        """Send CLS, wait for handlers (at most `stop_timeout`), release the rest, close. Twice is harmless.

        Called by a handler, or by the task that iterates while a message is in flight, it only begins the stop: it
        would wait for itself.
        """
        if self._started:
            self._check_loop()
        self._stopping = True
        if not self._started:
            return
        self._connections.hold()
        self.rdy.stop()
        if self._stopper is None:
            self._stopper = asyncio.create_task(self._stop(), name="lapwing-consumer-stop")
        if not self._called_from_inside():
            await asyncio.shield(self._stopper)

    def _called_from_inside(self) -> bool:
        task = asyncio.current_task()
        if isinstance(self._workers, LoopWorkers):
            return self._workers.runs(task)
        held = any(subscription.in_flight for subscription in self._subscriptions)
        return task is self._reading_task and held and not self._left

    async def _stop(self) -> None:
        self._queue.wake()
        await self._connections.stop()
        subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close_wait()
        deadline = self._loop.time() + self.options.stop_timeout
        try:
            # no message comes after CLOSE_WAIT
            patience = min(CLOSE_WAIT, self.options.stop_timeout)
            await _all((subscription.close_waited for subscription in subscriptions), patience)
            if self._workers is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(deadline):
                        await self._workers.idle()
                for message in self._workers.waiting():
                    message.release()
                if not self._answers.auto_finish:  # the handler answers elsewhere, later
                    await self._drained(subscriptions, deadline)
                await self._workers.stop()
            else:
                self._queue.release()
                if not self._left:
                    await self._drained(subscriptions, deadline)
            self._left = True
            for subscription in subscriptions:
                subscription.give_back()
        finally:
            if self._touching is not None:
                self._touching.cancel()
            if self._processes is not None:
                self._processes.close()
            await asyncio.gather(*(subscription.connection.close() for subscription in subscriptions))
            if not self._stopped.done():
                self._stopped.set_result(None)

    async def _drained(self, subscriptions: list[Subscription], deadline: float) -> None:
        """Wait until nothing is in flight on any connection."""
        await _all((subscription.drained for subscription in subscriptions), deadline - self._loop.time())

    async def wait(self) -> None:
        """Wait until the consumer has stopped."""
        self._check_started()
        await asyncio.shield(self._stopped)

    async def run(self) -> None:
        """Start, and handle messages until `stop` is called or the task is cancelled."""
        async with self:
            await self.wait()

    async def __aenter__(self) -> "Consumer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._handler is None:
            # the program that iterated has left the block and answers no more messages
            self._left = True
            if self._stopper is not None:  # a stop is under way and waits for answers
                self._queue.release()
                for subscription in list(self._subscriptions):
                    subscription.give_back()
        await self.stop()

    # -- iteration

    def __aiter__(self) -> "Consumer":
        if self._handler is not None:
            raise ConfigError("this consumer has a handler: its messages cannot be iterated too")
        return self

    async def __anext__(self) -> Message:
        """Return the next message; it is in flight until it is answered. Ends when the consumer is stopped."""
        self._reading_task = asyncio.current_task()
        while True:
            while not self._stopping and (message := self._queue.take()) is not None:
                if message._row[1] <= self._answers.max_attempts or not self._answers.given_up(message):
                    return message
            if self._stopping:
                raise StopAsyncIteration
            self._check_started()
            await self._queue.wait()

    # -- state

    @property
    def max_in_flight(self) -> int:
        """Messages that may be in flight at once, over all connections; 0 pauses the consumer."""
        return self.rdy.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        if not isinstance(count, int) or count < 0:
            raise ConfigError(f"max_in_flight is {count!r}, expected a number of at least 0")
        self.rdy.resize(count)

    @property
    def starved(self) -> bool:
        """Whether a connection has 85 % of its RDY in flight: time to answer a batch."""
        return self.rdy.starved

    @property
    def connections(self) -> list[str]:
        """The nsqds that it is subscribed to."""
        return sorted(subscription.address for subscription in self._subscriptions)

    @property
    def addresses(self) -> list[str]:
        """The nsqds that were given or found, subscribed to or not."""
        return sorted(map(str, self._connections.addresses))

    @property
    def errors(self) -> list[str]:
        """The reasons why nsqds are not connected and nsqlookupds do not answer."""
        return self._connections.errors

    @property
    def stats(self) -> ConsumerStats:
        """Counts so far."""
        total = self._past
        for subscription in self._subscriptions:
            total = total.plus(subscription)
        in_flight = sum(len(subscription.in_flight) for subscription in self._subscriptions)
        return replace(total, in_flight=in_flight, connections=len(self._subscriptions))

    # -- connections

    async def _subscribe(self, address: Address) -> Awaitable[str]:
        identity = {"topic": self.topic, "channel": self.channel, "reject": True}
        subscription = Subscription(await connect(address, self.options, identity), self)
        self._subscriptions.add(subscription)
        await subscription.start()
        if self._stopping:
            subscription.close_wait()
        log.info("[%s/%s] (%s) subscribed", self.topic, self.channel, address)
        return subscription.lost_future

    def left(self, subscription: Subscription, reason: str) -> None:
        """Forget a subscription whose connection is gone."""
        self._subscriptions.discard(subscription)
        self._past = self._past.plus(subscription)
        self.rdy.leave(subscription)

    # -- messages

    def _start_workers(self) -> None:
        if self._handler is None:
            return
        handler = self._handler
        if self._run_in == "processes":
            handler = self._processes = InProcesses(handler, concurrency=self._concurrency)
        kind = ThreadWorkers if self._run_in == "threads" else LoopWorkers
        self._workers = kind(handler, self._answers, concurrency=self._concurrency)
        self._workers.start()

    def take(self, batch: list[Message]) -> None:
        """Take messages that a subscription received."""
        if self._left:
            for message in batch:
                message.release()
            return
        if self._workers is not None:
            self._workers.take(batch)
            return
        self._queue.put(batch)

    def default_delay(self, attempts: int) -> float:
        """Return how long a failed message waits before it is delivered again."""
        return min(self.options.default_requeue_delay * attempts, self.options.max_requeue_delay)

    async def _touch(self) -> None:
        """Touch messages that are half-way to their timeout, until the consumer has stopped."""
        while True:
            for subscription in self._subscriptions:
                subscription.touch_old()
            shortest = min((subscription.msg_timeout for subscription in self._subscriptions), default=1.0)
            await asyncio.sleep(min(max(shortest / 8, 0.05), 1.0))


async def _all(futures: Iterable[asyncio.Future[None]], seconds: float) -> None:
    pending = [future for future in futures if not future.done()]
    if pending:
        await asyncio.wait(pending, timeout=max(0.0, seconds))
