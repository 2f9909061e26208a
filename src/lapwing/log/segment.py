"""One file of wire frames, back to back, with its index and its extras beside it: written as one, read in blocks."""

import contextlib
import os
import struct
from collections.abc import Sequence
from typing import Final

from lapwing import kernel
from lapwing.errors import ReadFailed, WriteFailed
from lapwing.log import attributes as extras_file
from lapwing.log.attributes import Extra, ExtrasFile
from lapwing.log.disk import File, OpenFiles
from lapwing.log.index import CONTINUED, QUARANTINED, RECORD, BadRecord, Chunk, Index, record
from lapwing.log.options import CHUNK_BYTES

DIGITS: Final = 20
EVERYTHING: Final = 1 << 62
_BUSY: Final = 1 << 20  # bytes; a segment of that length will likely get more
_STEP: Final = 4 << 20
SPARE: Final = 1 << 20  # more room than this beyond its end is not left to a file

Batch = tuple[int, bytes, int]  # how many messages, their frames, and the time of the newest, ns
Last = tuple[int, int, int, int, int]  # first, offset, count, length, crc

_TIME: Final = struct.Struct(">q")
_NOTHING: Final = (0, 0, 0)


def time_of(frames: bytes | memoryview, at: int = 0) -> int:
    """When the message whose frame begins at `at` was published."""
    time: int = _TIME.unpack_from(frames, at + 8)[0]
    return time


def _record(last: Last, newest: int) -> bytes:
    first, offset, count, length, crc = last
    return record(first, offset, newest, count, length, crc)


def last_time(frames: bytes) -> int:
    """When the last message of `frames` was published."""
    return time_of(frames, kernel.scan_frames(frames, 0, len(frames))[0][-2])


def joined(batches: Sequence[Batch]) -> list[Batch]:
    """Batches joined, and cut where one is too long, so that each makes a chunk of at most a chunk's length."""
    made: list[Batch] = []
    parts: list[bytes] = []
    counted = size = newest = 0
    for count, frames, time in batches:
        if parts and size + len(frames) > CHUNK_BYTES:
            made.append((counted, b"".join(parts), newest))
            parts, counted, size = [], 0, 0
        newest = max(newest, time)
        if len(frames) <= CHUNK_BYTES:
            parts.append(frames)
            counted += count
            size += len(frames)
            continue
        at = 0
        while at < len(frames):
            cut, after = kernel.take_frames(frames, at, len(frames), count, CHUNK_BYTES)
            made.append((cut, frames[at:after], newest))
            at = after
    if parts:
        made.append((counted, b"".join(parts), newest))
    return made


