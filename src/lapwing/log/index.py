"""sequence -> place, time -> sequence: one record of fixed size per chunk, searched where it lies on disk.

    first u64 | offset u64 | time i64 | count u32 | length u32 | crc of frames u32 | flags u32
    | count, length, crc before: 3 u32 | 8 zeros | crc u32

Little-endian. `offset` and `length` are bytes in the segment's file; `time` is that of the newest message so far, so
that it never falls even if the clock was set back; the last crc is that of the record up to there. The zeros make it 64
bytes: a record never lies across two sectors, and the last one can be written over in place. What the chunk was before
the last write to it stands beside what it is: should that write be torn, there still is a checksum of what was there.
Nothing of a file is kept in memory.
"""

import struct
from dataclasses import dataclass
from typing import Final

from lapwing import kernel
from lapwing.log.disk import File

RECORD: Final = 64  # bytes
QUARANTINED: Final = 1  # flag: the bytes are known to be bad, and never served
CONTINUED: Final = 2  # flag: of the same write as the chunk before

_FIELDS: Final = struct.Struct("<QQqIIIIIII8x")
_CRC: Final = struct.Struct("<I")
_BODY: Final = RECORD - 4


class BadRecord(Exception):
    """A record that does not match its checksum, or not its neighbours: the index wants rebuilding."""


@dataclass(slots=True)
class Chunk:
    """What the index says of one chunk."""

    first: int
    offset: int
    time: int  # ns
    count: int
    length: int
    crc: int
    flags: int = 0
    old_count: int = 0  # what it was before the last write to it
    old_length: int = 0
    old_crc: int = 0

    @property
    def end(self) -> int:
        """The sequence after its last message."""
        return self.first + self.count

    @property
    def stop(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.length

    def encode(self) -> bytes:
        """The record."""
        before = (self.old_count, self.old_length, self.old_crc)
        return record(self.first, self.offset, self.time, self.count, self.length, self.crc, self.flags, before)

    def before(self) -> "Chunk":
        """What it was before the last write to it; of no length when that write began it."""
        return Chunk(self.first, self.offset, self.time, self.old_count, self.old_length, self.old_crc)


def record(
    first: int,
    offset: int,
    time: int,
    count: int,
    length: int,
    crc: int,
    flags: int = 0,
    before: tuple[int, int, int] = (0, 0, 0),
) -> bytes:
    """The record of a chunk; `before` is the count, length and crc that it had."""
    fields = _FIELDS.pack(first, offset, time, count, length, crc, flags, *before)
    return fields + _CRC.pack(kernel.crc32c(fields))


def decode(data: bytes, at: int = 0) -> Chunk | None:
    """The chunk whose record lies at `at`; None when the record is torn or damaged."""
    fields = data[at : at + _BODY]
    if len(data) - at < RECORD or kernel.crc32c(fields) != _CRC.unpack_from(data, at + _BODY)[0]:
        return None
    return Chunk(*_FIELDS.unpack(fields))


class Index:
    """The records of one segment."""

    __slots__ = ("count", "file")

    def __init__(self, file: File) -> None:
        self.file = file
        self.count = 0  # records known to be whole

    def chunk(self, number: int) -> Chunk:
        """The chunk of one record; raises `BadRecord`."""
        chunk = decode(self.file.read(RECORD, number * RECORD))
        if chunk is None:
            raise BadRecord(f"{self.file.path}: record {number} is damaged")
        return chunk

    def chunks(self, number: int, most: int) -> list[Chunk]:
        """Up to `most` chunks from that record on, without a hole; at least one, or raises `BadRecord`."""
        most = min(most, self.count - number)
        data = self.file.read(most * RECORD, number * RECORD)
        chunks: list[Chunk] = []
        for at in range(0, len(data), RECORD):
            chunk = decode(data, at)
            if chunk is None or (chunks and (chunk.first != chunks[-1].end or chunk.offset != chunks[-1].stop)):
                break
            chunks.append(chunk)
        if not chunks:
            raise BadRecord(f"{self.file.path}: record {number} is damaged")
        return chunks

    def find(self, sequence: int) -> int:
        """The number of the record whose chunk holds `sequence`; raises `BadRecord`."""
        low, high = 0, self.count
        while high - low > 1:
            middle = (low + high) // 2
            if self.chunk(middle).first <= sequence:
                low = middle
            else:
                high = middle
        chunk = self.chunk(low)
        if not chunk.first <= sequence < chunk.end:
            raise BadRecord(f"{self.file.path}: record {low} does not hold sequence {sequence}")
        return low

    def find_time(self, time: int) -> int:
        """The number of the first record with a message at or after `time`; the last one when there is none."""
        low, high = 0, self.count - 1
        while low < high:
            middle = (low + high) // 2
            if self.chunk(middle).time < time:
                low = middle + 1
            else:
                high = middle
        return low
