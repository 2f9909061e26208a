"""Executors read ranges of logs from the brokers, block by block."""

import gc
import logging
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from lapwing.errors import LapwingError
from lapwing.spark import offsets as o
from lapwing.spark.http import BrokerAway, BrokerRefused, Exchange, Pauses, target
from lapwing.spark.losses import report
from lapwing.spark.offsets import Loss, Range
from lapwing.spark.options import SourceOptions
from lapwing.spark.survey import Survey

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from lapwing.spark.blocks import Block

logger = logging.getLogger(__name__)

TASK_BYTES: Final = 128 << 20  # a task larger than that is split even where nobody asked for more tasks
_LOG_DELETED: Final = ("TOPIC_NOT_FOUND", "LOG_ID_MISMATCH")


class RangeTask(InputPartition):
    """The range that one executor reads."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


def tasks(ranges: list[Range], found: Survey, options: SourceOptions) -> list[InputPartition]:
    """Split the ranges into tasks of similar size."""
    parts = o.split(
        ranges,
        o.mean_sizes(found.holdings),
        min_partitions=options.min_partitions,
        max_messages=options.max_per_partition,
        max_bytes=TASK_BYTES,
    )
    return [RangeTask(part) for part in parts]


def read_task(partition: InputPartition, options: SourceOptions, columns: list[str]) -> "Iterator[pa.RecordBatch]":
    """Yield the rows of one task, block by block as they come from the broker."""
    if isinstance(partition, RangeTask):  # Spark gives a reader without any tasks one with nothing in it
        from lapwing.spark.blocks import arrow_schema, needs_positions, to_batch

        schema = arrow_schema(columns)
        _freeze_imports()
        for block in stream(partition.part, options, positions=needs_positions(columns)):
            yield to_batch(block, partition.part.topic, partition.part.node, schema)


@cache
def _freeze_imports() -> None:
    """Hide the imported modules of this process from the garbage collector, which Spark calls after each task."""
    gc.freeze()


def stream(part: Range, options: SourceOptions, *, positions: bool = True) -> Iterator["Block"]:
    """Yield the blocks of a range, each message once; resume where a connection broke.

    Raises `BrokerAway` when the broker stays away, and `DataLoss` for messages that it no longer has or has
    quarantined, unless `losses` tolerates the loss.
    """
    from lapwing.spark.blocks import BadBlock, Elsewhere

    reached = part.start
    pauses = Pauses(options.access)
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
            report([Loss(f"{part}: from {reached} on: {error}", deleted=error.code in _LOG_DELETED)], options)
            first = error.details.get("first")
            reached = min(first, part.stop) if isinstance(first, int) and first > reached else part.stop
        except Elsewhere as error:
            logger.debug("%s: from %s on through the network: %s", part, reached, error)
            files = False
        except BrokerAway as error:
            pauses.wait(f"{part}: broken off at {reached}", error)
        except BadBlock as error:
            raise LapwingError(f"{part}: at {reached} the answer is not in the format of ranges: {error}") from error


def _attempt(part: Range, start: int, options: SourceOptions, *, positions: bool, files: bool) -> Iterator["Block"]:
    from lapwing.spark.blocks import read_blocks

    parameters: dict[str, str | int | list[str]] = {"topic": part.topic, "from": start, "to": part.stop}
    parameters |= {"log_id": part.log_id, "format": "raw"}
    parameters |= {"headers": str(options.headers).lower(), "positions": str(positions).lower()}
    if files:
        parameters["files"] = "true"
    if options.access.secret and options.channel:
        parameters["channel"] = options.channel  # a permission may be for this channel alone
    path = target("/log/read", parameters)
    exchange = Exchange(part.address, options.access, "GET", path)
    try:
        yield from read_blocks(exchange.read, exchange.fill)
    finally:
        exchange.finish()
