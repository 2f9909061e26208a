"""The topics of an archive as SQL views: a column for each field of JSON bodies, beside what every message has."""

import json
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lapwing.errors import ConfigError
from lapwing.spark.failures import compiling, complaint
from lapwing.spark.pipelines.archive import read
from lapwing.spark.pipelines.files import open_files
from lapwing.spark.pipelines.manifest_table import settled
from lapwing.spark.pipelines.parse import ABOUT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SAMPLE: Final = 1000  # messages that show the fields of a topic's bodies
_CORRUPT: Final = "_corrupt_record"
_ATTEMPTS: Final = 5  # at reading files that merges take away meanwhile
VANISHED: Final = ("FILE_NOT_EXIST", "FileNotFoundException", "NoSuchFileException", "PATH_NOT_FOUND")


def topics(spark: "SparkSession | None", place: str) -> list[str]:
    """Return the topics of an archive; one on this machine needs no Spark. Raises `ConfigError` if there is none."""
    contents = settled(open_files(place, spark))
    if contents.number == 0:
        raise ConfigError(f"{place}: no archive is there; `lapwing pipeline run archive` writes one, the first files "
                          "after some ten seconds")  # fmt: skip
    folders = {path.partition("/")[0] for path in contents.parts}
    return sorted(unquote(folder.removeprefix("topic=")) for folder in folders)


def select(spark: "SparkSession", place: str, sql: str) -> "DataFrame":
    """Return the result of a query over the topics of an archive. Raises `ConfigError`."""
    found = topics(spark, place)
    rows = read(spark, place)
    for topic in found:
        if topic in sql:
            view(rows.where(F.col("topic") == topic)).createOrReplaceTempView(f"`{topic}`")
    there = ", ".join(name if name.isidentifier() else f"`{name}`" for name in found) or "none yet"
    with compiling("sql", views=f"; the topics are: {there}"):
        return spark.sql(sql)


def query(spark: "SparkSession", place: str, sql: str, count: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Return the columns and the first rows of a query's result. Raises `ConfigError`.

    A merge of the pipeline that writes the archive takes files away: the query is then run again on the new ones.
    """
    for _ in range(_ATTEMPTS):
        try:
            frame = select(spark, place, sql)
            return frame.columns, first_rows(frame, count)
        except (PySparkException, Py4JJavaError) as error:
            text = str(error)
            if not any(mark in text for mark in VANISHED):
                raise ConfigError(f"sql: {complaint(error)}") from error
    raise ConfigError(
        f"{place}: files were merged during each of {_ATTEMPTS} attempts, as the query takes longer than the time "
        "between two merges; stop the pipeline meanwhile"
    )


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
