"""SQL or Python over the messages of a topic, out to another topic; what does not parse goes to one of its own."""

from typing import TYPE_CHECKING

from lapwing.errors import ConfigError
from lapwing.spark.failures import compiling, raised_in
from lapwing.spark.pipelines.kinds import publish
from lapwing.spark.pipelines.kinds.messages import read_stream
from lapwing.spark.pipelines.kinds.parse import divided, parse
from lapwing.spark.pipelines.run.context import PreparedQuery, RunContext
from lapwing.spark.pipelines.settings.kind_settings import TransformSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def build(settings: TransformSettings, context: RunContext) -> PreparedQuery:
    """Return the query that transforms. Both outputs leave in one batch of one sink, so they are published once."""
    frame = read_stream(context.spark, settings, includeHeaders="true")
    found = divided(parse(frame, settings, context))
    result = result_of(found.good, settings, context)
    out = publish.messages(result, settings.to, settings.name)
    rejects = publish.rejects_topic(settings) if settings.format != "binary" else ""
    if rejects:
        out = publish.beside(out, found.everything, rejects, settings.name)
    writer = out.writeStream.format("lapwing").options(**publish.options(settings, context, streaming=True))
    return PreparedQuery(writer, settings.trigger)


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
