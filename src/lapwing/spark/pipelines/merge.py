"""Parquet files of this machine's disk copied into one, a piece at a time: memory stays small however large they are.

Spark would sort and buffer all of it inside Java, whose heap then stays as large as the largest merge. The files of a
table have their rows in order already, so that it is enough to bring their row groups into order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from lapwing.errors import LapwingError
from lapwing.spark.pipelines.files import sync

_GROUP_BYTES: Final = 32 << 20  # of a row group, before compression: what is held in memory
_READ_ROWS: Final = 16_384
_READ_BYTES: Final = 1 << 20
_WORDS: Final = {"uncompressed": "none"}  # Spark's names of compressions that have another one here


class DifferentColumns(LapwingError):
    """Files that cannot become one."""


@dataclass(frozen=True)
class RowGroup:
    """One row group of one file."""

    key: tuple[Any, ...]  # the lowest values of the columns that the table is sorted by
    file: int
    group: int


def merge(sources: list[str], target: str, order: tuple[str, ...], compression: str) -> None:
    """Write all rows of some files with the same columns into a new one, row groups in the order of these columns."""
    files = [_opened(path) for path in sources]
    try:
        schema = _schema(files[0])
        for path, file in zip(sources, files, strict=True):
            if not _schema(file).equals(schema):
                raise DifferentColumns(f"{path} has other columns than {sources[0]}")
        writer = parquet.ParquetWriter(
            target, schema, compression=_WORDS.get(compression, compression), use_dictionary=_repetitive(files[0]),
            store_schema=False,
        )  # fmt: skip
        with writer:
            for table in _tables(files, order, schema):
                writer.write_table(table, row_group_size=max(len(table), 1))
    finally:
        for file in files:
            file.close()
        pa.default_memory_pool().release_unused()
    sync(target)


def pieces(files: list[Any], order: tuple[str, ...]) -> list[RowGroup]:
    """Return the row groups of all files in the order of their first rows, else in that of the files."""
    found = []
    for number, file in enumerate(files):
        columns = {file.schema.column(index).path: index for index in range(len(file.schema))}
        for group in range(file.metadata.num_row_groups):
            lowest = []
            for name in order:
                column = file.metadata.row_group(group).column(columns[name]) if name in columns else None
                bounds = None if column is None else column.statistics
                lowest.append((True, bounds.min) if bounds is not None and bounds.has_min_max else (False, 0))
            found.append(RowGroup(tuple(lowest), number, group))
    return sorted(found, key=lambda piece: (piece.key, piece.file, piece.group))


def _tables(files: list[Any], order: tuple[str, ...], schema: Any) -> Iterator[Any]:
    """Yield the rows in tables of a bounded size; none spans two values of all columns but the last of the order."""
    held: list[Any] = []
    size = 0
    before: tuple[Any, ...] | None = None
    for piece in pieces(files, order):
        if before is not None and piece.key[:-1] != before and held:
            yield pa.Table.from_batches(held, schema)
            held, size = [], 0
        before = piece.key[:-1]
        for batch in files[piece.file].iter_batches(_READ_ROWS, row_groups=[piece.group], use_threads=False):
            held.append(batch.cast(schema) if batch.schema != schema else batch)
            size += batch.nbytes
            if size >= _GROUP_BYTES:
                yield pa.Table.from_batches(held, schema)
                held, size = [], 0
    if held:
        yield pa.Table.from_batches(held, schema)


def _opened(path: str) -> Any:
    return parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False, coerce_int96_timestamp_unit="us")


def _schema(file: Any) -> Any:
    """Return the columns of a file; those times in UTC that were written in the old manner, which does not name it."""
    schema = file.schema_arrow
    for index, field in enumerate(schema):
        if pa.types.is_timestamp(field.type) and _is_old(file, field.name):
            schema = schema.set(index, field.with_type(pa.timestamp("us", tz="UTC")))
    return schema


def _is_old(file: Any, name: str) -> bool:
    columns = (file.schema.column(index) for index in range(len(file.schema)))
    return any(column.path == name and column.physical_type == "INT96" for column in columns)


def _repetitive(file: Any) -> list[str]:
    """Return the columns that were written with a dictionary."""
    if not file.metadata.num_row_groups:
        return []
    group = file.metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return [column.path_in_schema for column in columns if column.has_dictionary_page]
