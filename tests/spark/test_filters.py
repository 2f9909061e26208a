"""Filters on topic, node, sequence and timestamp: fewer messages are read, and the rows are the same.

The source takes them where `pushFilters` asks for it and not by itself, as Spark keeps those of one use of a DataFrame
for every other use of it; the last test fails when Spark has mended that.
"""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from lapwing.spark import reason
from lapwing.spark.source.filters import PushedFilters, pushed
from lapwing.spark.source.offsets import ENDED_LOG, LogPosition

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
NOON_NS = int(NOON.timestamp()) * 1_000_000_000


def test_filters_leave_topics_nodes_and_ranges():
    assert pushed([EqualTo(("topic",), "a"), In(("node",), (1, 2)), EqualTo(("node",), 2)]) == PushedFilters(
        topics=frozenset("a"), nodes=frozenset([2])
    )
    assert pushed([GreaterThan(("sequence",), 4), LessThanOrEqual(("sequence",), 9)]) == PushedFilters(first=5, stop=10)
    assert pushed([GreaterThanOrEqual(("sequence",), 4), LessThan(("sequence",), 9)]) == PushedFilters(first=4, stop=9)
    assert pushed([In(("sequence",), (7, 3, None))]) == PushedFilters(first=3, stop=8)
    assert pushed([GreaterThan(("timestamp",), NOON), EqualTo(("timestamp",), NOON)]) == PushedFilters(since=NOON_NS)
    nothing = [LessThan(("timestamp",), NOON), StringStartsWith(("topic",), "a"), EqualTo(("body",), b"x"),
               EqualTo(("headers", "sequence"), "1"), EqualTo(("sequence",), None)]  # fmt: skip
    assert pushed(nothing) == PushedFilters()


@pytest.mark.parametrize(
    ("filters", "since", "left"),
    [
        (PushedFilters(), None, [("t", 1, 5, 90), ("t", ENDED_LOG + 1, 0, 20), ("u", 2, 0, 9)]),
        (PushedFilters(first=50), None, [("t", 1, 50, 90), ("t", ENDED_LOG + 1, 20, 20), ("u", 2, 9, 9)]),
        (PushedFilters(stop=3), None, [("t", 1, 5, 5), ("t", ENDED_LOG + 1, 0, 3), ("u", 2, 0, 3)]),
        (PushedFilters(topics=frozenset("u")), None, [("u", 2, 0, 9)]),
        (PushedFilters(nodes=frozenset([1])), None, [("t", 1, 5, 90), ("t", ENDED_LOG + 1, 0, 20)]),
        (PushedFilters(since=1), 60, [("t", 1, 60, 90), ("t", ENDED_LOG + 1, 0, 20), ("u", 2, 0, 9)]),
    ],
)
def test_ranges_are_cut_by_filters(filters, since, left):
    start = {"t": {1: LogPosition("a", 5), ENDED_LOG + 1: LogPosition("o", 0)}, "u": {2: LogPosition("b", 0)}}
    end = {"t": {1: LogPosition("a", 90), ENDED_LOG + 1: LogPosition("o", 20)}, "u": {2: LogPosition("b", 9)}}
    young = {} if since is None else {"t": {1: LogPosition("a", since)}}
    begin, stop = filters.applied(start, end, young)

    assert [(t, n, begin[t][n].sequence, stop[t][n].sequence) for t in stop for n in stop[t]] == left


def test_a_range_that_is_lost_stays_so():
    start, end = {"t": {1: LogPosition("a", 5)}}, {"t": {1: LogPosition("b", 90)}}

    assert PushedFilters(first=50).applied(start, end, {}) == (start, end)


@pytest.fixture
def pushing(spark):
    session = spark.newSession()
    session.conf.set(PUSHDOWN, "true")
    return session


def scanned(frame):
    """The rows that the scan of a frame has given."""
    plan = frame._jdf.queryExecution().executedPlan()
    while plan.children().size():
        plan = plan.children().head()
    return plan.metrics().apply("numOutputRows").value()


@pytest.mark.spark
def test_fewer_messages_are_read_and_the_rows_are_the_same(pushing, broker, start_broker):
    other = start_broker()
    for topic in ("orders", "payments"):
        for each in (broker, other):
            each.publish(topic, *(b"%d" % n for n in range(100)))
    moments = [row.timestamp for row in _read(pushing, broker, other).select("timestamp").distinct().collect()]
    for each in (broker, other):
        each.publish("orders", *(b"late" for _ in range(10)))
    late = max(moments) + timedelta(microseconds=1)

    for where, most in [
        (F.col("sequence") >= 95, 4 * 5 + 2 * 10),
        (F.col("sequence").between(10, 19), 40),
        (F.col("sequence").isin(3, 5), 12),
        ((F.col("topic") == "orders") & (F.col("node") == 1), 110),
        (F.col("topic").isin("payments", "none"), 200),
        (F.col("timestamp") >= F.lit(late), 20),
        (F.col("timestamp") == F.lit(moments[0]), 420),
        ((F.col("sequence") < 5) & (F.col("body") == b"3"), 20),
        ((F.col("sequence") < 5) | (F.col("node") == 1), 420),
        (F.col("sequence") < 0, 0),
    ]:
        plain = _read(pushing, broker, other).where(where)
        frame = _read(pushing, broker, other, pushFilters="true").where(where)
        keys = sorted((row.topic, row.node, row.sequence) for row in plain.collect())
        assert sorted((row.topic, row.node, row.sequence) for row in frame.collect()) == keys, where
        assert len(keys) <= scanned(frame) <= most, where
        assert scanned(plain) == 420


def _read(session, *brokers, **options):
    addresses = ",".join(broker.address for broker in brokers)
    options = {"nsqd": addresses, "topicPattern": "orders|payments", **options}
    return session.read.format("lapwing").options(**options).load()


@pytest.mark.spark
def test_filters_are_pushed_only_where_both_sides_want_it(spark, pushing, broker):
    broker.publish("orders", b"1", b"2")

    assert _read(pushing, broker).where("sequence < 1").count() == 1
    frame = spark.newSession().read.format("lapwing").options(nsqd=broker.address, topic="orders", pushFilters="true")
    with pytest.raises(PySparkException) as refused:
        frame.load().where("sequence < 1").count()
    assert PUSHDOWN in reason(refused.value)


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


@pytest.mark.spark
def test_filters_that_are_pushed_stay_with_a_frame_that_is_used_twice(spark):
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    session.dataSource.register(numbers())
    frame = session.read.format("filtered_numbers").load()

    assert frame.where("sequence < 5").count() == 5
    assert frame.count() == 5, "Spark gives all 40 rows now: filters can be pushed"
