"""Take messages: frame them and append them to the topic's log. The end of the turn writes them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from lapwing import ids, kernel, names
from lapwing.broker import dead_letters, dedup
from lapwing.errors import Exiting, LapwingError, PublishRefused
from lapwing.log.attributes import Rows, encode_headers
from lapwing.log.log import Extra
from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.admission import Admission
    from lapwing.broker.dedup import DedupWindow
    from lapwing.broker.options import Options
    from lapwing.log.log import TopicLog


class Receipt(Protocol):
    """The acknowledgement of a publish."""

    def settle(self, sequence: int, error: LapwingError | None, /) -> None:
        """Note that the messages are in the log from `sequence` on (synced, with `fsync`), or why they are not."""


@dataclass(frozen=True, slots=True)
class CallReceipt:
    """A receipt that calls a function."""

    settle: Callable[[int, LapwingError | None], None]


_NO_RECEIPT: Final = CallReceipt(lambda sequence, error: None)  # the caller learns the outcome in another way
NOTHING_COUNTED: Final = (0, 0)


def _has_own(rows: bytes) -> bool:
    """Return whether rows may have headers that only the broker sets."""
    return any(mark in rows for mark in dead_letters.OWN)


def _without_own(rows: bytes, start: int, stop: int) -> bytes:
    """Return rows of the extras of [start, stop) without the headers that only the broker sets."""
    extras = Rows(start, stop - 1, rows).extras(start, stop)
    kept = [Extra(each.sequence, each.defer, dead_letters.original(each.headers)) for each in extras]
    kept = [each for each in kept if each.headers]
    return Rows.of(kept).text if kept else b""


def _id_of(headers: Mapping[str, str]) -> bytes:
    return headers[dedup.HEADER].encode("utf-8", "surrogatepass")


class TopicWriter:
    """The part of a topic that messages come in at."""

    __slots__ = (
        "admission", "counted", "dedup", "dropped_count", "ephemeral", "exiting", "fanned_out", "has_extras", "id_base",
        "log", "message_bytes", "message_count", "name", "options", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, log: TopicLog, options: Options) -> None:
        self.name = name
        self.ephemeral = names.ephemeral(name)
        self.exiting = False
        self.options = options
        self.log = log
        self.id_base = ids.base(log.node)
        self.fanned_out = log.first  # messages below were handed to the channels
        self.admission: Admission | None = None  # limits on publishes, if there are any
        self.dedup: DedupWindow | None = None  # recognises repeated ids, where the topic is set to
        self.message_count = 0
        self.message_bytes = 0
        self.dropped_count = 0  # messages that did not fit an ephemeral topic
        self.waiting: list[tuple[Receipt, int]]  # of this turn, with the first sequence of each
        self.has_extras = False  # whether a message that was not handed over may be deferred
        self.counted = NOTHING_COUNTED  # messages and bytes before this turn, in case its write fails

    @property
    @abstractmethod
    def stands_still(self) -> bool:
        """Whether messages wait in the topic rather than in channels."""

    @property
    @abstractmethod
    def skew(self) -> int:
        """ns from the broker's time, which deadlines go by, to the machine's clock, which messages are stamped with."""

    @abstractmethod
    def mark_dirty(self) -> None:
        """Have the topic written at the end of this turn."""

    @abstractmethod
    def commit(self, now: int) -> None:
        """Write what this turn brought."""

    def publish(
        self,
        body: bytes,
        receipt: Receipt,
        *,
        now: int,
        defer: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take one message; `receipt` is settled when the turn's batch is written."""
        headers = dead_letters.original(headers) if headers else None
        if headers and headers.get(dedup.HEADER) and self._is_repeat(headers, receipt, now=now):
            return
        if self.admission is not None:
            self.admission.check(1, len(body), len(body))
        log = self.log
        sequence = log.next
        extras: Sequence[Extra] = ()
        if defer or headers:
            extras = [Extra(sequence, defer=self._lawful(defer), headers=dict(headers or {}))]
        frames = kernel.frame_one(body, self.id_base + sequence, now + self.skew)
        self._append(frames, 1, len(body), receipt, extras, now)
        if headers and self.dedup is not None and headers.get(dedup.HEADER):
            self.dedup.add([(sequence, _id_of(headers))], now=now)

    def publish_batch(self, body: bytes, receipt: Receipt, *, now: int) -> int:
        """Take the messages of an MPUB body, all or none, and return their number. Raises `PublishRefused`."""
        options = self.options
        stamp = now + self.skew
        largest = options.max_msg_size if self.admission is None else self.admission.max_msg_size
        try:
            frames, count = kernel.frame_mpub(
                body, self.id_base + self.log.next, stamp, options.max_batch_count, largest
            )
        except PublishRefused as error:
            if self.admission is not None and error.code == kernel.TOO_BIG and error.value <= options.max_msg_size:
                self.admission.check(0, 0, error.value)  # it is the topic's own limit
            raise
        size = len(body) - 4 - 4 * count
        if self.admission is not None:
            self.admission.check(count, size, 0)
        self._append(frames, count, size, receipt, (), now)
        return count

    def publish_headed(self, body: bytes, receipt: Receipt, *, now: int, defer: int = 0) -> int:
        """Take the messages of an HMPUB body, all or none, and return their number. Raises `PublishRefused`.

        Messages that repeat an id are not taken, and count all the same. `defer` is for a batch of one.
        """
        first, window = self.log.next, self.dedup
        frames, rows, count = self._frame_headed(body, now)
        whole = count
        ids = kernel.message_ids(rows) if window is not None and rows else []
        if window is not None and ids:
            repeats = window.repeats(ids, now=now)
            if repeats:
                window.duplicates += len(repeats)
                if len(repeats) == count:
                    self._wait_for(max(repeats.values()), receipt)
                    return whole
                body = dedup.without(body, {sequence - first for sequence in repeats})
                frames, rows, count = self._frame_headed(body, now)
                ids = kernel.message_ids(rows)
        size = len(frames) - kernel.HEAD * count
        if self.admission is not None:
            self.admission.check(count, size, 0)
        if window is not None and ids:
            window.add(ids, now=now)
        if _has_own(rows):
            rows = _without_own(rows, first, first + count)
        if defer:
            plain = b"[%d,0," % first
            rows = b"[%d,%d,%b" % (first, self._lawful(defer), rows[len(plain) :] if rows else b"{}]")
        self._append(frames, count, size, receipt, (), now, rows=rows, deferred=bool(defer))
        return whole

    def _frame_headed(self, body: bytes, now: int) -> tuple[bytes, bytes, int]:
        options = self.options
        largest = options.max_msg_size if self.admission is None else self.admission.max_msg_size
        first_id, stamp = self.id_base + self.log.next, now + self.skew
        try:
            return kernel.frame_headed(body, first_id, stamp, options.max_batch_count, largest, kernel.MAX_HEADERS)
        except PublishRefused as error:
            if self.admission is not None and error.code == kernel.TOO_BIG and error.value <= options.max_msg_size:
                self.admission.check(0, 0, error.value)  # it is the topic's own limit
            raise

    def _is_repeat(self, headers: Mapping[str, str], receipt: Receipt, *, now: int) -> bool:
        """Return whether a message with this id is there already; then the receipt is settled with that message."""
        if self.dedup is None:
            return False
        known = self.dedup.find(_id_of(headers), now=now)
        if known is None:
            return False
        self.dedup.duplicates += 1
        self._wait_for(known, receipt)
        return True

    def _wait_for(self, sequence: int, receipt: Receipt) -> None:
        """Settle a receipt with a message that is in the log, when that is written, or synced with `fsync`."""
        if self.exiting:
            raise Exiting
        if not self.waiting:
            self.mark_dirty()
            self.counted = (self.message_count, self.message_bytes)
        self.waiting.append((receipt, sequence))

    def publish_many(
        self,
        bodies: Sequence[bytes],
        receipt: Receipt,
        *,
        now: int,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take several messages, all or none."""
        headers = dead_letters.original(headers) if headers else None
        if headers and self.dedup is not None and headers.get(dedup.HEADER):
            self._publish_each(bodies, headers, receipt, now)
            return
        if self.admission is not None:
            self.admission.check(len(bodies), sum(map(len, bodies)), max(map(len, bodies), default=0))
        first = self.log.next
        frames = kernel.frame_bodies(bodies, self.id_base + first, now + self.skew)
        extras: list[Extra] = []
        if headers:
            extras = [Extra(sequence, headers=dict(headers)) for sequence in range(first, first + len(bodies))]
        self._append(frames, len(bodies), sum(map(len, bodies)), receipt, extras, now)

    def _publish_each(
        self, bodies: Sequence[bytes], headers: Mapping[str, str], receipt: Receipt, now: int
    ) -> None:
        """Take several messages that share an id: those behind the first get it with their number."""
        own = headers[dedup.HEADER]
        pairs = [
            (encode_headers({**headers, dedup.HEADER: f"{own}/{index}" if index else own}), body)
            for index, body in enumerate(bodies)
        ]
        parts = [len(pairs).to_bytes(4, "big")]
        for text, body in pairs:
            parts += ((4 + len(text) + len(body)).to_bytes(4, "big"), len(text).to_bytes(4, "big"), text, body)
        self.publish_headed(b"".join(parts), receipt, now=now)

    def publish_framed(
        self, frames: bytes, count: int, size: int, receipt: Receipt, *, now: int, extras: Sequence[Extra] = ()
    ) -> None:
        """Take frames that carry the ids from the log's `next` on; `size` is that of their bodies."""
        if self.admission is not None:
            self.admission.check(count, size, size if count == 1 else 0)
        self._append(frames, count, size, receipt, extras, now)

    def publish_own(
        self, bodies: Sequence[bytes], extras: Sequence[Extra], receipt: Receipt, *, now: int, rows: bytes = b""
    ) -> None:
        """Take messages of the broker itself, which no limit refuses.

        The extras carry the sequences from `next` on; `rows` are extras too, as text.
        """
        frames = kernel.frame_bodies(bodies, self.id_base + self.log.next, now + self.skew)
        self._append(frames, len(bodies), sum(map(len, bodies)), receipt, extras, now, rows=rows)

    def publish_frames(self, frames: bytes, count: int, size: int, extras: Sequence[Extra], *, now: int) -> None:
        """Take frames that carry the ids from the log's `next` on, and write them now; raises `WriteFailed`.

        `size` is that of the bodies. Where publishes wait for a sync, the caller sees to that.
        """
        self._append(frames, count, size, _NO_RECEIPT, extras, now)
        self.write_pending(now=now)

    def write_pending(self, *, now: int) -> None:
        """Write what this turn has brought so far, before its end."""
        if self.waiting:
            self.commit(now)

    def _append(
        self,
        frames: bytes,
        count: int,
        size: int,
        receipt: Receipt,
        extras: Sequence[Extra],
        now: int,
        *,
        rows: bytes = b"",
        deferred: bool = False,
    ) -> None:
        if self.exiting:
            raise Exiting
        if not self.waiting:
            self.mark_dirty()
            self.counted = (self.message_count, self.message_bytes)
        self.waiting.append((receipt, self.log.next))
        self.message_count += count
        self.message_bytes += size
        if self.ephemeral and self.stands_still:
            room = max(self.options.mem_queue_size - (self.log.next - self.fanned_out), 0)
            if room < count:
                self.dropped_count += count - room
                count, end = kernel.take_frames(frames, 0, len(frames), room, len(frames))
                frames = frames[:end]
                extras = [extra for extra in extras if extra.sequence < self.log.next + count]
                rows = Rows(self.log.next, 1 << 62, rows).between(self.log.next, self.log.next + count)
        if count:
            self.log.append(frames, count, now=now, extras=extras, rows=rows)
        if deferred or (extras and any(extra.defer for extra in extras)):
            self.has_extras = True

    def _lawful(self, defer: int) -> int:
        """Return the delay that a message keeps: none beyond NSQ's memory limit, where that was asked for."""
        limit = self.options.deferred_limit
        if limit is not None and self.stands_still and self.log.next - self.fanned_out >= limit:
            return 0
        return defer

    def id_of(self, sequence: int) -> str:
        """Return the id of a message, as consumers see it."""
        return f"{self.id_base + sequence:016x}"

    def sequence_of(self, message_id: bytes) -> int:
        """Return the sequence that an id names, or -1 if it is none of this topic's."""
        try:
            node, sequence = ids.decode(message_id)
        except ValueError:
            return -1
        return sequence if node == self.log.node else -1

    def sequences_of(self, message_ids: Sequence[bytes]) -> list[int]:
        """Return the sequences that ids name, -1 for those that are none of this topic's."""
        if ids.well_formed(message_ids):
            base, most = self.id_base, ids.MOST_SEQUENCE
            numbers = [int(message_id, 16) - base for message_id in message_ids]
            return [number if 0 <= number <= most else -1 for number in numbers]
        return [self.sequence_of(message_id) for message_id in message_ids]
