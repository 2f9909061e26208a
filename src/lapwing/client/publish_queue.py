"""Batches of publishes that wait to be sent or answered: which nsqd each goes to, and how long it may wait."""

import asyncio
import functools
import itertools
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from lapwing.client.address import Address
from lapwing.client.connection import Connection, connect
from lapwing.client.connections import Connections
from lapwing.client.errors import ConnectionLost, PublishFailed, PublishTimeout, Stopped
from lapwing.client.options import ClientOptions
from lapwing.client.publish_batches import TRY_ELSEWHERE, PublishBatch, PublishLimits, pack, with_id
from lapwing.wire.nsq.connection import MessageRow

log: Final = logging.getLogger("lapwing.client")

NEVER: Final = float("inf")
WINDOW: Final = 16  # unanswered commands of one connection; later publishes are batched meanwhile
_OK_MESSAGE_ID: Final = b"OK message-id"  # the topic recognises a repeated message-id


class PublishConnection:
    """One nsqd of the pool: its connection and the batches that it has not answered. Answers come in order."""

    def __init__(self, connection: Connection, queue: "PublishQueue") -> None:
        self.connection = connection
        self.address = str(connection.address)
        self.unanswered: deque[PublishBatch] = deque()
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._queue = queue
        self._recognises: dict[str, bool] = {}  # by topic: whether it recognises a repeated message-id

    @property
    def headers(self) -> bool:
        """Whether nsqd takes headers."""
        return self.connection.granted.headers

    @property
    def open(self) -> bool:
        """Whether one more command can be sent now."""
        return len(self.unanswered) < WINDOW and not self.connection.full and not self.connection.closed

    def publish(self, batch: PublishBatch, now: float) -> None:
        """Send a batch; it is written with the next flush."""
        if self.takes_ids(batch.topic):
            batch.make_ids(self._queue.next_id)
        batch.sent = now
        self.unanswered.append(batch)
        self.connection.send(batch.encode(headers=self.headers))

    def takes_ids(self, topic: str) -> bool:
        """Return whether the topic recognises a repeated message: by its last answer, else by what IDENTIFY granted."""
        if not self.headers:
            return False
        known = self._recognises.get(topic)
        if known is None:
            return any(fnmatchcase(topic, pattern) for pattern in self.connection.granted.message_ids)
        return known

    def messages(self, rows: Sequence[MessageRow]) -> None:
        self.connection.abort("a message arrived on a connection that never subscribed")

    def answered(self, payload: bytes) -> None:
        if payload not in (b"OK", _OK_MESSAGE_ID) or not self.unanswered:
            self.connection.abort(f"unexpected answer {payload[:80]!r}")
            return
        batch = self.unanswered.popleft()
        if self.headers:
            self._recognises[batch.topic] = payload == _OK_MESSAGE_ID
        batch.confirm()
        self._queue.flush()

    def refused(self, reason: str) -> None:
        if not self.unanswered:
            log.warning("(%s) %s", self.address, reason)
            return
        self._queue.refused(self, self.unanswered.popleft(), reason)

    def lost(self, reason: str) -> None:
        if not self.gone.done():
            self.gone.set_result(reason)
        self._queue.lost(self, reason)

    def writable(self) -> None:
        self._queue.flush()


