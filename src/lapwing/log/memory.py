"""The same log without a disk: ephemeral topics, and tests."""

import os
from collections.abc import Iterator
from typing import Final

from lapwing.errors import OutOfRange
from lapwing.log.appending import Appending, Frames, frame_at
from lapwing.log.options import BLOCK_BYTES
from lapwing.log.segments import reader as reading
from lapwing.log.segments.attributes import Extra, RecentRows, RowText, extras_of
from lapwing.log.segments.reader import Block, Place, Reader
from lapwing.log.segments.retention import RetentionLimits
from lapwing.log.segments.segment import time_of
from lapwing.log.segments.window import Window

_WORTH: Final = 16 << 20  # bytes; as long as fewer are held, no message is copied so that others can be dropped


class MemoryLog(Appending):
    """A topic's log in memory."""

    def __init__(self, node: int) -> None:
        super().__init__()
        self.identity = os.urandom(8).hex()  # a log that is created again has another one
        self.node = node  # in the ids of its messages
        self.first = 0  # the first sequence still held
        self.lost = range(0)  # sequences that a crash took; they are never given out again
        self.unserved: list[tuple[int, int]] = []  # runs that could not be served when they were read
        self._window = Window(0)
        self._rows = RecentRows(0)

    @property
    def bytes(self) -> int:
        """Bytes of frames held."""
        return self._window.bytes

    def flush(self) -> None:
        """Make everything appended count."""
        if self.fresh:
            self._window.add(self.next - self.end, b"".join(self.fresh))
            if self._pending_rows:
                self._rows.add(self._pending_rows)
            self.end = self.next
            self.forget()

    def take_back(self) -> None:
        """Forget what was appended and not flushed."""
        self.forget()
        self._window.cut(self.end)

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
        first, _, frames, _ = self.load(sequence, None, 0)
        assert frames is not None
        return frame_at(frames, sequence - first)

    def blocks(self, start: int, stop: int, max_bytes: int) -> Iterator[tuple[int, int, memoryview]]:
        """[start, stop) in big blocks: first, count, frames."""
        return reading.blocks(Reader(self, start, max_bytes=max_bytes), stop, max_bytes)

    def extras(self, start: int, stop: int) -> list[Extra]:
        """Return what messages of [start, stop) carry beside their bodies, in order."""
        return extras_of(self._rows.text(max(start, self.first), stop), start, stop)

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

    # --- there are no files: nothing to write, nothing to sync ---------------------------------------------------

    @property
    def tail(self) -> None:
        """Nothing: intakes do not append here."""

    @property
    def unsynced(self) -> bool:
        """Whether something would have to be synced."""
        return False

    def write_index(self) -> None:
        """Write nothing."""

    def begin_sync(self) -> None:
        """Return no call, as there is nothing to sync."""

    def finish_sync(self, error: OSError | None) -> None:
        """Note nothing."""

    def sync_again(self, sequence: int) -> None:
        """Sync nothing."""

    def in_file(self, start: int, stop: int, max_bytes: int) -> None:
        """Return no place in a file."""

    def close(self) -> None:
        """Flush; what is in memory goes with the process."""
        self.flush()

    def destroy(self) -> None:
        """Hold nothing any more."""
        self._window.clear(self.end)
        self.first = self.end
        self._rows.drop_below(self.end)
