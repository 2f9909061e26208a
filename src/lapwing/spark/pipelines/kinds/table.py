"""A topic as a typed table: parsed columns, partitioned by the time of the event."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lapwing.errors import ConfigError
from lapwing.spark.failures import compiling
from lapwing.spark.pipelines.kinds import publish
from lapwing.spark.pipelines.kinds.messages import read_stream
from lapwing.spark.pipelines.kinds.parse import OURS, REJECTED, TIME, divided, parse, rejecting, with_time
from lapwing.spark.pipelines.run.context import PreparedQuery, RunContext, persisted
from lapwing.spark.pipelines.settings.kind_settings import DEFAULT_TIME, TableSettings
from lapwing.spark.tables.jdbc import JdbcStore
from lapwing.spark.tables.stores import PARTITIONS, DeltaStore, ParquetStore, TableStore

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ABOUT = ("_topic", "_node", "_sequence", "_timestamp")
_STORES: dict[str, type[TableStore]] = {
    "delta": DeltaStore, "parquet": ParquetStore, "jdbc": JdbcStore,
}  # fmt: skip
_TAKEN = frozenset({REJECTED, "_order_timestamp", "_order_sequence", "_order_rank"})  # beside the columns for a while


def build(settings: TableSettings, context: RunContext) -> PreparedQuery:
    """Return the query that fills the table."""
    frame = read_stream(context.spark, settings, includeHeaders="true")
    rows = shaped(frame, settings, context)
    rejects = publish.rejects_topic(settings)
    sink = publish.options(settings, context) if rejects else {}
    store = _STORES[settings.store](settings, context)
    store.open(rows.drop(REJECTED).schema)
    writer = rows.writeStream.foreachBatch(_batch_writer(settings, context, store, rejects, sink))
    return PreparedQuery(writer, settings.trigger, finish=store.finish)


def shaped(frame: "DataFrame", settings: TableSettings, context: RunContext) -> "DataFrame":
    """Return the messages as rows of the table, and with a column `_rejected` the messages that are none."""
    parsed = parse(frame, settings, context)
    partitions = PARTITIONS[settings.partition] if settings.store != "jdbc" else ()
    if partitions or settings.time != DEFAULT_TIME:
        parsed = with_time(parsed, settings.name, settings.time)
    values = _columns(divided(parsed).everything, settings)
    _check_names(values, settings, partitions)
    if settings.key:
        parsed = rejecting(parsed, _without_key(values, settings.key))
    everything = divided(parsed).everything
    good = F.col(REJECTED).isNull()
    columns = [F.when(good, value).alias(name) for name, value in values.items()]
    if settings.key:
        columns += [F.col(f"_{name}").alias(f"_order_{name}") for name in ("timestamp", "sequence")]
    parts = {"date": F.to_date(TIME), "hour": F.hour(TIME), "month": F.date_format(TIME, "yyyy-MM")}
    dated = [F.when(good, parts[name]).alias(name) for name in partitions]
    with compiling(f"{settings.name}: columns"):
        return everything.select(*columns, *dated, REJECTED)


def _columns(rows: "DataFrame", settings: TableSettings) -> "dict[str, Column]":
    """Return the columns of the table by name."""
    if settings.columns:
        found = {}
        for name, given in settings.columns.items():
            with compiling(f"{settings.name}: columns: {name}"):
                rows.select(F.expr(given))
                found[name] = F.expr(given)
        return found
    fields = [name for name in rows.columns if name not in OURS]
    return {name: F.col(f"`{name}`") for name in (*fields, *_ABOUT)}


def _check_names(values: "dict[str, Column]", settings: TableSettings, partitions: tuple[str, ...]) -> None:
    """Raise `ConfigError` for a column that would be there twice, and for a key that is no column."""
    for name in values:
        if name.lower() in partitions:
            raise ConfigError(
                f"{settings.name}: partition: {settings.partition} divides the files by {', '.join(partitions)}, and "
                f"the table has a column {name}; name it otherwise in columns, such as {{my_{name}: {name}}}, or "
                "choose partition: none"
            )
        if name in _TAKEN or sum(name.lower() == other.lower() for other in values) > 1:
            raise ConfigError(f"{settings.name}: columns: the name {name} is taken; choose another")
    for name in settings.key:
        if name not in values:
            raise ConfigError(f"{settings.name}: key: the table has no column {name}; it has {', '.join(values)}")


def _without_key(values: "dict[str, Column]", key: tuple[str, ...]) -> "Column":
    """Return the reason to reject a row that has no key: of several in a batch all but one would be lost."""
    lacking = values[key[0]].isNull()
    for name in key[1:]:
        lacking |= values[name].isNull()
    return F.when(lacking, F.lit(f"no key: {', '.join(key)}"))


def _batch_writer(
    settings: TableSettings, context: RunContext, store: TableStore, rejects: str, sink: dict[str, str]
) -> Callable[["DataFrame", int], None]:
    """Return the function that adds a micro-batch: first its rows to the table, then its rejects to their topic."""

    def write(batch: "DataFrame", number: int) -> None:
        query = context.checkpoint.query()
        with persisted(batch) as kept:
            rows = kept.where(F.col(REJECTED).isNull()).drop(REJECTED)
            context.count_out(rows.count() if store.has(query, number) else store.add(rows, query, number))
            rejected = kept.where(F.col(REJECTED).isNotNull()).count()
            if rejected and rejects:
                publish.once(publish.rejected(kept.coalesce(1), rejects, settings.name), sink, f"table-{query}", number)
            context.count_rejected(rejected)

    return write
