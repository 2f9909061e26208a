"""The part of a log that messages come in at: batches are appended, written to the last segment, and synced."""

import errno
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence

from lapwing import kernel
from lapwing.errors import WriteFailed
from lapwing.kernel import SPACE_CHECK
from lapwing.log.appending import Appending
from lapwing.log.disk import OpenFiles
from lapwing.log.options import CHUNK_BYTES, LogOptions
from lapwing.log.segments import reservation
from lapwing.log.segments.attributes import RecentRows, Rows
from lapwing.log.segments.segment import Batch, Segment, joined, last_time, time_of
from lapwing.log.segments.sync import Sync
from lapwing.log.segments.window import Window


class LogWriter(Appending):
    """The segments of one topic, the newest of which grows: what its `Tail` does not write with one call."""

    __slots__ = (
        "__weakref__", "_firsts", "_lazy", "_noted_bytes", "_recent_rows", "_reserved", "_rows_end",
        "_segments", "_sync", "_unwritten_rows", "_window", "directory", "files", "first", "notes", "options",
    )  # fmt: skip

    def __init__(
        self,
        directory: str,
        segments: list[Segment],
        options: LogOptions,
        files: OpenFiles,
        notes: list[str],
        sync: Sync | None = None,
    ) -> None:
        """`sync` is what is synced of the segments, where that is known."""
        super().__init__()
        self.directory = directory
        self.options = options
        self.files = files
        self.notes = notes  # what was mended, for the operator
        self._lazy = options.durability == "memory"
        self._segments = segments
        self._firsts = [segment.first for segment in segments]
        self.next = self.end = segments[-1].end if segments else 0
        self.first = self._firsts[0] if self._firsts else self.next
        self.written = self.next  # with durability "memory", what is beyond it is in the window alone
        self._reserved = False  # whether the disk knows that there may be something beyond `written`
        self._rows_end = self.next if any(segment.extras.size for segment in segments) else 0  # there are none beyond
        self._sync = Sync(directory, files, self.end) if sync is None else sync
        self.since_check = SPACE_CHECK
        self._window = Window(self.next)
        self._unwritten_rows: list[Rows] = []
        self._recent_rows = RecentRows(self.next)
        self._noted_bytes = -1  # in memory, when the files were last given their number
        super().forget()

    @abstractmethod
    def shed(self) -> None:
        """Drop from memory what is also on disk."""

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first."""
        return tuple(self._segments)

    @property
    def tail(self) -> kernel.Tail:
        """The end of the log, where intakes may append."""
        return self

    @property
    def bytes(self) -> int:
        """Bytes of frames in all segments, and in memory waiting to be written."""
        unwritten = sum(len(frames) for _, _, frames in self._window.since(self.written))
        return sum(segment.size for segment in self._segments) + unwritten

    def flush(self) -> None:
        """Make everything appended count: one write of frames, one of records. Readers see it from here on.

        With durability "memory" nothing is written while at most `mem_queue_size` messages wait. Raises `WriteFailed`;
        then what was appended is forgotten, `next` is back at `end`, and the files are as they were.
        """
        if not self.fresh or self.write():
            return
        batches = self._batches()
        if self._lazy:
            self._write_beyond_memory(batches)
        else:
            self._write_or_forget(batches, self._pending_rows, atomic=self.several)
            self.written = self.next
        for count, frames, _ in batches:
            self._window.add(count, frames)
        self.end = self.next
        if self._pending_rows:
            self.keep_rows()
        self.forget()
        self.shrink_window()

    def take_back(self) -> None:
        """Forget what was appended and not flushed; what a flush that raised has left is cut off by the next one.

        Where the flush had come so far that the last segment has it, it counts: no sequence is given out twice.
        """
        self.forget()
        self._window.cut(self.end)
        if not self._segments:
            return
        last = self._segments[-1]
        last.torn = True
        if last.end > self.end:
            self.next = self.end = self.written = self._rows_end = last.end
            self._window.clear(last.end)
            self._recent_rows, self._unwritten_rows = RecentRows(last.end), []

    def shrink_window(self) -> None:
        """Have the memory of the newest bytes counted, and cut, when it has changed much."""
        window = self._window
        if window.bytes > self.options.tail_bytes:  # less often than with every flush
            window.shrink(self.options.tail_bytes * 3 // 4, self.written)
        kept = window.bytes + self._recent_rows.bytes
        if not 0 <= kept - self._noted_bytes <= self._noted_bytes >> 3:
            self._noted_bytes = kept
            self.files.keep(self, kept)

    def keep_rows(self) -> None:
        """Keep the rows that were flushed in memory, for the readers at the tail."""
        rows = self._recent_rows
        rows.add(self._pending_rows)
        self._pending_rows = []
        self._rows_end = self.end
        if rows.bytes > self.options.tail_bytes:
            rows.shrink(self.options.tail_bytes * 3 // 4)

    def _write_beyond_memory(self, batches: list[Batch]) -> None:
        """Write what the memory queue has no room for, with all that waits in it; or nothing while there is room."""
        if self.next - self.written > self.options.mem_queue_size:
            self._write_or_forget(self._unwritten() + batches, self._unwritten_rows + self._pending_rows)
            self.written = self.next
            self._unwritten_rows = []
        else:
            if not self._reserved:
                self._reserve()
            self._unwritten_rows += self._pending_rows

    def _batches(self) -> list[Batch]:
        """Return what was appended, joined or cut to what makes good chunks."""
        fresh = self.fresh or []
        if self.fresh_bytes <= CHUNK_BYTES:
            return [(self.next - self.end, b"".join(fresh), time_of(fresh[-1]))]
        counted = zip(self.fresh_counts, fresh, strict=True)
        return joined([(count, frames, time_of(frames)) for count, frames in counted])

    def _unwritten(self) -> list[Batch]:
        """Return what with durability "memory" was flushed and is in the window alone."""
        return joined([(count, frames, last_time(frames)) for _, count, frames in self._window.since(self.written)])

    def _reserve(self) -> None:
        """Have the disk know how far memory may be ahead of it, so that a crash gives no sequence out twice."""
        try:
            reservation.reserve(self.directory, self.options.mem_queue_size, self.files)
        except OSError as error:
            self.forget()
            raise WriteFailed(os.path.join(self.directory, reservation.FILE), 0, error) from error
        self._reserved = True

    def _write_or_forget(self, batches: list[Batch], extras: Sequence[Rows], *, atomic: bool = True) -> None:
        try:
            self._write(batches, extras, atomic=atomic)
        except WriteFailed:
            self.forget()
            raise

    def _write(self, batches: list[Batch], extras: Sequence[Rows], *, atomic: bool = True) -> None:
        size = 0
        for _, frames, _ in batches:
            size += len(frames)
        if self.options.min_free_bytes:
            self._check_space(size)
        else:
            self.since_check = 0
        segments = self._segments
        if segments and (segments[-1].size + size <= self.options.segment_bytes or not segments[-1].size):
            beside = bool(extras) and not segments[-1].extras.size  # a file that is made with this write
            segments[-1].write(batches, extras, self._sync.target, atomic=atomic)
            self._sync.wrote(segments[-1], created=beside)
        else:
            segment = self._roll()
            try:
                all_segments, firsts = [*segments, segment], [*self._firsts, segment.first]
                self._sync.wrote(segment, created=True)
                segment.write(batches, extras)
            except Exception:
                self._sync.deleted(segment)
                self._unroll(segment)
                raise
            self._segments, self._firsts = all_segments, firsts
            if segments:
                segments[-1].give_back()

    def _check_space(self, size: int) -> None:
        """Refuse before the disk is so full that nothing else works either."""
        self.since_check += size
        if self.since_check < SPACE_CHECK:
            return
        path = self._segments[-1].frames.path if self._segments else self.directory
        offset = self._segments[-1].size if self._segments else 0
        try:
            free = self.files.disk.free(self.directory)
        except OSError as error:
            raise WriteFailed(path, offset, error) from error
        if free - size < self.options.min_free_bytes:
            shortage = OSError(errno.ENOSPC, f"{free} bytes free, {self.options.min_free_bytes} are to stay free")
            raise WriteFailed(path, offset, shortage)
        self.since_check = 0

    def _roll(self) -> Segment:
        """Return a new segment, empty, that begins where the last one ends."""
        if self._segments:
            self._segments[-1].mend()
            self._segments[-1].write_index()
        segment = self._segment(self.written)
        segment.torn = True  # what an earlier attempt left is cut off before the first write
        return segment

    def _segment(self, first: int) -> Segment:
        return Segment(self.directory, first, self.files, self.options.merge_bytes, self.options.boot)

    def _unroll(self, segment: Segment) -> None:
        """Take back a new segment that could not be written to; what stays is swept away or mended later."""
        try:
            segment.unlink()
        except OSError as error:
            self.notes.append(f"{segment.frames.path}: could not be removed: {error}")

    def write_index(self) -> None:
        """Write the index records of all frames: what has one is served after a power loss, if its bytes are whole.

        Raises `WriteFailed`, and can be called again.
        """
        self.noted = False
        if self._segments:
            self._segments[-1].write_index()

    def _clear_reservation(self) -> None:
        try:
            reservation.clear(self.directory, self.files)
        except OSError as error:
            raise WriteFailed(os.path.join(self.directory, reservation.FILE), 0, error) from error
        self._reserved = False

    # --- syncing -----------------------------------------------------------------------------------------------

    @property
    def unsynced(self) -> bool:
        """Whether something flushed would not survive a power loss."""
        return self._sync.needed

    @property
    def synced(self) -> int:
        """The sequence below which everything would survive a power loss, as far as this log's syncs know."""
        return self._sync.reached

    def begin_sync(self) -> Callable[[], None] | None:
        """Return a call that syncs what is flushed by now, to be run in any thread; None when there is nothing to do.

        The log stays usable meanwhile; `finish_sync` has to be called with its end before another can begin. The
        call raises `OSError` with the file's name.
        """
        return self._sync.begin(self.written)

    def finish_sync(self, error: OSError | None) -> None:
        """Note how the call of `begin_sync` ended; after an error all of it is to be synced again."""
        self._sync.finish(error)

    def sync_again(self, sequence: int) -> None:
        """Have the next sync cover everything from `sequence` on, also what an earlier process wrote."""
        for segment in self._segments:
            if segment.end > sequence:
                self._sync.wrote(segment, created=True)
