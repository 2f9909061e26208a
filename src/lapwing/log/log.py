"""The log of one topic: append to it, read ranges of it, and delete what is not needed."""

import errno
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar

from lapwing import kernel
from lapwing.errors import CorruptChunk, OutOfRange, ReadFailed, WriteFailed
from lapwing.kernel import SPACE_CHECK
from lapwing.log import cold
from lapwing.log.appending import Appending, Frames, frame_at
from lapwing.log.cold import ColdLog
from lapwing.log.disk import OpenFiles
from lapwing.log.memory import MemoryLog
from lapwing.log.options import BLOCK_BYTES, CHUNK_BYTES, LogOptions
from lapwing.log.segments import opening, recovery, reservation, retention
from lapwing.log.segments import reader as reading
from lapwing.log.segments.attributes import Extra, RecentRows, Rows, RowText, extras_of
from lapwing.log.segments.index import QUARANTINED, BadRecord
from lapwing.log.segments.reader import Block, InFile, Place, Reader
from lapwing.log.segments.retention import RetentionLimits
from lapwing.log.segments.segment import Batch, Segment, joined, last_time, time_of
from lapwing.log.segments.sync import Sync
from lapwing.log.segments.window import Window

if TYPE_CHECKING:
    from lapwing.log.replicated import ReplicatedLog

__all__ = ["DiskLog", "Extra", "LogOptions", "OnCorrupt", "Reader", "RetentionLimits", "TopicLog"]

T = TypeVar("T")
OnCorrupt = Callable[[str, int, int, int], None]  # path, offset, first sequence, count

NONE_LOST: Final = range(0)
_NO_MEMO: Final = (0, 0, b"")
_COLD_READERS: Final = 8  # readers of old rows that are remembered


def _ignore(path: str, offset: int, first: int, count: int) -> None:
    """Ignore a corrupt range; `DiskLog.notes` has it anyway."""


