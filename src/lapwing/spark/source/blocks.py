"""Blocks of the range reader, and the Arrow columns that are cut from them without a loop.

A block (all little-endian) is a head of 24 bytes (what it is, how many messages, the first sequence, the lengths of
frames and extras), the frames just as they lie in the log, or where they lie in the broker's file, and the headers of
those messages that have any.
"""

import json
import os
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from lapwing import kernel
from lapwing.errors import LapwingError
from lapwing.wire.resp.bodies import to_pairs

HEAD: Final = struct.Struct("<4sIQII")
BARE: Final = b"LWF1"
PLACED: Final = b"LWP1"
QUARANTINED: Final = b"LWQ1"
PLACE: Final = struct.Struct("<QII")
FRAME_HEAD: Final = 34  # bytes before a message's body: size, type, timestamp, attempts, id

SMALL: Final = 64 << 10  # bytes of frames up to which blocks may be cut together
_MOST: Final = 2**31 - 1  # bytes of frames: Arrow's offsets reach no farther
_LONGEST_PATH: Final = 4096
_RUN: Final = 1 << 17  # sequences that are counted in one go
_PIECE: Final = 128 << 10  # bytes of frames that are received and cut at a time: they stay in a processor's cache

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
    "fields": _HEADERS,
}


Columns = dict[str, Callable[[], pa.Array]]


class BadBlock(LapwingError):
    """An answer that is not what the range reader sends."""


class Elsewhere(LapwingError):
    """The broker's file cannot be read from here; the broker itself has to be asked."""


@dataclass(slots=True)
class RangeBlock:
    """Messages [first, first + count): their frames, or why they cannot be read."""

    first: int
    count: int
    cut: "Columns | None" = None  # the frames, cut while they came
    bare: bytes = b""  # the frames of a small block: several are cut together
    extras: bytes = b""
    quarantined: str = ""


def read_blocks(read: Callable[[int], bytes], fill: Callable[[memoryview], None]) -> Iterator[RangeBlock]:
    """Yield the blocks of an answer. Raises `BadBlock`.

    `read` gives exactly so many bytes, or none at the end of the answer; `fill` fills a view.
    """
    while head := read(HEAD.size):
        kind, count, first, size, extras = HEAD.unpack(head)
        if size > _MOST or (size < count * FRAME_HEAD and kind != QUARANTINED):
            raise BadBlock(f"{count} messages in {size} bytes")
        if kind == QUARANTINED:
            yield RangeBlock(first, count, quarantined=_whole(read, extras).decode("utf-8", "replace"))
        elif kind == BARE and size <= SMALL:
            bare = _checked(_whole(read, size), count)
            yield RangeBlock(first, count, bare=bare, extras=_whole(read, extras))
        elif kind == BARE:
            cut = _cut_by_kernel(fill, count, size)
            yield RangeBlock(first, count, cut=cut, extras=_whole(read, extras))
        elif kind == PLACED:
            offset, chunks, length = PLACE.unpack(_whole(read, PLACE.size))
            if not 0 < chunks <= count or length > _LONGEST_PATH:
                raise BadBlock(f"{count} messages in {chunks} chunks, in a file whose name has {length} bytes")
            path = _whole(read, length)
            checks = struct.unpack(f"<{2 * chunks}I", _whole(read, 8 * chunks))
            places = list(zip(checks[::2], checks[1::2], strict=True))
            if size <= SMALL:
                bare = _checked(b"".join(_file_chunks(path, offset, places, size)), count)
                yield RangeBlock(first, count, bare=bare, extras=_whole(read, extras))
            else:
                cut = _cut_from_file(path, offset, places, count, size)
                yield RangeBlock(first, count, cut=cut, extras=_whole(read, extras))
        else:
            raise BadBlock(f"a block that begins with {kind!r}")


def _whole(read: Callable[[int], bytes], size: int) -> bytes:
    data = read(size) if size else b""
    if len(data) != size:
        raise BadBlock(f"{len(data)} bytes of {size}")
    return data


def _checked(frames: bytes, count: int) -> bytes:
    """Return the frames; raises `BadBlock` unless they are so many, and nothing else."""
    found, end = kernel.take_frames(frames, 0, len(frames), count, len(frames))
    if found != count or end != len(frames):
        raise BadBlock(f"{found} whole frames where {count} were announced")
    return frames


