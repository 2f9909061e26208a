"""Event-time windows: each once, when the watermark has passed it, to a Delta table and as JSON to a topic."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from lapwing.errors import ConfigError
from lapwing.spark.failures import compiling
from lapwing.spark.pipelines.kinds import publish
from lapwing.spark.pipelines.kinds.messages import read_stream
from lapwing.spark.pipelines.kinds.parse import REJECTED, TIME, divided, parse, with_time
from lapwing.spark.pipelines.run.context import PreparedQuery, RunContext, nothing, persisted
from lapwing.spark.pipelines.settings.kind_settings import FlowSettings, RollupSettings
from lapwing.spark.tables.delta import DeltaOutput, TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DISTINCT: Final = re.compile(r"distinct\((.+)\)", re.DOTALL)
_PERCENTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d+)?)\((.+)\)", re.DOTALL)
_FORM: Final = TableFormat(merge_after=64, file_bytes=64 << 20)


def build(settings: RollupSettings, context: RunContext) -> PreparedQuery:
    """Return the query that computes windows, and sets aside what has no place in one."""
    frame = read_stream(context.spark, settings, includeHeaders="true")
    rows = parse(frame, settings, context)
    found = divided(with_time(rows, settings.name, settings.time))
    grouped = windows(
        found.good, {name: aggregate(given) for name, given in settings.values.items()},
        window=settings.window, slide=settings.slide or settings.window, watermark=settings.watermark,
        by=settings.by, name=settings.name,
    )  # fmt: skip
    rejects = publish.rejects_topic(settings)
    if rejects:
        grouped = beside(grouped, found.everything)
    return write(grouped, settings, context, rejects=rejects)


def beside(grouped: "DataFrame", everything: "DataFrame") -> "DataFrame":
    """Return the windows, with a column `_rejected` that they have null, and the rejects, which have nothing else."""
    bad = everything.where(F.col(REJECTED).isNotNull()).select(REJECTED)
    return grouped.unionByName(bad, allowMissingColumns=True)


def aggregate(given: str) -> str:
    """Return a value as SQL: the short words for what streams can compute, anything else as it is."""
    text = given.strip()
    if text == "count":
        return "count(*)"
    if text == "bytes":
        return "sum(_size)"
    if found := _DISTINCT.fullmatch(text):
        return f"approx_count_distinct({found[1]})"
    if found := _PERCENTILE.fullmatch(text):
        return f"percentile_approx({found[2]}, {float(found[1]) / 100:g})"
    return text


def windows(
    rows: "DataFrame", values: dict[str, str], *, window: float, slide: float, watermark: float,
    by: tuple[str, ...], name: str,
) -> "DataFrame":  # fmt: skip
    """Return the rows in windows of their `_event_time`, with `values` (SQL by name) for each group.

    Raises `ConfigError`.
    """
    late = rows.withWatermark(TIME, f"{watermark:f} seconds")
    span = F.window(TIME, f"{window:f} seconds", f"{slide:f} seconds")
    groups = []
    for column in by:
        with compiling(f"{name}: by"):
            alias = column if column in rows.columns else re.sub(r"\W+", "_", column).strip("_")
            late.select(F.expr(column))
            groups.append(F.expr(column).alias(alias))
    computed = []
    for column, given in values.items():
        with compiling(f"{name}: values: {column}"):
            late.groupBy(span).agg(F.expr(given))
        computed.append(F.expr(given).alias(column))
    grouped = late.groupBy(span, *groups).agg(*computed)
    rest = [column for column in grouped.columns if column != "window"]
    return grouped.select(
        F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end"),
        *(F.col(f"`{column}`") for column in rest),
    )  # fmt: skip


def write(
    frame: "DataFrame", settings: RollupSettings | FlowSettings, context: RunContext,
    *, rejects: str = "", published: Callable[[], None] = nothing,
) -> PreparedQuery:  # fmt: skip
    """Return the query that writes finished windows to files and to the topic: both once per batch.

    With `rejects`, a topic, the rows that have a value in `_rejected` go there. `published` is called after windows
    went to the topic.
    """
    place, to = context.paths.out, settings.to
    if place and "date" in map(str.lower, frame.columns):
        raise ConfigError(
            f"{settings.name}: date is the column that the files are divided by; choose another name, such as "
            "values: {day: ...}, or leave the files out with out: none"
        )
    table = DeltaOutput(place, context, _FORM, "date") if place else None
    if table is not None:
        another = (
            f"{settings.name}: {place} holds windows that were computed from another checkpoint, and would hold them "
            "twice. Delete it or choose another out to compute it again, or bring the old checkpoint back"
        )
        schema = _dated(frame.drop(REJECTED) if rejects else frame).schema
        foreign = another if isinstance(settings, RollupSettings) else ""
        table.open(schema, foreign=foreign, setting=f"{settings.name}: values")
    sink = publish.options(settings, context) if to or rejects else {}

    def save(batch: "DataFrame", number: int) -> None:
        with persisted(batch) as kept:
            done = kept.where(F.col(REJECTED).isNull()).drop(REJECTED) if rejects else kept
            aside = F.count(REJECTED) if rejects else F.lit(0)
            [[there, bad]] = kept.select(F.count("*"), aside).collect()
            if not there:
                return
            context.count_rejected(bad)
            query = context.checkpoint.query()
            if table is not None and there > bad and not table.has(query, number):
                until = context.checkpoint.offsets(number)
                context.count_out(table.add(_dated(done).coalesce(1), query, number, until))
            if to or rejects:
                rows = _outgoing(kept.coalesce(1), to, rejects, settings.name)
                publish.once(rows, sink, f"rollup-{query}", number)
                published()

    writer = frame.writeStream.foreachBatch(save).outputMode("append")
    return PreparedQuery(writer, settings.trigger, finish=nothing if table is None else table.finish)


def _dated(windows: "DataFrame") -> "DataFrame":
    return windows.withColumn("date", F.to_date("window_start"))


def _outgoing(rows: "DataFrame", to: str, rejects: str, name: str) -> "DataFrame":
    """Return the messages of a batch: windows and rejects leave together, so both are published once or not at all."""
    if not rejects:
        return publish.messages(rows, to, name)
    return publish.both(rows, to, rejects, name) if to else publish.rejected(rows, rejects, name)
