"""Executors read ranges of logs from the brokers, block by block."""

import gc
import json
import logging
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from lapwing import kernel
from lapwing.errors import LapwingError
from lapwing.spark.brokers.http import BrokerAway, BrokerExchange, BrokerRefused, RetryPauses, target
from lapwing.spark.options import SourceOptions
from lapwing.spark.source import offsets as o
from lapwing.spark.source.losses import report
from lapwing.spark.source.offsets import LogRange, Loss
from lapwing.spark.source.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from lapwing.spark.source.blocks import RangeBlock

logger = logging.getLogger(__name__)

TASK_BYTES: Final = 128 << 20  # a task larger than that is split even where nobody asked for more tasks
PACKED_BYTES: Final = 8 << 20  # up to which small ranges share a task
_JOINED_BYTES: Final = 1 << 20  # of rows that are handed to Spark at once, where ranges are small
_POSITIONS: Final = not kernel.COMPILED  # of frames, sent by the broker; the compiled kernel finds them as it cuts
_LOG_DELETED: Final = ("TOPIC_NOT_FOUND", "LOG_ID_MISMATCH")


class RangeDeleted(Exception):
    """Messages of a range were deleted at the broker since it was planned; the archive has them."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__(start, stop)
        self.start = start
        self.stop = stop


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
    if not options.dead:
        return _read_task(partition, options, columns)
    from lapwing.spark.source.dead_columns import add_columns, base_columns

    return add_columns(_read_task(partition, options, base_columns(columns)), columns)


def _read_task(partition: InputPartition, options: SourceOptions, columns: list[str]) -> "Iterator[pa.RecordBatch]":
    if not isinstance(partition, RangeTask):  # Spark gives a reader without any tasks one with nothing in it
        return
    from lapwing.spark.source.blocks import arrow_schema

    schema = arrow_schema(columns)
    if not partition.archived:
        _freeze_imports()
    if options.archive is None:
        yield from _batches(_stream_all(partition.parts, options, positions=_POSITIONS), schema)
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
            for block in stream(replace(part, start=start), options, positions=_POSITIONS):
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


def _stream_all(
    parts: tuple[LogRange, ...], options: SourceOptions, *, positions: bool
) -> Iterator[tuple[LogRange, "RangeBlock"]]:
    """Yield the blocks of several ranges: of all with one request as far as that goes, of the rest one by one."""
    from lapwing.spark.source.blocks import BadBlock, Elsewhere

    index, reached = 0, parts[0].start
    if len(parts) > 1:
        try:
            with closing(_attempt_all(parts, options, positions=positions)) as blocks:
                for block in blocks:
                    if block.first != reached or block.quarantined:
                        break
                    yield parts[index], block
                    reached += block.count
                    while reached >= parts[index].stop and index + 1 < len(parts):
                        index += 1
                        reached = parts[index].start
        except (BrokerAway, BrokerRefused, Elsewhere, BadBlock) as error:
            logger.debug("%s: from %s on by itself: %s", parts[index], reached, error)
    for part in (replace(parts[index], start=reached), *parts[index + 1 :]):
        for block in stream(part, options, positions=positions):
            yield part, block


def _attempt_all(
    parts: tuple[LogRange, ...], options: SourceOptions, *, positions: bool
) -> Generator["RangeBlock", None, None]:
    body = json.dumps([[part.topic, part.log_id, part.start, part.stop] for part in parts]).encode()
    path = target("/log/ranges", _form(options, positions=positions, files=options.local_files and not positions))
    yield from _blocks(BrokerExchange(parts[0].address, options.access, "POST", path, body))


@cache
def _freeze_imports() -> None:
    """Hide the imported modules of this process from the garbage collector, which Spark calls after each task."""
    gc.freeze()


def stream(part: LogRange, options: SourceOptions, *, positions: bool = True) -> Iterator["RangeBlock"]:
    """Yield the blocks of a range, each message once; resume where a connection broke.

    Raises `BrokerAway` when the broker stays away, and `DataLoss` for messages that it no longer has or has
    quarantined, unless `losses` tolerates the loss.
    """
    from lapwing.spark.source.blocks import BadBlock, Elsewhere

    reached = part.start
    pauses = RetryPauses(options.access)
    files = options.local_files and not positions
    while reached < part.stop:
        try:
            for block in _attempt(part, reached, options, positions=positions, files=files):
                pauses.restart()
                if block.first != reached:
                    raise LapwingError(f"{part}: the broker sent {block.first} where {reached} was expected")
                reached += block.count
                if not block.quarantined:
                    yield block
                    continue
                lost = f"{part}: {block.count} messages from {block.first} on are damaged: {block.quarantined}"
                report([Loss(lost)], options)
            if reached < part.stop:
                raise BrokerAway(part.address, f"the answer ended at {reached}")
        except BrokerRefused as error:
            first = error.details.get("first")
            if options.archive is not None and isinstance(first, int) and first > reached:
                raise RangeDeleted(reached, min(first, part.stop)) from error
            report([Loss(f"{part}: from {reached} on: {error}", deleted=error.code in _LOG_DELETED)], options)
            reached = min(first, part.stop) if isinstance(first, int) and first > reached else part.stop
        except Elsewhere as error:
            logger.debug("%s: from %s on through the network: %s", part, reached, error)
            files = False
        except BrokerAway as error:
            pauses.wait(f"{part}: broken off at {reached}", error)
        except BadBlock as error:
            raise LapwingError(f"{part}: at {reached} the answer is not in the format of ranges: {error}") from error


def _attempt(
    part: LogRange, start: int, options: SourceOptions, *, positions: bool, files: bool
) -> Iterator["RangeBlock"]:
    parameters = _form(options, positions=positions, files=files)
    parameters |= {"topic": part.topic, "from": start, "to": part.stop, "log_id": part.log_id, "format": "raw"}
    yield from _blocks(BrokerExchange(part.address, options.access, "GET", target("/log/read", parameters)))


def _form(options: SourceOptions, *, positions: bool, files: bool) -> dict[str, str | int | list[str]]:
    """Return the parameters for how messages are sent."""
    parameters: dict[str, str | int | list[str]] = {"headers": str(options.headers).lower()}
    parameters["positions"] = str(positions).lower()
    if files:
        parameters["files"] = "true"
    if options.access.secret and options.channel:
        parameters["channel"] = options.channel  # a permission may be for this channel alone
    return parameters


def _blocks(exchange: BrokerExchange) -> Iterator["RangeBlock"]:
    from lapwing.spark.source.blocks import read_blocks

    try:
        yield from read_blocks(exchange.read, exchange.fill)
    finally:
        exchange.finish()
