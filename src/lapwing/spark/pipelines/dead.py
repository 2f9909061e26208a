"""Dead letters to Parquet: every letter once with its reason and error, and counts by channel and reason."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lapwing.errors import ConfigError
from lapwing.spark.pipelines.compact import MergeSettings, compact
from lapwing.spark.pipelines.files import open_files
from lapwing.spark.pipelines.manifest_table import ManifestTable, count_rows
from lapwing.spark.pipelines.messages import read_stream, stream_options
from lapwing.spark.pipelines.pipeline_settings import DeadSettings
from lapwing.spark.pipelines.run_context import PreparedQuery, RunContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

LETTERS = "letters"  # the folder of the letters themselves
COUNTS = "counts"  # the folder of what was counted, batch by batch
_FILES = 64
_FILE_BYTES = 64 << 20


def build(settings: DeadSettings, context: RunContext) -> PreparedQuery:
    """Return the query that archives and counts dead letters."""
    frame = read_stream(context.spark, stream_options(settings, dead="true", includeHeaders="true"))
    tables = {name: _open(f"{context.paths.out}/{name}", settings, context) for name in (LETTERS, COUNTS)}

    def release() -> None:
        for _, free in tables.values():
            free()

    def write(batch: "DataFrame", number: int) -> None:
        query = context.checkpoint.query()
        dated = batch.withColumn("date", F.to_date(F.coalesce("dead_at", "timestamp"))).persist()
        try:
            for name, rows in ((LETTERS, dated), (COUNTS, counted(dated))):
                added = _add(tables[name][0], rows.coalesce(1), query, number, context)
                if name == LETTERS:
                    context.count_out(added)
        finally:
            dated.unpersist()

    return PreparedQuery(frame.writeStream.foreachBatch(write), settings.trigger, close=release)


def counted(letters: "DataFrame") -> "DataFrame":
    """Return the number of letters by hour, channel and reason, with the last error of each."""
    hour = F.date_trunc("hour", F.coalesce("dead_at", "timestamp")).alias("hour")
    return letters.groupBy("date", hour, "origin_topic", "origin_channel", "reason").agg(
        F.count("*").alias("letters"),
        F.sum("failures").alias("failures"),
        F.max_by("error", "dead_at").alias("last_error"),
        F.max("dead_at").alias("last_at"),
    )


def _open(place: str, settings: DeadSettings, context: RunContext) -> tuple[ManifestTable, Callable[[], None]]:
    files = open_files(place, context.spark)
    table = ManifestTable(files, count_rows(context.spark))
    table.open()
    began = "" if context.checkpoint.new else context.checkpoint.query()
    if table.contents.query not in ("", began):
        files.release()
        raise ConfigError(
            f"{settings.name}: {place} holds letters that were written from another checkpoint, and would hold them "
            "twice. `lapwing pipeline reset` with --with-output starts over, or choose another out"
        )
    if began:
        remedy = f"`lapwing pipeline reset {settings.name} --with-output` starts over"
        table.check_has(began, context.checkpoint.finished, remedy)
    return table, files.release


def _add(table: ManifestTable, rows: "DataFrame", query: str, number: int, context: RunContext) -> int:
    if table.has(query, number):
        return 0
    until = context.checkpoint.offsets(number)
    added = table.add(query, number, until, lambda place: rows.write.partitionBy("date").parquet(place))
    compact(context.spark, table, MergeSettings(_FILES, _FILE_BYTES, (), lambda frame: frame.write))
    return added
