"""sequence -> place, time -> sequence: one record of fixed size per chunk, searched where it lies on disk.

    first u64 | offset u64 | time i64 | count u32 | length u32 | crc of frames u32 | flags u32
    | count, length, crc before: 3 u32 | boot u32 | attributes u32 | crc u32

Little-endian. `offset` and `length` are bytes in the segment's file; `time` is that of the newest message so far, so
that it never falls even if the clock was set back. "Before" is what the chunk was when its record was last written:
should its newest bytes be missing, there still is a checksum of the older ones. `boot` names the run of the machine in
which the record was written, `attributes` is how long the segment's file of attributes is at least. The last crc covers
the record up to there. A record has 64 bytes, so that it never lies across two sectors: the last one is written over in
place while its chunk grows.

Records of a segment that is appended to are written some time after their frames. Until then they are in memory.
"""

import struct
from collections.abc import Iterator
from typing import Final

from lapwing import kernel
from lapwing.log.disk import File
from lapwing.records import dataclass

RECORD: Final = 64  # bytes
QUARANTINED: Final = 1  # flag: the bytes are known to be bad, and never served
CONTINUED: Final = 2  # flag: of the same write as the chunk before
UNVERIFIED: Final = 4  # flag, with the first: the bytes look sound, but no checksum was there to compare them with

_FIELDS: Final = struct.Struct("<QQqIIIIIIIII")
_CRC: Final = struct.Struct("<I")
_BODY: Final = RECORD - 4
_BLOCK: Final = 4096 * RECORD  # bytes that are read at a time
_FRAMES_CRC: Final = 32  # where the checksum of the frames stands


class BadRecord(Exception):
    """A record that does not match its checksum, or not its neighbours: the index must be rebuilt."""


@dataclass(slots=True)
class Chunk:
    """One chunk as the index knows it."""

    first: int
    offset: int
    time: int  # ns
    count: int
    length: int
    crc: int
    flags: int = 0
    old_count: int = 0  # what it was before
    old_length: int = 0
    old_crc: int = 0
    boot: int = 0
    attributes: int = 0  # bytes

    @property
    def end(self) -> int:
        """The sequence after its last message."""
        return self.first + self.count

    @property
    def stop(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.length

    def encode(self) -> bytes:
        """Return the record."""
        fields = _FIELDS.pack(
            self.first, self.offset, self.time, self.count, self.length, self.crc, self.flags,
            self.old_count, self.old_length, self.old_crc, self.boot, self.attributes,
        )  # fmt: skip
        return fields + _CRC.pack(kernel.crc32c(fields))

    def before(self) -> "Chunk":
        """Return what it was when its record was written the time before; of no length when that was the first time."""
        return Chunk(
            self.first, self.offset, self.time, self.old_count, self.old_length, self.old_crc, boot=self.boot
        )

    def recorded(self) -> None:
        """Note that its record is written."""
        self.old_count, self.old_length, self.old_crc = self.count, self.length, self.crc


def decode(data: bytes, at: int = 0) -> Chunk | None:
    """Return the chunk whose record lies at `at`; None when the record is torn or damaged."""
    fields = data[at : at + _BODY]
    if len(data) - at < RECORD or kernel.crc32c(fields) != _CRC.unpack_from(data, at + _BODY)[0]:
        return None
    return Chunk(*_FIELDS.unpack(fields))


def claim(record: bytes) -> Chunk:
    """Return the fields of a record, whether or not it matches its checksum."""
    return Chunk(*_FIELDS.unpack_from(record))


def with_crc(record: bytes, crc: int) -> Chunk | None:
    """Return the chunk of a record with another checksum of its frames; None when it does not match its own then."""
    return decode(record[:_FRAMES_CRC] + _CRC.pack(crc) + record[_FRAMES_CRC + 4 :])


class Index:
    """The records of one segment. Only the last few, of a segment that is appended to, are in memory."""

    __slots__ = ("count", "file", "recent", "unwritten")

    def __init__(self, file: File) -> None:
        self.file = file
        self.count = 0  # records
        self.recent: list[Chunk] = []  # the last of them
        self.unwritten = 0  # how many of the recent ones are not, or not as they are now, in the file

    def chunk(self, number: int) -> Chunk:
        """Return the chunk of one record. Raises `BadRecord` or `ReadFailed`."""
        on_disk = self.count - len(self.recent)
        if number >= on_disk:
            return self.recent[number - on_disk]
        chunk = decode(self.file.read(RECORD, number * RECORD))
        if chunk is None:
            raise BadRecord(f"{self.file.path}: record {number} is damaged")
        return chunk

    def chunks(self, number: int, most: int) -> list[Chunk]:
        """Return up to `most` chunks from that record on, without a hole; at least one, or raises `BadRecord`."""
        on_disk = self.count - len(self.recent)
        if number >= on_disk:
            return self.recent[number - on_disk : number - on_disk + most]
        wanted = min(most, on_disk - number)
        data = self.file.read(wanted * RECORD, number * RECORD)
        chunks: list[Chunk] = []
        for at in range(0, len(data), RECORD):
            chunk = decode(data, at)
            if chunk is None or (chunks and (chunk.first != chunks[-1].end or chunk.offset != chunks[-1].stop)):
                break
            chunks.append(chunk)
        if not chunks:
            raise BadRecord(f"{self.file.path}: record {number} is damaged")
        if len(chunks) == on_disk - number:
            chunks += self.recent[: most - len(chunks)]
        return chunks

    def each(self) -> Iterator[tuple[int, bytes, Chunk | None]]:
        """Yield every record of the file: its offset, its bytes, and its chunk; None when it is damaged."""
        for begin in range(0, self.file.size() // RECORD * RECORD, _BLOCK):
            data = self.file.read(_BLOCK, begin)
            for at in range(0, len(data) // RECORD * RECORD, RECORD):
                yield begin + at, data[at : at + RECORD], decode(data, at)

    def write(self) -> None:
        """Write the records that are in memory alone. Raises `OSError`; then all of them are still to be written."""
        if not self.unwritten:
            return
        fresh = self.recent[-self.unwritten :]
        self.file.write(b"".join([chunk.encode() for chunk in fresh]), (self.count - len(fresh)) * RECORD)
        for chunk in fresh:
            chunk.recorded()
        self.unwritten = 0
        del self.recent[:-1]

    def write_again(self) -> None:
        """Write every record again as it is, for a sync that failed. Raises `OSError` or `ReadFailed`."""
        self.write()
        self.file.write(self.file.read(self.count * RECORD, 0), 0)

    def add(self, chunk: Chunk) -> None:
        """Add a record and write it at once; nothing is added to its chunk, nor to the one before. Raises `OSError`."""
        self.write()
        self.file.write(chunk.encode(), self.count * RECORD)
        self.count += 1
        self.recent.clear()

    def find(self, sequence: int) -> int:
        """Return the number of the record whose chunk holds `sequence`. Raises `BadRecord` or `ReadFailed`."""
        if not self.count:
            raise BadRecord(f"{self.file.path}: no record at all")
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
        """Return the number of the first record with a message at or after `time`; the last one when there is none."""
        low, high = 0, self.count - 1
        while low < high:
            middle = (low + high) // 2
            if self.chunk(middle).time < time:
                low = middle + 1
            else:
                high = middle
        return low
