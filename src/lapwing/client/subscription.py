"""What a consumer holds of one connection: the messages in flight on it, and the answers that go back."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from lapwing.client.backoff import Signal
from lapwing.client.connection import Connection
from lapwing.client.flow import Share
from lapwing.client.message import Message, Row
from lapwing.client.rdy import Pace

log: Final = logging.getLogger("lapwing.client")

TOUCH_AFTER: Final = 0.5  # share of the message timeout


class Audience(Protocol):
    """The consumer, as its subscriptions see it."""

    topic: str
    channel: str
    pace: Pace

    def take(self, batch: list[Message]) -> None: ...
    def default_delay(self, attempts: int) -> float: ...
    def left(self, subscription: "Subscription", reason: str) -> None: ...


class Subscription:
    """One SUB on one connection; the desk at which its messages are answered for."""

    def __init__(self, connection: Connection, audience: Audience) -> None:
        self.connection = connection
        self.audience = audience
        self.address = str(connection.address)
        self.pace = audience.pace
        self.topic = audience.topic
        self.thread = threading.get_ident()
        self.msg_timeout = connection.granted.msg_timeout
        self.max_msg_timeout = max(connection.granted.max_msg_timeout, self.msg_timeout)
        self.in_flight: dict[bytes, Message] = {}
        self.touched: dict[bytes, float] = {}
        self.share: Share | None = None
        self.closing = False
        self.received = 0
        self.finished = 0
        self.requeued = 0
        self._loop = asyncio.get_running_loop()
        self.subscribed: asyncio.Future[str] = self._loop.create_future()  # "" or why not
        self.lost_future: asyncio.Future[str] = self._loop.create_future()
        self.close_waited: asyncio.Future[None] = self._loop.create_future()
        self.drained: asyncio.Future[None] = self._loop.create_future()

    # -- what the connection tells

    def messages(self, rows: list[Row]) -> None:
        now = self.connection.heard
        if self.share is not None:
            self.share.last_message = now
        self.received += len(rows)
        in_flight = self.in_flight
        batch: list[Message] = []
        append = batch.append
        for row in rows:
            message = Message(row, self, now)
            if row[1] > 1 and (stale := in_flight.get(row[2])) is not None:
                stale._desk = None  # nsqd has taken it back and given it to us again: only the new one counts
                self.touched.pop(row[2], None)
            in_flight[row[2]] = message
            append(message)
        self.audience.take(batch)

    def answered(self, payload: bytes) -> None:
        if payload == b"OK" and not self.subscribed.done():
            self.subscribed.set_result("")
        elif payload == b"CLOSE_WAIT":
            self.closing = True
            if not self.close_waited.done():
                self.close_waited.set_result(None)
            self._check_drained()

    def refused(self, reason: str) -> None:
        if not self.subscribed.done():
            self.subscribed.set_result(reason)
            return
        words = reason.split(" ")
        if words[0] == "E_TOUCH_FAILED" and len(words) > 2:
            self._forget(words[2].encode())
        level = logging.DEBUG if words[0] == "E_TOUCH_FAILED" else logging.WARNING
        log.log(level, "[%s/%s] (%s) %s", self.topic, self.audience.channel, self.address, reason)

    def lost(self, reason: str) -> None:
        if not self.subscribed.done():
            self.subscribed.set_result(reason)
        for message in self.in_flight.values():
            message._desk = None  # no answer can reach nsqd; it delivers them again
        self.in_flight.clear()
        self.touched.clear()
        self._check_drained()
        if not self.close_waited.done():
            self.close_waited.set_result(None)
        if not self.lost_future.done():
            self.lost_future.set_result(reason)
            self.audience.left(self, reason)

    def writable(self) -> None:
        """FINs are small and bounded by RDY: nothing waits for the socket."""

    # -- the desk

    def now(self) -> float:
        return self._loop.time()

    def call(self, what: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(what, *arguments)

    def finish(self, message: Message) -> None:
        message_id = message._row[2]
        self.in_flight.pop(message_id, None)
        if self.touched:
            self.touched.pop(message_id, None)
        if self.pace.in_backoff:
            self.pace.signal(Signal.RESUME)
        self.connection.finish(message_id)
        self.finished += 1
        if self.closing and not self.in_flight:
            self._check_drained()

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> None:
        message_id = message._row[2]
        self.in_flight.pop(message_id, None)
        self.touched.pop(message_id, None)
        seconds = self.audience.default_delay(message.attempts) if delay is None else max(0.0, delay)
        self.pace.signal(Signal.BACKOFF if backoff else Signal.CONTINUE)
        self.connection.send(b"REQ %b %d\n" % (message_id, round(seconds * 1000)))
        self.requeued += 1
        self._check_drained()

    def touch(self, message: Message) -> None:
        self.touched[message._row[2]] = self._loop.time()
        self.connection.send(b"TOUCH %b\n" % message._row[2])

    def deadline(self, message: Message) -> float:
        last = self.touched.get(message._row[2], message._received)
        return min(last + self.msg_timeout, message._received + self.max_msg_timeout)

    # -- what the consumer asks

    def ready(self, count: int) -> None:
        """Send RDY."""
        if not self.closing:
            self.connection.send(b"RDY %d\n" % count)

    def touch_old(self) -> None:
        """Touch what has been held for half its timeout, as long as nsqd grants more."""
        now = self._loop.time()
        old = now - self.msg_timeout * TOUCH_AFTER
        oldest = now - self.max_msg_timeout
        touched = self.touched
        for message_id, message in self.in_flight.items():
            received = message._received
            if oldest < received <= old and touched.get(message_id, received) <= old:
                self.touch(message)

    def close_wait(self) -> None:
        """Ask for no more messages."""
        if not self.connection.closed:
            self.connection.send(b"CLS\n")

    def give_back(self) -> None:
        """Requeue whatever is still held, at once and without blame."""
        for message in list(self.in_flight.values()):
            message.requeue(0, backoff=False)

    def _forget(self, message_id: bytes) -> None:
        message = self.in_flight.pop(message_id, None)
        self.touched.pop(message_id, None)
        if message is not None:
            message._desk = None
        self._check_drained()

    def _check_drained(self) -> None:
        if not self.in_flight and (self.closing or self.connection.closed) and not self.drained.done():
            self.drained.set_result(None)
