"""Small checksummed records one after the other: the form of extras, journals and side logs.

    magic 4 | length u32 | crc32c of the payload u32 | payload         (little-endian)
"""

import struct
from collections.abc import Iterator
from typing import Final

from lapwing import kernel

MAGIC: Final = b"LWR1"
HEAD: Final = 12
_HEAD: Final = struct.Struct("<4sII")
LONGEST: Final = 1 << 30


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


def scan(data: bytes, start: int = 0) -> Iterator[tuple[int, bytes | None, int]]:
    """Each record as (offset, payload, end); a damaged stretch as (offset, None, end).

    After damage, scanning goes on at the next sound record; when there is none, the stretch reaches to the end of
    `data`: a torn tail.
    """
    at = start
    while at < len(data):
        payload = payload_at(data, at)
        if payload is not None:
            end = at + HEAD + len(payload)
            yield at, payload, end
        else:
            end = data.find(MAGIC, at + 1)
            while end >= 0 and payload_at(data, end) is None:
                end = data.find(MAGIC, end + 1)
            if end < 0:
                end = len(data)
            yield at, None, end
        at = end
