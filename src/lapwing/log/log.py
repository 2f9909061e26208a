"""A topic's segments: append a batch, slice a range, roll."""

import contextlib
import errno
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from lapwing import kernel
from lapwing.errors import CorruptChunk, OutOfRange, ReadFailed, WriteFailed
from lapwing.log import opening, recovery, reservation, retention
from lapwing.log import reader as reading
from lapwing.log.attributes import Extra
from lapwing.log.disk import OpenFiles
from lapwing.log.index import QUARANTINED, BadRecord
from lapwing.log.options import BLOCK_BYTES, CHUNK_BYTES, LogOptions
from lapwing.log.reader import EVERYTHING, Block, InFile, Place, Reader
from lapwing.log.retention import RetentionLimits
from lapwing.log.segment import Batch, Segment, joined, last_time, time_of
from lapwing.log.sync import Sync
from lapwing.log.topiclog import Frames, TopicLog
from lapwing.log.window import Window

__all__ = ["DiskLog", "Extra", "LogOptions", "OnCorrupt", "Reader", "RetentionLimits", "TopicLog"]

T = TypeVar("T")
OnCorrupt = Callable[[str, int, int, int], None]  # path, offset, first sequence, count

GONE: Final = "gone-"  # what a topic's directory is called while it is removed
_SPACE_CHECK: Final = 1 << 20  # bytes written between two looks at the free space


def _ignore(path: str, offset: int, first: int, count: int) -> None:
    """Tell nobody of a corrupt range; `DiskLog.notes` has it anyway."""


