"""Channels of Kombu: its queues and exchanges on topics and channels of lapwing."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty
from typing import Any, ClassVar, Final

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.transport.virtual.exchange import DirectExchange, FanoutExchange, TopicExchange

from lapwing.client.errors import ClientError
from lapwing.contrib.celery import queues
from lapwing.contrib.celery.feeds import Feed, Windows
from lapwing.contrib.celery.nodes import DeferredTooLong, Node
from lapwing.contrib.celery.queues import Queue
from lapwing.contrib.celery.sockets import rows
from lapwing.wire.nsq.connection import MessageRow

log: Final = logging.getLogger("lapwing.celery")

GET: Final = 0.15  # s that basic_get waits for a message
SHOWN: Final = 100  # tasks of a topic that `celery inspect scheduled` shows


class _Exchange:
    """An exchange is a topic: what is published to it lies there once, and each bound queue has a channel."""

    channel: Any

    def deliver(self, message: dict[str, Any], exchange: str, routing_key: str, **_: Any) -> None:
        self.channel._put_fanout(exchange, message, routing_key)


class _Direct(_Exchange, DirectExchange):
    pass


class _Topic(_Exchange, TopicExchange):
    pass


class _Fanout(_Exchange, FanoutExchange):
    pass


class QoS(virtual.QoS):
    """The messages that a consumer holds, and how many it may."""

    def room(self) -> float:
        """Return how many more messages the consumer may get."""
        if not self.prefetch_count:
            return math.inf
        return max(0.0, float(self.prefetch_count - len(self._delivered) + len(self._dirty)))


class Channel(virtual.Channel):
    """A channel of Kombu: consumers with a common limit of prefetched messages."""

    QoS = QoS
    supports_fanout = True
    exchange_types: ClassVar = {"direct": _Direct, "topic": _Topic, "fanout": _Fanout}

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._feeds: list[Feed] = []
        self._windows = Windows()
        self._waiting: deque[tuple[Feed, MessageRow, dict[str, Any]]] = deque()  # received, and not delivered yet
        self._held: dict[str, tuple[Feed, bytes]] = {}
        self._unacknowledged_queues: set[str] = set()
        self._lock = threading.RLock()
        self.again_at: float | None = None  # when `pump` wants to be called

    # -- declaring

    def prepare_queue_arguments(self, arguments: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Return RabbitMQ's arguments for the options of a queue."""
        found: dict[str, Any] = to_rabbitmq_queue_arguments(arguments, **kwargs)
        return found

    def queue_declare(self, queue: str = "", passive: bool = False, **kwargs: Any) -> queue_declare_ok_t:
        """Note a queue; it is created where it is consumed. A passive declaration counts its messages."""
        queue = queue or f"amq.gen-{self._next_delivery_tag()}"
        if not passive:
            self.connection.queues[queue] = Queue.declared(queue, self.connection.steps, **kwargs)
            self.connection.new.add(queue)
            return queue_declare_ok_t(queue, 0, 0)
        if not self._has_queue(queue):
            raise ChannelError(f"NOT_FOUND - no queue {queue!r}", (50, 10), "Channel.queue_declare", "404")
        return queue_declare_ok_t(queue, self._size(queue), 0)

    def _queue(self, name: str) -> Queue:
        """Return a queue; one that was not declared here is found by its topic."""
        known: Queue | None = self.connection.queues.get(name)
        if known is None:
            ephemeral = Queue(name, ephemeral=True)
            there = any(node.topics(*ephemeral.topics()) for node in self.connection.nodes)
            known = ephemeral if there else Queue(name, steps=self.connection.steps)
            if there or any(node.topics(known.topics()[0]) for node in self.connection.nodes):
                self.connection.queues[name] = known
        return known

    def _create(self, queue: Queue, nodes: Iterable[Node] = ()) -> None:
        settings = {} if queue.ephemeral else {**self.connection.settings, **queue.settings}
        for node in nodes or self.connection.nodes:
            for exchange in self._exchanges(queue.name):
                node.create_exchange(queues.exchange_topic(exchange))
                node.create(queues.exchange_topic(exchange), queue.bound_channel, settings)
            for topic in self._own_topics(queue):
                node.create(topic, queue.channel, settings)

    def _own_topics(self, queue: Queue) -> list[str]:
        """Return the topics of messages that are published to the queue by name.

        A queue that goes with its consumer and is bound to an exchange is reached by that alone.
        """
        return [] if queue.ephemeral and self._exchanges(queue.name) else queue.topics()

    def _exchanges(self, queue: str) -> list[str]:
        return sorted({binding.exchange for binding in self.state.queue_bindings(queue)})

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str, queue: str) -> None:
        topic, declared = queues.exchange_topic(exchange), self._queue(queue)
        settings = {} if declared.ephemeral else {**self.connection.settings, **declared.settings}
        for node in self.connection.nodes:
            node.create_exchange(topic)
            node.create(topic, declared.bound_channel, settings)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return any(node.topics(*self._queue(queue).topics()) for node in self.connection.nodes)

    def _places(self, queue: str) -> Iterable[tuple[Node, str, str, int]]:
        """Yield each channel of a queue that is there, with its node, topic and ready messages."""
        declared = self._queue(queue)
        wanted = dict.fromkeys(declared.topics(), declared.channel)
        wanted |= {queues.exchange_topic(exchange): declared.bound_channel for exchange in self._exchanges(queue)}
        for node in self.connection.nodes:
            for topic in node.topics(*wanted):
                for channel in topic["channels"]:
                    if channel["channel_name"] == wanted[topic["topic_name"]]:
                        yield node, topic["topic_name"], channel["channel_name"], channel["depth"]
                if not topic["channels"]:
                    yield node, topic["topic_name"], "", topic["depth"]

    def _size(self, queue: str) -> int:
        return sum(depth for *_, depth in self._places(queue))

    def _purge(self, queue: str) -> int:
        purged = 0
        for node, topic, channel, depth in list(self._places(queue)):
            purged += depth
            if channel:
                node.call("POST", "/channel/empty", topic=topic, channel=channel)
            else:
                node.call("POST", "/topic/empty", topic=topic)
        return purged

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        """Delete the topics of a queue, and its channels on exchanges."""
        if if_empty and self._size(queue):
            return
        declared = self._queue(queue)
        for node in self.connection.nodes:
            for exchange in self._exchanges(queue):
                node.unbind(queues.exchange_topic(exchange), declared.bound_channel)
            for topic in self._own_topics(declared):
                node.forget(topic)
        self.state.queue_bindings_delete(queue)
        self.connection.queues.pop(queue, None)

    # -- publishing

    def encode_body(self, body: str | bytes, encoding: str | None = None) -> tuple[str, str]:
        """Return a body as text where it is text, so that people can read it."""
        return queues.encode_body(body)

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        properties = message["properties"]
        declared = self._queue(queue)
        if queue not in self.connection.queues and properties.get("correlation_id") and not properties.get("reply_to"):
            return  # a reply to a queue that is gone is dropped, as by RabbitMQ
        self._publish(declared.topic(self._get_message_priority(message)), message)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **_: Any) -> None:
        self._publish(queues.exchange_topic(exchange), message, exchange=True)

    def _show(self) -> None:
        """Create the ephemeral queues that were declared, so that those who reply to them see what they are."""
        while self.connection.new:
            queue = self.connection.new.pop()
            if queue in self.connection.queues and self._queue(queue).ephemeral:
                self._create(self._queue(queue))

    def _publish(self, topic: str, message: dict[str, Any], *, exchange: bool = False) -> None:
        self._show()
        due = queues.due(message)
        if due is not None:
            message = queues.without_eta(message)
        node = self.connection.nodes.publisher()
        if exchange:
            node.create_exchange(topic)
        for _ in range(2):
            wanted = max(0.0, due - time.time()) if due is not None else 0.0
            if due is not None and wanted > node.longest:
                message = queues.deferred_again(message, due, math.ceil(wanted / node.longest))
            try:
                node.publish(topic, queues.headers(message), queues.encode(message), min(wanted, node.longest))
                return
            except DeferredTooLong:
                continue  # the node knows its limit now

    # -- consuming

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        """Consume a queue."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        (self._unacknowledged_queues.add if no_ack else self._unacknowledged_queues.discard)(queue)
        self.subscribe(queue)
        self._activate()
        self._more()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Consume no more; messages that are being handled may still be answered."""
        super().basic_cancel(consumer_tag)
        with self._lock:
            self._activate()
            kept = [each for each in self._waiting if each[0].active]
            for feed, row, _ in self._waiting:
                if not feed.active:
                    feed.release(row[2])
            self._waiting = deque(kept)
            self._close_idle()

    def _close_idle(self) -> None:
        for feed in [each for each in self._feeds if not each.active and not each.in_flight]:
            self._feeds.remove(feed)
            self.connection.unwatch(feed)
            feed.close()

    def subscribe(self, queue: str, nodes: Iterable[Node] = ()) -> None:
        """Subscribe to all channels of a queue, on these nodes, or all, where that was not done yet."""
        declared = self._queue(queue)
        self._create(declared, nodes)
        places = [(topic, declared.channel, level, False) for level, topic in enumerate(self._own_topics(declared))]
        places += [(queues.exchange_topic(each), declared.bound_channel, 0, True) for each in self._exchanges(queue)]
        for node in nodes or self.connection.nodes:
            for topic, channel, level, bound in places:
                about = f"{topic}/{channel}"
                if any(feed.node is node and feed.about == about for feed in self._feeds):
                    continue
                feed = Feed(node, topic, channel, queue, level, self.connection.options)
                feed.bound = bound
                self._feeds.append(feed)
                self.connection.watch(feed, self)

    def extend(self, nodes: list[Node]) -> None:
        """Consume from new nodes as well."""
        for queue in dict.fromkeys(self._active_queues) if nodes else ():
            self.subscribe(queue, nodes)
        self._activate()

    def _activate(self) -> None:
        for feed in self._feeds:
            feed.active = feed.queue in self._active_queues
        self._windows.arrange(self._feeds)

    def pump(self, only: Feed | None = None) -> int:
        """Receive what has arrived, and deliver what there is room for; return how many messages that were."""
        with self._lock:
            for feed in list(self._feeds) if only is None else [only]:
                self._receive(feed)
        delivered = 0
        while (payload := self._next()) is not None:
            self.connection._deliver(payload, payload["queue"])
            delivered += 1
        self._more()
        return delivered

    def _receive(self, feed: Feed) -> None:
        now = time.time()
        for row in rows(feed.socket.frames(), feed.about):
            feed.in_flight.add(row[2])
            self._windows.received(feed)
            try:
                message = queues.decode(row[3], row[1], f"{feed.about}:{row[2].decode()}:{row[1]}:{id(feed)}")
            except (ValueError, KeyError) as error:
                feed.reject(row[2], f"no message of Kombu: {error}")
                continue
            if (wait := queues.left(message, now)) > 0:
                feed.release(row[2], wait)
            elif queues.expired(message, row[0], now) or (feed.bound and not self._chosen(feed.queue, message)):
                feed.finish(row[2])
            else:
                self._waiting.append((feed, row, message))

    def scheduled(self) -> Iterator[Any]:
        """Yield the tasks that wait for their time in the queues that are consumed here, as messages."""
        for feed in self._feeds:
            topic, _, channel = feed.about.partition("/")
            asked = {"state": "deferred", "body": "true", "limit": str(SHOWN)}
            for entry in feed.node.call("GET", "/channel/pending", topic=topic, channel=channel, **asked)["entries"]:
                message = self.message_to_python(queues.decode(entry["body"], entry["deliveries"], entry["id"]))
                if message.headers.get(queues.ETA):
                    yield message

    def _chosen(self, queue: str, message: dict[str, Any]) -> bool:
        """Return whether a message of an exchange is for this queue."""
        info = message["properties"]["delivery_info"]
        exchange, key = info.get("exchange", ""), info.get("routing_key") or ""
        try:
            return queue in self.typeof(exchange).lookup(self.get_table(exchange), exchange, key, None)
        except KeyError:
            return False

    def _next(self, queue: str | None = None) -> dict[str, Any] | None:
        """Return the message that comes first, if there is room for one; of this queue, if one is named."""
        with self._lock:
            if queue is None and not self.qos.can_consume():
                return None
            found = [each for each in self._waiting if (each[0].active if queue is None else each[0].queue == queue)]
            if not found:
                return None
            chosen = min(found, key=self._level)
            self._waiting.remove(chosen)
            feed, row, message = chosen
            if queue is None and feed.queue in self._unacknowledged_queues:
                feed.finish(row[2])
            else:
                self._held[message["properties"]["delivery_tag"]] = (feed, row[2])
            return {**message, "queue": feed.queue}

    def _level(self, waiting: tuple[Feed, MessageRow, dict[str, Any]]) -> int:
        """Return the level of priority of a message; one of an exchange has it in its properties alone."""
        feed, _, message = waiting
        return self._queue(feed.queue).level(self._get_message_priority(message)) if feed.bound else feed.level

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        self.subscribe(queue)
        feeds = [feed for feed in self._feeds if feed.queue == queue]
        levels = sorted({feed.level for feed in feeds})
        deadline = time.monotonic() + GET
        try:
            for level in levels:
                until = deadline if level == levels[-1] else time.monotonic() + GET / 10
                while (payload := self._next(queue)) is None:
                    for feed in feeds:
                        if feed.level <= level and not feed.active:
                            feed.ask(len(feed.in_flight) + 1)
                    if (left := until - time.monotonic()) <= 0:
                        break
                    self.connection.wait(left)
                    with self._lock:
                        for feed in feeds:
                            self._receive(feed)
                if payload is not None:
                    return payload
        finally:
            for feed in feeds:
                if not feed.active:
                    feed.ask(0)
        raise Empty()

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return one message, if there is one."""
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self._answer(message.delivery_tag, Feed.finish)
        return message

    # -- answering

    def _answer(self, delivery_tag: str, answer: Callable[..., None], *arguments: Any) -> None:
        with self._lock:
            held = self._held.pop(delivery_tag, None)
            if held is None:
                return
            self._windows.before_answer()
            answer(*held, *arguments)

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Finish a message."""
        self._answer(delivery_tag, Feed.finish)
        self.qos.ack(delivery_tag)
        self._more()

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Return a message to its queue, which counts as a failure, or make it a dead letter."""
        if requeue:
            self._answer(delivery_tag, Feed.fail, "requeued by the consumer")
        else:
            self._answer(delivery_tag, Feed.reject, "rejected by the consumer")
        self.qos.ack(delivery_tag)
        self._more()

    def _more(self) -> None:
        """Use the room that there is."""
        with self._lock:
            wait = self._windows.share(self.qos.room() - len(self._waiting))
            if any(feed.active for feed, *_ in self._waiting) and self.qos.can_consume():
                wait = 0.0  # not from here: a consumer may be answering within its callback
        if self.connection is not None:
            self.connection.remind(self, wait)

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages the consumers of the channel may hold together."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        self._more()

    def _restore(self, message: Any) -> None:
        self._answer(message.delivery_tag, Feed.release)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Deliver what is there."""
        if not self.pump():
            raise Empty()

    def close(self) -> None:
        """Release what was not answered, and leave all queues."""
        connection = self.connection
        if self.closed or connection is None:
            return
        try:
            super().close()
            for feed, row, _ in self._waiting:
                feed.release(row[2])
        except ClientError as error:
            log.info("while closing: %s", error)  # what is in flight goes back when the connection ends
        finally:
            self._waiting.clear()
            self._held.clear()
            for feed in self._feeds:
                connection.unwatch(feed)
                try:
                    feed.close()
                except ClientError:
                    feed.socket.close()
            self._feeds.clear()
