"""Publish: one, many, later; over a pool of nsqds, confirmed, with failover until a deadline."""

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from types import TracebackType
from typing import Final, Unpack

from lapwing.client.address import Address
from lapwing.client.connection import Connection, connect
from lapwing.client.connections import Links
from lapwing.client.errors import ClientError, ConnectionLost, PublishFailed, PublishTimeout, Stopped
from lapwing.client.options import Options, Settings, check_name
from lapwing.client.publish_batches import Limits, Parcel, elsewhere

log: Final = logging.getLogger("lapwing.client")

NEVER: Final = float("inf")
WINDOW: Final = 16  # commands unanswered on one connection; what comes meanwhile is gathered
MILLISECOND: Final = 1_000_000  # ns


class Post:
    """One nsqd's place in the pool: its connection, and what it has not answered yet. Answers come in order."""

    def __init__(self, connection: Connection, producer: "Producer") -> None:
        self.connection = connection
        self.address = str(connection.address)
        self.unanswered: deque[Parcel] = deque()
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._producer = producer

    @property
    def open(self) -> bool:
        """Whether it takes one more command now."""
        return len(self.unanswered) < WINDOW and not self.connection.full and not self.connection.closed

    def post(self, parcel: Parcel, now: float) -> None:
        parcel.sent = now
        self.unanswered.append(parcel)
        self.connection.send(parcel.encode())

    def messages(self, rows: list[tuple[int, int, bytes, bytes]]) -> None:
        self.connection.abort("a message arrived on a connection that never subscribed")

    def answered(self, payload: bytes) -> None:
        if payload != b"OK" or not self.unanswered:
            self.connection.abort(f"unexpected answer {payload[:80]!r}")
            return
        self.unanswered.popleft().confirm()
        self._producer.flush()

    def refused(self, reason: str) -> None:
        if not self.unanswered:
            log.warning("(%s) %s", self.address, reason)
            return
        self._producer.refused(self, self.unanswered.popleft(), reason)

    def lost(self, reason: str) -> None:
        if not self.gone.done():
            self.gone.set_result(reason)
        self._producer.lost(self, reason)

    def writable(self) -> None:
        self._producer.flush()


