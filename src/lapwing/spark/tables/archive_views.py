"""The topics of an archive as SQL views: a column for each field of JSON bodies, beside what every message has."""

import json
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lapwing.errors import ConfigError
from lapwing.spark.failures import compiling, complaint
from lapwing.spark.pipelines.kinds.archive import read
from lapwing.spark.pipelines.kinds.parse import ABOUT
from lapwing.spark.tables.delta import archive_table, parts_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SAMPLE: Final = 1000  # messages that show the fields of a topic's bodies
_CORRUPT: Final = "_corrupt_record"


def topics(place: str) -> list[str]:
    """Return the topics of an archive, without Spark. Raises `ConfigError` if there is none."""
    return sorted({part.partition["topic"] or "" for part in parts_of(archive_table(place))})


def select(spark: "SparkSession", place: str, sql: str) -> "DataFrame":
    """Return the result of a query over the topics of an archive. Raises `ConfigError`."""
    found = topics(place)
    rows = read(spark, place)
    for topic in found:
        if topic in sql:
            view(rows.where(F.col("topic") == topic)).createOrReplaceTempView(f"`{topic}`")
    there = ", ".join(name if name.isidentifier() else f"`{name}`" for name in found) or "none yet"
    with compiling("sql", views=f"; the topics are: {there}"):
        return spark.sql(sql)


def query(spark: "SparkSession", place: str, sql: str, count: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the columns and the first rows of a query's result. Raises `ConfigError`."""
    try:
        frame = select(spark, place, sql)
        return frame.columns, first_rows(frame, count)
    except (PySparkException, Py4JJavaError) as error:
        raise ConfigError(f"sql: {complaint(error)}") from error


def first_rows(frame: "DataFrame", count: int) -> list[dict[str, Any]]:
    """Return the first rows of a result as JSON objects; a column that is null is left out."""
    texts = frame.limit(count).select(F.to_json(F.struct("*"))).collect()
    return [json.loads(row[0]) for row in texts]


def view(rows: "DataFrame") -> "DataFrame":
    """Return messages with a column for each field of their bodies, or `body` as text if they are no JSON objects."""
    about = [F.col(column).alias(name) for name, column in ABOUT.items()]
    text = F.col("body").cast("string")
    sample = [row[0] for row in rows.select(text).limit(_SAMPLE).collect()]
    spark = rows.sparkSession
    schema = spark.read.json(spark.sparkContext.parallelize(sample, 1)).schema if sample else StructType()
    fields = [field for field in schema.fields if field.name != _CORRUPT and field.name not in ABOUT]
    if not fields:
        return rows.select(text.alias("body"), *about)
    return rows.withColumn("_parsed", F.from_json(text, StructType(fields))).select("_parsed.*", *about)
