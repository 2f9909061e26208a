"""A dry run of a `table` or a `transform`: the schema, some rows and some rejects, and nothing is written."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from lapwing.errors import ConfigError
from lapwing.spark.options import source_options
from lapwing.spark.pipelines.kinds import table, transform
from lapwing.spark.pipelines.kinds.messages import read_options, topic_options
from lapwing.spark.pipelines.kinds.parse import REJECTED, divided, parse, said
from lapwing.spark.pipelines.run.context import RunContext
from lapwing.spark.pipelines.settings.kind_settings import TableSettings, TransformSettings
from lapwing.spark.pipelines.settings.spec import PipelineSpec
from lapwing.spark.source.survey import survey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SAMPLE: Final = 500  # messages of each log, the newest
_SHOWN: Final = 5


def preview(spec: PipelineSpec, context: RunContext) -> Iterator[str]:
    """Yield the lines that show what the pipeline would do with the newest messages; raises `ConfigError`."""
    settings = spec.settings
    if isinstance(settings, TableSettings):
        rows = table.shaped(_sample(settings, context), settings, context)
        good, bad = rows.where(F.col(REJECTED).isNull()).drop(REJECTED), rows.where(F.col(REJECTED).isNotNull())
    elif isinstance(settings, TransformSettings):
        frame = _sample(settings, context)
        found = divided(parse(frame, settings, context))
        good = transform.result_of(found.good, settings, context)
        bad = found.everything.where(F.col(REJECTED).isNotNull())
    else:
        raise ConfigError(f"{spec.name}: --dry-run is for table, transform and replay")
    yield f"{spec.name}: {said(good.schema)}"
    shown = good.limit(_SHOWN).select(F.to_json(F.struct("*")).alias("row"))
    yield from (f"  {row['row']}" for row in shown.collect())
    reasons = bad.groupBy(F.col(f"{REJECTED}.reason").alias("reason")).count().orderBy(F.desc("count")).collect()
    for row in reasons:
        yield f"rejected {row['count']:,}: {row['reason']}"
    yield f"{good.count():,} rows from the newest messages; nothing was written"


def _sample(settings: TableSettings | TransformSettings, context: RunContext) -> "DataFrame":
    raw = read_options(settings) | topic_options(settings)
    there = survey(source_options(raw, streaming=False))
    if not there.holdings:
        raise ConfigError(f"{settings.name}: no broker has such a topic")
    offsets: dict[str, Any] = {
        topic: {str(node): max(held.first, held.next - SAMPLE) for node, held in nodes.items()}
        for topic, nodes in there.holdings.items()
    }
    options = {**raw, "startingOffsets": json.dumps(offsets), "includeHeaders": "true"}
    return context.spark.read.format("lapwing").options(**options).load()
