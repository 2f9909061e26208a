"""`spark.readStream.format("lapwing")`: restarts, nodes that come late, logs that lose data, and the channel as lag."""

import asyncio
import json
import shutil

import pytest
from queries import Query

from daemons import start_nsqlookupd, until
from lapwing.admin.poller import Poller
from lapwing.client.alarms import AlarmLimits
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.http import DaemonHttp

pytestmark = pytest.mark.spark


def test_a_query_reads_what_is_there_and_goes_on_where_it_stopped(spark, broker, tmp_path):
    query = Query(spark, tmp_path, [broker], maxMessagesPerTrigger="4")
    broker.publish("orders", *(b"a%d" % n for n in range(10)))
    assert [progress["numInputRows"] for progress in query.run()] == [4, 4, 2]
    assert query.run() == []

    broker.publish("orders", b"b0", b"b1")
    assert [progress["numInputRows"] for progress in query.run()] == [2]
    assert query.bodies() == sorted([f"a{n}" for n in range(10)] + ["b0", "b1"])


def test_a_batch_that_is_done_again_has_the_same_messages(spark, broker, tmp_path):
    query = Query(spark, tmp_path, [broker])
    broker.publish("orders", *(b"%d" % n for n in range(5)))
    query.run()
    query.forget_last_commit()
    broker.publish("orders", b"late")

    query.run()

    assert query.bodies() == ["0", "1", "2", "3", "4", "late"]


def test_a_first_batch_that_is_done_again_begins_where_it_began(spark, broker, tmp_path):
    """With `latest`, what comes between the first attempt and the second must not be passed over."""
    broker.publish("orders", b"old")
    query = Query(spark, tmp_path, [broker], startingOffsets="latest")
    query.run()
    query.forget_last_commit()
    broker.publish("orders", b"new")

    query.run()

    assert query.bodies() == ["new"]


def test_the_channel_stands_at_what_the_query_has_finished(spark, broker, tmp_path):
    query = Query(spark, tmp_path, [broker], channel="lake")
    broker.publish("orders", *(b"%d" % n for n in range(5)))
    query.run()
    assert broker.depth("orders", "lake") == 0

    broker.publish("orders", b"5", b"6")
    assert broker.depth("orders", "lake") == 2
    query.run()
    assert broker.depth("orders", "lake") == 0


def test_a_new_query_can_begin_where_a_channel_stands(spark, broker, tmp_path):
    broker.publish("orders", *(b"%d" % n for n in range(5)))
    broker.ask("/channel/commit?topic=orders&channel=lake&sequence=3&create=true", b"")
    query = Query(spark, tmp_path, [broker], channel="lake", startingOffsets="channel")

    query.run()

    assert query.bodies() == ["3", "4"]


def test_a_running_query_sees_new_messages_and_new_nodes_and_shows_its_lag(spark, start_broker, tmp_path):
    lookupd = start_nsqlookupd()
    flag = f"--lookupd-tcp-address={lookupd.tcp}"
    first = start_broker(flag)
    first.publish("orders", b"one")
    query = Query(spark, tmp_path, [], channel="lake", lookupd=lookupd.http)
    running = query.start(processingTime="0 seconds")
    try:
        until(lambda: first.depth("orders", "lake") == 0, seconds=60)
        second = start_broker(flag)
        second.publish("orders", b"three", b"four")
        first.publish("orders", b"two")
        until(lambda: second.depth("orders", "lake") == 0, seconds=60)
        until(lambda: first.depth("orders", "lake") == 0, seconds=60)
        latest = json.loads(running.lastProgress["sources"][0]["latestOffset"])
        assert {node: place["sequence"] for node, place in latest["orders"].items()} == {"1": 2, "2": 2}
    finally:
        running.stop()
        lookupd.kill()
    assert query.bodies() == ["four", "one", "three", "two"]