def arrow_schema(names: list[str]) -> pa.Schema:
    """Return the Arrow schema of these columns, in this order."""
    return pa.schema([(name, _FIELDS[name]) for name in names])


def to_batch(block: RangeBlock, topic: str, node: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return one row for each message, in the columns of `schema`."""
    count = block.count
    columns = (block.cut or _cut_bare(block.bare, count)) | {
        "topic": lambda: _same(topic, count),
        "node": lambda: _same(node, count),
        "sequence": lambda: _sequences(block.first, count),
        "attempts": lambda: _same(1, count),  # a log holds first deliveries only
        "headers": lambda: _headers(block),
    }
    columns["fields"] = lambda: fields_of(columns["body"]())
    return pa.RecordBatch.from_arrays([columns[name]() for name in schema.names], schema=schema)


def join(blocks: Sequence[tuple[RangeBlock, str, int]], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of small blocks (each with its topic and node) in one batch; every block has `bare` frames."""
    counts = [block.count for block, _, _ in blocks]
    count = sum(counts)
    columns = _cut_bare(b"".join([block.bare for block, _, _ in blocks]), count) | {
        "topic": lambda: pa.array([topic for _, topic, _ in blocks], pa.string()).take(_numbered(counts)),
        "node": lambda: pa.array([node for _, _, node in blocks], pa.int32()).take(_numbered(counts)),
        "sequence": lambda: pa.array(array("q", chain.from_iterable(map(_span, (block for block, _, _ in blocks))))),
        "attempts": lambda: _same(1, count),
        "headers": lambda: pa.concat_arrays([_headers(block) for block, _, _ in blocks]),
    }
    columns["fields"] = lambda: fields_of(columns["body"]())
    return pa.RecordBatch.from_arrays([columns[name]() for name in schema.names], schema=schema)


def _span(block: RangeBlock) -> range:
    return range(block.first, block.first + block.count)


def _numbered(counts: list[int]) -> pa.Array:
    """Return the index of the block that each row is of."""
    return pa.array(array("i", chain.from_iterable(repeat(index, count) for index, count in enumerate(counts))))


def _cut_bare(frames: bytes, count: int) -> Columns:
    room = _room(count, len(frames))
    row, at = kernel.decode_columns(frames, 0, len(frames), 0, *room)
    if row != count or at != len(frames):
        raise BadBlock(f"{row} whole frames where {count} were announced")
    return _columns(count, *room)


def _cut_by_kernel(fill: Callable[[memoryview], None], count: int, size: int) -> Columns:
    """Return the columns of `count` frames, `size` bytes in all; they are cut while the cache still has them.

    All room comes from Arrow's pool: it keeps what is given back, where malloc would fault in new pages every time.
    """
    room = _room(count, size)
    row, left, kept = 0, size, 0
    piece = pa.allocate_buffer(min(_PIECE, size))
    while left:
        more = min(left, len(piece) - kept)
        view = memoryview(piece).cast("B")
        fill(view[kept : kept + more])
        left -= more
        kept += more
        row, at = kernel.decode_columns(piece, 0, kept, row, *room)
        rest = bytes(view[at:kept])
        kept -= at
        if kept == len(piece) and left:  # a frame that is longer than this
            piece = pa.allocate_buffer(min(2 * len(piece), kept + left))
        memoryview(piece).cast("B")[:kept] = rest
    if row != count or kept:
        raise BadBlock(f"{row} whole frames where {count} were announced")
    return _columns(count, *room)


def _cut_from_file(path: bytes, offset: int, chunks: list[tuple[int, int]], count: int, size: int) -> Columns:
    """Return the same from a file of the broker's. Raises `Elsewhere` unless every byte is as it should be."""
    row = 0
    room = _room(count, size)
    for data in _file_chunks(path, offset, chunks, size):
        row, at = kernel.decode_columns(data, 0, len(data), row, *room)
        if at != len(data):
            raise BadBlock(f"a chunk of {len(data)} bytes that is no frames from {at} on")
    if row != count:
        raise BadBlock(f"{row} whole frames where {count} were announced")
    return _columns(count, *room)


def _file_chunks(path: bytes, offset: int, chunks: list[tuple[int, int]], size: int) -> Iterator[bytes]:
    """Yield the chunks of a broker's file. Raises `Elsewhere` unless every byte is as it should be."""
    if sum(length for length, _ in chunks) != size:
        raise BadBlock(f"chunks that are not {size} bytes together")
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise Elsewhere(str(error)) from error
    try:
        if os.fstat(file).st_size < offset + size:
            raise Elsewhere("shorter than the broker's")
        for length, crc in chunks:
            data = os.pread(file, length, offset)
            if len(data) != length or kernel.crc32c(data) != crc:
                raise Elsewhere(f"other bytes than the broker's at {offset}")
            yield data
            offset += length
    except OSError as error:
        raise Elsewhere(str(error)) from error
    finally:
        os.close(file)


def _room(count: int, size: int) -> list[Any]:
    """Buffers for ids, times, offsets and bodies."""
    room = (16 * count, 8 * count, 4 * count + 4, size - count * FRAME_HEAD)
    ids, times, offsets, bodies = map(pa.allocate_buffer, room)
    memoryview(offsets).cast("B")[:4] = bytes(4)
    return [ids, times, offsets, bodies]


def _columns(count: int, ids: Any, times: Any, offsets: Any, bodies: Any) -> Columns:
    return {
        "id": lambda: _array(pa.string(), count, _sixteens(_rounded(count)), ids),
        "timestamp": lambda: _array(_TIMESTAMP, count, times),
        "body": lambda: _array(pa.binary(), count, offsets, bodies),
    }


def _array(kind: pa.DataType, count: int, *buffers: Any) -> pa.Array:
    return pa.Array.from_buffers(kind, count, [None, *map(pa.py_buffer, buffers)])


def _same(value: str | int, count: int) -> pa.Array:
    """Return a column with one value in every row: the head of a longer one, made once."""
    return _repeated(value, _rounded(count)).slice(0, count)


def _sequences(first: int, count: int) -> pa.Array:
    """`first`, `first` + 1, ...: as a rule a part of a longer run that other blocks have parts of, too."""
    run, place = divmod(first, _RUN)
    if place + count <= _RUN:
        return _run(run).slice(place, count)
    return pc.add(_counted(_rounded(count)).slice(0, count), first)


def _rounded(count: int) -> int:
    return max(1 << count.bit_length(), 1 << 14)


@lru_cache(16)
def _repeated(value: str | int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string() if isinstance(value, str) else pa.int32()), count)


