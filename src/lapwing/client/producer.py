"""Publish messages to a pool of nsqds, confirmed, with failover until a deadline."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Final, Unpack

from lapwing.client.bodies import Body, encode
from lapwing.client.errors import ClientError, PublishFailed, PublishTimeout, Stopped
from lapwing.client.headers import CONTENT_TYPE, encode_in_context, headers_of_each
from lapwing.client.inbox import CORRELATION_ID, REPLY_TO, Inbox, RequestTimeout, reply_headers
from lapwing.client.message import Message
from lapwing.client.options import ClientOptions, ClientSettings, check_name
from lapwing.client.publish_batches import checked
from lapwing.client.publish_queue import PublishQueue
from lapwing.client.tracing import telemetry

MILLISECOND: Final = 1_000_000  # ns
KEY: Final = "key"  # the header that a message is routed by


def rendezvous(key: str, addresses: Iterable[str]) -> str:
    """Return the address that a key goes to: the same one for all producers that know the same addresses."""
    text = key.encode("utf-8", "surrogatepass")

    def weight(address: str) -> tuple[bytes, str]:
        return blake2b(text, key=address.encode()[:64], digest_size=8).digest(), address

    return max(addresses, key=weight)


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

    With `route_by_key` all messages with the same header `key` go to the same nsqd of those that are known. Rendezvous
    hashing chooses it, so a node that comes or leaves changes the place of few keys. While it is down they wait for it,
    until their deadline. Several messages of `publish_many` are all or nothing on each nsqd.

    `nsqd` are TCP addresses or Unix socket paths; `lookupd` HTTP addresses of nsqlookupd, all of its nsqds are used.
    """

    def __init__(
        self,
        nsqd: str | Iterable[str] = (),
        *,
        lookupd: str | Iterable[str] = (),
        route_by_key: bool = False,
        options: ClientOptions | None = None,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self.options = (options or ClientOptions()).but(**settings)
        self._route_by_key = route_by_key
        self._queue = PublishQueue(self.options, nsqd=nsqd, lookupd=lookupd)
        self._known: set[str] = set()  # valid topic names
        self._starting: asyncio.Task[None] | None = None
        self._stopping = False
        self._stopped = False
        self._inbox: Inbox | None = None
        self._of_nodes: dict[str, Producer] = {}  # by the one nsqd that they publish to: replies, and messages of keys
        self._telemetry = telemetry()

    # -- start and stop

    async def start(self) -> None:
        """Connect now instead of at the first publish. Raises `Unreachable` when no nsqd can be reached."""
        await self._begin()
        errors = await self._queue.connections.first_failures(self._queue.connections.addresses)
        if self._stopping:
            raise Stopped("the producer was stopped while it was starting")
        if not self._queue.targets:
            raise errors[0] if errors else self._queue.connections.nobody()

    async def _begin(self) -> None:
        if self._stopped or self._stopping:
            raise Stopped("the producer was stopped; create a new one")
        starting = self._connecting()
        await asyncio.wait([starting])  # not `await starting`: a cancelled caller must not cancel it
        if starting.cancelled():
            raise Stopped("the producer was stopped while it was starting")
        starting.result()

    def _connecting(self) -> "asyncio.Task[None]":
        """Return the task that connects; it is begun by the first use."""
        if self._starting is None:
            if asyncio._get_running_loop() is None:
                raise ClientError("no event loop runs here: SyncProducer is for code that blocks, and for threads")
            self._loop = asyncio.get_running_loop()
            self._starting = asyncio.create_task(self._queue.start(), name="lapwing-producer-start")
        self._check_loop()
        return self._starting

    async def _begin_within(self, timeout: float | None) -> None:
        seconds = self.options.publish_timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(seconds):
                await self._begin()
        except TimeoutError as error:
            where = ", ".join(self._queue.connections.lookupds)
            raise PublishTimeout(f"no nsqd found within {seconds:g} s: {where}") from error

    async def stop(self, timeout: float | None = None) -> None:
        """Wait for unconfirmed publishes (at most `timeout`, by default until their deadlines), then close."""
        if self._stopped:
            return
        if self._starting is not None:
            self._check_loop()
        self._stopping = True
        self._queue.connections.hold()
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        if self._inbox is not None:
            await self._inbox.stop()
        try:
            await asyncio.gather(*(node.stop(timeout) for node in self._of_nodes.values()))
            await self._queue.drain(timeout)
        finally:
            self._stopped = True
            await self._queue.close()

    async def __aenter__(self) -> "Producer":
        try:
            await self.start()
        except BaseException:
            await self.stop()  # otherwise it would try to connect for ever
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- publishing

    async def publish(
        self,
        topic: str,
        body: Body,
        *,
        headers: Mapping[str, str] | None = None,
        defer: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Publish `body` and return when nsqd has confirmed it; with `defer`, it is delivered after so many seconds.

        A body is bytes, text, or a value that becomes JSON: a dict, dataclass, msgspec Struct or pydantic model.
        Raises `PublishFailed` when nsqd refuses, or takes no `headers`, and `PublishTimeout` when there is no
        confirmation within `timeout` seconds (default: `publish_timeout`).
        """
        if self._starting is None or not self._starting.done():
            await self._begin_within(timeout)
        if self._route_by_key and headers and KEY in headers:
            node = self._node_of(headers[KEY])
            await node.publish(topic, body, headers=headers, defer=defer, timeout=timeout)
            return
        if self._telemetry is None:
            await self.submit(topic, body, headers=headers, defer=defer, timeout=timeout)
            return
        message_id = (headers or {}).get("message-id", "")
        with self._telemetry.publish(topic, 1, self.connections, message_id) as context:
            await self.submit(topic, body, headers=headers, defer=defer, timeout=timeout, context=context)

    def submit(
        self,
        topic: str,
        body: Body,
        *,
        headers: Mapping[str, str] | None = None,
        defer: float | None = None,
        timeout: float | None = None,
        context: Mapping[str, str] | None = None,
    ) -> asyncio.Future[None]:
        """Publish without waiting; the future is done when nsqd has confirmed.

        `context` are further headers, which a plain NSQ server does not get.
        """
        self._check(topic)
        if self._route_by_key and headers and KEY in headers:
            node = self._node_of(headers[KEY])
            return node.submit(topic, body, headers=headers, defer=defer, timeout=timeout, context=context)
        if type(body) is not bytes:
            body, kind = encode(body)
            context = {CONTENT_TYPE: kind, **(context or {})} if kind else context
        body = checked(topic, body)
        text = encode_in_context(headers or {}, context or {})
        deadline = self._loop.time() + (self.options.publish_timeout if timeout is None else timeout)
        if defer is not None and defer > 0:
            delay = max(1, round(defer * 1000)) * MILLISECOND
            return self._queue.add_deferred(topic, body, text, deadline, bool(headers), delay=delay)
        return self._queue.add(topic, body, text, deadline, bool(headers))

    async def publish_many(
        self,
        topic: str,
        bodies: Sequence[Body],
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
        if self._route_by_key and headers:
            await self._publish_many_by_key(topic, bodies, headers_of_each(topic, headers, len(bodies)), defer, timeout)
            return
        if self._telemetry is None:
            await self._publish_many(topic, bodies, headers, {}, defer, timeout)
            return
        with self._telemetry.publish(topic, len(bodies), self.connections) as context:
            await self._publish_many(topic, bodies, headers, context, defer, timeout)

    async def _publish_many_by_key(
        self,
        topic: str,
        bodies: Sequence[Body],
        headers: Sequence[Mapping[str, str]],
        defer: float | None,
        timeout: float | None,
    ) -> None:
        """Publish to each nsqd what goes there, in the order given; all are tried before an error is raised."""
        parts: dict[Producer, list[int]] = {}
        for place, own in enumerate(headers):
            parts.setdefault(self._node_of(own.get(KEY, "")), []).append(place)
        publishes = [
            node.publish_many(
                topic, [bodies[at] for at in places], headers=[headers[at] for at in places], defer=defer,
                timeout=timeout,
            )
            for node, places in parts.items()
        ]  # fmt: skip
        for result in await asyncio.gather(*publishes, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    def _node_of(self, key: str) -> "Producer":
        """Return the producer of the nsqd that a key goes to. Raises `Unreachable` while none is known."""
        addresses = [str(address) for address in self._queue.connections.addresses]
        if not addresses:
            raise self._queue.connections.nobody()
        return self._of_node(rendezvous(key, addresses))

    def _of_node(self, address: str) -> "Producer":
        if self._stopping:
            raise Stopped("the producer was stopped; create a new one")
        if address not in self._of_nodes:
            self._of_nodes[address] = Producer(address, options=self.options)
        return self._of_nodes[address]

    async def _publish_many(
        self,
        topic: str,
        bodies: Sequence[Body],
        headers: Mapping[str, str] | Sequence[Mapping[str, str]] | None,
        context: Mapping[str, str],
        defer: float | None,
        timeout: float | None,
    ) -> None:
        if defer is not None and defer > 0:
            each = headers_of_each(topic, headers, len(bodies))
            pairs = zip(each, bodies, strict=True)
            results = await asyncio.gather(
                *(self.submit(topic, b, headers=h, defer=defer, timeout=timeout, context=context) for h, b in pairs),
                return_exceptions=True,
            )
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            return
        self._check(topic)
        deadline = self._loop.time() + (self.options.publish_timeout if timeout is None else timeout)
        rest: list[tuple[bytes, bytes]] = []
        for own, body in zip(headers_of_each(topic, headers, len(bodies)), bodies, strict=True):
            data, kind = (body, "") if type(body) is bytes else encode(body)
            text = encode_in_context(own, {CONTENT_TYPE: kind, **context} if kind else context)
            rest.append((text, checked(topic, data)))
        while rest:
            batches = self._queue.add_whole(topic, rest, deadline, needs_headers=bool(headers))
            results = await asyncio.gather(*(batch.futures[0] for batch in batches), return_exceptions=True)
            rest = []
            for batch, result in zip(batches, results, strict=True):
                if not isinstance(result, BaseException):
                    continue
                smaller = self._queue.limits.body and batch.size > self._queue.limits.body and len(batch.bodies) > 1
                if not (isinstance(result, PublishFailed) and smaller):
                    raise result
                # the limit of nsqd is lower than assumed, and known now
                rest += zip(batch.headers or [b""] * len(batch.bodies), batch.bodies, strict=True)

    async def request(
        self,
        topic: str,
        body: Body,
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
                if not self._queue.targets:
                    await self._queue.connections.first_failures(self._queue.connections.addresses)
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

    async def reply(self, request: Message, body: Body, *, headers: Mapping[str, str] | None = None) -> None:
        """Reply to a request that was consumed, on the nsqd that delivered it, where its sender listens.

        Raises `ValueError` for a message that is no request, and what `publish` raises.
        """
        topic, own = reply_headers(request, headers)
        address = request.address
        if not address or [address] == self.connections:
            await self.publish(topic, body, headers=own)
            return
        await self._of_node(address).publish(topic, body, headers=own)

    @property
    def connections(self) -> list[str]:
        """The nsqds that it is connected to."""
        return sorted(target.address for target in self._queue.targets)

    def _check(self, topic: str) -> None:
        if self._stopping:
            raise Stopped("the producer was stopped; create a new one")
        self._connecting()
        if topic not in self._known:
            check_name("topic", topic)
            self._known.add(topic)

    def _check_loop(self) -> None:
        if asyncio._get_running_loop() is not self._loop:
            raise ClientError("the producer was started on another event loop; SyncProducer serves every thread")
