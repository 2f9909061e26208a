"""The same log without a disk: ephemeral topics, and tests."""

import os
from collections.abc import Iterator, Sequence
from typing import Final

from lapwing import kernel
from lapwing.errors import OutOfRange
from lapwing.log.options import BLOCK_BYTES
from lapwing.log.segments import reader as reading
from lapwing.log.segments.attributes import Extra, RecentRows, Rows, RowText
from lapwing.log.segments.reader import EVERYTHING, Block, Place, Reader
from lapwing.log.segments.retention import RetentionLimits
from lapwing.log.segments.segment import time_of
from lapwing.log.segments.window import Window
from lapwing.log.topiclog import Frames, TopicLog

_WORTH: Final = 16 << 20  # bytes; as long as fewer are held, no message is copied so that others can be dropped


class MemoryLog(TopicLog):
    """A topic's log in memory."""

    def __init__(self, node: int) -> None:
        self.identity = os.urandom(8).hex()
        self.node = node
        self.first = 0
        self.next = 0
        self.end = 0
        self.lost = range(0)
        self.unserved: list[tuple[int, int]] = []
        self._window = Window(0)
        self._pending: list[tuple[int, Frames]] = []
        self._pending_rows: list[Rows] = []
        self._rows = RecentRows(0)

    @property
    def pending(self) -> bool:
        """Whether something was appended and not yet flushed."""
        return bool(self._pending)

    @property
    def bytes(self) -> int:
        """Bytes of frames held."""
        return self._window.bytes

    def append(
        self, frames: Frames, count: int, *, now: int, extras: Sequence[Extra] = (), rows: RowText = b""
    ) -> int:
        """Take a batch of frames that carry the ids from `next` on; the first sequence."""
        first = self.next
        self._pending.append((count, frames))
        if rows:
            self._pending_rows.append(Rows(first, first + count - 1, rows))
        elif extras:
            self._pending_rows.append(Rows.of(extras))
        self.next = first + count
        return first

    def flush(self) -> None:
        """Make everything appended count."""
        if not self._pending:
            return
        if len(self._pending) == 1:
            self._window.add(*self._pending[0])
        else:
            self._window.add(self.next - self.end, b"".join([frames for _, frames in self._pending]))
        self._pending.clear()
        if self._pending_rows:
            self._rows.add(self._pending_rows)
            self._pending_rows = []
        self.end = self.next

    def take_back(self) -> None:
        """Forget what was appended and not flushed."""
        self._pending.clear()
        self._pending_rows = []
        self.next = self.end

    def reader(self, sequence: int) -> Reader:
        """Return a reader at `sequence`."""
        return Reader(self, sequence)

    def load(self, sequence: int, place: Place | None, max_bytes: int = BLOCK_BYTES) -> Block:
        """Return the block that holds `sequence`."""
        if not self.first <= sequence < self.end:
            raise OutOfRange(f"memory: sequence {sequence} of [{self.first}, {self.end})")
        first, end, frames = self._window.block(sequence, max_bytes)
        return first, end, frames, None

    def frame(self, sequence: int) -> Frames:
        """Return one frame; raises `OutOfRange`."""
        if not self.first <= sequence < self.end:
            raise OutOfRange(f"memory: sequence {sequence} of [{self.first}, {self.end})")
        first, _, frames = self._window.block(sequence, 0)
        _, at = kernel.take_frames(frames, 0, len(frames), sequence - first, EVERYTHING)
        _, after = kernel.take_frames(frames, at, len(frames), 1, EVERYTHING)
        return frames[at:after]

    def blocks(self, start: int, stop: int, max_bytes: int) -> Iterator[tuple[int, int, memoryview]]:
        """[start, stop) in big blocks: first, count, frames."""
        return reading.blocks(Reader(self, start, max_bytes=max_bytes), stop, max_bytes)

    def extras(self, start: int, stop: int) -> list[Extra]:
        """Return what messages of [start, stop) carry beside their bodies, in order."""
        return self._rows.extras(max(start, self.first), stop)

    def rows(self, start: int, stop: int) -> RowText:
        """Return the rows of the extras of [start, stop) as text."""
        return self._rows.text(start, stop)

    def bytes_from(self, sequence: int) -> int:
        """Return about how many bytes of frames lie from `sequence` on: exact between batches."""
        total = 0
        for first, count, frames in self._window.since(self._window.boundary(sequence)):
            total += len(frames) * (first + count - max(first, sequence)) // count
        return total

    def at_time(self, timestamp: int) -> int:
        """Return the first sequence at or after a time; `end` when there is none."""
        return reading.first_since(self.reader(self.first), self.end, timestamp)

    def timestamp(self, sequence: int) -> int:
        """Return when a message was published."""
        return time_of(self.frame(sequence))

    def segment_start(self, sequence: int) -> int:
        """Return the start of the batch that holds `sequence`; `first` while little is held."""
        return self._window.boundary(sequence) if self._window.bytes > _WORTH else self.first

    def release(self, sequence: int, *, now: int, limits: RetentionLimits) -> list[str]:
        """Drop whole batches below `sequence`. What nobody needs is not kept in memory for replay."""
        before = self.first
        self._window.shrink(0, sequence)
        self.first = self._window.start
        self._rows.drop_below(self.first)
        return [f"{before:020d}"] if self.first != before else []

    def close(self) -> None:
        """Flush; what is in memory goes with the process."""
        self.flush()

    def destroy(self) -> None:
        """Hold nothing any more."""
        self._window.clear(self.end)
        self.first = self.end
        self._rows.drop_below(self.end)
