"""The log of one topic: read ranges of it, and delete what is not needed. `LogWriter` appends to it."""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from typing import Final, Self, TypeVar

from lapwing.errors import CorruptChunk, OutOfRange, ReadFailed, WriteFailed
from lapwing.log import cold
from lapwing.log.appending import Frames, frame_at
from lapwing.log.cold import ColdLog
from lapwing.log.disk import OpenFiles
from lapwing.log.memory import MemoryLog
from lapwing.log.options import BLOCK_BYTES, LogOptions
from lapwing.log.segments import opening, recovery, retention
from lapwing.log.segments import reader as reading
from lapwing.log.segments.attributes import Extra, Rows, RowText
from lapwing.log.segments.index import QUARANTINED, BadRecord
from lapwing.log.segments.log_writer import LogWriter
from lapwing.log.segments.reader import Block, InFile, Place, Reader
from lapwing.log.segments.retention import RetentionLimits
from lapwing.log.segments.segment import Segment, time_of

__all__ = ["DiskLog", "Extra", "LogOptions", "OnCorrupt", "Reader", "RetentionLimits", "TopicLog"]

T = TypeVar("T")
OnCorrupt = Callable[[str, int, int, int], None]  # path, offset, first sequence, count

NONE_LOST: Final = range(0)
_NO_MEMO: Final = (0, 0, b"")
_COLD_READERS: Final = 8  # readers of old rows that are remembered


def _ignore(path: str, offset: int, first: int, count: int) -> None:
    """Ignore a corrupt range; `DiskLog.notes` has it anyway."""


class DiskLog(LogWriter):
    """The log of one topic in a directory of its own.

    Opening mends what a crash left, and `notes` names it. One log belongs to one thread; only the call that
    `begin_sync` gives may run in another.
    """

    __slots__ = ("_cold_rows", "_memo", "_reported", "identity", "lost", "node", "on_corrupt", "unserved")

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
        super().__init__(path, opened.segments, options, files, notes)
        self._begin(opened.identity, opened.node, opened.lost or NONE_LOST, on_corrupt)

    def _begin(self, identity: str, node: int, lost: range, on_corrupt: OnCorrupt) -> None:
        """Begin with nothing known of what readers have met."""
        self.identity, self.node, self.lost = identity, node, lost
        self.on_corrupt = on_corrupt
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
        LogWriter.__init__(log, directory, segments, options, files, [], sync)
        log._rows_end = packed.rows_end
        log._begin(identity, packed.node, NONE_LOST, on_corrupt)
        return log

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
            self.files.keep(self, self._window.bytes + self._recent_rows.bytes + len(frames))
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
        if start >= self._recent_rows.start:
            return self._recent_rows.extras(start, stop)
        found: list[Extra] = []
        for segment in self._segments_with_rows(start, stop):
            found += segment.extras.read(start, stop, self._report_damaged_rows)
        for rows in self._unwritten_rows:
            found += rows.extras(start, stop)
        return found

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
            if text := rows.between(start, stop):
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


TopicLog = DiskLog | MemoryLog  # as its topic sees it
