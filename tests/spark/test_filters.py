"""Why the source takes no filters: Spark keeps those of one use of a DataFrame for every other use of it.

When this test fails, Spark has mended that, and `pushFilters` for topic, node, sequence and timestamp can be written.
"""

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, LessThan

pytestmark = pytest.mark.spark


def numbers():
    """A source of the numbers below 40 that takes filters; made here, so that it is pickled with its code."""

    class NumbersReader(DataSourceReader):
        def __init__(self):
            self.below = 40

        def pushFilters(self, filters):
            for each in filters:
                if isinstance(each, LessThan):
                    self.below = min(self.below, each.value)
                yield each  # Spark filters the rows again

        def read(self, partition):
            return iter([(number,) for number in range(self.below)])

    class Numbers(DataSource):
        @classmethod
        def name(cls):
            return "filtered_numbers"

        def schema(self):
            return "sequence int"

        def reader(self, schema):
            return NumbersReader()

    return Numbers


def test_filters_that_are_pushed_stay_with_a_frame_that_is_used_twice(spark):
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(numbers())
    frame = session.read.format("filtered_numbers").load()

    assert frame.where("sequence < 5").count() == 5
    assert frame.count() == 5, "Spark gives all 40 rows now: filters can be pushed"
