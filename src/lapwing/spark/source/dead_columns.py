"""Columns of dead letters: the headers that a broker gives a message that was given up, as typed values."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _moment(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


_TIME: Final = pa.timestamp("us", tz="UTC")
# by column: the header, its type in Arrow, and its value
_COLUMNS: Final[dict[str, tuple[str, pa.DataType, Callable[[str], Any]]]] = {
    "reason": ("dead-reason", pa.string(), str),
    "error": ("dead-error", pa.string(), str),
    "failures": ("dead-failures", pa.int32(), _whole),
    "deliveries": ("dead-deliveries", pa.int32(), _whole),
    "deaths": ("dead-count", pa.int32(), _whole),
    "consumer": ("dead-consumer", pa.string(), str),
    "origin_topic": ("dead-topic", pa.string(), str),
    "origin_channel": ("dead-channel", pa.string(), str),
    "origin_node": ("dead-node", pa.string(), str),
    "origin_sequence": ("dead-sequence", pa.int64(), _whole),
    "origin_id": ("dead-id", pa.string(), str),
    "published_at": ("dead-published", _TIME, _moment),
    "first_failed_at": ("dead-first-failed", _TIME, _moment),
    "dead_at": ("dead-at", _TIME, _moment),
}


def base_columns(columns: list[str]) -> list[str]:
    """Return the columns to read from the log: those of messages, and the headers."""
    return [*(name for name in columns if name not in _COLUMNS), *([] if "headers" in columns else ["headers"])]


def add_columns(batches: Iterator[pa.RecordBatch], columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield the batches with the columns of dead letters; they are null for a message that is none."""
    for batch in batches:
        headers = [dict(row or ()) for row in batch.column("headers").to_pylist()]
        yield pa.RecordBatch.from_arrays([_column(name, batch, headers) for name in columns], names=columns)


def _column(name: str, batch: pa.RecordBatch, headers: list[dict[str, str]]) -> pa.Array:
    if name not in _COLUMNS:
        return batch.column(name)
    header, kind, value = _COLUMNS[name]
    if name == "deaths":  # the header is there from the second time on
        return pa.array([value(row.get(header, "1")) if "dead-id" in row else None for row in headers], kind)
    return pa.array([value(row[header]) if header in row else None for row in headers], kind)
