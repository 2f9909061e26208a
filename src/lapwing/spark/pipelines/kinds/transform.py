"""SQL or Python over the messages of a topic, out to another topic; what does not parse goes to one of its own."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import Observation
from pyspark.sql import functions as F

from lapwing.errors import ConfigError
from lapwing.spark.failures import compiling, raised_in
from lapwing.spark.pipelines.kinds import publish
from lapwing.spark.pipelines.kinds.messages import read_stream
from lapwing.spark.pipelines.kinds.parse import REJECTED, divided, parse
from lapwing.spark.pipelines.run.context import PreparedQuery, RunContext
from lapwing.spark.pipelines.settings.kind_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# steps of a plan that look at each row by itself
_ROW_BY_ROW: Final = re.compile(r"[\s:|+~-]*(Project|Filter|Generate|SubqueryAlias|View|Streaming\w+) ")
_NAMED_REJECTS: Final = 5_000  # of one batch that are asked for by their sequences; of more, the whole batch is read


def build(settings: TransformSettings, context: RunContext) -> PreparedQuery:
    """Return the query that transforms; each batch of its results is published once, and so are its rejects.

    A query that looks at each row by itself is run batch by batch, and rejects are read again, by their sequences.
    Any other is one stream with the rejects, which reads and parses every message for each of the two.
    """
    frame = read_stream(context.spark, settings, includeHeaders="true")
    found = divided(parse(frame, settings, context))
    result = result_of(found.good, settings, context)
    out = publish.messages(result, settings.to, settings.name)
    rejects = publish.rejects_topic(settings) if settings.format != "binary" else ""
    if rejects and _is_row_by_row(result):
        write = _batch_writer(settings, context, rejects)
        return PreparedQuery(frame.writeStream.foreachBatch(write), settings.trigger)
    if rejects:
        out = publish.beside(out, found.everything, rejects, settings.name)
    writer = out.writeStream.format("lapwing").options(**publish.options(settings, context, streaming=True))
    return PreparedQuery(writer, settings.trigger)


def _is_row_by_row(result: "DataFrame") -> bool:
    """Return whether the query gives for a batch alone what it gives for the stream."""
    # as it is already; DataFrame.explain would optimize and compile all of it for the same lines
    plan: str = cast(Any, result)._jdf.queryExecution().analyzed().toString()
    return all(_ROW_BY_ROW.match(line) for line in plan.splitlines())


def _observed(met: Observation) -> dict[str, Any]:
    """Return what was observed; nothing where Spark has left out the step, as for a query that never has results."""
    try:
        return met.get
    except Py4JJavaError:
        return {}


def _batch_writer(
    settings: TransformSettings, context: RunContext, rejects: str
) -> "Callable[[DataFrame, int], None]":
    """Return the function that publishes a batch: first its results, then the rejects that were met meanwhile."""
    sink = publish.options(settings, context)

    def write(batch: "DataFrame", number: int) -> None:
        if number == 0:  # nothing is read by it, it only records where the query begins
            context.count_rejected(0)
            return
        query, met = context.checkpoint.query(), Observation()
        sequences = F.collect_set(F.col(REJECTED)["sequence"])
        everything = divided(parse(batch, settings, context)).everything
        everything = everything.observe(met, F.count(REJECTED).alias("count"), sequences.alias("sequences"))
        good = everything.where(F.col(REJECTED).isNull()).drop(REJECTED)
        out = publish.messages(result_of(good, settings, context), settings.to, settings.name)
        # the name that the stream's own sink would give it
        publish.once(out, sink, f"query-{query}", number)
        seen = _observed(met)
        if seen.get("count") == 0:
            context.count_rejected(0)
            return
        if seen and seen["count"] <= _NAMED_REJECTS:
            batch = batch.where(f"sequence in ({','.join(map(str, seen['sequences']))})")
        bad = publish.rejected(divided(parse(batch, settings, context)).everything, rejects, settings.name)
        publish.once(bad, sink, f"rejects-{query}", number)
        context.count_rejected(seen["count"] if seen else bad.count())

    return write


def result_of(good: "DataFrame", settings: TransformSettings, context: RunContext) -> "DataFrame":
    """Return the result of the SQL or the function over the parsed messages; raises `ConfigError`."""
    from pyspark.sql import DataFrame

    function = context.function
    if function is None:
        with compiling(f"{settings.name}: sql", views="; the messages are the view `input`"):
            # a view of the query's own, so that several pipelines of one session do not see each other's
            if "{input}" in settings.sql:  # as Spark's own parameters are written
                return good.sparkSession.sql(settings.sql, input=good)
            return _over_view(good, settings)
    try:
        result = function(good)
    except Exception as error:
        raise ConfigError(raised_in(error, function.__code__.co_filename)) from error
    if not isinstance(result, DataFrame) or result.isStreaming != good.isStreaming:
        raise ConfigError(f"{settings.name}: the function has to return a streaming DataFrame, not {result!r}")
    return result


def _over_view(good: "DataFrame", settings: TransformSettings) -> "DataFrame":
    good.createOrReplaceTempView("input")
    try:
        result = good.sparkSession.sql(settings.sql)
    finally:
        good.sparkSession.catalog.dropTempView("input")
    if good.isStreaming and not result.isStreaming:
        raise ConfigError(f"{settings.name}: sql does not read from input")
    return result
