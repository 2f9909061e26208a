"""A topic as a typed table: parsed columns, partitioned by the time of the event."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from lapwing.errors import ConfigError
from lapwing.spark.failures import analysis
from lapwing.spark.pipelines import publish
from lapwing.spark.pipelines.messages import read_stream, stream_options
from lapwing.spark.pipelines.parse import REJECTED, divided, parse, with_time
from lapwing.spark.pipelines.pipeline_settings import TableSettings
from lapwing.spark.pipelines.run_context import PreparedQuery, RunContext
from lapwing.spark.pipelines.stores import PARTITIONS, TableStore, store_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ABOUT = ("_topic", "_node", "_sequence", "_timestamp")


def build(settings: TableSettings, context: RunContext) -> PreparedQuery:
    """Return the query that fills the table."""
    frame = read_stream(context.spark, stream_options(settings, includeHeaders="true"))
    rows = shaped(frame, settings, context)
    rejects = publish.rejects_topic(settings)
    sink = publish.options(settings, context) if rejects else {}
    store = store_of(settings, context)
    store.open()
    try:
        write = _batch_writer(settings, context, store, rejects, sink)
        writer = rows.writeStream.foreachBatch(write)
    except BaseException:
        store.close()
        raise
    return PreparedQuery(writer, settings.trigger, finish=store.finish, close=store.close)


def shaped(frame: "DataFrame", settings: TableSettings, context: RunContext) -> "DataFrame":
    """Return the messages as rows of the table, and with a column `_rejected` the messages that are none."""
    parsed = parse(frame, settings, context, reject_unknown=settings.drift == "reject")
    partitions = PARTITIONS[settings.partition] if settings.store != "jdbc" else ()
    if partitions:
        parsed = with_time(parsed, settings.name, settings.time)
    everything = divided(parsed).everything
    good = F.col(REJECTED).isNull()
    columns = [F.when(good, value).alias(name) for name, value in _columns(everything, settings).items()]
    if settings.key:
        columns += [F.col(f"_{name}").alias(f"_order_{name}") for name in ("timestamp", "sequence")]
    dated = [F.when(good, value).alias(name) for name, value in _partition_values().items() if name in partitions]
    try:
        return everything.select(*columns, *dated, REJECTED)
    except PySparkException as error:
        raise ConfigError(f"{settings.name}: columns: {analysis(error)}") from error


def _columns(rows: "DataFrame", settings: TableSettings) -> "dict[str, Column]":
    if settings.columns:
        found = {}
        for name, given in settings.columns.items():
            try:
                rows.select(F.expr(given))
                found[name] = F.expr(given)
            except PySparkException as error:
                raise ConfigError(f"{settings.name}: columns: {name}: {analysis(error)}") from error
        return found
    fields = [name for name in rows.columns if not name.startswith("_")]
    return {name: F.col(f"`{name}`") for name in (*fields, *_ABOUT)}


def _partition_values() -> "dict[str, Column]":
    return {
        "date": F.to_date("_time"), "hour": F.hour("_time"), "month": F.date_format("_time", "yyyy-MM"),
    }  # fmt: skip


def _batch_writer(
    settings: TableSettings, context: RunContext, store: TableStore, rejects: str, sink: dict[str, str]
) -> Callable[["DataFrame", int], None]:
    """Return the function that adds a micro-batch: first its rows to the table, then its rejects to their topic."""

    def write(batch: "DataFrame", number: int) -> None:
        batch = batch.persist()
        try:
            _write(batch, number)
        finally:
            batch.unpersist()

    def _write(batch: "DataFrame", number: int) -> None:
        query = context.checkpoint.query()
        rows = batch.where(F.col(REJECTED).isNull()).drop(REJECTED)
        if not store.has(query, number):
            context.count_out(store.add(rows, query, number))
        bad = batch.where(F.col(REJECTED).isNotNull())
        rejected = bad.count()
        if rejected and rejects:
            messages = publish.rejected(batch.coalesce(1), rejects, settings.name)
            once = {**sink, "sinkId": f"table-{query}", "batchId": str(number)}
            messages.write.format("lapwing").options(**once).mode("append").save()
        context.count_rejected(rejected)

    return write