@lru_cache(4)
def _run(number: int) -> pa.Array:
    return pc.add(_counted(_RUN), number * _RUN)


@lru_cache(4)
def _counted(count: int) -> pa.Array:
    return pa.array(array("q", range(count)))


@lru_cache(4)
def _sixteens(count: int) -> "array[int]":
    """Return where each id begins among others of sixteen bytes."""
    return array("i", range(0, 16 * count + 16, 16))


def fields_of(bodies: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the fields of entries that Redis clients added, and of JSON objects of strings; null for other bodies."""
    rows: list[list[tuple[str, str]] | None] = []
    for body in bodies.to_pylist():
        words = to_pairs(body, as_json=True) if body[:1] in (b"*", b"{") else [b"", body]
        if words[1] is body:  # a plain one
            rows.append(None)
            continue
        texts = [word.decode("utf-8", "replace") for word in words]
        rows.append(list(dict(zip(texts[::2], texts[1::2], strict=True)).items()))
    return pa.array(rows, _HEADERS)


def filled(headers: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return headers with an empty map where there are none."""
    if headers.null_count == 0:
        return headers.cast(_HEADERS)
    return pa.array([row or [] for row in headers.to_pylist()], _HEADERS)


def _headers(block: RangeBlock) -> pa.Array:
    if not block.extras:  # as a rule: no object per message
        offsets = pa.py_buffer(bytes(4 * (block.count + 1)))
        none = pa.array([], pa.struct([_HEADERS.key_field, _HEADERS.item_field]))
        return pa.Array.from_buffers(_HEADERS, block.count, [None, offsets], children=[none])
    rows: list[dict[str, str] | None] = [None] * block.count
    found: list[tuple[int, Any]] = json.loads(block.extras)
    for sequence, headers in found:
        rows[sequence - block.first] = headers
    pairs = [list(row.items()) if row else [] for row in rows]
    try:
        return pa.array(pairs, _HEADERS)
    except UnicodeEncodeError:  # half of a surrogate pair, which any client may publish
        whole = [[(name, value.encode("utf-8", "replace").decode()) for name, value in row] for row in pairs]
        return pa.array(whole, _HEADERS)
