"""Spark looks for packages called `pyspark_*` and registers their `DefaultSource` by itself."""

from lapwing.spark.data_source import LapwingSource


class DefaultSource(LapwingSource):
    """`spark.read.format("lapwing")`."""
