"""SQL or Python over the messages of a topic, out to another topic; what does not parse goes to one of its own."""

import re
from contextlib import redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from lapwing.errors import ConfigError
from lapwing.spark.failures import compiling, raised_in
from lapwing.spark.pipelines.kinds import publish
from lapwing.spark.pipelines.kinds.messages import read_stream
from lapwing.spark.pipelines.kinds.parse import REJECTED, divided, parse
from lapwing.spark.pipelines.run.context import PreparedQuery, RunContext, persisted
from lapwing.spark.pipelines.settings.kind_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_ROW_BY_ROW: Final = re.compile(r"[\s:|+~-]*(Project|Filter|Generate|SubqueryAlias|View|Streaming\w+) ")


def build(settings: TransformSettings, context: RunContext) -> PreparedQuery:
    """Return the query that transforms. Both outputs leave in one batch of one sink, so they are published once."""
    frame = read_stream(context.spark, settings, includeHeaders="true")
    found = divided(parse(frame, settings, context))
    result = result_of(found.good, settings, context)
    out = publish.messages(result, settings.to, settings.name)
    rejects = publish.rejects_topic(settings) if settings.format != "binary" else ""
    if rejects and _is_row_by_row(result):
        sink = publish.options(settings, context)

        def write(batch: "DataFrame", number: int) -> None:
            """Publish a batch that is parsed once, under the name that the stream's own sink would give it."""
            with persisted(batch) as kept:
                good = result_of(kept.where(F.col(REJECTED).isNull()).drop(REJECTED), settings, context)
                rows = publish.beside(publish.messages(good, settings.to, settings.name), kept, rejects, settings.name)
                publish.once(rows, sink, f"query-{context.checkpoint.query()}", number)

        return PreparedQuery(found.everything.writeStream.foreachBatch(write), settings.trigger)
    if rejects:
        out = publish.beside(out, found.everything, rejects, settings.name)
    writer = out.writeStream.format("lapwing").options(**publish.options(settings, context, streaming=True))
    return PreparedQuery(writer, settings.trigger)


def _is_row_by_row(result: "DataFrame") -> bool:
    """Return whether each message is looked at by itself, so that the query gives the same for a batch alone."""
    text = StringIO()
    with redirect_stdout(text):
        result.explain(extended=True)
    plan = text.getvalue().partition("== Analyzed Logical Plan ==\n")[2].partition("\n== ")[0].splitlines()
    return all(_ROW_BY_ROW.match(line) for line in plan[1:])  # the first has the columns


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
