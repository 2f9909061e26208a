"""Publish messages to a pool of nsqds, confirmed, with failover until a deadline."""

import asyncio
import functools
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Unpack

from lapwing.client.address import Address
from lapwing.client.connection import connect
from lapwing.client.connections import Connections
from lapwing.client.errors import ClientError, ConnectionLost, PublishFailed, PublishTimeout, Stopped
from lapwing.client.headers import encode, headers_of_each
from lapwing.client.inbox import CORRELATION_ID, REPLY_TO, Inbox, RequestTimeout, reply_headers
from lapwing.client.message import Message
from lapwing.client.options import ClientOptions, ClientSettings, check_name
from lapwing.client.publish_batches import PublishBatch, PublishLimits, checked, elsewhere, pack
from lapwing.client.publish_connection import PublishConnection
from lapwing.client.tracing import telemetry

log: Final = logging.getLogger("lapwing.client")

NEVER: Final = float("inf")
MILLISECOND: Final = 1_000_000  # ns


class Producer:
    """Publish to one nsqd or to a pool of them.

        async with Producer("127.0.0.1:4150") as producer:
            await producer.publish("orders", b"...")
            await producer.publish_many("orders", [b"...", b"..."])
            await producer.publish("orders", b"...", defer=60)

    `publish` returns when nsqd has confirmed the message. Concurrent publishes are sent as one MPUB, in the order of
    the calls; with several nsqds, batches go to the connected ones in turn. When a connection breaks before
    the answer, the batch is sent again, to another nsqd if possible, until its deadline: at least once, never
    silently lost. Where the topic has a `dedup_window`, each message has a `message-id`, so the same nsqd stores it
    once; another nsqd may store it too.

    `nsqd` are TCP addresses or Unix socket paths; `lookupd` HTTP addresses of nsqlookupd, whose every nsqd is used.
    """

    def __init__(
        self,
        nsqd: str | Iterable[str] = (),
        *,
        lookupd: str | Iterable[str] = (),
        options: ClientOptions | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self.options = options.but(**settings) if options is not None else ClientOptions.of(settings)
        self._connections = Connections(self._connect, self.options, nsqd=nsqd, lookupd=lookupd)
        self._limits = PublishLimits(self.options.max_msg_size, self.options.max_body_size)
        self._targets: list[PublishConnection] = []
        self._turn = 0
        self._queue: deque[PublishBatch] = deque()
        self._open: dict[str, PublishBatch] = {}  # by topic: the last batch, which more may join
        self._known: set[str] = set()  # valid topic names
        self._reason = ""  # why the last connection with unanswered batches broke
        self._tick_at = NEVER
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None] | None = None
        self._stopping = False
        self._stopped = False
        self._ids = itertools.count()
        self._inbox: Inbox | None = None
        self._telemetry = telemetry()
        self._id_prefix = secrets.token_hex(10).encode()

    # -- start and stop

    async def start(self) -> None:
        """Connect now instead of at the first publish. Raises `Unreachable` when no nsqd can be reached."""
        await self._begin()
        errors = await self._connections.first_failures(self._connections.addresses)
        if self._stopping:
            raise Stopped("the producer was stopped while it was starting")
        if not self._targets:
            raise errors[0] if errors else self._connections.nobody()

    async def _begin(self) -> None:
        if self._stopped or self._stopping:
            raise Stopped("the producer was stopped; create a new one")
        if self._starting is None:
            self._loop = asyncio.get_running_loop()
            self._starting = asyncio.create_task(self._connections.start(), name="lapwing-producer-start")
        self._check_loop()
        starting = self._starting
        await asyncio.wait([starting])  # not `await starting`: a cancelled caller must not cancel it
        if starting.cancelled():
            raise Stopped("the producer was stopped while it was starting")
        starting.result()

    async def _begin_within(self, timeout: float | None) -> None:
        seconds = self.options.publish_timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                await self._begin()
        except TimeoutError as error:
            where = ", ".join(self._connections.lookupds)
            raise PublishTimeout(f"no nsqd found within {seconds:g} s: {where}") from error

    async def stop(self, timeout: float | None = None) -> None:
        """Wait for unconfirmed publishes (at most `timeout`, by default until their deadlines), then close."""
        if self._stopped:
            return
        if self._starting is not None:
            self._check_loop()
        self._stopping = True
        self._connections.hold()
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        if self._inbox is not None:
            await self._inbox.stop()
        futures = [future for batch in self._pending() for future in batch.futures if not future.done()]
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
        await self._connections.stop()
        for batch in self._pending():
            batch.fail(lambda: Stopped("the producer was stopped before nsqd confirmed"))
        self._queue.clear()
        await asyncio.gather(*(target.connection.close() for target in list(self._targets)))

    async def __aenter__(self) -> "Producer":
        try:
            await self.start()
        except BaseException:
            await self.stop()  # otherwise it would try to connect for ever
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- publishing

    async def publish(
        self,
        topic: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        defer: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish `body` and return when nsqd has confirmed it; with `defer`, it is delivered after so many seconds.

        Raises `PublishFailed` when nsqd refuses, or takes no `headers`, and `PublishTimeout` when there is no
        confirmation within `timeout` seconds (default: `publish_timeout`).
        """
        if self._starting is None or not self._starting.done():
            await self._begin_within(timeout)
        if self._telemetry is None:
            await self.submit(topic, body, headers=headers, defer=defer, timeout=timeout)
            return
        message_id = (headers or {}).get("message-id", "")
        with self._telemetry.publish(topic, 1, self.connections, message_id) as context:
            await self.submit(topic, body, headers=headers, defer=defer, timeout=timeout, context=context)

    def submit(
        self,
        topic: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        defer: float | None = None,
        timeout: float | None = None,
        context: Mapping[str, str] | None = None,
    ) -> asyncio.Future[None]:
        """Publish without waiting; the future is done when nsqd has confirmed. The producer must be started.

        `context` are further headers, which a plain NSQ server does not get.
        """
        self._check(topic)
        body = checked(topic, body)
        text = encode({**(context or {}), **(headers or {})}) if headers or context else b""
        needed = bool(headers)
        future: asyncio.Future[None] = self._loop.create_future()
        deadline = self._loop.time() + (self.options.publish_timeout if timeout is None else timeout)
        if defer is not None and defer > 0:
            delay = max(1, round(defer * 1000)) * MILLISECOND
            batch = PublishBatch(topic, deadline, delay=delay, needs_headers=needed)
            self._queue.append(batch)
            self._open.pop(topic, None)  # later publishes must not overtake it
        else:
            known = self._open.get(topic)
            if known is not None and known.fits(
                body, deadline, self._limits, headers=text, needs_headers=needed
            ):
                batch = known
            else:
                batch = self._open[topic] = PublishBatch(topic, deadline, needs_headers=needed)
                self._queue.append(batch)
        batch.add(body, future, text)
        self._wake(deadline)
        return future

    async def publish_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        *,
        headers: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
        defer: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish all `bodies` as one MPUB, all or nothing, and return when nsqd has confirmed it.

        `headers` are those of every message, or a list with those of each. Bodies that are larger together than
        `max_body_size` go as several MPUBs, each all or nothing.
        """
        if self._starting is None or not self._starting.done():
            await self._begin_within(timeout)
        if isinstance(bodies, (bytes, bytearray, memoryview, str)):
            raise TypeError(f"{topic}: publish_many takes a list of bodies, not one: `publish` takes one")
        if not bodies:
            return
        if self._telemetry is None:
            await self._publish_many(topic, bodies, headers, {}, defer, timeout)
            return
        with self._telemetry.publish(topic, len(bodies), self.connections) as context:
            await self._publish_many(topic, bodies, headers, context, defer, timeout)

    async def _publish_many(
        self,
        topic: str,
        bodies: Sequence[bytes],
        headers: Mapping[str, str] | Sequence[Mapping[str, str]] | None,
        context: Mapping[str, str],
        defer: float | None,
        timeout: float | None,
    ) -> None:
        if defer is not None and defer > 0:
            each = headers_of_each(topic, headers, len(bodies))
            pairs = zip(each, bodies, strict=True)
            await self._all(
                [self.submit(topic, b, headers=h, defer=defer, timeout=timeout, context=context) for h, b in pairs]
            )
            return
        self._check(topic)
        own = [{**context, **each} for each in headers_of_each(topic, headers, len(bodies))]
        texts = [encode(each) if each else b"" for each in own]
        deadline = self._loop.time() + (self.options.publish_timeout if timeout is None else timeout)
        rest = [(text, checked(topic, body)) for text, body in zip(texts, bodies, strict=True)]
        while rest:
            batches = self._packed(topic, rest, deadline, needs_headers=bool(headers))
            results = await asyncio.gather(*(batch.futures[0] for batch in batches), return_exceptions=True)
            rest = []
            for batch, result in zip(batches, results, strict=True):
                if not isinstance(result, BaseException):
                    continue
                smaller = self._limits.body and batch.size > self._limits.body and len(batch.bodies) > 1
                if not (isinstance(result, PublishFailed) and smaller):
                    raise result
                # the limit of nsqd is lower than assumed, and known now
                rest += zip(batch.headers or [b""] * len(batch.bodies), batch.bodies, strict=True)

    async def request(
        self,
        topic: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> Message:
        """Publish a request and return the reply to it, which some consumer of the topic sends with `reply`.

        Raises `RequestTimeout` when none comes within `timeout` seconds, and what `publish` raises.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._begin()
                if not self._targets:
                    await self._connections.first_failures(self._connections.addresses)
                if self._inbox is None:
                    self._inbox = Inbox(self.options)
                await self._inbox.listen(self.connections)
                name, reply = self._inbox.expect()
                own = {**(headers or {}), REPLY_TO: Inbox.topic, CORRELATION_ID: name}
                try:
                    await self.publish(topic, body, headers=own, timeout=timeout)
                    return await reply
                finally:
                    reply.cancel()
        except TimeoutError as error:
            if isinstance(error, ClientError):
                raise
            text = f"no reply from {topic} within {timeout:g} s: is a consumer there that replies?"
            raise RequestTimeout(text) from error

    async def reply(self, request: Message, body: bytes, *, headers: Mapping[str, str] | None = None) -> None:
        """Reply to a request that was consumed. Raises `ValueError` for a message that is no request."""
        topic, own = reply_headers(request, headers)
        await self.publish(topic, body, headers=own)

    def _packed(
        self, topic: str, messages: list[tuple[bytes, bytes]], deadline: float, *, needs_headers: bool
    ) -> list[PublishBatch]:
        """Queue messages, each as (headers, body), as few whole batches."""
        batches = pack(topic, messages, deadline, self._limits, needs_headers=needs_headers)
        for batch in batches:
            batch.futures.append(self._loop.create_future())
        self._queue.extend(batches)
        self._open.pop(topic, None)
        self._wake(deadline)
        return batches

    async def _all(self, futures: list[asyncio.Future[None]]) -> None:
        results = await asyncio.gather(*futures, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    @property
    def connections(self) -> list[str]:
        """The nsqds that it is connected to."""
        return sorted(target.address for target in self._targets)

    def _check(self, topic: str) -> None:
        if self._stopping:
            raise Stopped("the producer was stopped; create a new one")
        if self._starting is None:
            raise ClientError("the producer is not started: use `async with`, or await start() first")
        self._check_loop()
        if topic not in self._known:
            check_name("topic", topic)
            self._known.add(topic)

    def _check_loop(self) -> None:
        if asyncio._get_running_loop() is not self._loop:
            raise ClientError("the producer was started on another event loop; SyncProducer serves every thread")

    # -- sending

    def next_id(self) -> bytes:
        """Return an id for a message that no other message has."""
        return b"%b-%x" % (self._id_prefix, next(self._ids))

    def flush(self) -> None:
        """Send queued batches over connections that can take them."""
        self._scheduled = False
        now = self._loop.time()
        used: set[PublishConnection] = set()
        while self._queue:
            batch = self._queue[0]
            target = self._choose(batch) if batch.awaited else None
            if target is None and batch.awaited and not self._fails_without_headers(batch):
                break
            self._queue.popleft()
            if self._open.get(batch.topic) is batch:
                del self._open[batch.topic]
            if target is not None:
                target.publish(batch, now)
                used.add(target)
        for target in used:
            target.connection.flush()
        if self._queue and not self._targets:
            self._connections.hurry()

    def _choose(self, batch: PublishBatch) -> PublishConnection | None:
        targets = self._targets
        for step in range(len(targets)):
            target = targets[(self._turn + step) % len(targets)]
            if batch.needs_headers and not target.headers:
                continue
            if target.open and target.address not in batch.refused_by:
                self._turn = (self._turn + step + 1) % len(targets)
                return target
        return None

    def _fails_without_headers(self, batch: PublishBatch) -> bool:
        """Fail a batch that needs headers where every nsqd that is connected is a plain NSQ server."""
        targets = self._targets
        if not (batch.needs_headers and targets) or any(target.headers for target in targets):
            return False
        what = f"a plain NSQ server, which has no headers: publish to {batch.topic} without them, or to lapwing's nsqd"
        address = targets[0].address
        batch.fail(lambda: PublishFailed(address, what))
        return True

    def refused(self, target: PublishConnection, batch: PublishBatch, reason: str) -> None:
        """Handle a refusal: nsqd closes the connection after it, and the rest is sent again."""
        def error() -> PublishFailed:
            return PublishFailed(target.address, f"{reason} (topic {batch.topic})")

        too_big = self._limits.learn(reason)
        if too_big == "message" and len(batch.bodies) > 1 and not batch.whole:
            rest, large = batch.without_larger(self._limits.message)
            for future in large:
                if not future.done():
                    future.set_exception(error())
            if rest.bodies:
                self._queue.appendleft(rest)
        elif too_big == "body" and len(batch.bodies) > 1 and not batch.whole:
            self._queue.extendleft(reversed(list(batch.halves())))
        elif elsewhere(reason):
            batch.refused_by.add(target.address)
            if any(str(address) not in batch.refused_by for address in self._connections.addresses):
                log.warning("(%s) %s; trying another nsqd", target.address, reason)
                self._queue.appendleft(batch)
            else:
                batch.fail(error)
        else:
            batch.fail(error)
        self._schedule()

    def lost(self, target: PublishConnection, reason: str) -> None:
        """Put the unanswered batches of a lost connection at the front of the queue."""
        if target in self._targets:
            self._targets.remove(target)
        if target.unanswered:
            self._reason = f"{target.address}: {reason}"
        if self._stopped:
            for batch in target.unanswered:
                batch.fail(lambda: ConnectionLost(target.address, f"{reason}; not confirmed"))
        else:
            self._queue.extendleft(reversed(target.unanswered))
            self._schedule()
        target.unanswered.clear()

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
        for batch in self._pending():
            if batch.deadline <= now and batch.awaited:
                why = self._why_late(batch)
                batch.fail(functools.partial(PublishTimeout, why))
        for target in list(self._targets):
            late = target.unanswered and now - target.unanswered[0].sent > self.options.confirm_timeout
            # wait longer only if somebody waits for the answer and there is no other nsqd
            if late and (len(self._connections.addresses) > 1 or not target.unanswered[0].awaited):
                target.connection.abort(f"a publish was not answered within {self.options.confirm_timeout:g} s")
        earliest = min((batch.deadline for batch in self._pending() if batch.awaited), default=NEVER)
        if earliest < NEVER or any(target.unanswered for target in self._targets):
            self._tick_later(earliest)

    def _why_late(self, batch: PublishBatch) -> str:
        where = ", ".join(str(address) for address in self._connections.addresses) or "no nsqd known"
        if any(batch in target.unanswered for target in self._targets):
            return f"{batch.topic}: sent to {where}, not confirmed before the deadline; it may have been stored"
        reasons = self._connections.errors
        if self._reason:
            reasons.append(self._reason)
        return f"{batch.topic}: not published before the deadline ({where}): {'; '.join(reasons) or 'all busy'}"

    def _pending(self) -> list[PublishBatch]:
        return [*(batch for target in self._targets for batch in target.unanswered), *self._queue]

    # -- the pool

    async def _connect(self, address: Address) -> Awaitable[str]:
        connection = await connect(address, self.options)
        target = PublishConnection(connection, self)
        self._targets.append(target)
        connection.start(target)
        if self._queue:
            self._schedule()
        return target.gone
