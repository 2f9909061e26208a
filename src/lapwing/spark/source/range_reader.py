"""Tasks: the ranges of logs that executors read, as Arrow batches."""

import gc
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from lapwing.spark.options import SourceOptions
from lapwing.spark.source import offsets as o
from lapwing.spark.source.losses import report
from lapwing.spark.source.offsets import LogRange, Loss
from lapwing.spark.source.ranges import RangeDeleted, stream, stream_all
from lapwing.spark.source.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from lapwing.spark.source.blocks import RangeBlock

TASK_BYTES: Final = 128 << 20  # a task larger than that is split even where nobody asked for more tasks
PACKED_BYTES: Final = 8 << 20  # up to which small ranges share a task
_JOINED_BYTES: Final = 1 << 20  # of rows that are handed to Spark at once, where ranges are small


class RangeTask(InputPartition):
    """The ranges, of one broker or of the archive, that one executor reads."""

    def __init__(self, parts: tuple[LogRange, ...], *, archived: bool = False) -> None:
        super().__init__(parts)
        self.parts = parts
        self.archived = archived


def tasks(ranges: list[LogRange], found: Survey, options: SourceOptions) -> list[InputPartition]:
    """Split large ranges into tasks of similar size, and put small ones together, as a task costs more than they do."""
    if options.archive is None:
        return [RangeTask(group) for group in _groups(ranges, found, options)]
    live, archived, losses = o.divide(ranges, found.holdings)
    report(losses, options)
    return [
        *(RangeTask(group, archived=True) for group in _groups(archived, found, options)),
        *(RangeTask(group) for group in _groups(live, found, options)),
    ]


def _groups(ranges: list[LogRange], found: Survey, options: SourceOptions) -> list[tuple[LogRange, ...]]:
    sizes = o.mean_sizes(found.holdings)
    least, most = options.min_partitions, options.max_per_partition
    parts = o.split(ranges, sizes, min_partitions=least, max_messages=most, max_bytes=TASK_BYTES)
    return o.pack(parts, sizes, min_partitions=least, max_messages=most, max_bytes=PACKED_BYTES)


def read_task(partition: InputPartition, options: SourceOptions, columns: list[str]) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of one task, block by block as they come from the broker."""
    if not isinstance(partition, RangeTask):  # Spark gives a reader without any tasks one with nothing in it
        return
    from lapwing.spark.source.blocks import arrow_schema

    schema = arrow_schema(columns)
    if not partition.archived:
        _freeze_imports()
    if options.archive is None:
        yield from _batches(stream_all(partition.parts, options), schema)
        return
    for part in partition.parts:
        yield from (_from_archive if partition.archived else _with_archive)(part, options, schema)


def _from_archive(part: LogRange, options: SourceOptions, schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a range that the archive has; messages in it that were lost before are data loss."""
    from lapwing.spark.source.archived import archive_at

    count = 0
    for batch in archive_at(options.archive or "").rows(part, schema):
        count += len(batch)
        yield batch
    if missing := part.stop - part.start - count:
        lost = f"{part}: {missing} messages are not in the archive; `lapwing pipeline verify` names them"
        report([Loss(lost)], options, accepted=options.accept_loss)


def _with_archive(part: LogRange, options: SourceOptions, schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    """Yield the rows of a range; messages that retention has deleted since it was planned come from the archive."""
    deleted: list[RangeDeleted] = []

    def blocks(start: int) -> "Iterator[tuple[LogRange, RangeBlock]]":
        try:
            for block in stream(replace(part, start=start), options):
                yield part, block
        except RangeDeleted as gone:  # what was read before it is handed on first
            deleted.append(gone)

    yield from _batches(blocks(part.start), schema)
    while deleted:
        gone = deleted.pop()
        yield from _from_archive(replace(part, start=gone.start, stop=gone.stop), options, schema)
        yield from _batches(blocks(gone.stop), schema)


def _batches(found: Iterator[tuple[LogRange, "RangeBlock"]], schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    """Yield the rows of blocks; those of small blocks together, as each batch costs a turn through Python and Java."""
    from lapwing.spark.source.blocks import join, to_batch

    held: list[tuple[RangeBlock, str, int]] = []
    size = 0
    for part, block in found:
        if block.bare:
            held.append((block, part.topic, part.node))
            size += len(block.bare)
            if size < _JOINED_BYTES:
                continue
        if held:
            yield join(held, schema)
            held, size = [], 0
        if not block.bare:
            yield to_batch(block, part.topic, part.node, schema)
    if held:
        yield join(held, schema)


@cache
def _freeze_imports() -> None:
    """Hide the imported modules of this process from the garbage collector, which Spark calls after each task."""
    gc.freeze()
