"""SQL or Python over the messages of a topic, out to another topic; what does not parse goes to one of its own."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lapwing.errors import ConfigError
from lapwing.spark.pipelines import publish
from lapwing.spark.pipelines.carry import carried
from lapwing.spark.pipelines.ground import Built, Ground
from lapwing.spark.pipelines.kinds import Transform
from lapwing.spark.pipelines.messages import read_stream, stream_options
from lapwing.spark.pipelines.parse import REJECTED, divided, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def build(settings: Transform, function: Callable[[Any], Any] | None, ground: Ground) -> Built:
    """The query that transforms. Both outputs leave in one batch of one sink, so they are published together, once."""
    frame = read_stream(ground.spark, stream_options(settings, includeHeaders="true"))
    found = divided(parse(frame, settings, ground, reject_unknown=settings.drift == "reject"))
    result = _result(found.good, settings, function, ground)
    out = publish.messages(result, settings.to, settings.name)
    rejects = publish.rejects_topic(settings)
    if rejects and settings.format != "binary":
        together = carried(result, found.good, found.everything, REJECTED)
        if together is not None:
            out = publish.both(together, settings.to, rejects, settings.name)
        else:
            out = publish.beside(out, found.everything, rejects)
    return Built(out.writeStream.format("lapwing").options(**publish.options(settings, ground)), settings.trigger)


def _result(
    good: "DataFrame", settings: Transform, function: Callable[[Any], Any] | None, ground: Ground
) -> "DataFrame":
    from pyspark.sql import DataFrame

    if function is None:
        # a view of the query's own, so that several pipelines of one session do not see each other's
        return ground.spark.sql(settings.sql, input=good) if _placeholder(settings.sql) else _over_view(good, settings)
    result = function(good)
    if not isinstance(result, DataFrame) or not result.isStreaming:
        raise ConfigError(f"{settings.name}: the function has to return a streaming DataFrame, not {result!r}")
    return result


def _placeholder(sql: str) -> bool:
    """Whether the query names its input as `{input}`, as Spark's own parameters do."""
    return "{input}" in sql


def _over_view(good: "DataFrame", settings: Transform) -> "DataFrame":
    good.createOrReplaceTempView("input")
    try:
        result = good.sparkSession.sql(settings.sql)
    finally:
        good.sparkSession.catalog.dropTempView("input")
    if not result.isStreaming:
        raise ConfigError(f"{settings.name}: sql does not read from input")
    return result