class PublishQueue:
    """The batches of one producer, and the nsqds that take them in turn.

    A batch whose connection breaks before the answer is sent again, to another nsqd if possible, until its deadline.
    """

    def __init__(self, options: ClientOptions, *, nsqd: str | Iterable[str], lookupd: str | Iterable[str]) -> None:
        self.options = options
        self.connections = Connections(self._connect, options, nsqd=nsqd, lookupd=lookupd)
        self.limits = PublishLimits(options.max_msg_size, options.max_body_size)
        self.targets: list[PublishConnection] = []
        self._turn = 0
        self._queue: deque[PublishBatch] = deque()
        self._open: dict[str, PublishBatch] = {}  # by topic: the last batch, which more may join
        self._reason = ""  # why the last connection with unanswered batches broke
        self._tick_at = NEVER
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._ids = itertools.count()
        self._id_prefix = secrets.token_hex(10).encode()

    def start(self) -> Coroutine[Any, Any, None]:
        """Take batches from now on, on this event loop; what is returned connects."""
        self._loop = asyncio.get_running_loop()
        return self.connections.start()

    def add(
        self, topic: str, body: bytes, headers: bytes, deadline: float, needs_headers: bool
    ) -> asyncio.Future[None]:
        """Queue a message, with others if it fits; the future is done when nsqd has confirmed it."""
        future: asyncio.Future[None] = self._loop.create_future()
        batch = self._open.get(topic)
        if batch is None or not batch.fits(body, deadline, self.limits, headers=headers, needs_headers=needs_headers):
            batch = self._open[topic] = PublishBatch(topic, deadline, needs_headers=needs_headers)
            self._queue.append(batch)
        batch.add(body, future, headers)
        self._wake(deadline)
        return future

    def add_deferred(
        self, topic: str, body: bytes, headers: bytes, deadline: float, needs_headers: bool, *, delay: int
    ) -> asyncio.Future[None]:
        """Queue a message that is delivered after `delay` ns."""
        future: asyncio.Future[None] = self._loop.create_future()
        batch = PublishBatch(topic, deadline, delay=delay, needs_headers=needs_headers)
        batch.add(body, future, headers)
        self._append(topic, [batch], deadline)
        return future

    def add_whole(
        self, topic: str, messages: list[tuple[bytes, bytes]], deadline: float, *, needs_headers: bool
    ) -> list[PublishBatch]:
        """Queue messages, each as (headers, body), as few batches, each all or nothing."""
        if any(target.takes_ids(topic) for target in self.targets):  # now, as ids count for the size of a batch
            messages = [(with_id(headers, self.next_id), body) for headers, body in messages]
        batches = pack(topic, messages, deadline, self.limits, needs_headers=needs_headers)
        for batch in batches:
            batch.futures.append(self._loop.create_future())
        self._append(topic, batches, deadline)
        return batches

    def _append(self, topic: str, batches: list[PublishBatch], deadline: float) -> None:
        self._queue.extend(batches)
        self._open.pop(topic, None)  # later publishes must not overtake them
        self._wake(deadline)

    async def drain(self, timeout: float | None) -> None:
        """Wait until every batch is answered or late, at most `timeout` seconds."""
        futures = [future for batch in self._pending() for future in batch.futures if not future.done()]
        if futures:
            self.flush()
            await asyncio.wait(futures, timeout=timeout)

    async def close(self) -> None:
        """Fail what is not answered, and close the connections."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self.connections.stop()
        for batch in self._pending():
            batch.fail(lambda: Stopped("the producer was stopped before nsqd confirmed"))
        self._queue.clear()
        await asyncio.gather(*(target.connection.close() for target in list(self.targets)))

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
        if self._queue and not self.targets:
            self.connections.hurry()

    def _choose(self, batch: PublishBatch) -> PublishConnection | None:
        targets = self.targets
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
        targets = self.targets
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

        too_big = self.limits.learn(reason)
        if too_big == "message" and len(batch.bodies) > 1 and not batch.whole:
            rest, large = batch.without_larger(self.limits.message)
            for future in large:
                if not future.done():
                    future.set_exception(error())
            if rest.bodies:
                self._queue.appendleft(rest)
        elif too_big == "body" and len(batch.bodies) > 1 and not batch.whole:
            self._queue.extendleft(reversed(list(batch.halves())))
        elif reason.startswith(TRY_ELSEWHERE):
            batch.refused_by.add(target.address)
            if any(str(address) not in batch.refused_by for address in self.connections.addresses):
                log.warning("(%s) %s; trying another nsqd", target.address, reason)
                self._queue.appendleft(batch)
            else:
                batch.fail(error)
        else:
            batch.fail(error)
        self._schedule()

    def lost(self, target: PublishConnection, reason: str) -> None:
        """Put the unanswered batches of a lost connection at the front of the queue."""
        if target in self.targets:
            self.targets.remove(target)
        if target.unanswered:
            self._reason = f"{target.address}: {reason}"
        if self._closed:
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
        for target in list(self.targets):
            late = target.unanswered and now - target.unanswered[0].sent > self.options.confirm_timeout
            # wait longer only if somebody waits for the answer and there is no other nsqd
            if late and (len(self.connections.addresses) > 1 or not target.unanswered[0].awaited):
                target.connection.abort(f"a publish was not answered within {self.options.confirm_timeout:g} s")
        earliest = min((batch.deadline for batch in self._pending() if batch.awaited), default=NEVER)
        if earliest < NEVER or any(target.unanswered for target in self.targets):
            self._tick_later(earliest)

    def _why_late(self, batch: PublishBatch) -> str:
        where = ", ".join(str(address) for address in self.connections.addresses) or "no nsqd known"
        if any(batch in target.unanswered for target in self.targets):
            return f"{batch.topic}: sent to {where}, not confirmed before the deadline; it may have been stored"
        reasons = self.connections.errors
        if self._reason:
            reasons.append(self._reason)
        return f"{batch.topic}: not published before the deadline ({where}): {'; '.join(reasons) or 'all busy'}"

    def _pending(self) -> list[PublishBatch]:
        return [*(batch for target in self.targets for batch in target.unanswered), *self._queue]

    # -- connections

    async def _connect(self, address: Address) -> Awaitable[str]:
        connection = await connect(address, self.options)
        target = PublishConnection(connection, self)
        self.targets.append(target)
        connection.start(target)
        if self._queue:
            self._schedule()
        return target.gone
