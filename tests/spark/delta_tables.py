"""Delta tables for tests: filled without Spark, and read without lapwing."""

from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.dataset as dataset
from deltalake import DeltaTable
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, StructField, StructType

from lapwing.spark.tables.delta import DeltaOutput, TableFormat

SCHEMA = StructType([
    StructField("topic", StringType()), StructField("node", IntegerType()), StructField("log_id", StringType()),
    StructField("sequence", LongType()), StructField("date", DateType()), StructField("hour", IntegerType()),
])  # fmt: skip
PARTITIONS = ("topic", "date", "hour")


class ArrowWriter:
    """Writes Arrow tables as Spark's writer writes its rows: a file for each of them, in folders."""

    def __init__(self, tables):
        self.tables = tables

    def partitionBy(self, *columns):
        self.columns = list(columns)
        return self

    def parquet(self, place):
        Path(place).mkdir(parents=True)
        for number, table in enumerate(self.tables):
            dataset.write_dataset(
                table, place, format="parquet", partitioning=self.columns, partitioning_flavor="hive",
                basename_template=f"{number}-{{i}}.parquet", existing_data_behavior="overwrite_or_ignore",
            )  # fmt: skip


class Checkpoint:
    """A checkpoint that has finished some batches."""

    def __init__(self, query="q", finished=-1):
        self.new = finished < 0
        self.finished = finished
        self._query = query

    def query(self):
        return self._query


def rows(first, stop, node=1, log_id="log", topic="orders"):
    """Messages of one log."""
    count = stop - first
    return pa.table({
        "topic": pa.array([topic] * count),
        "node": pa.array([node] * count, pa.int32()),
        "log_id": pa.array([log_id] * count),
        "sequence": pa.array(range(first, stop), pa.int64()),
        "date": pa.array(["2026-11-15"] * count),
        "hour": pa.array([10] * count, pa.int32()),
    })  # fmt: skip


def until(sequence, log_id="log"):
    """Offsets of a source that has reached this sequence of `orders`."""
    return {"orders": {"1": {"log_id": log_id, "sequence": sequence}}}


def output(place, *, schema=SCHEMA, checkpoint=None, partitions=PARTITIONS, scope=None, merge_after=100, **opened):
    """An open table, which takes lists of Arrow tables as rows."""
    context = SimpleNamespace(spark=None, checkpoint=checkpoint or Checkpoint())
    form = TableFormat(merge_after, 256 << 20, history=0.0, writer=ArrowWriter)
    made = DeltaOutput(str(place), context, form, *partitions, scope=scope)
    made.open(schema, **opened)
    return made


def read(spark, place):
    """The rows of a table as a DataFrame: of the files that Delta's own log names."""
    return spark.read.option("basePath", str(place)).parquet(*DeltaTable(str(place)).file_uris())


def count(place):
    """The number of rows that delta-rs sees."""
    return DeltaTable(str(place)).to_pyarrow_table().num_rows