class Producer:
    """Publishes to one nsqd or to a pool of them.

        async with Producer("127.0.0.1:4150") as producer:
            await producer.publish("orders", b"...")
            await producer.publish_many("orders", [b"...", b"..."])
            await producer.publish("orders", b"...", defer=60)

    Returning from `publish` means that nsqd has confirmed it. Publishes that are under way at the same time travel
    together as one MPUB, in the order in which they were called; with several nsqds, batch after batch goes to the
    next one that is alive. When a connection breaks before the answer, the batch is sent again, elsewhere if
    possible, until its deadline: at least once, never silently lost.

    `nsqd` are TCP addresses or Unix socket paths; `lookupd` HTTP addresses of nsqlookupd, whose every nsqd is used.
    """

    def __init__(
        self,
        nsqd: str | Iterable[str] = (),
        *,
        lookupd: str | Iterable[str] = (),
        options: Options | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        self.options = options.but(**settings) if options is not None else Options.of(settings)
        self._links = Links(self._connect, self.options, nsqd=nsqd, lookupd=lookupd)
        self._limits = Limits(self.options.max_msg_size, self.options.max_body_size)
        self._posts: list[Post] = []
        self._turn = 0
        self._queue: deque[Parcel] = deque()
        self._open: dict[str, Parcel] = {}  # by topic: the last batch that still takes more
        self._known: set[str] = set()  # topic names that were found valid
        self._reason = ""  # why the last connection that held a publish broke
        self._tick_at = NEVER
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._stopping = False
        self._stopped = False

    # -- life

    async def start(self) -> None:
        """Connect now rather than with the first publish; raises `Unreachable` when no nsqd can be reached."""
        await self._begin()
        errors = await self._links.first_failures(self._links.addresses)
        if self._stopping:
            raise Stopped("the producer was stopped while it was starting")
        if not self._posts:
            raise errors[0] if errors else self._links.nobody()

    async def _begin(self) -> None:
        if self._stopped or self._stopping:
            raise Stopped("the producer was stopped; make a new one")
        if self._starting is None:
            self._loop = asyncio.get_running_loop()
            self._starting = asyncio.create_task(self._links.start(), name="lapwing-producer-start")
        self._check_loop()
        starting = self._starting
        await asyncio.wait([starting])  # of which a caller that is cancelled cancels nothing
        if starting.cancelled():
            raise Stopped("the producer was stopped while it was starting")
        starting.result()

    async def _begin_within(self, timeout: float | None) -> None:
        seconds = self.options.publish_timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                await self._begin()
        except TimeoutError as error:
            raise PublishTimeout(f"no nsqd found within {seconds:g} s: {', '.join(self._links.lookupds)}") from error

    async def stop(self, timeout: float | None = None) -> None:
        """Wait for what is under way (at most `timeout`, by default each publish's own deadline), then hang up."""
        if self._stopped:
            return
        if self._starting is not None:
            self._check_loop()
        self._stopping = True
        self._links.hold()
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        futures = [future for parcel in self._pending() for future in parcel.futures if not future.done()]
        try:
            if futures:
                self.flush()
                await asyncio.wait(futures, timeout=timeout)
        finally:
            await self._hang_up()

    async def _hang_up(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        await self._links.stop()
        for parcel in self._pending():
            parcel.fail(lambda: Stopped("the producer was stopped before nsqd confirmed"))
        self._queue.clear()
        await asyncio.gather(*(post.connection.close() for post in list(self._posts)))

    async def __aenter__(self) -> "Producer":
        try:
            await self.start()
        except BaseException:
            await self.stop()  # nobody else will: what fails to begin must not go on trying
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- publishing

    async def publish(
        self, topic: str, body: bytes, *, defer: float | None = None, timeout: float | None = None
    ) -> None:
        """Return when nsqd has confirmed `body`; with `defer`, it is delivered only after so many seconds.

        Raises `PublishFailed` when nsqd refuses, `PublishTimeout` when there is no confirmation within `timeout`
        seconds (default: `publish_timeout`).
        """
        if self._starting is None or not self._starting.done():
            await self._begin_within(timeout)
        await self.submit(topic, body, defer=defer, timeout=timeout)

    def submit(
        self, topic: str, body: bytes, *, defer: float | None = None, timeout: float | None = None
    ) -> asyncio.Future[None]:
        """The same without waiting: a future that is done when nsqd has confirmed. The producer must be started."""
        self._check(topic)
        body = _checked(topic, body)
        future: asyncio.Future[None] = self._loop.create_future()
        deadline = self._loop.time() + (self.options.publish_timeout if timeout is None else timeout)
        if defer is not None and defer > 0:
            parcel = Parcel(topic, deadline, delay=max(1, round(defer * 1000)) * MILLISECOND)
            self._queue.append(parcel)
            self._open.pop(topic, None)  # what comes later must not overtake it
        else:
            known = self._open.get(topic)
            if known is not None and known.fits(body, deadline, self._limits):
                parcel = known
            else:
                parcel = self._open[topic] = Parcel(topic, deadline)
                self._queue.append(parcel)
        parcel.add(body, future)
        self._wake(deadline)
        return future

    async def publish_many(
        self, topic: str, bodies: Sequence[bytes], *, defer: float | None = None, timeout: float | None = None
    ) -> None:
        """Return when nsqd has confirmed all `bodies`: one MPUB, all or nothing.

        What is larger than nsqd takes at once (`max_body_size`) goes as several, each all or nothing.
        """
        if self._starting is None or not self._starting.done():
            await self._begin_within(timeout)
        if isinstance(bodies, (bytes, bytearray, memoryview, str)):
            raise TypeError(f"{topic}: publish_many takes a list of bodies, not one: `publish` takes one")
        if not bodies:
            return
        if defer is not None and defer > 0:
            await self._all([self.submit(topic, body, defer=defer, timeout=timeout) for body in bodies])
            return
        self._check(topic)
        deadline = self._loop.time() + (self.options.publish_timeout if timeout is None else timeout)
        rest = [_checked(topic, body) for body in bodies]
        while rest:
            parcels = self._packed(topic, rest, deadline)
            results = await asyncio.gather(*(parcel.futures[0] for parcel in parcels), return_exceptions=True)
            rest = []
            for parcel, result in zip(parcels, results, strict=True):
                if not isinstance(result, BaseException):
                    continue
                smaller = self._limits.body and parcel.size > self._limits.body and len(parcel.bodies) > 1
                if not (isinstance(result, PublishFailed) and smaller):
                    raise result
                rest += parcel.bodies  # nsqd takes less at once than we thought: now we know how much

    def _packed(self, topic: str, bodies: list[bytes], deadline: float) -> list[Parcel]:
        """`bodies` as few whole batches, queued."""
        limit = self._limits.body or 1 << 31
        parcel = Parcel(topic, deadline, whole=True)
        parcels = [parcel]
        for body in bodies:
            if parcel.bodies and parcel.size + len(body) + 4 > limit:
                parcel = Parcel(topic, deadline, whole=True)
                parcels.append(parcel)
            parcel.bodies.append(body)
            parcel.size += len(body) + 4
        for parcel in parcels:
            parcel.futures.append(self._loop.create_future())
        self._queue.extend(parcels)
        self._open.pop(topic, None)
        self._wake(deadline)
        return parcels

    async def _all(self, futures: list[asyncio.Future[None]]) -> None:
        results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    @property
    def connections(self) -> list[str]:
        """The nsqds it is connected to."""
        return sorted(post.address for post in self._posts)

    def _check(self, topic: str) -> None:
        if self._stopping:
            raise Stopped("the producer was stopped; make a new one")
        if self._starting is None:
            raise ClientError("the producer is not started: use `async with`, or await start() first")
        self._check_loop()
        if topic not in self._known:
            check_name("topic", topic)
            self._known.add(topic)

    def _check_loop(self) -> None:
        if asyncio._get_running_loop() is not self._loop:
            raise ClientError("the producer was started on another event loop; SyncProducer serves every thread")

    # -- the way to nsqd

    def flush(self) -> None:
        """Give what is gathered to connections that can take it."""
        self._scheduled = False
        now = self._loop.time()
        used: set[Post] = set()
        while self._queue:
            parcel = self._queue[0]
            post = self._choose(parcel) if parcel.awaited else None
            if post is None and parcel.awaited:
                break
            self._queue.popleft()
            if self._open.get(parcel.topic) is parcel:
                del self._open[parcel.topic]
            if post is not None:
                post.post(parcel, now)
                used.add(post)
        for post in used:
            post.connection.flush()
        if self._queue and not self._posts:
            self._links.hurry()

    def _choose(self, parcel: Parcel) -> Post | None:
        posts = self._posts
        for step in range(len(posts)):
            post = posts[(self._turn + step) % len(posts)]
            if post.open and post.address not in parcel.refused_by:
                self._turn = (self._turn + step + 1) % len(posts)
                return post
        return None

    def refused(self, post: Post, parcel: Parcel, reason: str) -> None:
        """nsqd said no (called by a post); it hangs up after that, and the rest is sent again."""
        def error() -> PublishFailed:
            return PublishFailed(post.address, f"{reason} (topic {parcel.topic})")

        too_big = self._limits.learn(reason)
        if too_big == "message" and len(parcel.bodies) > 1 and not parcel.whole:
            rest, large = parcel.without_larger(self._limits.message)
            for future in large:
                if not future.done():
                    future.set_exception(error())
            if rest.bodies:
                self._queue.appendleft(rest)
        elif too_big == "body" and len(parcel.bodies) > 1 and not parcel.whole:
            self._queue.extendleft(reversed(list(parcel.halves())))
        elif elsewhere(reason):
            parcel.refused_by.add(post.address)
            if any(str(address) not in parcel.refused_by for address in self._links.addresses):
                log.warning("(%s) %s; trying another nsqd", post.address, reason)
                self._queue.appendleft(parcel)
            else:
                parcel.fail(error)
        else:
            parcel.fail(error)
        self._schedule()

    def lost(self, post: Post, reason: str) -> None:
        """A connection is gone (called by its post): what it had not answered goes to the front of the queue."""
        if post in self._posts:
            self._posts.remove(post)
        if post.unanswered:
            self._reason = f"{post.address}: {reason}"
        if self._stopped:
            for parcel in post.unanswered:
                parcel.fail(lambda: ConnectionLost(post.address, f"{reason}; not confirmed"))
        else:
            self._queue.extendleft(reversed(post.unanswered))
            self._schedule()
        post.unanswered.clear()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    # -- deadlines

    def _wake(self, deadline: float) -> None:
        if not self._scheduled:
            self._schedule()
        if deadline < self._tick_at:
            self._tick_later(deadline)

    def _tick_later(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tick_at = min(when, self._loop.time() + self.options.confirm_timeout / 4)
        self._timer = self._loop.call_at(self._tick_at, self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        self._timer, self._tick_at = None, NEVER
        for parcel in self._pending():
            if parcel.deadline <= now and parcel.awaited:
                why = self._why_late(parcel)
                parcel.fail(functools.partial(PublishTimeout, why))
        for post in list(self._posts):
            late = post.unanswered and now - post.unanswered[0].sent > self.options.confirm_timeout
            # waiting on makes sense only while somebody waits, and there is nowhere else to go
            if late and (len(self._links.addresses) > 1 or not post.unanswered[0].awaited):
                post.connection.abort(f"a publish was not answered within {self.options.confirm_timeout:g} s")
        earliest = min((parcel.deadline for parcel in self._pending() if parcel.awaited), default=NEVER)
        if earliest < NEVER or any(post.unanswered for post in self._posts):
            self._tick_later(earliest)

    def _why_late(self, parcel: Parcel) -> str:
        where = ", ".join(str(address) for address in self._links.addresses) or "no nsqd known"
        if any(parcel in post.unanswered for post in self._posts):
            return f"{parcel.topic}: sent to {where}, not confirmed before the deadline; it may have been stored"
        reasons = self._links.errors
        if self._reason:
            reasons.append(self._reason)
        return f"{parcel.topic}: not published before the deadline ({where}): {'; '.join(reasons) or 'all busy'}"

    def _pending(self) -> list[Parcel]:
        return [*(parcel for post in self._posts for parcel in post.unanswered), *self._queue]

    # -- the pool

    async def _connect(self, address: Address) -> Awaitable[str]:
        connection = await connect(address, self.options)
        post = Post(connection, self)
        self._posts.append(post)
        connection.start(post)
        if self._queue:
            self._schedule()
        return post.gone


def _checked(topic: str, body: bytes) -> bytes:
    if not isinstance(body, bytes):
        if not isinstance(body, (bytearray, memoryview)):
            advice = ": encode it" if isinstance(body, str) else ""
            raise TypeError(f"{topic}: a message body is bytes, not {type(body).__name__}{advice}")
        body = bytes(body)
    if not body:
        raise ValueError(f"{topic}: an empty message, which nsqd does not take")
    return body
