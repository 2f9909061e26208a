"""SQL or Python over the messages of a topic, out to another topic; what does not parse goes to one of its own."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException

from lapwing.errors import ConfigError
from lapwing.spark.failures import analysis, raised_in
from lapwing.spark.pipelines import publish
from lapwing.spark.pipelines.messages import read_stream, stream_options
from lapwing.spark.pipelines.parse import REJECTED, divided, parse
from lapwing.spark.pipelines.pipeline_settings import TransformSettings
from lapwing.spark.pipelines.row_passthrough import carried
from lapwing.spark.pipelines.run_context import PreparedQuery, RunContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NO_VIEW: Final = "TABLE_OR_VIEW_NOT_FOUND"


def build(settings: TransformSettings, function: Callable[[Any], Any] | None, context: RunContext) -> PreparedQuery:
    """Return the query that transforms. Both outputs leave in one batch of one sink, so they are published once."""
    frame = read_stream(context.spark, stream_options(settings, includeHeaders="true"))
    found = divided(parse(frame, settings, context, reject_unknown=settings.drift == "reject"))
    result = result_of(found.good, settings, function, context)
    out = publish.messages(result, settings.to, settings.name)
    rejects = publish.rejects_topic(settings)
    if rejects and settings.format != "binary":
        together = carried(result, found.good, found.everything, REJECTED)
        if together is not None:
            out = publish.both(together, settings.to, rejects, settings.name)
        else:
            out = publish.beside(out, found.everything, rejects, settings.name)
    writer = out.writeStream.format("lapwing").options(**publish.options(settings, context, streaming=True))
    return PreparedQuery(writer, settings.trigger)


def result_of(
    good: "DataFrame", settings: TransformSettings, function: Callable[[Any], Any] | None, context: RunContext
) -> "DataFrame":
    """Return the result of the SQL or the function over the parsed messages; raises `ConfigError`."""
    from pyspark.sql import DataFrame

    if function is None:
        try:
            # a view of the query's own, so that several pipelines of one session do not see each other's
            if _placeholder(settings.sql):
                return context.spark.sql(settings.sql, input=good)
            return _over_view(good, settings)
        except PySparkException as error:
            hint = "; the messages are the view `input`" if error.getCondition() == _NO_VIEW else ""
            raise ConfigError(f"{settings.name}: sql: {analysis(error, hint)}") from error
    try:
        result = function(good)
    except Exception as error:
        raise ConfigError(raised_in(error, function.__code__.co_filename)) from error
    if not isinstance(result, DataFrame) or result.isStreaming != good.isStreaming:
        raise ConfigError(f"{settings.name}: the function has to return a streaming DataFrame, not {result!r}")
    return result


def _placeholder(sql: str) -> bool:
    """Return whether the query names its input as `{input}`, as Spark's own parameters do."""
    return "{input}" in sql


def _over_view(good: "DataFrame", settings: TransformSettings) -> "DataFrame":
    good.createOrReplaceTempView("input")
    try:
        result = good.sparkSession.sql(settings.sql)
    finally:
        good.sparkSession.catalog.dropTempView("input")
    if good.isStreaming and not result.isStreaming:
        raise ConfigError(f"{settings.name}: sql does not read from input")
    return result
