"""`spark.read.format("lapwing")` on a real Spark and a real nsqd."""

import datetime
import json
import urllib.request

import pytest

pytestmark = pytest.mark.spark


def read(spark, broker, topic="orders", **options):
    return spark.read.format("lapwing").options(nsqd=broker.address, **options).load(topic)


def test_every_message_is_a_row_with_where_it_came_from(spark, broker):
    broker.publish("orders", b"one", b"\xff\x00two", "dr\u00fc\u00df".encode())
    before = datetime.datetime.now(datetime.UTC)

    rows = read(spark, broker).orderBy("sequence").collect()

    facts = broker.messages("orders")
    places = [(row.topic, row.node, row.sequence, row.attempts) for row in rows]
    assert places == [("orders", 1, n, 1) for n in range(3)]
    assert [bytes(row.body) for row in rows] == [b"one", b"\xff\x00two", "dr\u00fc\u00df".encode()]
    assert [row.id for row in rows] == [fact["id"] for fact in facts]
    assert abs(before.replace(tzinfo=None) - rows[0].timestamp).total_seconds() < 60


def test_headers_and_fields_come_when_asked_for_and_bodies_can_be_left_out(spark, broker):
    request = urllib.request.Request(
        f"{broker.daemon.url}/pub?topic=orders", data=b"x", headers={"X-Lapwing-Headers": json.dumps({"k": "v"})}
    )
    urllib.request.urlopen(request, timeout=60).close()
    broker.publish("orders", b"*2\r\n$4\r\nname\r\n$4\r\nSara\r\n")  # as a Redis client adds it

    options = {"includeHeaders": "true", "includeFields": "true", "includeBody": "false"}
    frame = read(spark, broker, **options).orderBy("sequence")

    assert frame.columns == ["topic", "node", "sequence", "id", "timestamp", "attempts", "headers", "fields"]
    assert [(row.headers, row.fields) for row in frame.collect()] == [({"k": "v"}, None), ({}, {"name": "Sara"})]


def test_ranges_are_given_by_sequence_or_by_time(spark, broker):
    broker.publish("orders", *(b"%d" % n for n in range(10)))
    stamp = int(broker.messages("orders")[-1]["timestamp"]) // 1_000_000
    broker.publish("orders", b"later")
    middle = read(spark, broker, startingOffsets='{"orders": {"1": 3}}', endingOffsets='{"orders": {"1": 6}}')
    since = read(spark, broker, startingTimestamp=str(stamp + 1), startingOffsetsByTimestampStrategy="latest")
    until = read(spark, broker, endingTimestamp=str(stamp + 3_600_000))

    assert sorted(bytes(row.body) for row in middle.collect()) == [b"3", b"4", b"5"]
    assert since.count() <= 1
    assert until.count() == 11
    with pytest.raises(Exception, match="no message at or after the starting timestamp"):
        read(spark, broker, startingTimestamp=str(stamp + 3_600_000)).collect()


def test_large_ranges_are_split_into_tasks_and_lose_nothing(spark, broker):
    for start in range(0, 50_000, 10_000):
        broker.publish("orders", *(b"%06d" % n + b"." * 100 for n in range(start, start + 10_000)))

    frame = read(spark, broker, minPartitions="7")

    assert frame.rdd.getNumPartitions() == 7
    counts = frame.selectExpr("count(*)", "count(distinct sequence)", "max(sequence)").collect()
    assert counts == [(50_000, 50_000, 49_999)]
    assert frame.where("int(string(substring(body, 1, 6))) != sequence").count() == 0


def test_several_topics_and_nodes_are_one_table_also_in_sql(spark, start_broker):
    one, two = start_broker(), start_broker()
    one.publish("orders", b"a")
    two.publish("orders", b"b", b"c")
    two.publish("orders_eu", b"d")
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW messages USING lapwing "
        f"OPTIONS (nsqd '{one.address},{two.address}', topicPattern 'orders.*')"
    )

    rows = spark.sql("select topic, node, string(body) as body from messages order by body").collect()

    assert [tuple(row) for row in rows] == [
        ("orders", 1, "a"), ("orders", 2, "b"), ("orders", 2, "c"), ("orders_eu", 2, "d"),
    ]  # fmt: skip


def test_an_empty_topic_is_an_empty_table(spark, broker):
    broker.ask("/topic/create?topic=empty", b"")

    assert read(spark, broker, topic="empty").collect() == []


def test_what_cannot_be_read_is_said_by_name(spark, broker):
    broker.publish("orders", b"x")
    with pytest.raises(Exception, match="unknown option startingoffset; did you mean startingOffsets"):
        read(spark, broker, startingOffset="earliest").collect()
    with pytest.raises(Exception, match="no broker has the topic nowhere"):
        read(spark, broker, topic="nowhere").collect()
    with pytest.raises(Exception, match="exactly one of nsqd and lookupd"):
        spark.read.format("lapwing").load("orders").collect()
    with pytest.raises(Exception, match=r"127.0.0.1:1: .*refused"):
        spark.read.format("lapwing").options(nsqd="127.0.0.1:1", retryTimeout="200ms").load("orders").collect()
    with pytest.raises(Exception, match="11 lies behind the end, 1"):
        read(spark, broker, startingOffsets='{"orders": {"1": 11}}').collect()
    with pytest.raises(Exception, match="a schema of one's own is not possible"):
        spark.read.format("lapwing").schema("body string").options(nsqd=broker.address).load("orders").collect()
