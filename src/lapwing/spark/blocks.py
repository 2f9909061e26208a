"""Blocks of the range reader, and the Arrow columns that are cut from them without a loop.

A block (all little-endian) is a head of 24 bytes (what it is, how many messages, the first sequence, the lengths of
frames and extras), where each frame begins (int32, one more than there are messages), the frames just as they lie in
the log, and the headers of those messages that have any.
"""

import json
import struct
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from lapwing.errors import LapwingError

HEAD: Final = struct.Struct("<4sIQII")
MESSAGES: Final = b"LWB1"
QUARANTINED: Final = b"LWQ1"
FRAME_HEAD: Final = 34  # bytes before a message's body: size, type, timestamp, attempts, id

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.map_(pa.string(), pa.string())
_FIELDS: Final = {
    "topic": pa.string(),
    "node": pa.int32(),
    "sequence": pa.int64(),
    "id": pa.string(),
    "timestamp": _TIMESTAMP,
    "attempts": pa.int32(),
    "body": pa.binary(),
    "headers": _HEADERS,
}
_numbers = pa.array(array("q", range(1 << 14)))


class BadBlock(LapwingError):
    """An answer that is not what the range reader sends."""


@dataclass(slots=True)
class Block:
    """Messages [first, first + count): their frames, or why they cannot be read."""

    first: int
    count: int
    positions: bytes = b""
    frames: bytes = b""
    extras: bytes = b""
    quarantined: str = ""


def read_blocks(read: Callable[[int], bytes]) -> Iterator[Block]:
    """The blocks of an answer; `read` gives exactly so many bytes, or none at its end. Raises `BadBlock`."""
    while head := read(HEAD.size):
        kind, count, first, frames, extras = HEAD.unpack(head)
        if kind == QUARANTINED:
            yield Block(first, count, quarantined=_whole(read, extras).decode("utf-8", "replace"))
        elif kind == MESSAGES:
            yield Block(first, count, _whole(read, 4 * count + 4), _whole(read, frames), _whole(read, extras))
        else:
            raise BadBlock(f"a block that begins with {kind!r}")


def _whole(read: Callable[[int], bytes], size: int) -> bytes:
    data = read(size) if size else b""
    if len(data) != size:
        raise BadBlock(f"{len(data)} bytes of {size}")
    return data


def arrow_schema(names: list[str]) -> pa.Schema:
    """The Arrow schema of these columns, in this order."""
    return pa.schema([(name, _FIELDS[name]) for name in names])


def to_batch(block: Block, topic: str, node: int, schema: pa.Schema) -> pa.RecordBatch:
    """One row a message, in the columns of `schema`."""
    count = block.count
    if len(block.positions) != 4 * count + 4:
        raise BadBlock(f"{len(block.positions)} bytes of positions for {count} messages")
    buffers = [None, pa.py_buffer(_native(block.positions)), pa.py_buffer(block.frames)]
    try:
        frames = pa.Array.from_buffers(pa.binary(), count, buffers)
        frames.validate(full=True)  # what follows trusts the positions
    except pa.ArrowInvalid as error:
        raise BadBlock(f"positions that do not fit their frames: {error}") from error
    columns: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: pa.repeat(pa.scalar(topic, pa.string()), count),
        "node": lambda: pa.repeat(pa.scalar(node, pa.int32()), count),
        "sequence": lambda: pc.add(_range(count), block.first),
        "id": lambda: pa.Array.from_buffers(pa.string(), count, pc.binary_slice(frames, 18, 34).buffers()),
        "timestamp": lambda: pc.divide(_big_endian(frames, 8), 1000).view(_TIMESTAMP),
        "attempts": lambda: pa.repeat(pa.scalar(1, pa.int32()), count),  # a log holds first deliveries only
        "body": lambda: pc.binary_slice(frames, FRAME_HEAD, 2**31 - 1),
        "headers": lambda: _headers(block),
    }
    return pa.RecordBatch.from_arrays([columns[name]() for name in schema.names], schema=schema)


def _range(count: int) -> pa.Array:
    global _numbers
    if len(_numbers) < count:
        _numbers = pa.array(array("q", range(2 * count)))
    return _numbers[:count]


def _big_endian(frames: pa.Array, start: int) -> pa.Array:
    """The int64 that lies at one place of every frame."""
    values = array("q")
    values.frombytes(pc.binary_slice(frames, start, start + 8).buffers()[2])
    if len(values) != len(frames):
        raise BadBlock("a frame that ends before its head does")
    if sys.byteorder == "little":
        values.byteswap()
    return pa.Array.from_buffers(pa.int64(), len(frames), [None, pa.py_buffer(values)])


def _native(positions: bytes) -> "bytes | array[int]":
    if sys.byteorder == "little":
        return positions
    swapped = array("i", positions)
    swapped.byteswap()
    return swapped


def _headers(block: Block) -> pa.Array:
    rows: list[dict[str, str] | None] = [None] * block.count
    found: list[tuple[int, Any]] = json.loads(block.extras) if block.extras else []
    for sequence, headers in found:
        rows[sequence - block.first] = headers
    return pa.array([list(row.items()) if row else [] for row in rows], _HEADERS)
