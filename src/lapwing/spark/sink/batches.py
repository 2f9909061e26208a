"""Arrow rows as the bodies of MPUBs, without a loop over them."""

import json
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from lapwing import names
from lapwing.errors import LapwingError

_COUNT: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">I")
_EXTRAS_BYTES: Final = 3 << 20  # of headers in one batch: brokers have room for 4 MiB beside the bodies


class BadRow(LapwingError):
    """A row that cannot become a message; the text names the row and the reason."""


@dataclass(slots=True)
class Batch:
    """Messages for one topic."""

    topic: str
    count: int
    extras: list[list[Any]]  # [index, ms, {headers}] of those that have any
    body: bytes  # as in MPUB

    def staged(self) -> bytes:
        """Return the batch as `/stage` takes it."""
        text = json.dumps(self.extras, separators=(",", ":")).encode() if self.extras else b""
        return _LENGTH.pack(len(text)) + text + self.body


def batches(rows: pa.RecordBatch, topic: str | None, max_bytes: int) -> Iterator[Batch]:
    """Yield the rows in order, split by topic, in bodies of at most `max_bytes` (or one message). Raises `BadRow`.

    A batch ends sooner where its headers would grow past what a broker takes along with the bodies.
    """
    for name, part in _by_topic(rows, topic):
        yield from _split(name, part, max_bytes)


def _by_topic(rows: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    if topic is not None:
        yield topic, rows
        return
    column = rows.column("topic")
    if column.null_count:
        raise BadRow(f"row {_first(pc.is_null(column))}: the column topic is null")
    for value in pc.unique(column).to_pylist():
        if not names.valid(value):
            raise BadRow(f"row {_first(pc.equal(column, value))}: {value!r} is no name for a topic")
        yield value, rows.filter(pc.equal(column, value))


def _split(topic: str, rows: pa.RecordBatch, max_bytes: int) -> Iterator[Batch]:
    bodies = rows.column("body")
    if bodies.null_count:
        raise BadRow(f"row {_first(pc.is_null(bodies))} for topic {topic}: the column body is null")
    sizes = pc.binary_length(bodies)
    if len(rows) and pc.min(sizes).as_py() == 0:
        raise BadRow(f"row {_first(pc.equal(sizes, 0))} for topic {topic}: the body is empty")
    framed = pc.binary_join_element_wise(_big_endian(sizes), bodies.cast(pa.binary()), b"")
    extras = _extras(rows)
    for part in framed.chunks if isinstance(framed, pa.ChunkedArray) else [framed]:
        _, offsets, data = part.buffers()
        ends = memoryview(offsets).cast("i")[part.offset : part.offset + len(part) + 1]
        start = at = 0
        while start < len(part):
            stop = max(bisect_right(ends, ends[start] + max_bytes - _COUNT.size) - 1, start + 1)
            mine: list[list[Any]] = []
            room = _EXTRAS_BYTES
            while at < len(extras) and extras[at][0] < stop:
                index, defer, headers = extras[at]
                room -= len(json.dumps(headers)) + 40  # the two numbers, commas and brackets
                if room < 0 and index > start:
                    stop = index
                    break
                mine.append([index - start, defer, headers])
                at += 1
            content = memoryview(data)[ends[start] : ends[stop]]
            yield Batch(topic, stop - start, mine, _COUNT.pack(stop - start) + content)
            start = stop


def _big_endian(sizes: pa.Array) -> pa.Array:
    """Return each size as the four bytes that stand before a body."""
    values = array("i", sizes.buffers()[1][4 * sizes.offset : 4 * (sizes.offset + len(sizes))].to_pybytes())
    if sys.byteorder == "little":
        values.byteswap()
    fixed = pa.Array.from_buffers(pa.binary(4), len(sizes), [None, pa.py_buffer(values)])
    return fixed.cast(pa.binary())


def _extras(rows: pa.RecordBatch) -> list[tuple[int, int, dict[str, str]]]:
    """Return what rows have beside their bodies: (index, delay in ms, headers)."""
    given = [name for name in ("headers", "defer_ms", "key") if name in rows.schema.names]
    if not given:
        return []
    # a few rows of many may be all that have any: only these become Python objects
    mask = reduce(pc.or_, (_said(rows.column(name)) for name in given))
    indices, some = pc.indices_nonzero(mask).to_pylist(), rows.filter(mask)
    columns = {name: some.column(name).to_pylist() for name in given}
    nothing: list[None] = [None] * len(some)
    found = []
    for index, pairs, defer, key in zip(
        indices, *(columns.get(name, nothing) for name in ("headers", "defer_ms", "key")), strict=True
    ):
        headers = _of_json(pairs, index) if isinstance(pairs, str) else dict(pairs or ())
        if key is not None:
            headers["key"] = key if isinstance(key, str) else key.decode("utf-8", "backslashreplace")
        if any(value is None for value in headers.values()):
            raise BadRow(f"row {index}: a header is null")
        if defer is not None and defer < 0:
            raise BadRow(f"row {index}: defer_ms is {defer}")
        if headers or defer:
            found.append((index, defer or 0, headers))
    return found


def _of_json(text: str, index: int) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str | None) for value in found.values()):
        raise BadRow(f"row {index}: headers are no JSON object of strings: {text[:80]}")
    return found


def _said(column: pa.Array) -> pa.Array:
    """Return which rows have a value there; an empty map is no value."""
    there = pc.is_valid(column)
    if isinstance(column, pa.MapArray):
        ends = column.offsets
        there = pc.and_(there, pc.not_equal(ends[1:], ends[:-1]))
    return there


def _first(mask: pa.Array) -> int:
    index: int = pc.index(mask, True).as_py()
    return index
