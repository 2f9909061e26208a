"""The end of a log: what was appended and is not yet written, and the way of nearly every write.

`setup.py` compiles this module as `_tail`, with the types of `_tail.pxd`; `kernel/__init__` chooses the form.
"""

from __future__ import annotations

from typing import Any, Final

from google_crc32c import extend

CHUNK_BYTES: Final = 1 << 20  # a chunk longer than this is split, unless it is one message
SPACE_CHECK: Final = 1 << 20  # bytes written between two looks at the free space

_PAGE_BITS: Final = 12  # a write within one page of 4096 bytes is there or not when its process is killed


class Extent:
    """The numbers of a segment that change with each write: where its messages and bytes end, and its last chunk."""

    __slots__ = ("end", "last", "merge_bytes", "newest", "recorded_boot", "reserved", "size", "torn")

    def __init__(self, end: int, merge_bytes: int, reserved: int) -> None:
        self.end = end
        self.size = 0  # bytes of frames that are known to be written
        self.newest = 0  # ns, the time of the newest message
        self.merge_bytes = merge_bytes  # a chunk is added to by later writes up to this length
        self.recorded_boot = False  # whether the last record in the index names this run of the machine
        self.last: Any = None  # the last chunk, where it may be added to
        self.reserved = reserved  # up to here no more room need be reserved
        self.torn = False  # bytes beyond the known sizes could not be cut off yet


class Blocks:
    """Blocks of frames without a hole between them, up to the sequence `end`; `firsts` has where each begins."""

    __slots__ = ("blocks", "bytes", "end", "firsts")

    def __init__(self, start: int) -> None:
        self.firsts: list[int] = []
        self.blocks: list[bytes] = []
        self.end = start
        self.bytes = 0

    def add(self, count: int, frames: bytes) -> None:
        """Put `count` more messages at the end."""
        self.firsts.append(self.end)
        try:
            self.blocks.append(frames)
        except MemoryError:
            self.firsts.pop()
            raise
        self.end += count
        self.bytes += len(frames)


class Tail:
    """The end of one log. The log's writer is a subclass, and does what needs more care.

    `next` is the sequence that the next message gets, `end` the one up to which messages can be read, and `written` the
    one up to which they are in the file. What lies between `end` and `next` is `fresh`: batches of frames, and how many
    messages each has. A batch is `several` if it must be there as a whole or not at all.
    """

    __slots__ = ("end", "fresh", "fresh_bytes", "fresh_counts", "next", "noted", "several", "since_check", "written")

    def __init__(self) -> None:
        self.next = self.end = self.written = 0
        self.fresh: list[bytes] = []
        self.fresh_counts: list[int] = []
        self.fresh_bytes = 0
        self.several = False
        self.since_check = 0  # bytes written since the last look at the free space
        self.noted = False  # somebody knows that index records are to be written

    def add(self, frames: bytes, count: int, several: bool) -> None:
        """Append a batch of frames with the ids from `next` on. Nothing is written yet."""
        self._put(frames, count)
        if several:
            self.several = True

    def _put(self, frames: bytes, count: int) -> None:
        self.fresh_counts.append(count)
        try:
            self.fresh.append(frames)
        except MemoryError:
            self.fresh_counts.pop()
            raise
        self.fresh_bytes += len(frames)
        self.next += count

    def forget(self) -> None:
        """Drop what was appended and is not written."""
        self.fresh.clear()  # nothing here wants memory: it is called where there is none
        self.fresh_counts.clear()
        self.fresh_bytes, self.several = 0, False
        self.next = self.end

    def write(self) -> bool:
        """Write what was appended behind the last frames: one checksum and one write call.

        Return False, with nothing done, where that needs more care: a file has to be made or given room, a failed write
        has to be mended, the free space is due to be looked at, or the record of a chunk has to be written first. Rows
        are written before their frames: whatever a crash leaves, no message lacks its deferral. Raises `WriteFailed`;
        then what was appended is forgotten, and the file as it was.
        """
        return self._write_behind()

    def _write_behind(self) -> bool:
        log: Any = self  # the writer, whose parts stand still here
        segments, size, rows = log._segments, self.fresh_bytes, log._pending_rows
        if not segments or not self.fresh or log._lazy:
            return False
        segment: Extent = segments[-1]
        parts: Any = segment  # those that a log's segments have besides
        window: Blocks = log._window
        last, place = segment.last, segment.size
        after = place + size
        if last is None or segment.torn or not segment.recorded_boot or after > segment.reserved:
            return False
        if rows and not parts.extras.size:
            return False
        if size > CHUNK_BYTES or after > log.options.segment_bytes or self.since_check + size >= SPACE_CHECK:
            return False
        if self.several and (place ^ (after - 1)) >> _PAGE_BITS:
            return False
        frames: bytes = self.fresh[-1]
        time = int.from_bytes(frames[8:16], "big", signed=True)
        if len(self.fresh) > 1:
            frames = b"".join(self.fresh)
        rows_end = 0
        if rows:
            beside = parts.extras
            try:
                rows_end = beside.write(rows)
            except OSError as error:
                self.forget()
                raise parts.failed(beside.file.path, beside.size, error) from error
        sync, index, file, count = log._sync, parts.index, parts.frames, self.next - self.end
        merges = last.length + size <= segment.merge_bytes and last.first >= sync.target
        grown_count = grown_length = crc = 0
        if merges:  # all that may want memory comes before any of it counts
            grown_count, grown_length, crc = last.count + count, last.length + size, extend(last.crc, frames)
        try:
            if file.fd < 0 or file.table.disk.pwrite(file.fd, frames, place) != size:
                file.write(frames, place)
        except OSError as error:
            self.forget()
            raise parts.failed(file.path, place, error) from error
        sync.dirty.add(segment)
        window.add(count, frames)
        if merges:
            if time > segment.newest:
                last.time = segment.newest = time
            last.count, last.length, last.crc = grown_count, grown_length, crc
            segment.size, segment.end = after, segment.end + count
            if not index.unwritten:
                index.unwritten = 1
        else:
            parts.begin_chunk(count, frames, time, rows_end if rows else parts.extras.size)
        if rows:
            beside.size = last.attributes = rows_end
        self.end = self.written = self.next
        self.since_check += size
        if rows:
            log.keep_rows()
        self.fresh.clear()
        self.fresh_counts.clear()
        self.fresh_bytes, self.several = 0, False
        held, noted = window.bytes, log._noted_bytes
        change = held + log._recent_rows.bytes - noted
        if held > log.options.tail_bytes or change < 0 or change > noted >> 3:
            log.shrink_window()
        return True
