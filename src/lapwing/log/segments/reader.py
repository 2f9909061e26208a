"""A place in a log, and the block that was read there: what a channel's cursor stands on."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.log.disk import OpenFiles, Sheds
from lapwing.log.options import BLOCK_BYTES
from lapwing.log.segments.segment import Segment, time_of
from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.log.log import TopicLog

EVERYTHING: Final = 1 << 62

Place = tuple[Segment, int]  # where a cold read continues: the number of a record in a segment
Block = tuple[int, int, bytes | None, Place | None]  # first, end, frames (None: quarantined), place behind it


@dataclass(frozen=True, slots=True)
class InFile:
    """Whole chunks that lie in a file one behind the other: where, and what their bytes must be."""

    first: int
    count: int
    path: str
    offset: int
    chunks: list[tuple[int, int]]  # length and crc of each


class Reader:
    """Takes frames from a log, in order, as they lie."""

    __slots__ = ("__weakref__", "_at", "_block", "_end", "_files", "_kept", "_log", "_most", "_place", "sequence")

    def __init__(
        self, log: "TopicLog", sequence: int, files: OpenFiles | None = None, max_bytes: int = BLOCK_BYTES
    ) -> None:
        """`max_bytes` is what one read from the disk aims at."""
        self._log = log
        self._files = files
        self._most = max_bytes
        self._place: Place | None = None
        self._block: bytes | None = b""
        self._at = 0
        self._end = -1  # the block serves sequences below it
        self._kept = False
        self.sequence = sequence

    def seek(self, sequence: int) -> None:
        if sequence == self.sequence:
            return
        block, ahead = self._block, sequence - self.sequence
        self.sequence = sequence
        if block and 0 < ahead < self._end - sequence + ahead:
            self._at = kernel.take_frames(block, self._at, len(block), ahead, EVERYTHING)[1]
            return
        self._place = None
        self.shed()

    def share(self, owner: Sheds, size: int) -> None:
        """Have the bytes counted that `owner` keeps of the log: it sheds them when others need the room."""
        if self._files is not None:
            self._files.keep(owner, size)

    def shed(self) -> None:
        """Drop the block; it is read again when needed."""
        self._block = b""
        self._at = 0
        self._end = -1

    def take(self, stop: int, max_count: int, max_bytes: int) -> tuple[bytes, int]:
        """Frames from here on, below `stop` and the log's end: they, and how many; moves on behind them.

        At most what lies in one block (so there may be more to take at once), at least one message even if it is longer
        than `max_bytes`. Empty frames with a count are a quarantined range, skipped; (b"", 0) is the end.
        Raises `OutOfRange` when retention was faster.
        """
        block, at, after, count = self.span(stop, max_count, max_bytes)
        return (block[at:after] if after - at < len(block) else block), count

    def span(self, stop: int, max_count: int, max_bytes: int) -> tuple[bytes, int, int, int]:
        """Return the same without a copy: the block, where in it the frames begin and end, and how many they are."""
        sequence = self.sequence
        wanted = min(stop, self._log.end, sequence + max_count) - sequence
        if wanted <= 0:
            return b"", 0, 0, 0
        if sequence >= self._end:
            self._load(sequence)
        block, at = self._block, self._at
        left = self._end - sequence
        if block is None:
            count = min(stop, self._end) - sequence
            self.sequence += count
            return b"", 0, 0, count
        if left <= wanted and len(block) - at <= max_bytes:
            self.sequence = self._end
            self._done()
            return block, at, len(block), left
        count, after = kernel.take_frames(block, at, len(block), wanted, max_bytes)
        self.sequence = sequence + count
        if count == left:
            self._done()
        else:
            self._at = after
        return block, at, after, count

    def _done(self) -> None:
        self.shed()
        if self._kept and self._files is not None:
            self._kept = False
            self._files.keep(self, 0)

    def _load(self, sequence: int) -> None:
        first, end, frames, self._place = self._log.load(sequence, self._place, self._most)
        self._block, self._end, self._at = frames, end, 0
        if frames is None:
            return
        if first < sequence:
            self._at = kernel.take_frames(frames, 0, len(frames), sequence - first, EVERYTHING)[1]
        if self._place is not None and self._files is not None:
            self._kept = True
            self._files.keep(self, len(frames))


def first_since(reader: Reader, stop: int, timestamp: int) -> int:
    """Return the first sequence from the reader's place on at or after a time; `stop` when there is none."""
    for first, _, frames in blocks(reader, stop, BLOCK_BYTES):
        positions, _ = kernel.scan_frames(frames, 0, len(frames))
        for index in range(len(positions) - 1):
            if time_of(frames, positions[index]) >= timestamp:
                return first + index
    return stop


def blocks(reader: Reader, stop: int, max_bytes: int) -> Iterator[tuple[int, int, memoryview]]:
    """Yield everything from the reader's place to `stop`: first, count, frames (empty: a quarantined range)."""
    while True:
        first = reader.sequence
        block, at, after, count = reader.span(stop, EVERYTHING, max_bytes)
        if not count:
            return
        yield first, count, memoryview(block)[at:after]