class Segment:
    """The messages [first, end) of a log: `size` bytes of frames that are known to be written.

    What lies beyond the known sizes is not there: a failed write is undone before the next one begins.
    """

    __slots__ = (
        "end", "extras", "first", "frames", "index", "last", "merge_bytes", "name", "newest", "reserved", "size",
        "torn",
    )

    def __init__(self, directory: str, first: int, files: OpenFiles, merge_bytes: int) -> None:
        self.name = f"{first:0{DIGITS}d}"
        path = os.path.join(directory, self.name)
        self.first = first
        self.end = first
        self.size = 0
        self.newest = 0  # ns, the time of the newest message
        self.merge_bytes = merge_bytes  # a chunk is added to by later writes up to this length
        self.last: Last | None = None  # the last chunk, where it may be added to
        self.reserved = _BUSY  # up to here no more room need be reserved
        self.torn = False  # bytes beyond the known sizes could not be cut off yet
        self.frames = File(path + ".log", files)
        self.index = Index(File(path + ".idx", files))
        self.extras = ExtrasFile(File(path + ".aux", files))

    # --- writing -----------------------------------------------------------------------------------------------

    def write(self, batches: Sequence[Batch], extras: Sequence[Extra], synced: int = 0) -> None:
        """Append batches, each as a chunk, and their extras; all of it or, raising `WriteFailed`, nothing.

        A small batch is added to the last chunk, whose record is written over, unless something of it (a sequence below
        `synced`) is to survive a power loss: the checksum of what was acknowledged must not go with what was not.
        Extras go first and frames last: whatever a crash leaves, a message never stands without its deferral, nor
        without a checksum.
        """
        if self.torn:
            self.mend()
        at, end, newest, last = self.size, self.end, self.newest, self.last
        number = self.index.count
        records = b""
        flags, before = 0, _NOTHING
        for count, frames, time in batches:
            length = len(frames)
            if time > newest:
                newest = time
            if last is not None and last[0] >= synced and last[3] + length <= self.merge_bytes:
                first, offset, known, held, crc = last
                last = (first, offset, known + count, held + length, kernel.crc32c(frames, crc))
                if records:
                    records = records[:-RECORD]
                else:
                    number -= 1
                    before = (known, held, crc)
            else:
                if records:
                    flags, before = CONTINUED, _NOTHING
                last = (end, at, count, length, kernel.crc32c(frames))
            records += record(last[0], last[1], newest, last[2], last[3], last[4], flags, before)
            at += length
            end += count
        step, place = self.index.file, number * RECORD
        try:
            if extras:
                step, place = self.extras.file, self.extras.size
                beside = extras_file.encode(extras)
                step.write(beside, place)
                step, place = self.index.file, number * RECORD
            step.write(records, place)
            step, place = self.frames, self.size
            for _, frames, _ in batches:
                step.write(frames, place)
                place += len(frames)
            if place > self.reserved:
                self._reserve(place)
        except OSError as error:
            self.torn = True
            failure = WriteFailed(step.path, place, error)
            try:
                self.mend()
            except WriteFailed:
                raise failure from error  # `torn` stays: the next write begins with mending
            raise failure from error
        if extras:
            self.extras.size += len(beside)
        self.index.count = number + len(records) // RECORD
        self.size, self.end, self.newest, self.last = at, end, newest, last

    def _reserve(self, size: int) -> None:
        """Let a busy segment grow in large steps; a disk that cannot do that is not asked again."""
        self.reserved = size + _STEP if self.frames.reserve(size, _STEP) else EVERYTHING

    def give_back(self) -> None:
        """Free the room that was reserved and is not needed any more; no matter if that fails."""
        if _BUSY < self.reserved < EVERYTHING:
            self.reserved = _BUSY
            with contextlib.suppress(OSError):
                self.frames.truncate(self.size)

    def mend(self) -> None:
        """Undo what a failed write may have left; raises `WriteFailed` while that cannot be done."""
        file, size = self.frames, self.size
        try:
            if file.size() > size:
                file.truncate(size)
            file, size = self.extras.file, self.extras.size
            if file.size() > size:
                file.truncate(size)
            file, size = self.index.file, self.index.count * RECORD
            if self.last is not None:
                file.write(_record(self.last, self.newest), size - RECORD)
            if file.size() > size:
                file.truncate(size)
        except OSError as error:
            raise WriteFailed(file.path, size, error) from error
        self.torn = False

    # --- reading -----------------------------------------------------------------------------------------------

    def run(self, number: int, max_bytes: int) -> list[Chunk]:
        """Chunks from record `number` on, as many as `max_bytes` allow but at least one; a quarantined one alone.

        Raises `BadRecord`.
        """
        most = 1 + max_bytes * self.index.count // (self.size or 1)
        chunks = self.index.chunks(number, min(most, 4096))
        if self.torn and self.last is not None and number + len(chunks) == self.index.count:
            first, offset, count, length, crc = self.last  # its record may still be that of the write that failed
            chunks[-1] = Chunk(first, offset, self.newest, count, length, crc)
        head = chunks[0]
        if head.flags & QUARANTINED:
            return chunks[:1]
        if head.stop > self.size:
            raise BadRecord(f"{self.index.file.path}: reaches to {head.stop}, the frames end at {self.size}")
        taken = 1
        limit = min(self.size, head.offset + max_bytes)
        while taken < len(chunks) and chunks[taken].stop <= limit and not chunks[taken].flags & QUARANTINED:
            taken += 1
        return chunks[:taken]

    def read(self, number: int, max_bytes: int) -> tuple[Sequence[Chunk], bytes | None, str]:
        """The chunks of such a run, and their frames.

        Every checksum is verified. When the first chunk does not match its own: that one, None, and what is wrong.
        Raises `BadRecord`, and `ReadFailed` when the disk does not return the bytes.
        """
        chunks = self.run(number, max_bytes)
        head = chunks[0]
        if head.flags & QUARANTINED:
            return chunks, None, "quarantined"
        try:
            data = self.frames.read(chunks[-1].stop - head.offset, head.offset)
        except ReadFailed:
            if len(chunks) == 1:
                raise
            return self.read(number, 0)  # serve the chunks before the one that the disk does not return
        if len(chunks) == 1:
            if len(data) != head.length or kernel.crc32c(data) != head.crc:
                return chunks, None, f"checksum is not {head.crc:08x}"
            return chunks, data, ""
        for place, chunk in enumerate(chunks):
            at = chunk.offset - head.offset
            part = data[at : at + chunk.length]
            if len(part) != chunk.length or kernel.crc32c(part) != chunk.crc:
                if not place:
                    return chunks[:1], None, f"checksum is not {head.crc:08x}"
                return chunks[:place], data[:at], ""
        return chunks, data, ""

    def find(self, sequence: int) -> int:
        """The number of the record whose chunk holds `sequence`; raises `BadRecord`."""
        if not self.index.count:
            raise BadRecord(f"{self.index.file.path}: no record at all")
        return self.index.find(sequence)

    # --- leaving -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give the descriptors and the reserved room back."""
        self.give_back()
        self.frames.close()
        self.index.file.close()
        self.extras.file.close()

    def unlink(self) -> None:
        """Remove the files, frames first: what a crash leaves beside them is swept away at the next open."""
        self.frames.unlink()
        self.index.file.unlink()
        self.extras.file.unlink()