def test_a_topic_that_does_not_exist_yet_is_read_from_its_first_message(spark, broker, tmp_path):
    query = Query(spark, tmp_path, [broker], startingOffsets="latest")
    query.run()
    broker.publish("orders", b"first")

    query.run()

    assert query.bodies() == ["first"]


def test_a_wiped_node_is_a_loss_that_stops_the_query_until_told_otherwise(spark, start_broker, tmp_path):
    broker = start_broker()
    broker.publish("orders", b"old0", b"old1")
    query = Query(spark, tmp_path, [broker])
    query.run()
    broker.daemon.kill()
    shutil.rmtree(tmp_path / "broker0")
    (tmp_path / "broker0").mkdir()
    broker.daemon.restart()
    broker.publish("orders", b"new0", b"new1", b"new2")

    with pytest.raises(Exception, match=r".*log \w+ was read up to 2, and now there is a new log"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.run()

    assert sorted(bytes(row.body) for row in spark.read.parquet(query.out).select("body").collect()) == [
        b"new0", b"new1", b"new2", b"old0", b"old1",
    ]  # fmt: skip


def test_messages_that_retention_took_are_a_loss(spark, start_broker, tmp_path):
    broker = start_broker("--max-bytes-per-file=4096")
    query = Query(spark, tmp_path, [broker])
    broker.publish("orders", b"seen")
    query.run()
    for _ in range(20):
        broker.publish("orders", *(b"." * 300 for _ in range(10)))
    end = broker.facts("orders")["next"]
    broker.ask(f"/channel/commit?topic=orders&channel=done&sequence={end}&create=true", b"")
    until(lambda: broker.facts("orders")["first"] > 1, seconds=60)
    first = broker.facts("orders")["first"]

    with pytest.raises(Exception, match=rf"topic orders, node 1 .*the log begins at {first}"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.run()

    assert len(query.bodies()) == 1 + end - first


def test_retention_never_takes_what_a_query_with_a_channel_has_not_committed(spark, start_broker, tmp_path):
    """A topic that has only been consumed otherwise is cut down; the query's, with the same traffic, is not."""
    broker = start_broker("--max-bytes-per-file=4096", "--retention-bytes=4096", "--retention-age=1ms")
    query = Query(spark, tmp_path, [broker], channel="lake", maxMessagesPerTrigger="50")
    broker.publish("orders", b"seen")
    query.run()
    for topic in ("orders", "witness"):
        for _ in range(20):
            broker.publish(topic, *(b"." * 300 for _ in range(10)))
        end = broker.facts(topic)["next"]
        broker.ask(f"/channel/commit?topic={topic}&channel=done&sequence={end}&create=true", b"")
    until(lambda: broker.facts("witness")["first"] > 100, seconds=60)
    assert broker.facts("orders")["first"] <= 1
    broker.daemon.kill()
    broker.daemon.restart()

    assert sum(progress["numInputRows"] for progress in query.run()) == 200
    assert len(query.bodies()) == 201
    until(lambda: broker.facts("orders")["first"] > 100, seconds=60)


def test_the_channel_of_a_query_that_is_gone_is_named_by_the_alarms(spark, broker, tmp_path):
    query = Query(spark, tmp_path, [broker], channel="lake")
    broker.publish("orders", b"x")
    query.run()
    assert alarms(broker) == []
    shutil.rmtree(query.checkpoint)
    broker.publish("orders", b"y")

    ((about, text, advice),) = alarms(broker)
    assert (about, text) == ("orders/lake", "Channel orders/lake has no consumers: 1 message is waiting.")
    assert "delete it: it keeps its messages on disk" in advice


def alarms(broker):
    """What nsqadmin says of this broker."""

    async def ask():
        http = DaemonHttp()
        poller = Poller(ClusterClient(http, nsqds=[broker.address]), limits=AlarmLimits(settling=0))
        try:
            await poller.poll()
        finally:
            await http.aclose()
        return [(alarm.about, alarm.text, alarm.advice) for alarm in poller.alarms]

    return asyncio.run(ask())
