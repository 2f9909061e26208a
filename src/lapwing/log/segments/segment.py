"""One file of wire frames, back to back, with its index and its extras beside it: written as one, read in blocks."""

import contextlib
import os
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lapwing import kernel
from lapwing.errors import ReadFailed, WriteFailed
from lapwing.log.disk import File, OpenFiles
from lapwing.log.options import CHUNK_BYTES
from lapwing.log.segments import attributes as extras_file
from lapwing.log.segments.attributes import ExtrasFile, Rows
from lapwing.log.segments.index import CONTINUED, QUARANTINED, RECORD, BadRecord, Chunk, Index

DIGITS: Final = 20
EVERYTHING: Final = 1 << 62
_BUSY: Final = 1 << 20  # bytes; a segment of that length will likely get more
_STEP: Final = 4 << 20
_PAGE_BITS: Final = 12  # a write within one page of 4096 bytes is there or not when its process is killed
SPARE: Final = 1 << 20  # more room than this beyond its end is not left to a file

Batch = tuple[int, bytes, int]  # how many messages, their frames, and the time of the newest, ns

_TIME: Final = struct.Struct(">q")


def time_of(frames: bytes | memoryview, at: int = 0) -> int:
    """Return when the message whose frame begins at `at` was published."""
    time: int = _TIME.unpack_from(frames, at + 8)[0]
    return time


def last_time(frames: bytes) -> int:
    """Return when the last message of `frames` was published."""
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