class DiskLog(Appending):
    """The log of one topic in a directory of its own.

    Opening mends what a crash left, and `notes` names it. One log belongs to one thread; only the call that
    `begin_sync` gives may run in another.
    """

    __slots__ = (
        "__weakref__", "_cold_rows", "_firsts", "_lazy", "_memo", "_noted_bytes", "_recent_rows", "_reported",
        "_reserved", "_rows_end", "_segments", "_sync", "_unwritten_rows", "_window", "directory", "files", "first",
        "identity", "lost", "node", "notes", "on_corrupt", "options", "unserved",
    )  # fmt: skip

    def __init__(
        self,
        directory: str | os.PathLike[str],
        node: int,
        *,
        now: int = 0,
        options: LogOptions | None = None,
        files: OpenFiles | None = None,
        on_corrupt: OnCorrupt = _ignore,
        by_form: bool = False,
    ) -> None:
        """Open the log in `directory`, or create one there (for `node`, at the time `now`).

        An existing log keeps the node of its ids, whatever `node` is. With `by_form` frames that no checksum covers are
        served if they look sound, whenever they were written. Raises `LogError`.
        """
        path = os.fspath(directory)
        options = LogOptions() if options is None else options
        files = OpenFiles() if files is None else files
        notes: list[str] = []
        opened = opening.open_directory(path, node, now=now, options=options, files=files, notes=notes, by_form=by_form)
        lost = opened.lost or NONE_LOST
        self._begin(path, opened.identity, opened.node, opened.segments, options, files, notes, on_corrupt, lost)

    def _begin(
        self,
        directory: str,
        identity: str,
        node: int,
        segments: list[Segment],
        options: LogOptions,
        files: OpenFiles,
        notes: list[str],
        on_corrupt: OnCorrupt,
        lost: range = NONE_LOST,
        sync: Sync | None = None,
    ) -> None:
        """Begin with these segments; `sync` is what is synced of them, where that is known."""
        super().__init__()
        self.directory = directory
        self.identity = identity  # 16 hex digits; a log that is created again has another one
        self.node = node  # in the ids of its messages
        self.lost = lost  # sequences that a crash took, found when the log was opened; they are never given out again
        self.options = options
        self.files = files
        self.notes = notes  # what was mended, for the operator
        self.on_corrupt = on_corrupt
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
        self.unserved: list[tuple[int, int]] = []  # runs that could not be served when they were read
        self._reported: set[tuple[str, int]] = set()
        self._memo: tuple[int, int, Frames] = _NO_MEMO  # the block that a single frame was read from last
        self._cold_rows: list[tuple[Segment, int, Rows]] = []  # that were read last, and from which sequence on

    # --- a log that is not used --------------------------------------------------------------------------------

    def pack(self) -> ColdLog | None:
        """Return the state of the log in few bytes, and give its descriptors back; nobody may write to it afterwards.

        None, with no change, where messages are not written, a sync is under way or has failed, or a report was not
        taken yet.
        """
        unwritten = self._lazy or self.fresh or self._unwritten_rows or self._reserved
        if unwritten or self.notes or self.unserved or self._reported:
            return None
        packed = cold.pack(self.identity, self._segments, self._sync)
        if packed is None:
            return None
        for segment in self._segments:
            segment.close()
        self.files.keep(self, 0)
        return ColdLog(self.node, self.first, self.end, self._rows_end, packed)

    @classmethod
    def unpack(
        cls, packed: ColdLog, directory: str, options: LogOptions, files: OpenFiles, on_corrupt: OnCorrupt = _ignore
    ) -> Self:
        """Return the log that was packed, without a look at its files: nobody has touched them."""
        identity, segments, sync = cold.unpack(packed.packed, directory, files, options)
        log = cls.__new__(cls)
        log._begin(directory, identity, packed.node, segments, options, files, [], on_corrupt, sync=sync)
        log._rows_end = packed.rows_end
        return log

    # --- appending ---------------------------------------------------------------------------------------------

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
        if self._segments:
            last = self._segments[-1]
            last.torn = True
            if last.end > self.end:
                self.next = self.end = self.written = last.end
                self._window.clear(last.end)
                self._unwritten_rows.clear()
        self._window.cut(self.end)
        while self._unwritten_rows and self._unwritten_rows[-1].last >= self.end:
            self._unwritten_rows.pop()
        self._rows_end = self.end  # the newest rows may not be in memory: they are read
        self._recent_rows = RecentRows(self.end)

    def shrink_window(self) -> None:
        """Have the memory of the newest bytes counted, and cut, when it has changed much."""
        window = self._window
        if window.bytes > self.options.tail_bytes:  # less often than with every flush
            window.shrink(self.options.tail_bytes * 3 // 4, self.written)
        kept = window.bytes + self._recent_rows.bytes
        if not 0 <= kept - self._noted_bytes <= self._noted_bytes >> 3:
            self._noted_bytes = kept
            self._note_kept()

    def _note_kept(self) -> None:
        """Have everything counted that is in memory and could be read again."""
        kept = self._window.bytes + self._recent_rows.bytes + len(self._memo[2])
        self.files.keep(self, kept + sum(len(rows.text) for _, _, rows in self._cold_rows))

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
        fresh = self.fresh
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

    # --- reading -----------------------------------------------------------------------------------------------

    def reader(self, sequence: int) -> Reader:
        """Return a reader at `sequence`."""
        return Reader(self, sequence, self.files)

    def load(self, sequence: int, place: Place | None, max_bytes: int = BLOCK_BYTES) -> Block:
        """Return the block that holds `sequence`: first, end, frames, and the next place; frames None: quarantined."""
        if not self.first <= sequence < self.end:
            raise OutOfRange(f"{self.directory}: sequence {sequence} of [{self.first}, {self.end})")
        window = self._window
        if window.firsts and window.firsts[0] <= sequence:
            first, end, frames = window.block(sequence, max_bytes)
            return first, end, frames, None
        at = bisect_right(self._firsts, sequence) - 1
        segment = self._segments[at]
        if sequence >= segment.end:
            following = self._firsts[at + 1]
            self._report_unserved(segment.frames.path, segment.size, segment.end, following - segment.end)
            return segment.end, following, None, None
        return self._with_sound_index(segment, lambda: self._load_cold(segment, sequence, place, max_bytes))

    def _with_sound_index(self, segment: Segment, look: Callable[[], T]) -> T:
        """Return what `look` finds in a segment; the index is rebuilt first when it is damaged. Raises `ReadFailed`."""
        try:
            try:
                return look()
            except BadRecord:
                self.rebuild(segment)
                return look()
        except BadRecord as error:
            raise CorruptChunk(segment.index.file.path, 0, str(error)) from error
        except OSError as error:
            raise ReadFailed(segment.index.file.path, 0, error) from error

    def rebuild(self, segment: Segment, *, by_form: bool = False) -> None:
        """Write the index of a segment again, with what is sound of it. Raises `OSError` or `LogError`."""
        recovery.rebuild_index(segment, node=self.node, note=self._note, by_form=by_form)
        if segment is self._segments[-1]:
            segment.last = None  # its record may be another one now

    def _load_cold(self, segment: Segment, sequence: int, place: Place | None, max_bytes: int) -> Block:
        number = -1
        if place is not None and place[0] is segment and place[1] < segment.index.count:
            chunk = segment.index.chunk(place[1])
            if chunk.first <= sequence < chunk.end:  # not so after a seek, or when the index was rebuilt meanwhile
                number = place[1]
        if number < 0:
            number = segment.index.find(sequence)
        chunks, frames, problem = segment.read(number, max_bytes)
        if frames is None:
            self._report_unserved(segment.frames.path, chunks[0].offset, chunks[0].first, chunks[0].count, problem)
        return chunks[0].first, chunks[-1].end, frames, (segment, number + len(chunks))

    def _note(self, path: str, offset: int, what: str) -> None:
        self.notes.append(f"{path}: offset {offset}: {what}")

    def _report_unserved(self, path: str, offset: int, first: int, count: int, problem: str = "missing") -> None:
        """Report a range that cannot be served, once."""
        if (path, offset) not in self._reported:
            self._reported.add((path, offset))
            self.unserved.append((first, first + count))
            self._note(path, offset, f"messages {first} to {first + count - 1} not served: {problem}")
            self.on_corrupt(path, offset, first, count)

    def frame(self, sequence: int) -> Frames:
        """Return one frame, as it was first delivered; raises `OutOfRange` or `CorruptChunk`."""
        first, end, frames = self._memo
        if not first <= sequence < end or sequence < self.first:
            first, end, loaded, _ = self.load(sequence, None, 0)
            if loaded is None:
                path, offset = self._place(sequence)
                raise CorruptChunk(path, offset, f"messages {first} to {end - 1} are not served")
            frames = loaded
            self._memo = (first, end, frames)
            self._note_kept()
        return frame_at(frames, sequence - first)

    def _place(self, sequence: int) -> tuple[str, int]:
        """Return the file and the offset of the chunk that holds `sequence`, or should."""
        segment = self._segments[bisect_right(self._firsts, sequence) - 1]
        if sequence >= segment.end:
            return segment.frames.path, segment.size
        chunk = self._with_sound_index(segment, lambda: segment.index.chunk(segment.index.find(sequence)))
        return segment.frames.path, chunk.offset

    def shed(self) -> None:
        """Drop what is in memory and also on disk."""
        self._memo = _NO_MEMO
        self._noted_bytes = -1
        self._window.shrink(0, self.written)
        self._recent_rows.shrink(0)
        self._cold_rows = []

    def blocks(self, start: int, stop: int, max_bytes: int) -> Iterator[tuple[int, int, memoryview]]:
        """[start, stop) in big blocks: first, count, frames (empty: a quarantined range)."""
        return reading.blocks(Reader(self, start, self.files, max_bytes), stop, max_bytes)

    def in_file(self, start: int, stop: int, max_bytes: int) -> InFile | None:
        """Return where messages from `start` on lie in a file: whole chunks below `stop`, of `max_bytes` or only one.

        None when they have to be asked for: they are in memory alone, quarantined, or `start` is amid a chunk. Nothing
        of them is read here, so whoever reads them has to verify their checksums.
        """
        if not self.first <= start < min(stop, self.written):
            return None
        segment = self._segments[bisect_right(self._firsts, start) - 1]
        if start >= segment.end:
            return None
        run = self._with_sound_index(segment, lambda: segment.run(segment.index.find(start), max_bytes))
        chunks = [chunk for chunk in run if chunk.end <= stop and not chunk.flags & QUARANTINED]
        if not chunks or chunks[0].first != start:
            return None
        checks = [(chunk.length, chunk.crc) for chunk in chunks]
        return InFile(start, chunks[-1].end - start, segment.frames.path, chunks[0].offset, checks)

    def extras(self, start: int, stop: int) -> list[Extra]:
        """Return what messages of [start, stop) carry beside their bodies, in order. Raises `ReadFailed`."""
        stop = min(stop, self.end)
        return extras_of(self.rows(start, stop), start, stop)

    def rows(self, start: int, stop: int) -> RowText:
        """Return the rows of the extras of [start, stop) as text. Raises `ReadFailed`."""
        if start >= self._rows_end:
            return b""
        if start >= self._recent_rows.start:
            return self._recent_rows.text(start, stop)
        segments = self._segments_with_rows(start, stop)
        texts = [self._rows_of(segment, start, min(stop, segment.end)) for segment in segments]
        texts += [rows.between(start, stop) for rows in self._unwritten_rows]
        return b",".join([text for text in texts if text])

    def _segments_with_rows(self, start: int, stop: int) -> list[Segment]:
        """Return the segments that may have rows of [start, stop)."""
        at = max(bisect_right(self._firsts, start) - 1, 0)
        return [segment for segment in self._segments[at : bisect_left(self._firsts, stop)] if segment.extras.size]

    def _rows_of(self, segment: Segment, start: int, stop: int) -> RowText:
        """Return the rows of a segment, which are read in larger pieces."""
        texts = []
        while start < stop:
            rows = self._cold(segment, start, stop)
            if text := rows.between(start, min(stop, rows.last + 1)):  # its text may have more, which come next
                texts.append(text)
            start = rows.last + 1
        return texts[0] if len(texts) == 1 else b",".join(texts)

    def _cold(self, segment: Segment, start: int, stop: int) -> Rows:
        """Return rows of a segment that have those from `start` on."""
        for known, begin, rows in self._cold_rows:
            if known is segment and begin <= start <= rows.last:
                return rows
        rows = self._with_sound_index(
            segment, lambda: segment.extras.rows_from(start, stop, self._report_damaged_rows)
        )
        self._cold_rows = [(segment, start, rows), *self._cold_rows[: _COLD_READERS - 1]]
        self._note_kept()
        return rows

    def _report_damaged_rows(self, path: str, offset: int, length: int) -> None:
        self._report_unserved(path, offset, 0, 0, f"{length} bytes of headers and deferrals are damaged")

    def bytes_from(self, sequence: int) -> int:
        """Return about how many bytes of frames lie from `sequence` on: exact between chunks. Raises `ReadFailed`."""
        unwritten = sum(len(frames) for _, _, frames in self._window.since(max(sequence, self.written)))
        if sequence >= self.written or not self._segments:
            return unwritten
        at = max(bisect_right(self._firsts, sequence) - 1, 0)
        segment = self._segments[at]
        total = unwritten + sum(segment.size for segment in self._segments[at:])
        if segment.first <= sequence < segment.end:
            chunk = self._with_sound_index(segment, lambda: segment.index.chunk(segment.index.find(sequence)))
            total -= chunk.offset + chunk.length * (sequence - chunk.first) // max(chunk.count, 1)
        elif sequence >= segment.end:
            total -= segment.size
        return total

    def at_time(self, timestamp: int) -> int:
        """Return the first sequence at or after a time; `end` when there is none."""
        for segment in self._segments:
            if segment.index.count and segment.newest >= timestamp:
                return self._with_sound_index(segment, lambda: self._search_time(segment, timestamp))  # noqa: B023 - called at once
        return reading.first_since(self.reader(self.written), self.end, timestamp)

    def _search_time(self, segment: Segment, timestamp: int) -> int:
        chunk = segment.index.chunk(segment.index.find_time(timestamp))
        return reading.first_since(self.reader(chunk.first), chunk.end, timestamp)

    def timestamp(self, sequence: int) -> int:
        """Return when a message was published, in ns; about when, if it is not served any more. Raises `OutOfRange`."""
        try:
            return time_of(self.frame(sequence))
        except CorruptChunk:
            segment = self._segments[bisect_right(self._firsts, sequence) - 1]
            if sequence >= segment.end:
                return segment.newest
            return self._with_sound_index(segment, lambda: segment.index.chunk(segment.index.find(sequence))).time

    # --- deleting ----------------------------------------------------------------------------------------------

    def segment_start(self, sequence: int) -> int:
        """Return the first sequence of the segment that holds `sequence`, or would."""
        return self._firsts[max(bisect_right(self._firsts, sequence) - 1, 0)] if self._firsts else self.first

    def release(self, sequence: int, *, now: int, limits: RetentionLimits) -> list[str]:
        """Delete the segments that nobody needs (all below `sequence`) and `limits` does not want; their names.

        The segment that is being written to always stays. With durability "memory", what nobody needs or wants is not
        even written. Raises `WriteFailed`.
        """
        if self._lazy and not limits.keeps:
            self._skip(min(sequence, self.end))
        closed = self._segments[:-1]
        if not closed or closed[0].end > sequence:
            return []
        gone = retention.expendable(
            closed,
            active_bytes=self._segments[-1].size,
            needed=sequence,
            now=now,
            limits=limits,
            free=self._free() if limits.min_free_bytes else None,
            end=self.end,
        )
        names: list[str] = []
        for segment in closed[:gone]:
            try:
                segment.unlink()
            except OSError as error:
                raise WriteFailed(segment.frames.path, 0, error) from error
            del self._segments[0], self._firsts[0]
            self._sync.deleted(segment)
            self.first = self._firsts[0]
            names.append(segment.name)
        return names

    def _free(self) -> int | None:
        """Return the disk's free space; None when it is not known, which is no reason to delete anything."""
        try:
            return self.files.disk.free(self.directory)
        except OSError:
            return None

    def _skip(self, sequence: int) -> None:
        """Drop messages that are in memory alone: the next segment begins behind them.

        Its empty file keeps the place; so that not every message makes one, a fair number must be worth it.
        """
        target = self._window.boundary(sequence)
        if target - self.written <= self.options.mem_queue_size // 2:
            return
        segment = self._segment(target)
        try:
            if self._segments:
                self._segments[-1].write_index()
            segment.frames.truncate(0)
            segment.index.file.truncate(0)
        except OSError as error:
            raise WriteFailed(segment.frames.path, 0, error) from error
        self._segments.append(segment)
        self._firsts.append(target)
        self.written = target
        self._window.shrink(0, target)
        self._unwritten_rows = [
            Rows(max(rows.first, target), rows.last, rows.between(target, rows.last + 1))
            for rows in self._unwritten_rows
            if rows.last >= target
        ]
        self.first = self._firsts[0]

    def close(self) -> None:
        """Write what is unwritten and give the descriptors back; raises `WriteFailed`."""
        try:
            self.flush()
            waiting = self._unwritten()
            if waiting:
                self._write(waiting, self._unwritten_rows)
                self.written = self.end
                self._unwritten_rows = []
            self.write_index()
            if self._reserved:
                self._clear_reservation()
        finally:
            for segment in self._segments:
                segment.close()
            self.files.keep(self, 0)

    def destroy(self) -> None:
        """Remove the directory with journal and side logs. Raises `WriteFailed` and leaves it all."""
        for segment in self._segments:
            segment.close()
        self.files.keep(self, 0)
        opening.remove_directory(self.directory, self.files.disk)
        self.first = self.end


TopicLog: TypeAlias = "DiskLog | MemoryLog | ReplicatedLog"  # as its topic sees it
