"""Batches of publishes: gathered, and split by the limits of nsqd. Pure except for the futures."""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from lapwing.kernel import MAX_HEADERS
from lapwing.wire.nsq.commands import Dpub, Hmpub, Hpub, Mpub, Pub

BATCH_BYTES: Final = 1 << 20  # a batch larger than this gains nothing and delays its neighbours
BATCH_COUNT: Final = 10_000
TOGETHER: Final = 0.1  # s; publishes whose deadlines lie further apart travel apart

_MESSAGE_TOO_BIG: Final = re.compile(r"^E_BAD_MESSAGE \w+ message too big \d+ > (\d+)$")
_BODY_TOO_BIG: Final = re.compile(r"^E_BAD_BODY H?MPUB body too big \d+ > (\d+)$")
_LONGEST_WITHOUT_ID: Final = MAX_HEADERS - 64  # bytes of headers that leave room for an id
# refusals of an nsqd whose disk is full or that is stopping: another one may take the message
TRY_ELSEWHERE: Final = ("E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED", "E_HPUB_FAILED", "E_HMPUB_FAILED")


@dataclass(slots=True)
class PublishLimits:
    """The largest message and MPUB that nsqd takes; refusals correct the assumed values."""

    message: int  # 0: unknown
    body: int

    def learn(self, reason: str) -> str:
        """Learn a limit from a refusal; return what was too big: "message", "body" or ""."""
        if match := _MESSAGE_TOO_BIG.match(reason):
            self.message = int(match[1])
            return "message"
        if match := _BODY_TOO_BIG.match(reason):
            self.body = int(match[1])
            return "body"
        return ""


@dataclass(slots=True)
class PublishBatch:
    """Bodies that are sent as one command, and the futures that wait for its answer."""

    topic: str
    deadline: float  # s, by the event loop's clock
    delay: int = 0  # ns; for one body only
    whole: bool = False  # a batch that its caller made: all or nothing
    needs_headers: bool = False  # a server without headers must not get it
    bodies: list[bytes] = field(default_factory=list)
    headers: list[bytes] = field(default_factory=list)  # JSON, one per body; empty: none has headers
    futures: list[asyncio.Future[None]] = field(default_factory=list)  # one per body; one in all of a whole
    size: int = 4  # of the MPUB body
    has_ids: bool = False
    sent: float = 0.0
    refused_by: set[str] = field(default_factory=set)

    def fits(
        self, body: bytes, deadline: float, limits: PublishLimits, *, headers: bytes = b"", needs_headers: bool = False
    ) -> bool:
        """Return whether one more body may join."""
        return (
            deadline - self.deadline <= TOGETHER
            and needs_headers == self.needs_headers
            and len(self.bodies) < BATCH_COUNT
            and self.size + len(headers) + len(body) + 8 <= min(limits.body or BATCH_BYTES, BATCH_BYTES)
            and len(body) <= (limits.message or BATCH_BYTES)
        )

    def add(self, body: bytes, future: asyncio.Future[None], headers: bytes = b"") -> None:
        """Add a message and the future that waits for it."""
        self.futures.append(future)
        self.add_body(body, headers)

    def add_body(self, body: bytes, headers: bytes = b"") -> None:
        """Add a message."""
        if headers or self.headers:
            if not self.headers:
                self.headers = [b""] * len(self.bodies)
                self.size += 4 * len(self.bodies)
            self.headers.append(headers)
            self.size += 4 + len(headers)
        self.bodies.append(body)
        self.size += len(body) + 4

    def make_ids(self, next_id: Callable[[], bytes]) -> None:
        """Give each message a message-id that has none, so that nsqd recognises the batch when it is sent again."""
        if self.has_ids:
            return
        self.has_ids = True
        before = sum(map(len, self.headers)) if self.headers else -4 * len(self.bodies)
        self.headers = [with_id(text, next_id) for text in self.headers or [b""] * len(self.bodies)]
        self.size += sum(map(len, self.headers)) - before

    def encode(self, *, headers: bool = False) -> bytes:
        """Return the command that publishes the batch; without headers for a server that knows none."""
        if headers and self.headers:
            if len(self.bodies) == 1:
                return Hpub.of(self.topic, self.headers[0], self.bodies[0], delay=self.delay).encode()
            return Hmpub.of(self.topic, zip(self.headers, self.bodies, strict=True)).encode()
        if self.delay:
            return Dpub(self.topic, self.delay, self.bodies[0]).encode()
        if len(self.bodies) == 1:
            return Pub(self.topic, self.bodies[0]).encode()
        return Mpub.of(self.topic, self.bodies).encode()

    @property
    def awaited(self) -> bool:
        """Whether a caller still waits for the answer."""
        return any(not future.done() for future in self.futures)

    def confirm(self) -> None:
        for future in self.futures:
            if not future.done():
                future.set_result(None)

    def fail(self, error: Callable[[], Exception]) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error())  # one each: a shared one would collect all tracebacks

    def without_larger(self, limit: int) -> "tuple[PublishBatch, list[asyncio.Future[None]]]":
        """Return the batch without bodies larger than `limit`, and the futures of those."""
        rest = self._empty()
        large: list[asyncio.Future[None]] = []
        for body, headers, future in self._messages(slice(None)):
            if len(body) > limit:
                large.append(future)
            elif not future.done():
                rest.add(body, future, headers)
        return rest, large

    def _empty(self) -> "PublishBatch":
        return PublishBatch(self.topic, self.deadline, needs_headers=self.needs_headers)

    def _messages(self, part: slice) -> "Iterator[tuple[bytes, bytes, asyncio.Future[None]]]":
        headers = self.headers or [b""] * len(self.bodies)
        return zip(self.bodies[part], headers[part], self.futures[part], strict=True)

    def halves(self) -> "Iterator[PublishBatch]":
        """Yield the batch in two halves."""
        middle = len(self.bodies) // 2
        for part in (slice(None, middle), slice(middle, None)):
            batch = self._empty()
            for body, headers, future in self._messages(part):
                if not future.done():
                    batch.add(body, future, headers)
            if batch.bodies:
                yield batch