class DiskLog:
    """The log of one topic in a directory of its own.

    Opening mends what a crash left, and `notes` says what that was. One log belongs to one thread; only the call
    that `begin_sync` gives may run in another.
    """

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
        self.directory = os.fspath(directory)
        self.options = LogOptions() if options is None else options
        self.files = OpenFiles() if files is None else files
        self.on_corrupt = on_corrupt
        self.notes: list[str] = []
        self._lazy = self.options.durability == "memory"
        self._told: set[tuple[str, int]] = set()
        self.unserved: list[tuple[int, int]] = []  # runs that could not be served when they were read
        opened = opening.open_directory(
            self.directory, node, now=now, options=self.options, files=self.files, notes=self.notes, by_form=by_form
        )
        self.identity, self.node, self.lost = opened.identity, opened.node, opened.lost
        self._segments = opened.segments
        self._firsts = [segment.first for segment in self._segments]
        self.next = self.end = self._segments[-1].end if self._segments else 0
        self.first = self._firsts[0] if self._firsts else self.next
        self._written = self.next  # with durability "memory", what is beyond it is in the window alone
        self._window = Window(self.next)
        self._promised = False  # whether the disk knows that there may be something beyond `_written`
        self._unwritten_extras: list[Extra] = []
        self._pending: list[Frames] = []
        self._pending_counts: list[int] = []
        self._pending_extras: list[Extra] = []
        self._pending_bytes = 0
        self._sync = Sync(self.directory, self.files, self.end)
        self._since_check = _SPACE_CHECK
        self._noted_bytes = -1  # of the window, when the files were last given its size
        self._memo: tuple[int, int, Frames] = (0, 0, b"")

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first."""
        return tuple(self._segments)

    # --- writing -----------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether something was appended and not yet flushed."""
        return bool(self._pending)

    @property
    def bytes(self) -> int:
        """Bytes of frames in all segments, and in memory waiting to be written."""
        unwritten = sum(len(frames) for _, _, frames in self._window.since(self._written))
        return sum(segment.size for segment in self._segments) + unwritten

    def append(self, frames: Frames, count: int, *, now: int, extras: Sequence[Extra] = ()) -> int:
        """Take a batch of frames that carry the ids from `next` on; the first sequence. Nothing is written yet."""
        first = self.next
        self._pending.append(frames)
        self._pending_counts.append(count)
        self._pending_bytes += len(frames)
        if extras:
            self._pending_extras.extend(extras)
        self.next = first + count
        return first

    def flush(self) -> None:
        """Make everything appended count: one write of frames, one of records. Readers see it from here on.

        With durability "memory" nothing is written while at most `mem_queue_size` messages wait. Raises `WriteFailed`;
        then what was appended is forgotten, `next` is back at `end`, and the files are as they were.
        """
        pending = self._pending
        if not pending:
            return
        window = self._window
        frames = pending[0] if len(pending) == 1 else b"".join(pending) if self._pending_bytes <= CHUNK_BYTES else b""
        if self._add_small(frames):
            window.add(self.next - self.end, frames)
            self._written = self.next
        else:
            batches = self._batches()
            if self._lazy:
                self._write_beyond_memory(batches)
            else:
                self._write_or_forget(batches, self._pending_extras, atomic=max(self._pending_counts) > 1)
                self._written = self.next
            for count, frames, _ in batches:
                window.add(count, frames)
        self.end = self.next
        self._forget_pending()
        if window.bytes > self.options.tail_bytes:  # less often than with every flush
            window.shrink(self.options.tail_bytes * 3 // 4, self._written)
        if not 0 <= window.bytes - self._noted_bytes <= self._noted_bytes >> 3:
            self._noted_bytes = window.bytes
            self.files.keep(self, window.bytes)

    def _add_small(self, frames: Frames) -> bool:
        """Add the pending frames to the last segment, as nearly all are; return False for those that need more care."""
        if self._lazy or self._pending_extras or not self._segments:
            return False
        segment, size = self._segments[-1], len(frames)
        if not 0 < size <= CHUNK_BYTES:
            return False
        if segment.size + size > self.options.segment_bytes or self._since_check + size >= _SPACE_CHECK:
            return False
        atomic = max(self._pending_counts) > 1
        try:
            if not segment.add(self.next - self.end, frames, time_of(frames), self._sync.boundary, atomic=atomic):
                return False
        except WriteFailed:
            self._give_up_pending()
            raise
        self._since_check += size
        self._sync.wrote(segment)
        return True

    def _write_beyond_memory(self, batches: list[Batch]) -> None:
        """Write what the memory queue has no room for, with all that waits in it; or nothing while there is room."""
        if self.next - self._written > self.options.mem_queue_size:
            self._write_or_forget(self._unwritten() + batches, self._unwritten_extras + self._pending_extras)
            self._written = self.next
            self._unwritten_extras = []
        else:
            if not self._promised:
                self._promise()
            self._unwritten_extras += self._pending_extras

    def _batches(self) -> list[Batch]:
        """What is pending, joined or cut to what makes good chunks."""
        pending = self._pending
        if self._pending_bytes <= CHUNK_BYTES:
            return [(self.next - self.end, b"".join(pending), time_of(pending[-1]))]
        counted = zip(self._pending_counts, pending, strict=True)
        return joined([(count, frames, time_of(frames)) for count, frames in counted])

    def _unwritten(self) -> list[Batch]:
        """What with durability "memory" was flushed and is in the window alone."""
        return joined([(count, frames, last_time(frames)) for _, count, frames in self._window.since(self._written)])

    def _promise(self) -> None:
        """Have the disk know how far memory may be ahead of it, so that a crash gives no sequence out twice."""
        try:
            reservation.reserve(self.directory, self.options.mem_queue_size, self.files)
        except OSError as error:
            self._give_up_pending()
            raise WriteFailed(os.path.join(self.directory, reservation.FILE), 0, error) from error
        self._promised = True

    def _write_or_forget(self, batches: list[Batch], extras: Sequence[Extra], *, atomic: bool = True) -> None:
        try:
            self._write(batches, extras, atomic=atomic)
        except WriteFailed:
            self._give_up_pending()
            raise

    def _give_up_pending(self) -> None:
        self.next = self.end
        self._forget_pending()

    def _forget_pending(self) -> None:
        self._pending.clear()
        self._pending_counts.clear()
        if self._pending_extras:
            self._pending_extras = []
        self._pending_bytes = 0

    def _write(self, batches: list[Batch], extras: Sequence[Extra], *, atomic: bool = True) -> None:
        size = 0
        for _, frames, _ in batches:
            size += len(frames)
        if self.options.min_free_bytes:
            self._check_space(size)
        else:
            self._since_check = 0
        segments = self._segments
        if segments and (segments[-1].size + size <= self.options.segment_bytes or not segments[-1].size):
            beside = bool(extras) and not segments[-1].extras.size  # a file that is made with this write
            segments[-1].write(batches, extras, self._sync.boundary, atomic=atomic)
            self._sync.wrote(segments[-1], created=beside)
        else:
            segment = self._roll()
            try:
                segment.write(batches, extras)
            except WriteFailed:
                self._unroll(segment)
                raise
            if segments:
                segments[-1].give_back()
            segments.append(segment)
            self._firsts.append(segment.first)
            self._sync.wrote(segment, created=True)

    def _check_space(self, size: int) -> None:
        """Refuse before the disk is so full that nothing else works either."""
        self._since_check += size
        if self._since_check < _SPACE_CHECK:
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
        self._since_check = 0

    def _roll(self) -> Segment:
        """Return a new segment, empty, that begins where the last one ends."""
        if self._segments:
            self._segments[-1].mend()
            self._segments[-1].write_index()
        segment = self._segment(self._written)
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
        if self._segments:
            self._segments[-1].write_index()

    # --- syncing -----------------------------------------------------------------------------------------------

    @property
    def unsynced(self) -> bool:
        """Whether something flushed would not survive a power loss."""
        return self._sync.needed

    @property
    def synced(self) -> int:
        """What is below it would survive a power loss, as far as this log's syncs know."""
        return self._sync.reached

    def begin_sync(self) -> Callable[[], None] | None:
        """A call that syncs what is flushed by now, to be run in any thread; None when there is nothing to do.

        The log stays usable meanwhile; `finish_sync` must be told how the call ended before another can begin. The
        call raises `OSError` with the file's name.
        """
        return self._sync.begin(self._written)

    def finish_sync(self, error: OSError | None) -> None:
        """Say how the call of `begin_sync` ended; after an error all of it is to be synced again."""
        self._sync.finish(error)

    def sync_again(self, sequence: int) -> None:
        """Have the next sync cover everything from `sequence` on, also what an earlier process wrote."""
        for segment in self._segments:
            if segment.end > sequence:
                self._sync.wrote(segment, created=True)

    # --- reading -----------------------------------------------------------------------------------------------

    def reader(self, sequence: int) -> Reader:
        """A reader that stands at `sequence`."""
        return Reader(self, sequence, self.files)

    def load(self, sequence: int, place: Place | None, max_bytes: int = BLOCK_BYTES) -> Block:
        """The block that holds `sequence`: first, end, frames, and where to go on; frames None: quarantined."""
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
            self._tell(segment.frames.path, segment.size, segment.end, following - segment.end)
            return segment.end, following, None, None
        return self._sure(segment, lambda: self._load_cold(segment, sequence, place, max_bytes))

    def _sure(self, segment: Segment, look: Callable[[], T]) -> T:
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
        recovery.rebuild_index(segment, node=self.node, say=self._note, by_form=by_form)
        if segment is self._segments[-1]:
            segment.last = None  # its record may be another one now

    def _load_cold(self, segment: Segment, sequence: int, place: Place | None, max_bytes: int) -> Block:
        number = -1
        if place is not None and place[0] is segment and place[1] < segment.index.count:
            chunk = segment.index.chunk(place[1])
            if chunk.first <= sequence < chunk.end:  # not so after a seek, or when the index was made anew meanwhile
                number = place[1]
        if number < 0:
            number = segment.find(sequence)
        chunks, frames, problem = segment.read(number, max_bytes)
        if frames is None:
            self._tell(segment.frames.path, chunks[0].offset, chunks[0].first, chunks[0].count, problem)
        return chunks[0].first, chunks[-1].end, frames, (segment, number + len(chunks))

    def _note(self, path: str, offset: int, what: str) -> None:
        self.notes.append(f"{path}: offset {offset}: {what}")

    def _tell(self, path: str, offset: int, first: int, count: int, problem: str = "missing") -> None:
        """Report a range that cannot be served, once."""
        if (path, offset) not in self._told:
            self._told.add((path, offset))
            self.unserved.append((first, first + count))
            self._note(path, offset, f"messages {first} to {first + count - 1} not served: {problem}")
            self.on_corrupt(path, offset, first, count)

    def frame(self, sequence: int) -> Frames:
        """One frame, as it was first delivered; raises `OutOfRange` or `CorruptChunk`."""
        first, end, frames = self._memo
        if not first <= sequence < end or sequence < self.first:
            first, end, loaded, _ = self.load(sequence, None, 0)
            if loaded is None:
                path, offset = self._place(sequence)
                raise CorruptChunk(path, offset, f"messages {first} to {end - 1} are not served")
            frames = loaded
            self._memo = (first, end, frames)
            self.files.keep(self, self._window.bytes + len(frames))
        _, at = kernel.take_frames(frames, 0, len(frames), sequence - first, EVERYTHING)
        _, after = kernel.take_frames(frames, at, len(frames), 1, EVERYTHING)
        return frames[at:after]

    def _place(self, sequence: int) -> tuple[str, int]:
        """The file and the offset of the chunk that holds `sequence`, or should."""
        segment = self._segments[bisect_right(self._firsts, sequence) - 1]
        if sequence >= segment.end:
            return segment.frames.path, segment.size
        chunk = self._sure(segment, lambda: segment.index.chunk(segment.find(sequence)))
        return segment.frames.path, chunk.offset

    def shed(self) -> None:
        """Let go of what is in memory and also on disk."""
        self._memo = (0, 0, b"")
        self._noted_bytes = -1
        self._window.shrink(0, self._written)

    def blocks(self, start: int, stop: int, max_bytes: int) -> Iterator[tuple[int, int, memoryview]]:
        """[start, stop) in big blocks: first, count, frames (empty: a quarantined range)."""
        return reading.blocks(Reader(self, start, self.files, max_bytes), stop, max_bytes)

    def in_file(self, start: int, stop: int, max_bytes: int) -> InFile | None:
        """Where messages from `start` on lie in a file: whole chunks below `stop`, of `max_bytes` or a single one.

        None when they have to be asked for: they are in memory alone, quarantined, or `start` is amid a chunk. Nothing
        of them is read here, so whoever reads them has to verify their checksums.
        """
        if not self.first <= start < min(stop, self._written):
            return None
        segment = self._segments[bisect_right(self._firsts, start) - 1]
        if start >= segment.end:
            return None
        run = self._sure(segment, lambda: segment.run(segment.find(start), max_bytes))
        chunks = [chunk for chunk in run if chunk.end <= stop and not chunk.flags & QUARANTINED]
        if not chunks or chunks[0].first != start:
            return None
        checks = [(chunk.length, chunk.crc) for chunk in chunks]
        return InFile(start, chunks[-1].end - start, segment.frames.path, chunks[0].offset, checks)

    def extras(self, start: int, stop: int) -> list[Extra]:
        """Return what messages of [start, stop) carry beside their bodies, in order. Raises `ReadFailed`."""
        found: list[Extra] = []
        stop = min(stop, self.end)
        at = max(bisect_right(self._firsts, start) - 1, 0)
        for segment in self._segments[at:]:
            if segment.first >= stop:
                break
            if segment.extras.size:
                found += segment.extras.read(start, stop, self._tell_extras)
        if self._unwritten_extras:
            found += [extra for extra in self._unwritten_extras if start <= extra.sequence < stop]
        return found

    def _tell_extras(self, path: str, offset: int, length: int) -> None:
        self._tell(path, offset, 0, 0, f"{length} bytes of headers and deferrals are damaged")

    def bytes_from(self, sequence: int) -> int:
        """Return about how many bytes of frames lie from `sequence` on: exact between chunks. Raises `ReadFailed`."""
        unwritten = sum(len(frames) for _, _, frames in self._window.since(max(sequence, self._written)))
        if sequence >= self._written or not self._segments:
            return unwritten
        at = max(bisect_right(self._firsts, sequence) - 1, 0)
        segment = self._segments[at]
        total = unwritten + sum(segment.size for segment in self._segments[at:])
        if segment.first <= sequence < segment.end:
            chunk = self._sure(segment, lambda: segment.index.chunk(segment.find(sequence)))
            total -= chunk.offset + chunk.length * (sequence - chunk.first) // max(chunk.count, 1)
        elif sequence >= segment.end:
            total -= segment.size
        return total

    def at_time(self, timestamp: int) -> int:
        """The first sequence at or after a time; `end` when there is none."""
        for segment in self._segments:
            if segment.index.count and segment.newest >= timestamp:
                return self._sure(segment, lambda: self._search_time(segment, timestamp))  # noqa: B023 - called at once
        return self._first_since(self._written, self.end, timestamp)

    def _search_time(self, segment: Segment, timestamp: int) -> int:
        chunk = segment.index.chunk(segment.index.find_time(timestamp))
        return self._first_since(chunk.first, chunk.end, timestamp)

    def _first_since(self, start: int, stop: int, timestamp: int) -> int:
        for first, _, frames in self.blocks(start, stop, BLOCK_BYTES):
            positions, _ = kernel.scan_frames(frames, 0, len(frames))
            for index in range(len(positions) - 1):
                if time_of(frames, positions[index]) >= timestamp:
                    return first + index
        return stop

    def timestamp(self, sequence: int) -> int:
        """When a message was published, in ns; of one that is not served any more, about when. Raises `OutOfRange`."""
        try:
            return time_of(self.frame(sequence))
        except CorruptChunk:
            segment = self._segments[bisect_right(self._firsts, sequence) - 1]
            if sequence >= segment.end:
                return segment.newest
            return self._sure(segment, lambda: segment.index.chunk(segment.find(sequence))).time

    # --- letting go --------------------------------------------------------------------------------------------

    def segment_start(self, sequence: int) -> int:
        """The first sequence of the segment that holds `sequence`, or would."""
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
            [retention.SegmentFacts(segment.end, segment.size, segment.newest) for segment in closed],
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
        """The disk's free space; None when it cannot be told, which is no reason to delete anything."""
        try:
            return self.files.disk.free(self.directory)
        except OSError:
            return None

    def _skip(self, sequence: int) -> None:
        """Let go of messages that are in memory alone: the next segment begins behind them.

        Its empty file keeps the place; so that not every message makes one, a fair number must be worth it.
        """
        target = self._window.boundary(sequence)
        if target - self._written <= self.options.mem_queue_size // 2:
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
        self._written = target
        self._window.shrink(0, target)
        self._unwritten_extras = [extra for extra in self._unwritten_extras if extra.sequence >= target]
        self.first = self._firsts[0]

    def close(self) -> None:
        """Write what is unwritten and give the descriptors back; raises `WriteFailed`."""
        try:
            self.flush()
            waiting = self._unwritten()
            if waiting:
                self._write(waiting, self._unwritten_extras)
                self._written = self.end
                self._unwritten_extras = []
            self.write_index()
            if self._promised:
                self._keep_promise()
        finally:
            for segment in self._segments:
                segment.close()
            self.files.keep(self, 0)

    def _keep_promise(self) -> None:
        try:
            reservation.clear(self.directory, self.files)
        except OSError as error:
            raise WriteFailed(os.path.join(self.directory, reservation.FILE), 0, error) from error
        self._promised = False

    def destroy(self) -> None:
        """Remove the directory and all in it, journal and side logs included. Raises `WriteFailed` and leaves it all.

        It is renamed first: a crash in between leaves nothing that looks like a topic, and the next start removes what
        could not be removed now. Whoever still reads finds nothing, and not what a log of the same name has there next.
        """
        for segment in self._segments:
            segment.close()
        self.files.keep(self, 0)
        gone = os.path.join(os.path.dirname(self.directory), GONE + os.urandom(6).hex())
        try:
            self.files.disk.rename(self.directory, gone)
        except FileNotFoundError:
            gone = ""
        except OSError as error:
            raise WriteFailed(self.directory, 0, error) from error
        self.first = self.end
        if not gone:
            return
        with contextlib.suppress(OSError):
            self.files.disk.remove_tree(gone)
