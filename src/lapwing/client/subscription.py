"""One subscription of a consumer: the messages in flight on its connection, and the answers that go back."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from lapwing.client.backoff import Signal
from lapwing.client.connection import HANDSHAKE, Connection
from lapwing.client.errors import Refused, Unreachable
from lapwing.client.message import Message, Row
from lapwing.client.rdy import RdyController
from lapwing.client.rdy_distribution import Share
from lapwing.wire.nsq.commands import Rej, Req, Sub

log: Final = logging.getLogger("lapwing.client")

TOUCH_AFTER: Final = 0.5  # share of the message timeout
MILLISECOND: Final = 1_000_000  # ns


class SubscriptionOwner(Protocol):
    """The consumer, as its subscriptions see it."""

    topic: str
    channel: str
    rdy: RdyController

    def take(self, batch: list[Message]) -> None: ...
    def default_delay(self, attempts: int) -> float: ...
    def left(self, subscription: "Subscription", reason: str) -> None: ...


class Subscription:
    """One SUB on one connection. It is the source of the messages that come over it."""

    def __init__(self, connection: Connection, owner: SubscriptionOwner) -> None:
        self.connection = connection
        self.owner = owner
        self.address = str(connection.address)
        self.rdy = owner.rdy
        self.topic = owner.topic
        self.thread = threading.get_ident()
        self.msg_timeout = connection.granted.msg_timeout
        self.max_msg_timeout = max(connection.granted.max_msg_timeout, self.msg_timeout)
        self.limited = bool(connection.granted.max_attempts)  # the broker counts failures and gives messages up
        self.retries = connection.granted.retries or self.limited  # the broker delays failed messages, so we need not
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

    async def start(self) -> None:
        """Send SUB and RDY, and wait for the answer. Raises `Refused` or `Unreachable`."""
        connection, owner = self.connection, self.owner
        connection.start(self)
        connection.send(Sub(owner.topic, owner.channel).encode())
        self.share = self.rdy.join(self, cap=connection.granted.max_rdy_count)
        try:
            async with asyncio.timeout(HANDSHAKE):
                problem = await asyncio.shield(self.subscribed)
        except BaseException as error:
            connection.abort("SUB was not answered")
            if isinstance(error, TimeoutError):
                raise Unreachable(self.address, f"SUB was not answered within {HANDSHAKE:g} s") from error
            raise
        if problem:
            connection.abort(problem)
            kind = Refused if problem.startswith("E_") else Unreachable
            raise kind(self.address, f"cannot subscribe to {owner.topic}/{owner.channel}: {problem}")

    # -- called by the connection

    def messages(self, rows: Sequence[Row]) -> None:
        now = self.connection.received_at
        if self.share is not None:
            self.share.last_message = now
        self.received += len(rows)
        in_flight = self.in_flight
        batch: list[Message] = []
        append = batch.append
        for row in rows:
            message = Message(row, self, now)
            if row[1] > 1 and (stale := in_flight.get(row[2])) is not None:
                stale._source = None  # it timed out and was delivered to us again: only the new one counts
                self.touched.pop(row[2], None)
            in_flight[row[2]] = message
            append(message)
        self.owner.take(batch)

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
        log.log(level, "[%s/%s] (%s) %s", self.topic, self.owner.channel, self.address, reason)

    def lost(self, reason: str) -> None:
        if not self.subscribed.done():
            self.subscribed.set_result(reason)
        for message in self.in_flight.values():
            message._source = None  # no answer can reach nsqd; it delivers them again
        self.in_flight.clear()
        self.touched.clear()
        self._check_drained()
        if not self.close_waited.done():
            self.close_waited.set_result(None)
        if not self.lost_future.done():
            self.lost_future.set_result(reason)
            self.owner.left(self, reason)

    def writable(self) -> None:
        """Do not wait for the socket: answers are small, and RDY bounds their number."""

    # -- called by messages

    def now(self) -> float:
        return self._loop.time()

    def call(self, what: Callable[..., None], *arguments: Any) -> None:
        self._loop.call_soon_threadsafe(what, *arguments)

    def finish(self, message: Message) -> None:
        message_id = message._row[2]
        self.in_flight.pop(message_id, None)
        if self.touched:
            self.touched.pop(message_id, None)
        if self.rdy.in_backoff:
            self.rdy.signal(Signal.RESUME)
        self.connection.finish(message_id)
        self.finished += 1
        if self.closing and not self.in_flight:
            self._check_drained()

    def fail(self, message: Message, delay: float | None, backoff: bool, error: str) -> None:
        message_id = self._forget_message(message)
        if delay is not None:
            seconds = max(0.0, delay)
        elif self.retries:
            seconds = 0.0  # the retry settings of the channel hold
        else:
            seconds = self.owner.default_delay(message.attempts)
        self.rdy.signal(Signal.BACKOFF if backoff and not self.retries else Signal.CONTINUE)
        self.connection.send(Req(message_id, round(seconds * 1000) * MILLISECOND, error=error).encode())
        self.requeued += 1
        self._check_drained()

    def release(self, message: Message, delay: float) -> None:
        message_id = self._forget_message(message)
        self.rdy.signal(Signal.CONTINUE)
        self.connection.send(b"REQ %b %d free\n" % (message_id, round(max(0.0, delay) * 1000)))
        self.requeued += 1
        self._check_drained()

    def reject(self, message: Message, reason: str, error: str) -> None:
        if not self.connection.granted.reject:
            log.warning(
                "[%s/%s] (%s) message %s is rejected and dropped, as this server keeps no dead letters: %s",
                self.topic, self.owner.channel, self.address, message.id, reason,
            )  # fmt: skip
            self.finish(message)
            return
        message_id = self._forget_message(message)
        if self.rdy.in_backoff:
            self.rdy.signal(Signal.RESUME)
        self.connection.send(Rej.of(message_id, reason, error).encode())
        self.finished += 1
        self._check_drained()

    def _forget_message(self, message: Message) -> bytes:
        message_id = message._row[2]
        self.in_flight.pop(message_id, None)
        self.touched.pop(message_id, None)
        return message_id

    def touch(self, message: Message) -> None:
        self.touched[message._row[2]] = self._loop.time()
        self.connection.send(b"TOUCH %b\n" % message._row[2])

    def deadline(self, message: Message) -> float:
        last = self.touched.get(message._row[2], message._received)
        return min(last + self.msg_timeout, message._received + self.max_msg_timeout)

    # -- called by the consumer

    def ready(self, count: int) -> None:
        """Send RDY."""
        if not self.closing:
            self.connection.send(b"RDY %d\n" % count)

    def touch_old(self) -> None:
        """Touch messages that are half-way to their timeout, as long as nsqd grants more time."""
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
        """Release whatever is still in flight."""
        for message in list(self.in_flight.values()):
            message.release()

    def _forget(self, message_id: bytes) -> None:
        message = self.in_flight.pop(message_id, None)
        self.touched.pop(message_id, None)
        if message is not None:
            message._source = None
        self._check_drained()

    def _check_drained(self) -> None:
        if not self.in_flight and (self.closing or self.connection.closed) and not self.drained.done():
            self.drained.set_result(None)
