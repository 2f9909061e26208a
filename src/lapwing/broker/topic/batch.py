"""Messages on their way into a topic, framed: what a door builds, and `Topic.append` takes or refuses as a whole.

The frames carry the ids from the log's `next` on, so a batch is appended before anything else is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.broker.failures import dead_letters
from lapwing.broker.topic import dedup
from lapwing.log.log import Extra
from lapwing.log.segments.attributes import Rows, encode_headers

if TYPE_CHECKING:
    from lapwing.broker.topic.topic import Topic


SCHEDULE_PREFIX: Final = "schedule-"  # of the headers that a schedule sets
_OWN: Final = (*dead_letters.OWN, b'"schedule-')  # how headers as JSON begin that only the broker sets


class Batch:
    """Framed messages with the rows of their headers and deferrals."""

    __slots__ = ("body", "count", "deferred", "frames", "own", "rows", "size")

    def __init__(
        self,
        frames: bytes,
        count: int,
        size: int,
        rows: bytes = b"",
        *,
        deferred: bool = False,
        own: bool = False,
        body: bytes = b"",
    ) -> None:
        self.frames = frames
        self.count = count
        self.size = size  # bytes of the bodies
        self.rows = rows  # `[sequence,defer ns,{headers}],...`, as the log keeps them
        self.deferred = deferred  # whether a row may have a delay
        self.own = own  # of the broker itself: no limit refuses it, and a repeated id does not matter
        self.body = body  # of the HMPUB that the frames are made of

    def beyond(self, limit: int) -> int:
        """Return the bytes of the first body that is larger than `limit`, or 0."""
        if self.size <= limit:
            return 0
        places, _ = kernel.scan_frames(self.frames, 0, len(self.frames))
        sizes = (places[index + 1] - places[index] - kernel.HEAD for index in range(len(places) - 1))
        return next((size for size in sizes if size > limit), 0)


def single(topic: Topic, body: bytes, *, now: int, defer: int = 0, headers: Mapping[str, str] | None = None) -> Batch:
    """Return one message; headers that only the broker sets are left out."""
    sequence = topic.log.next
    frames = kernel.frame_one(body, topic.id_base + sequence, now + topic.skew)
    if not defer and not headers:
        return Batch(frames, 1, len(body))
    extra = Extra(sequence, topic.lawful_delay(defer), of_client(headers) if headers else {})
    if not defer and not extra.headers:
        return Batch(frames, 1, len(body))
    return Batch(frames, 1, len(body), rows_of([extra]), deferred=extra.defer > 0)


def with_headers(topic: Topic, body: bytes, headers: Mapping[str, str], *, now: int) -> Batch:
    """Return one message with these headers, those of the broker among them."""
    sequence = topic.log.next
    frames = kernel.frame_one(body, topic.id_base + sequence, now + topic.skew)
    return Batch(frames, 1, len(body), rows_of([Extra(sequence, headers=dict(headers))]))


def of_client(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a client may set: without those that only the broker sets."""
    return {
        name: text for name, text in dead_letters.original(headers).items() if not name.startswith(SCHEDULE_PREFIX)
    }


def multiple(topic: Topic, body: bytes, *, now: int) -> Batch:
    """Return the messages of an MPUB body. Raises `PublishRefused`."""
    options = topic.options
    frames, count = kernel.frame_mpub(
        body, topic.id_base + topic.log.next, now + topic.skew, options.max_batch_count, options.max_msg_size
    )
    return Batch(frames, count, len(body) - 4 - 4 * count)


def headed(topic: Topic, body: bytes, *, now: int, defer: int = 0) -> Batch:
    """Return the messages of an HMPUB body, without headers that only the broker sets. Raises `PublishRefused`.

    `defer` is for a batch of one.
    """
    options, first = topic.options, topic.log.next
    frames, rows, count = kernel.frame_headed(
        body, topic.id_base + first, now + topic.skew, options.max_batch_count, options.max_msg_size, kernel.MAX_HEADERS
    )
    if any(mark in rows for mark in _OWN):
        extras = Rows(first, first + count - 1, rows).extras(first, first + count)
        kept = [Extra(each.sequence, each.defer, of_client(each.headers)) for each in extras]
        rows = rows_of([each for each in kept if each.headers])
    if defer:
        plain = b"[%d,0," % first
        rows = b"[%d,%d,%b" % (first, topic.lawful_delay(defer), rows[len(plain) :] if rows else b"{}]")
    return Batch(frames, count, len(frames) - kernel.HEAD * count, rows, deferred=defer > 0, body=body)


def sharing(topic: Topic, bodies: Sequence[bytes], headers: Mapping[str, str] | None, *, now: int) -> Batch:
    """Return messages that share their headers. Raises `PublishRefused`.

    Where the topic publishes once, those behind the first get the shared id with their number.
    """
    headers = of_client(headers) if headers else {}
    name = headers.get(dedup.HEADER)
    if name and topic.dedup is not None:
        names = [f"{name}/{index}" if index else name for index in range(len(bodies))]
        texts = [encode_headers({**headers, dedup.HEADER: each}) for each in names]
        return headed(topic, _hmpub(texts, bodies), now=now)
    first = topic.log.next
    frames = kernel.frame_bodies(bodies, topic.id_base + first, now + topic.skew)
    extras = [Extra(sequence, headers=headers) for sequence in range(first, first + len(bodies))] if headers else []
    return Batch(frames, len(bodies), sum(map(len, bodies)), rows_of(extras))


def of_broker(topic: Topic, bodies: Sequence[bytes], rows: bytes = b"", *, now: int) -> Batch:
    """Return messages of the broker itself, which no limit refuses; rows carry the sequences from `next` on."""
    frames = kernel.frame_bodies(bodies, topic.id_base + topic.log.next, now + topic.skew)
    return Batch(frames, len(bodies), sum(map(len, bodies)), rows, own=True)


def rows_of(extras: Sequence[Extra]) -> bytes:
    """Return extras as text."""
    return Rows.of(extras).text if extras else b""


def _hmpub(headers: Iterable[bytes], bodies: Sequence[bytes]) -> bytes:
    """Return the body of an HMPUB."""
    parts = [len(bodies).to_bytes(4, "big")]
    for text, body in zip(headers, bodies, strict=True):
        parts += ((4 + len(text) + len(body)).to_bytes(4, "big"), len(text).to_bytes(4, "big"), text, body)
    return b"".join(parts)