def with_id(headers: bytes, next_id: Callable[[], bytes]) -> bytes:
    """Return headers, which are JSON or nothing, with a message-id; as they are if they have one or no room for it."""
    if b'"message-id":' in headers or len(headers) > _LONGEST_WITHOUT_ID:
        return headers
    return b'{"message-id":"%b"%b' % (next_id(), b"," + headers[1:] if len(headers) > 2 else b"}")


def pack(
    topic: str,
    messages: Iterable[tuple[bytes, bytes]],
    deadline: float,
    limits: PublishLimits,
    *,
    needs_headers: bool = False,
) -> list[PublishBatch]:
    """Return messages, each as (headers, body), as few batches, each all or nothing, without futures yet."""
    limit = limits.body or 1 << 31
    batch = PublishBatch(topic, deadline, whole=True, needs_headers=needs_headers)
    batches = [batch]
    for headers, body in messages:
        if batch.bodies and batch.size + len(headers) + len(body) + (8 if headers or batch.headers else 4) > limit:
            batch = PublishBatch(topic, deadline, whole=True, needs_headers=needs_headers)
            batches.append(batch)
        batch.add_body(body, headers)
    return batches


def checked(topic: str, body: bytes) -> bytes:
    """Return the body as bytes. Raises `TypeError` for another type and `ValueError` for an empty body."""
    if not isinstance(body, bytes):
        if not isinstance(body, (bytearray, memoryview)):
            advice = ": encode it" if isinstance(body, str) else ""
            raise TypeError(f"{topic}: a message body is bytes, not {type(body).__name__}{advice}")
        body = bytes(body)
    if not body:
        raise ValueError(f"{topic}: the message is empty, which nsqd refuses")
    return body
