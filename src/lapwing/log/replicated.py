"""A log as everybody sees it whose messages are also in a remote log: it ends where the records end.

What is behind that is on the disk and nowhere else. After a loss of the machine its sequences are given to other
messages, so nobody may see it: no consumer, no reader, no query of Spark. That is kept here, in one place: `end` is the
watermark, and everything in nsqd that reads a log reads up to its `end`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from lapwing import kernel
from lapwing.log.appending import Frames
from lapwing.log.disk import OpenFiles
from lapwing.log.log import DiskLog
from lapwing.log.options import BLOCK_BYTES
from lapwing.log.segments.attributes import Extra, RowText
from lapwing.log.segments.reader import Block, InFile, Place, Reader, blocks
from lapwing.log.segments.retention import RetentionLimits

_JOINED: Final = 64 << 10  # bytes up to which blocks are joined


class ReplicatedLog:
    """The log of one topic. It appends to the log on the disk and reads from it."""

    __slots__ = ("__weakref__", "_log", "end")

    def __init__(self, log: DiskLog, end: int) -> None:
        """Begin with what the records have: messages before `end`."""
        self._log = log
        self.end = end  # the watermark

    # --- the watermark -----------------------------------------------------------------------------------------

    @property
    def behind(self) -> bool:
        """Whether messages are on the disk that no record has."""
        return self._log.end > self.end

    @property
    def disk_end(self) -> int:
        """The end of the log on the disk."""
        return self._log.end

    @property
    def disk_log(self) -> DiskLog:
        """The log on the disk, for those who look for what was published and need not be visible yet."""
        return self._log

    def unreplicated(self, block: int) -> Iterator[tuple[int, int, memoryview]]:
        """Yield what no record has, in blocks of at most so many bytes. Raises `ReadFailed`.

        They are as they were written, where that was not little: joining them would copy what is in memory already.
        """
        return blocks(Reader(self._log, self.end, self._log.files, _JOINED), self._log.end, block)

    def raise_end(self, end: int) -> None:
        """Note that a record exists which has the messages up to `end`. Nothing else makes them visible."""
        assert self.end <= end <= self._log.end, f"the watermark goes from {self.end} to {end} of {self._log.end}"
        self.end = end

    # --- appending ---------------------------------------------------------------------------------------------

    @property
    def tail(self) -> kernel.Tail:
        """The end of the log on the disk, where intakes may append."""
        return self._log

    @property
    def next(self) -> int:
        """The sequence that the next message gets."""
        return self._log.next

    @property
    def pending(self) -> bool:
        """Whether there are messages that nobody sees yet."""
        return self._log.pending or self.behind

    def append(
        self, frames: Frames, count: int, *, now: int, extras: Sequence[Extra] = (), rows: RowText = b""
    ) -> int:
        """Take a batch of frames that carry the ids from `next` on; the first sequence. Nothing is written yet."""
        return self._log.append(frames, count, now=now, extras=extras, rows=rows)

    def flush(self) -> None:
        """Write what was appended to the disk. Raises `WriteFailed`."""
        self._log.flush()

    def take_back(self) -> None:
        """Forget what was appended and not flushed."""
        self._log.take_back()

    def write_index(self) -> None:
        """Write the index records of all frames. Raises `WriteFailed`."""
        self._log.write_index()

    # --- what it is --------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """The 16 hex digits that another log of the same topic does not have."""
        return self._log.identity

    @property
    def node(self) -> int:
        """The number in the ids of its messages."""
        return self._log.node

    @property
    def first(self) -> int:
        """The first sequence still held."""
        return self._log.first

    @property
    def lost(self) -> range:
        """The sequences that a crash took."""
        return self._log.lost

    @property
    def bytes(self) -> int:
        """Bytes of frames in all segments."""
        return self._log.bytes

    @property
    def unserved(self) -> list[tuple[int, int]]:
        """The runs that could not be served when they were read."""
        return self._log.unserved

    # --- reading: callers go up to `end` -------------------------------------------------------------------------

    def reader(self, sequence: int) -> Reader:
        """Return a reader at `sequence`."""
        return self._log.reader(sequence)

    def load(self, sequence: int, place: Place | None, max_bytes: int = BLOCK_BYTES) -> Block:
        """Return the block that holds `sequence`."""
        return self._log.load(sequence, place, max_bytes)

    def frame(self, sequence: int) -> Frames:
        """Return one frame; raises `OutOfRange` or `CorruptChunk`."""
        return self._log.frame(sequence)

    def blocks(self, start: int, stop: int, max_bytes: int) -> Iterator[tuple[int, int, memoryview]]:
        """[start, stop) in big blocks: first, count, frames (empty: a quarantined range)."""
        return self._log.blocks(start, min(stop, self.end), max_bytes)

    def in_file(self, start: int, stop: int, max_bytes: int) -> InFile | None:
        """Return where messages from `start` on lie in a file."""
        return self._log.in_file(start, min(stop, self.end), max_bytes)

    def extras(self, start: int, stop: int) -> list[Extra]:
        """Return what messages of [start, stop) carry beside their bodies, in order. Raises `ReadFailed`."""
        return self._log.extras(start, min(stop, self.end))

    def rows(self, start: int, stop: int) -> RowText:
        """Return the rows of the extras of [start, stop) as text. Raises `ReadFailed`."""
        return self._log.rows(start, stop)

    def bytes_from(self, sequence: int) -> int:
        """Return about how many bytes of frames lie from `sequence` on."""
        return self._log.bytes_from(sequence)

    def at_time(self, timestamp: int) -> int:
        """Return the first sequence at or after a time; `end` when there is none."""
        return min(self._log.at_time(timestamp), self.end)

    def timestamp(self, sequence: int) -> int:
        """Return when a message was published, in ns."""
        return self._log.timestamp(sequence)

    # --- deleting ----------------------------------------------------------------------------------------------

    def segment_start(self, sequence: int) -> int:
        """Return the first sequence of the segment that holds `sequence`, or would."""
        return self._log.segment_start(sequence)

    def release(self, sequence: int, *, now: int, limits: RetentionLimits) -> list[str]:
        """Delete the segments that nobody needs (all below `sequence`) and `limits` does not want; their names."""
        return self._log.release(min(sequence, self.end), now=now, limits=limits)

    def close(self) -> None:
        """Write what is unwritten and give the descriptors back; raises `WriteFailed`."""
        self._log.close()

    def destroy(self) -> None:
        """Remove the directory with journal and side logs. Raises `WriteFailed` and leaves it all."""
        self._log.destroy()
        self.end = self._log.end

    # --- power losses: whoever has lost power begins with the remote log -----------------------------------------

    @property
    def unsynced(self) -> bool:
        """Whether something would have to be synced: nothing, as the records have it."""
        return False

    def begin_sync(self) -> Callable[[], None] | None:
        """Return no call: the disk is not what messages survive on."""
        return None

    def finish_sync(self, error: OSError | None) -> None:
        """Note nothing."""

    def sync_again(self, sequence: int) -> None:
        """Sync nothing."""

    @property
    def files(self) -> OpenFiles:
        """The open files of all logs."""
        return self._log.files

    @property
    def directory(self) -> str:
        """The directory of the log."""
        return self._log.directory
