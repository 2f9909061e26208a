"""Topics as views in Spark: a column for each field of JSON bodies, beside what every message has."""

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from lapwing.errors import ConfigError
from lapwing.spark.failures import compiling, complaint
from lapwing.spark.sql.json_fields import Kind
from lapwing.spark.sql.topics import ABOUT, TopicRows
from lapwing.spark.tables import delta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ZONE: Final = "spark.sql.session.timeZone"
_VALUES: Final = {"ignoreNullFields": "false", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSX"}


def query(
    spark: "SparkSession",
    place: str,
    topics: Mapping[str, TopicRows],
    sql: str,
    *,
    count: int | None = None,
    hint: str = "",
) -> tuple[list[str], Iterator[list[Any]]]:
    """Return the columns and the first rows of a result, with the values that JSON has. Raises `ConfigError`.

    `place` is that of the archive. `hint` is added to the complaint about a table that is not there.
    """
    spark.conf.set(_ZONE, "UTC")
    try:
        for topic, rows in topics.items():
            _view(_messages(spark, place, topic, rows), rows.fields()).createOrReplaceTempView(_quoted(topic))
        with compiling("sql", views=hint):
            frame = spark.sql(sql)
        some = frame if count is None else frame.limit(count)
        texts = some.select(F.to_json(F.struct("*"), _VALUES)).collect()
    except (PySparkException, Py4JJavaError) as error:
        raise ConfigError(f"sql: {complaint(error)}") from error
    found = (json.loads(row[0]) for row in texts)
    return frame.columns, ([row.get(name) for name in frame.columns] for row in found)


def _messages(spark: "SparkSession", place: str, topic: str, rows: TopicRows) -> "DataFrame":
    if rows.options:
        return spark.read.format("lapwing").options(**rows.options).load()
    return delta.read(spark, place).where(F.col("topic") == topic)


def _view(rows: "DataFrame", kinds: Mapping[str, Kind]) -> "DataFrame":
    about = [F.col(column).alias(name) for name, column in ABOUT.items()]
    text = F.col("body").cast("string")
    fields = {name: kind for name, kind in kinds.items() if name.lower() not in ABOUT}
    if not fields:
        return rows.select(text.alias("body"), *about)
    return rows.withColumn("_parsed", F.from_json(text, _type(fields))).select("_parsed.*", *about)


def _type(kind: Kind) -> str:
    if isinstance(kind, dict):
        return f"struct<{', '.join(f'{_quoted(name)}: {_type(each)}' for name, each in kind.items())}>"
    return f"array<{_type(kind[0])}>" if isinstance(kind, list) else kind


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
