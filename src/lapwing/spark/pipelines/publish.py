"""Rows to topics: the columns that the sink wants, checked before anything starts."""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from lapwing.errors import ConfigError
from lapwing.spark.options import sink_options
from lapwing.spark.pipelines.ground import Ground
from lapwing.spark.pipelines.kinds import Settings
from lapwing.spark.pipelines.messages import sink_access
from lapwing.spark.writer import BadColumns, check_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HEADERS: Final = "map<string,string>"


def options(settings: Settings, ground: Ground) -> dict[str, str]:
    """Where the pipeline publishes; the same brokers in the same order as long as a batch is unfinished."""
    return sink_access(settings, ground.checkpoint.check_sink(ground.brokers))


def messages(frame: "DataFrame", to: str, name: str) -> "DataFrame":
    """The rows as messages: those that have a column `body` as they are, others as JSON. Raises `ConfigError`."""
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


def rejected(bad: "DataFrame", topic: str) -> "DataFrame":
    """What could not be parsed, as messages that say in their headers why, and where they came from."""
    headers = F.create_map(
        F.lit("reason"), F.col("reason"),
        F.lit("origin-topic"), F.col("topic"),
        F.lit("origin-node"), F.col("node").cast("string"),
        F.lit("origin-sequence"), F.col("sequence").cast("string"),
        F.lit("origin-id"), F.col("id"),
    )  # fmt: skip
    return bad.select(F.lit(topic).alias("topic"), F.col("body").cast("binary"), headers.cast(HEADERS).alias("headers"))


def beside(good: "DataFrame", bad: "DataFrame") -> "DataFrame":
    """Messages of both, with the columns of both."""
    good = good.withColumn("body", F.col("body").cast("binary"))
    return good.unionByName(bad, allowMissingColumns=True)
