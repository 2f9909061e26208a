"""Small checksummed records one after the other: the form of extras, journals and side logs.

    magic 4 | length u32 | crc32c of the payload u32 | payload         (little-endian)
"""

import struct
from collections.abc import Iterator
from typing import Final

from lapwing import kernel
from lapwing.log.disk import File

MAGIC: Final = b"LWR1"
HEAD: Final = 12

_HEAD: Final = struct.Struct("<4sII")
_BLOCK: Final = 256 << 10

Found = tuple[int, bytes | None, int]  # offset, payload (None: damaged), end


def encode(payload: bytes) -> bytes:
    """The payload as one record."""
    return _HEAD.pack(MAGIC, len(payload), kernel.crc32c(payload)) + payload


def payload_at(data: bytes, offset: int) -> bytes | None:
    """The payload of the whole and sound record at `offset`, or None."""
    if offset + HEAD > len(data):
        return None
    magic, length, crc = _HEAD.unpack_from(data, offset)
    begin = offset + HEAD
    if magic != MAGIC or length > len(data) - begin:
        return None
    payload = data[begin : begin + length]
    return payload if kernel.crc32c(payload) == crc else None


def scan(data: bytes) -> Iterator[Found]:
    """Each record of `data`; a damaged stretch counts as one without payload, and reaches to the next sound record."""
    at = 0
    while at < len(data):
        payload = payload_at(data, at)
        if payload is not None:
            end = at + HEAD + len(payload)
        else:
            end = data.find(MAGIC, at + 1)
            while end >= 0 and payload_at(data, end) is None:
                end = data.find(MAGIC, end + 1)
            if end < 0:
                end = len(data)
        yield at, payload, end
        at = end


def stream(file: File, start: int, size: int) -> Iterator[Found]:
    """Each record of [start, size) of a file, read in blocks, so that memory stays small whatever the file holds."""
    at = start
    while at < size:
        data = file.read(min(_BLOCK, size - at), at)
        data += file.read(_missing(data, size - at), at + len(data))
        last = at + len(data) >= size
        if not data:
            return
        for begin, payload, end in scan(data):
            if payload is None and end == len(data) and not last:
                break
            yield at + begin, payload, at + end
        else:
            return
        if begin:
            at += begin  # what goes on beyond this block is read from its beginning
        else:
            resume = len(data) - len(MAGIC) + 1
            yield at, None, at + resume
            at += resume


def _missing(data: bytes, room: int) -> int:
    """How many bytes the first record goes on beyond `data`, if it is believable."""
    if data[:4] != MAGIC or len(data) < HEAD:
        return 0
    length = HEAD + int.from_bytes(data[4:8], "little")
    return max(length - len(data), 0) if length <= room else 0
