"""Subscribe: every nsqd that has the topic, shared in-flight, backoff, and a stop that leaves nothing behind."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Unpack

from lapwing import names
from lapwing.client.address import Address, listed, parse
from lapwing.client.backoff import Backoff, Signal, Verdict
from lapwing.client.connection import HANDSHAKE, connect
from lapwing.client.discovery import Discovery
from lapwing.client.errors import ClientError, Refused, Stopped, Unreachable
from lapwing.client.flow import Flow, Orders
from lapwing.client.link import Link
from lapwing.client.message import Message
from lapwing.client.options import Options, Settings
from lapwing.client.subscription import Subscription
from lapwing.client.workers import Handler, InProcesses, Judge, LoopWorkers, Place, ThreadWorkers, Workers, place_of
from lapwing.errors import ConfigError
from lapwing.wire.commands import Sub

log: Final = logging.getLogger("lapwing.client")

STARVED: Final = 0.85  # share of a connection's RDY that is in flight
LAST_WORDS: Final = 5.0  # s that nsqd has to answer CLS
PROBE_PATIENCE: Final = 1.0  # s that a connection has to deliver the one message of a probe
NO_CONNECTION_WAIT: Final = 1.0  # s until a probe looks again for a connection to probe


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
        for kind, name in (("topic", topic), ("channel", channel)):
            if not names.valid(name):
                raise ConfigError(f"invalid {kind} name {name!r}: 1 to 64 of A-Z a-z 0-9 . _ -, then maybe #ephemeral")
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}, expected at least 1")
        self.topic = topic
        self.channel = channel
        self.options = options.but(**settings) if options is not None else Options.of(settings)
        self._direct = [parse(text) for text in listed(nsqd)]
        self._lookupds = listed(lookupd)
        if not self._direct and not self._lookupds:
            raise ConfigError("nsqd or lookupd addresses required")
        if self.options.heartbeat_interval <= 0:
            raise ConfigError("heartbeat_interval is off: nsqd lets nobody subscribe without heartbeats")
        self._handler = handler
        self._concurrency = concurrency
        self._place: Place = place_of(handler, run) if handler is not None else "loop"
        self._address_filter = address_filter
        self._judge = Judge(
            max_attempts=self.options.max_attempts, auto_finish=auto_finish, giving_up=on_giving_up
        )
        self.in_backoff = False
        self._processes: InProcesses | None = None
        self._workers: Workers | None = None
        self._queue: deque[Message] = deque()  # for iteration
        self._readers: deque[asyncio.Future[None]] = deque()
        self._links: dict[Address, Link] = {}
        self._listed_now: set[Address] = set()
        self._subscriptions: set[Subscription] = set()
        self._past = ConsumerStats(0, 0, 0, 0, 0)
        self._flow: Flow[Subscription] = Flow(
            self.options.max_in_flight,
            low_rdy_idle=self.options.low_rdy_idle_timeout,
            low_rdy=self.options.low_rdy_timeout,
        )
        self._backoff = Backoff(
            multiplier=self.options.backoff_multiplier,
            longest=self.options.max_backoff_duration,
            strategy=self.options.backoff_strategy,
        )
        self._discovery: Discovery | None = None
        self._timers: set[asyncio.TimerHandle] = set()
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
        if self._stopping:
            raise Stopped("the consumer was stopped; make a new one")
        if self._started:
            return
        self._started = True
        self._loop = asyncio.get_running_loop()
        self._stopped = self._loop.create_future()
        self._start_workers()
        try:
            await self._connect_all(need)
        except BaseException:
            await self.stop()
            raise
        self._every(self.options.rdy_redistribute_interval, self._redistribute)
        self._every(PROBE_PATIENCE, self._probe_elsewhere)
        if self.options.auto_touch:
            self._touch_again()

    async def _connect_all(self, need: str) -> None:
        links = [self._link(address) for address in dict.fromkeys(self._direct)]
        if self._lookupds:
            self._discovery = Discovery(self._lookupds, self.options, self._found, topic=self.topic)
            await self._discovery.start()
        if links:
            results = await asyncio.gather(*(link.first_attempt() for link in links))
            errors = [error for error in results if error is not None]
            refused = [error for error in errors if isinstance(error, Refused)]
            if errors and (need == "every" or (need == "one" and len(errors) == len(links) and not self._lookupds)):
                raise (refused or errors)[0]

    async def stop(self) -> None:
        """CLS, let handlers finish (at most `stop_timeout`), give back what is left, hang up. Twice is harmless.

        Called by a handler, or by the task that iterates while it holds a message, it only begins the stop: waiting
        for itself would never end.
        """
        self._stopping = True
        if not self._started:
            return
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
        for timer in self._timers:
            timer.cancel()
        self._wake_readers()
        if self._discovery is not None:
            await self._discovery.stop()
        await asyncio.gather(*(link.stop() for link in self._links.values()))
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
            if not self._started:
                raise ClientError("the consumer is not started: use `async with`, or await start() first")
            if self._stopping:
                raise StopAsyncIteration
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
        return self._flow.max_in_flight

    @max_in_flight.setter
    def max_in_flight(self, count: int) -> None:
        if count < 0:
            raise ConfigError(f"max_in_flight is {count}, expected at least 0")
        self._send(self._flow.resize(count, now=self._now()))

    @property
    def starved(self) -> bool:
        """Whether some connection has as much in flight as it may (85 % of its RDY): time to answer a batch."""
        for subscription, share in self._flow.shares.items():
            held = len(subscription.in_flight)
            if held and held >= share.rdy * STARVED:
                return True
        return False

    @property
    def connections(self) -> list[str]:
        """The nsqds it is subscribed at."""
        return sorted(subscription.address for subscription in self._subscriptions)

    @property
    def errors(self) -> list[str]:
        """What keeps it from those it is not connected to, and from discovery; in words."""
        errors = [str(link.error) for link in self._links.values() if link.error is not None and not link.connected]
        return errors + (self._discovery.errors if self._discovery is not None else [])

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

    def _link(self, address: Address) -> Link:
        link = Link(
            address,
            self._subscribe,
            longest=self.options.max_reconnect_delay,
            label=f"{self.topic}/{self.channel}",
            wanted=self._wanted,
            gone=self._gone,
        )
        self._links[address] = link
        return link

    def _found(self, addresses: set[Address]) -> None:
        if self._address_filter is not None:
            addresses = {address for address in addresses if self._address_filter(str(address))}
        self._listed_now = addresses
        if self._stopping:
            return
        for address in addresses:
            known = self._links.get(address)
            if known is None:
                self._link(address)
            else:
                known.hurry()

    def _wanted(self, address: Address) -> bool:
        if address in self._direct or address in self._listed_now:
            return True
        self._links.pop(address, None)
        return False

    def _gone(self, address: Address) -> None:
        if self._discovery is not None:
            self._discovery.poke()

    async def _subscribe(self, address: Address) -> Awaitable[str]:
        connection = await connect(address, self.options)
        subscription = Subscription(connection, self)
        connection.start(subscription)
        connection.send(Sub(self.topic, self.channel).encode())
        self._subscriptions.add(subscription)
        self._send(self._flow.add(subscription, cap=connection.granted.max_rdy_count, now=self._now()))
        subscription.share = self._flow.shares.get(subscription)
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
        orders = self._flow.remove(subscription, now=self._now())
        if not self._stopping:
            self._send(orders)

    # -- messages, RDY and backoff

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

    def signal(self, signal: Signal) -> None:
        """A message was answered for; what does that mean for the flow?"""
        if self._stopping:
            return
        verdict = self._backoff.signal(signal)
        self.in_backoff = self._backoff.level > 0
        if verdict is Verdict.PAUSE:
            log.warning(
                "[%s/%s] backing off for %.3f s (level %d)",
                self.topic, self.channel, self._backoff.duration, self._backoff.level,
            )  # fmt: skip
            self._send(self._flow.hold(now=self._now()))
            self._after(self._backoff.duration, self._probe)
        elif verdict is Verdict.RECOVERED:
            log.info("[%s/%s] recovered, back to normal", self.topic, self.channel)
            self._send(self._flow.release(now=self._now()))

    def _probe(self) -> None:
        if not self._subscriptions:
            self._after(NO_CONNECTION_WAIT, self._probe)
            return
        self._backoff.over()
        self._send(self._flow.probe(now=self._now()))

    def _probe_elsewhere(self) -> None:
        self._send(self._flow.probe_elsewhere(PROBE_PATIENCE, now=self._now()))

    def _redistribute(self) -> None:
        self._send(self._flow.redistribute(now=self._now()))

    def _send(self, orders: Orders[Subscription]) -> None:
        for subscription, count in orders:
            subscription.ready(count)

    # -- time

    def _now(self) -> float:
        return self._loop.time() if self._started else 0.0

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        def ring() -> None:
            self._timers.discard(timer)
            if not self._stopping:
                call()

        timer = self._loop.call_later(seconds, ring)
        self._timers.add(timer)

    def _every(self, seconds: float, call: Callable[[], None]) -> None:
        def again() -> None:
            call()
            self._after(seconds, again)

        self._after(seconds, again)

    def _touch_interval(self) -> float:
        shortest = min((subscription.msg_timeout for subscription in self._subscriptions), default=1.0)
        return min(max(shortest / 8, 0.05), 1.0)

    def _touch_again(self) -> None:
        for subscription in self._subscriptions:
            subscription.touch_old()
        self._after(self._touch_interval(), self._touch_again)


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
