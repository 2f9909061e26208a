"""Dramatiq over lapwing: a broker.

    dramatiq.set_broker(LapwingBroker("127.0.0.1:4150"))

    @dramatiq.actor
    def add(one, two):
        ...

    add.send_with_options(args=(1, 2), delay=60_000)

`dramatiq module` runs the actors. A queue is a topic; a delayed message waits in nsqd, and one that fails for good is a
dead letter.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Any, Final, Self

import dramatiq
from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.common import current_millis
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound

from lapwing.client.address import listed, parse
from lapwing.client.admin_results import Counts
from lapwing.client.channel_settings import SettingsKeeper, as_sent
from lapwing.client.cluster_client import NothingThere
from lapwing.client.errors import ClientError
from lapwing.client.message import Message, describe
from lapwing.client.options import ClientOptions
from lapwing.client.sync import SyncConsumer
from lapwing.client.sync_admin import SyncAdmin
from lapwing.contrib.producers import LONGEST_DEFER, producer_of

_JOIN_INTERVAL: Final = 0.1  # s


class LapwingBroker(Broker):
    """Publishes messages of actors, and gives them to dramatiq's workers.

    `prefix` stands before the names of queues; `client` are client options. All other keywords are settings of the
    channel; by default a message is held while its worker is connected, and given up after five workers died of it.
    """

    def __init__(
        self,
        nsqd: str = "127.0.0.1:4150",
        *,
        nsqd_http: str = "",
        prefix: str = "",
        channel: str = "workers",
        middleware: list[dramatiq.Middleware] | None = None,
        client: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(middleware=middleware)
        self.nsqd = nsqd
        self.nsqd_http = nsqd_http
        self.prefix = prefix
        self.channel = channel
        self.client = {"max_backoff_duration": 0.0, **(client or {})}  # a failed message does not slow the others
        self.settings = as_sent({"max_attempts": 5, "hold": "connection", **settings})

    def declare_queue(self, queue_name: str) -> None:
        """Note the name of a queue; its topic is created when it is used."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: dramatiq.Message[Any], *, delay: int | None = None) -> dramatiq.Message[Any]:
        """Publish a message, which is delivered after `delay` ms. Raises `ConnectionClosed` if nsqd is not there."""
        if message.queue_name not in self.queues:
            self.declare_queue(message.queue_name)
        if delay is not None:
            message = message.copy(options={"eta": current_millis() + delay})
        self.emit_before("enqueue", message, delay)
        self._publish(message)
        self.emit_after("enqueue", message, delay)
        return message

    def _publish(self, message: dramatiq.Message[Any]) -> None:
        eta = message.options.get("eta")
        defer = None if eta is None else min((eta - current_millis()) / 1000, LONGEST_DEFER)
        try:
            producer_of(self.nsqd, "", self.client).publish(
                self.prefix + message.queue_name, message.encode(), defer=defer
            )
        except ClientError as error:
            raise ConnectionClosed(error) from error  # type: ignore[no-untyped-call]

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Consumer:
        """Return a consumer of a queue. Raises `QueueNotFound`, and `ConnectionClosed` if nsqd is not there."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)  # type: ignore[no-untyped-call]
        try:
            asyncio.run(self._prepare(queue_name))
            return _QueueConsumer(self, queue_name, prefetch, timeout)
        except ClientError as error:
            raise ConnectionClosed(error) from error  # type: ignore[no-untyped-call]

    async def _prepare(self, queue_name: str) -> None:
        options = ClientOptions().but(**self.client)
        keeper = SettingsKeeper(options, nsqd=self.nsqd, nsqd_http=self.nsqd_http, lookupd="", overwrite=False)
        try:
            for address in listed(self.nsqd):
                await keeper.apply(parse(address), self.prefix + queue_name, self.channel, self.settings)
        finally:
            await keeper.close()

    def flush(self, queue_name: str) -> None:
        """Drop the messages of a queue."""
        with self._admin() as admin:
            if self._counts(admin, queue_name, "").there:
                admin.empty(self.prefix + queue_name)
            if self._counts(admin, queue_name, self.channel).there:
                admin.empty(self.prefix + queue_name, self.channel)

    def flush_all(self) -> None:
        """Drop the messages of all queues."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until a queue has no messages, deferred ones included. Raises `QueueJoinTimeout` after `timeout` ms."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)  # type: ignore[no-untyped-call]
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        with self._admin() as admin:
            while True:
                found = [self._counts(admin, queue_name, channel) for channel in ("", self.channel)]
                if not any(each.waiting or each.in_flight for each in found):
                    return
                if deadline is not None and time.monotonic() >= deadline:
                    raise QueueJoinTimeout(queue_name)  # type: ignore[no-untyped-call]
                time.sleep(_JOIN_INTERVAL)

    def _admin(self) -> SyncAdmin:
        http = self.nsqd_http
        if not http:
            address = parse(listed(self.nsqd)[0])
            http = f"{address.host}:{address.port + 1}"
        return SyncAdmin(http)

    def _counts(self, admin: SyncAdmin, queue_name: str, channel: str) -> Counts:
        try:
            answers = admin.counts(self.prefix + queue_name, channel).answers
        except NothingThere:  # nothing was sent to it yet
            answers = {}
        return next(iter(answers.values()), Counts(there=False))


class _Delivered(MessageProxy):
    """A message of an actor with the one of lapwing that it came in."""

    def __init__(self, message: dramatiq.Message[Any], source: Message) -> None:
        super().__init__(message)
        self.source = source


class _QueueConsumer(Consumer):
    """Messages of one queue."""

    def __init__(self, broker: LapwingBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        self._timeout = timeout / 1000
        self._consumer = SyncConsumer(
            broker.prefix + queue_name, broker.channel, nsqd=broker.nsqd, max_in_flight=prefetch, **broker.client
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> MessageProxy | None:
        """Return the next message; None if none comes in time."""
        source = self._consumer.get(self._timeout)
        if source is None:
            return None
        try:
            message: dramatiq.Message[Any] = dramatiq.Message.decode(source.body)
        except DecodeError as error:
            source.reject("not a message of dramatiq", error)
            return None
        rest = message.options.pop("eta", 0) - current_millis()  # without it the worker does not wait again
        if rest > 0:
            source.release(min(rest / 1000, LONGEST_DEFER))
            return None
        return _Delivered(message, source)

    def ack(self, message: MessageProxy) -> None:
        """Finish a message."""
        message.source.finish()

    def nack(self, message: MessageProxy) -> None:
        """Make a dead letter of a message: it has failed for good."""
        error = message._exception
        message.source.reject("failed", "" if error is None else describe(error))

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give messages back that no actor has begun with."""
        for message in messages:
            message.source.release()

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()
