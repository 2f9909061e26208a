"""Topics to a Delta table: every message exactly once, in files by topic, date and hour."""

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lapwing.spark.options import source_options
from lapwing.spark.pipelines.kinds.messages import read_stream, stream_options
from lapwing.spark.pipelines.run.context import PreparedQuery, RunContext
from lapwing.spark.pipelines.settings.kind_settings import ArchiveSettings
from lapwing.spark.source.survey import survey
from lapwing.spark.tables import delta
from lapwing.spark.tables.delta import DeltaOutput, TableFormat, archive_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession

logger = logging.getLogger(__name__)

PARTITIONS: Final = ("topic", "date", "hour")
SCHEMA: Final = (
    "topic string, node int, log_id string, sequence bigint, id string, timestamp timestamp, attempts int, "
    "body binary, headers map<string,string>, archived timestamp, date date, hour int"
)
_MOST_BRANCHES: Final = 8  # logs of one batch up to which a chain of conditions is quicker than a join
# looked up in a dictionary these would only fill it
_UNIQUE: Final = ("body", "id", "sequence", "timestamp")


def read(spark: "SparkSession", place: str) -> "DataFrame":
    """Return an archive as a DataFrame: every message once, also while it is written to. Raises `ConfigError`."""
    archive_table(place)
    return delta.read(spark, place)


def build(settings: ArchiveSettings, context: RunContext) -> PreparedQuery:
    """Return the query that archives."""
    checkpoint = context.checkpoint
    scope = {"topics": settings.topics, "pattern": settings.pattern}
    table = DeltaOutput(context.paths.out, context, _form(settings), *PARTITIONS, scope=scope)
    another = (
        f"{table.root} was last written from another checkpoint than {checkpoint.root}; from this one "
        "messages could be archived twice. Delete it: the archive itself knows where to continue"
    )
    remedy = f"`lapwing pipeline reset {settings.name}`: the archive then continues where its files end"
    table.open(cast(StructType, StructType.fromDDL(SCHEMA)), foreign="" if checkpoint.new else another, remedy=remedy)
    if checkpoint.new and table.note.until:
        # the checkpoint is lost or new, and the archive itself knows how far it has come
        logger.warning("%s: no checkpoint; the archive continues where it ends", table.root)
        settings = replace(settings, start=json.dumps(_going_on(table.note.until, settings)))

    def write(batch: "DataFrame", number: int) -> None:
        query, until = checkpoint.query(), checkpoint.offsets(number)
        if table.has(query, number):
            logger.warning("%s: batch %s was archived before; it is not archived twice", table.root, number)
            context.count_out(batch.count())
        else:
            context.count_out(table.add(_shaped(batch, until), query, number, until))

    more = {"includeHeaders": str(settings.headers).lower(), "maxRecordsPerPartition": str(settings.rows_per_task)}
    stream = read_stream(context.spark, settings, **more).writeStream
    return PreparedQuery(stream.foreachBatch(write), settings.trigger, finish=table.finish)


def _going_on(until: dict[str, Any], settings: ArchiveSettings) -> dict[str, Any]:
    """Return where the archive ends in each log; logs that it does not know are read from their beginning."""
    there = survey(source_options(stream_options(replace(settings, start="earliest")), streaming=True))
    return {topic: {} for topic in there.holdings} | {
        topic: places for topic, places in until.items() if settings.reads(topic)
    }


def _form(settings: ArchiveSettings) -> TableFormat:
    """Return how the archive's files are written and merged."""

    def writer(frame: "DataFrame") -> "DataFrameWriter":
        found = frame.write.option("compression", settings.compression)
        for column in _UNIQUE:
            found = found.option(f"parquet.enable.dictionary#{column}", "false")
        return found

    return TableFormat(settings.compact_after, settings.file_bytes, settings.history, settings.compression, writer)


def _shaped(batch: "DataFrame", until: dict[str, Any]) -> "DataFrame":
    """Return the rows as they are kept: with the identity of their log, and the columns that files are sorted by."""
    if "headers" not in batch.columns:
        batch = batch.withColumn("headers", F.lit(None).cast("map<string,string>"))
    logs = [(topic, int(node), place["log_id"]) for topic, nodes in until.items() for node, place in nodes.items()]
    with_log = _with_log(batch, logs)
    return with_log.select(
        "topic", "node", "log_id", "sequence", "id", "timestamp", "attempts", "body", "headers",
        _now().alias("archived"),
        F.to_date("timestamp").alias("date"),
        F.hour("timestamp").alias("hour"),
    )  # fmt: skip


def _now() -> "Column":
    """Return the time of the batch, in such a manner that Spark does not compile the plan again for every batch.

    A plain `current_timestamp()` becomes a number in the code that Spark generates; an array stays a reference. The
    index has to depend on a row, else it would be computed beforehand.
    """
    return F.element_at(F.array(F.current_timestamp()), F.col("attempts") * 0 + 1)


def _with_log(batch: "DataFrame", logs: list[tuple[str, int, str]]) -> "DataFrame":
    if len(logs) == 1:
        return batch.withColumn("log_id", F.lit(logs[0][2]))
    if len(logs) <= _MOST_BRANCHES:
        chain: Column | None = None
        for topic, node, log_id in logs:
            here = (F.col("topic") == topic) & (F.col("node") == node)
            chain = F.when(here, log_id) if chain is None else chain.when(here, log_id)
        return batch.withColumn("log_id", F.lit(None).cast("string") if chain is None else chain)
    known = batch.sparkSession.createDataFrame(logs, "topic string, node int, log_id string")
    return batch.join(F.broadcast(known), ["topic", "node"], "left")
