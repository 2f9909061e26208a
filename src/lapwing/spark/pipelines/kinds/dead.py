"""Dead letters to Delta tables: every letter once with its reason and error, and counts by channel and reason."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lapwing.spark.pipelines.kinds.messages import read_stream
from lapwing.spark.pipelines.run.context import PreparedQuery, RunContext, persisted
from lapwing.spark.pipelines.settings.kind_settings import DeadSettings
from lapwing.spark.tables.delta import DeltaOutput, TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

LETTERS = "letters"  # the folder of the letters themselves
COUNTS = "counts"  # the folder of what was counted, batch by batch
_FORM = TableFormat(merge_after=64, file_bytes=64 << 20)


def build(settings: DeadSettings, context: RunContext) -> PreparedQuery:
    """Return the query that archives and counts dead letters."""
    frame = read_stream(context.spark, settings, dead="true", includeHeaders="true")
    dated = _dated(frame)
    schemas = {LETTERS: dated.schema, COUNTS: counted(dated).schema}
    tables = {
        name: _open(f"{context.paths.out}/{name}", schema, settings, context) for name, schema in schemas.items()
    }

    def write(batch: "DataFrame", number: int) -> None:
        query, until = context.checkpoint.query(), context.checkpoint.offsets(number)
        with persisted(_dated(batch)) as dated:
            for name, rows in ((LETTERS, dated), (COUNTS, counted(dated))):
                there = tables[name].has(query, number)
                added = rows.count() if there else tables[name].add(rows.coalesce(1), query, number, until)
                if name == LETTERS:
                    context.count_out(added)

    def finish() -> None:
        for table in tables.values():
            table.finish()

    return PreparedQuery(frame.writeStream.foreachBatch(write), settings.trigger, finish=finish)


def counted(letters: "DataFrame") -> "DataFrame":
    """Return the number of letters by hour, channel and reason, with the last error of each."""
    hour = F.date_trunc("hour", F.coalesce("dead_at", "timestamp")).alias("hour")
    return letters.groupBy("date", hour, "origin_topic", "origin_channel", "reason").agg(
        F.count("*").alias("letters"),
        F.sum("failures").alias("failures"),
        F.max_by("error", "dead_at").alias("last_error"),
        F.max("dead_at").alias("last_at"),
    )


def _dated(letters: "DataFrame") -> "DataFrame":
    return letters.withColumn("date", F.to_date(F.coalesce("dead_at", "timestamp")))


def _open(place: str, schema: "StructType", settings: DeadSettings, context: RunContext) -> DeltaOutput:
    table = DeltaOutput(place, context, _FORM, "date")
    table.open(
        schema,
        foreign=f"{settings.name}: {place} holds letters that were written from another checkpoint, and would hold "
        "them twice. `lapwing pipeline reset` with --with-output starts over, or choose another out",
        remedy=f"`lapwing pipeline reset {settings.name} --with-output` starts over",
    )
    return table
