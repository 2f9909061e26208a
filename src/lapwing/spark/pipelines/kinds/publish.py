"""Rows to topics: the columns that the sink wants, checked before anything starts."""

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from lapwing import names
from lapwing.errors import ConfigError
from lapwing.spark.options import sink_options
from lapwing.spark.pipelines.kinds.messages import sink_access
from lapwing.spark.pipelines.kinds.parse import REJECTED
from lapwing.spark.pipelines.run.context import RunContext
from lapwing.spark.pipelines.settings.kind_settings import PipelineSettings, RejectingSettings
from lapwing.spark.sink.writer import BadColumns, check_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def options(settings: PipelineSettings, context: RunContext, *, streaming: bool = False) -> dict[str, str]:
    """Return where the pipeline publishes, for the writer of a stream or of batches.

    A batch that was begun goes to the broker that may have published it; between batches the brokers may change.
    """
    if settings.options.get("acceptDoubles") == "true" or not context.checkpoint.unfinished:
        more = {"acceptDoubles": "true"} if streaming else {}
        return sink_access(settings, context.checkpoint.move_sink(context.brokers), **more)
    return sink_access(settings, context.checkpoint.keep_sink(context.brokers))


def rejects_topic(settings: RejectingSettings) -> str:
    """Return where messages go that cannot be worked with, "" for nowhere; raises `ConfigError`."""
    if settings.rejects == "none":
        return ""
    topic = settings.rejects or f"{settings.topics[0] if settings.topics else settings.name}.rejected"
    if not names.valid(topic):
        raise ConfigError(f"{settings.name}: rejects: {topic!r} is no name for a topic (none leaves them out)")
    if settings.reads(topic):
        raise ConfigError(f"{settings.name}: rejects: {topic} is also read; the pipeline would feed itself")
    return topic


def messages(frame: "DataFrame", to: str, name: str) -> "DataFrame":
    """Return the rows as messages: with a column `body` as they are, others as JSON. Raises `ConfigError`."""
    if "body" not in frame.columns:
        frame = frame.select(F.to_json(F.struct(*(F.col(f"`{column}`") for column in frame.columns))).alias("body"))
    if to and "topic" not in frame.columns:
        frame = frame.withColumn("topic", F.lit(to))
    if "topic" not in frame.columns:
        raise ConfigError(f"{name}: to is missing: the topic for the result (or a column topic beside body)")
    try:
        check_columns(frame.schema, sink_options({"nsqd": "any:1"}, streaming=True))
    except BadColumns as error:
        raise ConfigError(f"{name}: {error}") from error
    return frame


def beside(good: "DataFrame", everything: "DataFrame", rejects: str, name: str) -> "DataFrame":
    """Messages, and the rejects among `everything`, in two passes over the input.

    Headers are text here: Spark measures a batch of Arrow after each row, and all rows of it again for a map.
    """
    good = good.withColumn("body", F.col("body").cast("binary"))
    if dict(good.dtypes).get("headers", "string") != "string":
        good = good.withColumn("headers", F.to_json("headers"))
    return good.unionByName(rejected(everything, rejects, name), allowMissingColumns=True)


def rejected(everything: "DataFrame", rejects: str, name: str) -> "DataFrame":
    """Return the rejects alone, as messages."""
    bad = everything.where(F.col(REJECTED).isNotNull())
    return bad.select(*(value.alias(column) for column, value in _reject(rejects, name).items()))


def once(rows: "DataFrame", sink: dict[str, str], name: str, batch: int) -> None:
    """Publish the messages as a batch of the sink of this name: brokers publish each batch of it once."""
    batch_of = {"sinkId": name, "batchId": str(batch)}
    rows.write.format("lapwing").options(**sink, **batch_of).mode("append").save()


def _reject(topic: str, pipeline: str) -> "dict[str, Column]":
    """Return the columns of a message that could not be parsed: its body, and headers with reason and place."""
    why = F.col(REJECTED)
    headers = F.create_map(
        F.lit("reason"), why["reason"],
        F.lit("pipeline"), F.lit(pipeline),
        F.lit("origin-topic"), why["topic"],
        F.lit("origin-node"), why["node"].cast("string"),
        F.lit("origin-sequence"), why["sequence"].cast("string"),
        F.lit("origin-id"), why["id"],
    )  # fmt: skip
    return {"topic": F.lit(topic), "body": why["body"].cast("binary"), "headers": F.to_json(headers)}
