"""Subscribe: every nsqd that has the topic, shared in-flight, backoff, and a stop that leaves nothing behind."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Unpack

from lapwing.client.address import Address
from lapwing.client.connection import HANDSHAKE, connect
from lapwing.client.connections import Links
from lapwing.client.errors import ClientError, Refused, Stopped, Unreachable
from lapwing.client.message import Message
from lapwing.client.options import Options, Settings, check_name
from lapwing.client.rdy import Pace
from lapwing.client.subscription import Subscription
from lapwing.client.timers import Timers
from lapwing.client.workers import Handler, InProcesses, Judge, LoopWorkers, Place, ThreadWorkers, Workers, place_of
from lapwing.errors import ConfigError
from lapwing.wire.nsq.commands import Sub

log: Final = logging.getLogger("lapwing.client")

LAST_WORDS: Final = 5.0  # s that nsqd has to answer CLS


@dataclass(frozen=True, slots=True)
class ConsumerStats:
    """What a consumer has done so far."""

    received: int
    finished: int
    requeued: int
    in_flight: int
    connections: int


class Consumer:
    """A channel's messages, handled or iterated.

    With a handler::

        async def handle(message):
            ...                                    # returning finishes, raising requeues

        async with Consumer("orders", "billing", handle, nsqd="127.0.0.1:4150", max_in_flight=100) as consumer:
            await consumer.wait()                  # until stop() is called

    Without one::

        async with Consumer("orders", "billing", lookupd="127.0.0.1:4161") as consumer:
            async for message in consumer:
                with message:                      # finishes; an exception requeues
                    ...

    `nsqd` are TCP addresses (or Unix socket paths), `lookupd` HTTP addresses of nsqlookupd. Coroutine handlers run on
    the event loop, `concurrency` at a time; plain functions run in that many threads, or in processes with
    `run="processes"`, or, when they never block, on the loop with `run="loop"`. All other keywords are `Options`.
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
        run: Place = "auto",
        auto_finish: bool = True,
        on_giving_up: Callable[[Message], Any] | None = None,
        address_filter: Callable[[str], bool] | None = None,
        options: Options | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        check_name("topic", topic)
        check_name("channel", channel)
        if not isinstance(concurrency, int) or concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency!r}, expected a number of at least 1")
        self.topic = topic
        self.channel = channel
        self.options = options.but(**settings) if options is not None else Options.of(settings)
        self._links = Links(
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
            raise ConfigError("heartbeat_interval is off: nsqd lets nobody subscribe without heartbeats")
        self._handler = handler
        self._concurrency = concurrency
        self._place: Place = place_of(handler, run) if handler is not None else "loop"
        self._judge = Judge(
            max_attempts=self.options.max_attempts, auto_finish=auto_finish, giving_up=on_giving_up
        )
        self.pace = Pace(self.options, label=f"{topic}/{channel}")
        self._processes: InProcesses | None = None
        self._workers: Workers | None = None
        self._queue: deque[Message] = deque()  # for iteration
        self._readers: deque[asyncio.Future[None]] = deque()
        self._subscriptions: set[Subscription] = set()
        self._past = ConsumerStats(0, 0, 0, 0, 0)
        self._started = False
        self._stopping = False
        self._left = False  # nobody is there to take messages any more
        self._reading_task: asyncio.Task[Any] | None = None
        self._stopper: asyncio.Task[None] | None = None

    # -- life

    async def start(self, *, need: Literal["one", "every", "none"] = "one") -> None:
        """Connect. Raises `Unreachable` when fewer of the given nsqds can be reached than it `need`s.

        After that, what fails is tried again in the background for as long as the consumer lives. Addresses from
        nsqlookupd never fail a start: a topic may come later.
        """
        if need not in ("one", "every", "none"):
            raise ConfigError(f"need is {need!r}, expected one, every or none")
        if self._stopping:
            raise Stopped("the consumer was stopped; make a new one")
        if self._started:
            self._check_loop()
            return
        self._started = True
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self._timers = Timers()
        self.pace.start(self._timers)
        self._start_workers()
        try:
            await self._connect_all(need)
        except BaseException:
            await self.stop()
            raise
        if self.options.auto_touch:
            self._touch_again()

    def _check_started(self) -> None:
        if not self._started:
            raise ClientError("the consumer is not started: use `async with`, or await start() first")
        self._check_loop()

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise ClientError("the consumer was started on another event loop; SyncConsumer serves every thread")

    async def _connect_all(self, need: str) -> None:
        links = self._links
        await links.start()
        errors = await links.first_failures(links.given)
        if errors and (need == "every" or (need == "one" and len(errors) == len(links.given) and not links.lookupds)):
            raise errors[0]

    async def stop(self) -> None:
        """CLS, let handlers finish (at most `stop_timeout`), give back what is left, hang up. Twice is harmless.

        Called by a handler, or by the task that iterates while it holds a message, it only begins the stop: waiting
        for itself would never end.
        """
        if self._started:
            self._check_loop()
        self._stopping = True
        if not self._started:
            return
        self._links.hold()
        self._timers.stop()
        self.pace.stop()
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
        self._wake_readers()
        await self._links.stop()
        subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close_wait()
        deadline = self._loop.time() + self.options.stop_timeout
        touching = self._loop.create_task(self._touch_while_stopping()) if self.options.auto_touch else None
        try:
            # after CLOSE_WAIT nothing more arrives
            patience = min(LAST_WORDS, self.options.stop_timeout)
            await _all((subscription.close_waited for subscription in subscriptions), patience)
            if self._workers is not None:
                await _within(self._workers.idle(), deadline - self._loop.time())
                for message in self._workers.waiting():
                    message.requeue(0, backoff=False)
                if not self._judge.auto_finish:  # the handler answers elsewhere, later
                    await self._drained(subscriptions, deadline)
                await self._workers.stop()
            else:
                self._give_back_waiting()
                if not self._left:
                    await self._drained(subscriptions, deadline)
            self._left = True
            for subscription in subscriptions:
                subscription.give_back()
        finally:
            if touching is not None:
                touching.cancel()
            if self._processes is not None:
                self._processes.close()
            await asyncio.gather(*(subscription.connection.close() for subscription in subscriptions))
            if not self._stopped.done():
                self._stopped.set_result(None)

    def _give_back_waiting(self) -> None:
        while self._queue:
            self._queue.popleft().requeue(0, backoff=False)

    async def _drained(self, subscriptions: list[Subscription], deadline: float) -> None:
        """Wait until no connection holds anything more."""
        await _all((subscription.drained for subscription in subscriptions), deadline - self._loop.time())

    async def _touch_while_stopping(self) -> None:
        while True:
            for subscription in self._subscriptions:
                subscription.touch_old()
            await asyncio.sleep(self._touch_interval())

    async def wait(self) -> None:
        """Return when the consumer has been stopped."""
        self._check_started()
        await asyncio.shield(self._stopped)

    async def run(self) -> None:
        """Start, and handle messages until `stop` is called or the task is cancelled."""
        async with self:
            await self.wait()

    async def __aenter__(self) -> "Consumer":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handler is None:
            # whoever iterated has left the block, and answers no more
            self._left = True
            if self._stopper is not None:  # it waits for answers; otherwise it is told not to, and says CLS first
                self._give_back_waiting()
                for subscription in list(self._subscriptions):
                    subscription.give_back()
        await self.stop()

    # -- iteration

    def __aiter__(self) -> "Consumer":
        if self._handler is not None:
            raise ConfigError("this consumer has a handler: its messages cannot be iterated too")
        return self

    async def __anext__(self) -> Message:
        """The next message; it is held until it is answered for. Ends when the consumer is stopped."""
        queue = self._queue
        self._reading_task = asyncio.current_task()
        while True:
            while queue and not self._stopping:
                message = queue.popleft()
                if message._desk is None:
                    continue
                if message._row[1] > self._judge.max_attempts:
                    self._judge.give_up(message)
                    continue
                return message
            if self._stopping:
                raise StopAsyncIteration
            self._check_started()
            reader = self._loop.create_future()
            self._readers.append(reader)
            await reader

    def _wake_readers(self) -> None:
        while self._readers:
            reader = self._readers.popleft()
            if not reader.done():
                reader.set_result(None)

    # -- what may be asked at any time

    @property
    def max_in_flight(self) -> int:
        """How many messages may be held at once, over all connections; 0 pauses the consumer."""
        return self.pace.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        if not isinstance(count, int) or count < 0:
            raise ConfigError(f"max_in_flight is {count!r}, expected a number of at least 0")
        self.pace.resize(count)

    @property
    def starved(self) -> bool:
        """Whether some connection has as much in flight as it may (85 % of its RDY): time to answer a batch."""
        return self.pace.starved

    @property
    def connections(self) -> list[str]:
        """The nsqds it is subscribed at."""
        return sorted(subscription.address for subscription in self._subscriptions)

    @property
    def addresses(self) -> list[str]:
        """The nsqds that were given or found: subscribed at, or about to be."""
        return sorted(map(str, self._links.addresses))

    @property
    def errors(self) -> list[str]:
        """What keeps it from those it is not connected to, and from discovery; in words."""
        return self._links.errors

    @property
    def stats(self) -> ConsumerStats:
        """Counts so far."""
        now, past = self._subscriptions, self._past
        return ConsumerStats(
            received=past.received + sum(subscription.received for subscription in now),
            finished=past.finished + sum(subscription.finished for subscription in now),
            requeued=past.requeued + sum(subscription.requeued for subscription in now),
            in_flight=sum(len(subscription.in_flight) for subscription in now),
            connections=len(now),
        )

    # -- connections

    async def _subscribe(self, address: Address) -> Awaitable[str]:
        connection = await connect(address, self.options)
        subscription = Subscription(connection, self)
        connection.start(subscription)
        connection.send(Sub(self.topic, self.channel).encode())
        self._subscriptions.add(subscription)
        subscription.share = self.pace.join(subscription, cap=connection.granted.max_rdy_count)
        try:
            async with asyncio.timeout(HANDSHAKE):
                problem = await asyncio.shield(subscription.subscribed)
        except BaseException as error:
            connection.abort("SUB was not answered")
            if isinstance(error, TimeoutError):
                raise Unreachable(str(address), f"SUB was not answered within {HANDSHAKE:g} s") from error
            raise
        if problem:
            connection.abort(problem)
            kind = Refused if problem.startswith("E_") else Unreachable
            raise kind(str(address), f"cannot subscribe to {self.topic}/{self.channel}: {problem}")
        if self._stopping:
            subscription.close_wait()
        log.info("[%s/%s] (%s) subscribed", self.topic, self.channel, address)
        return subscription.lost_future

    def left(self, subscription: Subscription, reason: str) -> None:
        """A subscription's connection is gone (called by it)."""
        self._subscriptions.discard(subscription)
        past = self._past
        self._past = ConsumerStats(
            past.received + subscription.received,
            past.finished + subscription.finished,
            past.requeued + subscription.requeued,
            0,
            0,
        )
        self.pace.leave(subscription)

    # -- messages

    def _start_workers(self) -> None:
        if self._handler is None:
            return
        handler = self._handler
        if self._place == "processes":
            handler = self._processes = InProcesses(handler, concurrency=self._concurrency)
        kind = ThreadWorkers if self._place == "threads" else LoopWorkers
        self._workers = kind(handler, self._judge, concurrency=self._concurrency)
        self._workers.start()

    def take(self, batch: list[Message]) -> None:
        """Messages have arrived (called by a subscription)."""
        if self._left:
            for message in batch:
                message.requeue(0, backoff=False)
            return
        if self._workers is not None:
            self._workers.take(batch)
            return
        self._queue.extend(batch)
        if self._readers:
            self._wake_readers()

    def default_delay(self, attempts: int) -> float:
        """How long a failed message waits before it comes again."""
        return min(self.options.default_requeue_delay * attempts, self.options.max_requeue_delay)

    def _touch_interval(self) -> float:
        shortest = min((subscription.msg_timeout for subscription in self._subscriptions), default=1.0)
        return min(max(shortest / 8, 0.05), 1.0)

    def _touch_again(self) -> None:
        for subscription in self._subscriptions:
            subscription.touch_old()
        self._timers.after(self._touch_interval(), self._touch_again)


async def _all(futures: Iterable[asyncio.Future[None]], seconds: float) -> None:
    pending = [future for future in futures if not future.done()]
    if pending:
        await asyncio.wait(pending, timeout=max(0.0, seconds))


async def _within(work: Awaitable[None], seconds: float) -> bool:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await work
    except TimeoutError:
        return False
    return True