class Segment(kernel.Extent):
    """The messages [first, end) of a log: `size` bytes of frames that are known to be written.

    What lies beyond the known sizes is not there: a failed write is undone before the next one begins.
    """

    __slots__ = ("boot", "extras", "first", "frames", "index", "name", "synced", "synced_extras")
    last: Chunk | None

    def __init__(self, directory: str, first: int, files: OpenFiles, merge_bytes: int, boot: int = 0) -> None:
        super().__init__(first, merge_bytes, _BUSY)
        self.name = f"{first:0{DIGITS}d}"
        path = os.path.join(directory, self.name)
        self.first = first
        self.synced = 0  # bytes of frames that are known to be synced
        self.synced_extras = 0  # the same of attributes
        self.boot = boot  # names this run of the machine; 0: not known
        self.frames = File(path + ".log", files)
        self.index = Index(File(path + ".idx", files))
        self.extras = ExtrasFile(File(path + ".aux", files))

    # --- writing -----------------------------------------------------------------------------------------------

    def write(
        self, batches: Sequence[Batch], extras: Sequence[Rows], synced: int = 0, *, atomic: bool = True
    ) -> None:
        """Append batches, each as a chunk, and their extras; all of it or, raising `WriteFailed`, nothing.

        A small batch is added to the last chunk, unless something of that (a sequence below `synced`) is to survive a
        power loss: the checksum of acknowledged messages must not depend on others. The record of a chunk is written
        later, by `write_index`. It is written first where frames without one could not be understood after a crash:

        - the first time in this segment, so that its record names the run of the machine in which the frames behind it
          are written
        - a write of more than one page, when it holds a publish of several messages (`atomic`): a process that is
          killed may leave some of its pages
        - every time, when it is not known whether the machine was started since (`boot` is 0)

        Extras are always written before the frames: whatever a crash leaves, no message lacks its deferral.
        """
        if self.torn:
            self.mend()
        index, beside = self.index, extras_file.encode(extras) if extras else b""
        attributes = self.extras.size + len(beside)
        chunks, grown = self._chunks(batches, synced, attributes)
        size = sum(len(frames) for _, frames, _ in batches)
        pages = (self.size ^ (self.size + size - 1)) >> _PAGE_BITS
        first = not self.recorded_boot or (atomic and pages)
        step, place = self.extras.file, self.extras.size
        try:
            if beside:
                step.write(beside, place)
            if first:
                records = index.recent[len(index.recent) - index.unwritten : len(index.recent) - grown] + chunks
                step, place = index.file, (index.count - grown - len(records) + len(chunks)) * RECORD
                if grown and self.last is not None:
                    last, head = self.last, chunks[0]
                    head.old_count, head.old_length, head.old_crc = last.count, last.length, last.crc
                step.write(b"".join([chunk.encode() for chunk in records]), place)
            step, place = self.frames, self.size
            for _, frames, _ in batches:
                step.write(frames, place)
                place += len(frames)
            if place > self.reserved:
                self._reserve(place)
        except OSError as error:
            raise self.failed(step.path, place, error) from error
        last, count = chunks[-1], index.count + len(chunks) - grown
        end, unwritten = last.end, max(index.unwritten - grown, 0) + len(chunks)
        recent = chunks[-1:] if first else index.recent[: len(index.recent) - grown] + chunks
        if first:  # from here on nothing wants memory: all of it counts, or nothing
            self.recorded_boot = bool(self.boot)
            last.recorded()
            unwritten = 0
        index.recent, index.count, index.unwritten = recent, count, unwritten
        self.last, self.size, self.end, self.newest, self.extras.size = last, place, end, last.time, attributes

    def begin_chunk(self, count: int, frames: bytes, time: int, attributes: int) -> None:
        """Make frames count that were written behind the last ones, as a new chunk. Its record is written later."""
        crc, newest = kernel.crc32c(frames), max(self.newest, time)
        chunk = Chunk(self.end, self.size, newest, count, len(frames), crc, boot=self.boot, attributes=attributes)
        stop, end, count, unwritten = chunk.stop, chunk.end, self.index.count + 1, self.index.unwritten + 1
        self.index.recent.append(chunk)  # the last that may want memory: all of it counts, or nothing
        self.index.count, self.index.unwritten, self.last = count, unwritten, chunk
        self.size, self.end, self.newest = stop, end, newest

    def _chunks(self, batches: Sequence[Batch], synced: int, attributes: int) -> tuple[list[Chunk], bool]:
        """Return the chunks that `batches` make, and whether the first of them is the last one so far, grown."""
        at, end, newest = self.size, self.end, self.newest
        chunks: list[Chunk] = []
        grown = False
        last = self.last if self.last is not None and self.last.first >= synced else None
        for count, frames, time in batches:
            newest = max(newest, time)
            if last is not None and last.length + len(frames) <= self.merge_bytes:
                if not chunks:
                    chunks.append(replace(last, flags=0, boot=self.boot))
                    grown = True
                last = chunks[-1]
                last.count += count
                last.length += len(frames)
                last.crc = kernel.crc32c(frames, last.crc)
                last.time = newest
            else:
                flags = CONTINUED if chunks else 0
                last = Chunk(end, at, newest, count, len(frames), kernel.crc32c(frames), flags, boot=self.boot)
                chunks.append(last)
            last.attributes = attributes
            at += len(frames)
            end += count
        return chunks, grown

    def failed(self, path: str, place: int, error: OSError) -> WriteFailed:
        """Undo a write that failed, and return the error; while even that fails, the next write begins with it."""
        self.torn = True
        with contextlib.suppress(WriteFailed):
            self.mend()
        return WriteFailed(path, place, error)

    def write_index(self) -> None:
        """Write the records of all chunks. Raises `WriteFailed`, and can be called again."""
        try:
            if self.torn:
                self.mend()
            self.index.write()
        except OSError as error:
            raise WriteFailed(self.index.file.path, self.index.count * RECORD, error) from error

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
        """Undo what a failed write may have left. Raises `WriteFailed` while that cannot be done."""
        index = self.index
        file, size = self.frames, self.size
        try:
            if file.size() > size:
                file.truncate(size)
            file, size = self.extras.file, self.extras.size
            if file.size() > size:
                file.truncate(size)
            file, size = index.file, index.count * RECORD
            if index.recent:
                index.unwritten = len(index.recent)  # the record of the last chunk may be that of the failed write
                index.write()
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
        """Return the chunks of such a run, and their frames.

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
