"""A topic without its repetitions."""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from lapwing.errors import ConfigError
from lapwing.spark.failures import compiling
from lapwing.spark.pipelines.kinds import publish
from lapwing.spark.pipelines.kinds.messages import read_stream
from lapwing.spark.pipelines.kinds.parse import schema_of
from lapwing.spark.pipelines.run.context import PreparedQuery, RunContext
from lapwing.spark.pipelines.settings.kind_settings import DedupSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# keys are many and memory is not: they are kept on disk
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def build(settings: DedupSettings, context: RunContext) -> PreparedQuery:
    """Return the query that lets the first of equal messages through."""
    frame = read_stream(context.spark, settings, includeHeaders="true")
    with compiling(f"{settings.name}: by"):
        keyed = _keyed(frame, settings, context)
    # a message without a key equals no other
    itself = F.concat_ws("\0", "topic", "node", "sequence")
    keyed = keyed.withColumn("_key", F.coalesce("_key", itself))
    once = keyed.withWatermark("timestamp", f"{settings.within:f} seconds").dropDuplicatesWithinWatermark(["_key"])
    out = once.select("body", "headers", F.lit(settings.to).alias("topic"))
    context.spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    writer = out.writeStream.format("lapwing").options(**publish.options(settings, context, streaming=True))
    return PreparedQuery(writer, settings.trigger)


def _keyed(frame: "DataFrame", settings: DedupSettings, context: RunContext) -> "DataFrame":
    """Return the messages with a column `_key`: what makes two of them the same."""
    if settings.by == "body":
        return frame.withColumn("_key", F.sha2("body", 256))
    if settings.by.startswith("header:"):
        name = settings.by.removeprefix("header:").strip()
        return frame.withColumn("_key", F.col("headers")[name])
    if settings.format != "json":
        raise ConfigError(f"{settings.name}: by: {settings.by} looks into bodies; set format: json, or by: body")
    value = F.from_json(F.col("body").cast("string"), schema_of(settings, context))
    fields = frame.select(F.struct(*frame.columns).alias("_message"), value.alias("_value"))
    keyed = fields.select("_message", "_value.*").withColumn("_key", F.expr(settings.by).cast("string"))
    return keyed.select("_message.*", "_key")
