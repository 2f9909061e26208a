"""Brokers that die at the worst moment, or stay away: every message once, or an error that says where."""

import os
import signal
import urllib.request

import pytest
from queries import Copy, Query
from relay import Moment, Relay, owner

from daemons import start_nsqlookupd, until
from lapwing.spark.data_source import columns
from lapwing.spark.options import source_options
from lapwing.spark.source.losses import DataLoss
from lapwing.spark.source.stream_reader import LogStreamReader
from lapwing.spark.source.survey import survey

pytestmark = pytest.mark.spark

BODY = b"." * 500
PATIENCE = 120.0  # seconds; a machine that does ten other things is slow, not wrong


@pytest.fixture
def broker(start_broker):
    """A broker of the test's own, as it may be harmed."""
    return start_broker()


@pytest.fixture
def relay(broker):
    """A door in front of the broker that can be held at a moment."""
    door = Relay(broker.address)
    yield door
    door.close()


def fill(broker, count, topic="orders"):
    """Messages 0 to `count`, numbered."""
    for start in range(0, count, 5_000):
        broker.publish(topic, *(b"%06d" % n + BODY for n in range(start, min(start + 5_000, count))))


def numbers(bodies):
    return sorted(int(body[:6]) for body in bodies)


def kill_at(relay, broker, moment, start):
    """Start something, and kill the broker at that moment of it; what was started."""
    relay.hold_at(moment)
    started = start()
    assert relay.reached.wait(PATIENCE), "the moment never came"
    broker.daemon.kill()
    relay.release()
    return started


# --- reading


@pytest.mark.parametrize(
    "moment",
    [
        Moment(b"GET /log/offsets", answered=1),
        Moment(b"POST /channel/commit", answered=1),
        Moment(b"GET /log/read", answered=5_000_000),
    ],
    ids=["a batch is planned", "the channel is moved", "an executor has half a range"],
)
def test_a_broker_killed_while_it_is_read_is_waited_for_and_every_row_comes_once(
    spark, broker, relay, tmp_path, moment
):
    fill(broker, 20_000)
    query = Query(spark, tmp_path, [relay], retryTimeout="30s", channel="lake")
    running = kill_at(relay, broker, moment, lambda: query.start(processingTime="0 seconds"))
    broker.daemon.restart()
    broker.publish("orders", b"020000 published later")
    try:
        until(lambda: broker.depth("orders", "lake") == 0, seconds=PATIENCE)
    finally:
        running.stop()

    assert numbers(query.bodies()) == list(range(20_001))
    if b"read" in moment.request:  # the rest of the range was taken up, not the whole of it again
        begins = [int(line.partition("from=")[2].partition("&")[0]) for line in relay.requests if "/log/read" in line]
        assert begins[0] == 0
        assert 0 < begins[1] < 20_000


def test_a_broker_killed_while_executors_read_its_files_is_waited_for(spark, broker, tmp_path):
    fill(broker, 20_000)
    relay = Relay(broker.address, near=True)
    query = Query(spark, tmp_path, [relay], retryTimeout="30s")
    running = kill_at(relay, broker, Moment(b"GET /log/read", answered=1), lambda: query.start(availableNow=True))
    broker.daemon.restart()
    running.awaitTermination()
    relay.close()

    assert numbers(query.bodies()) == list(range(20_000))
    assert all("files=true" in line for line in relay.requests if "/log/read" in line)


def test_messages_damaged_on_the_disk_are_never_read_from_it(broker, tmp_path):
    fill(broker, 20_000)
    source, careless = stream_reader([broker]), stream_reader([broker], failOnDataLoss="false")
    start = source.initialOffset()
    source.latestOffset(start, source.getDefaultReadLimit())
    (task,) = source.partitions(start, source.latestOffset(start, source.getDefaultReadLimit()))
    (segment,) = (tmp_path / "broker0" / "topics" / "t-orders").glob("*.log")
    with open(segment, "r+b") as file:
        file.seek(segment.stat().st_size // 2)
        file.write(b"garbage")

    with pytest.raises(DataLoss, match=r"topic orders, node 1 .*: \d+ messages from \d+ on are damaged: .*checksum"):
        list(source.read(task))
    found = numbers(body for batch in careless.read(task) for body in batch.column("body").to_pylist())
    assert 17_000 < len(found) < 20_000
    assert sorted(set(found)) == found
    assert 10_000 not in found


def test_a_broker_that_stays_away_ends_the_query_with_an_error_that_says_where_and_a_restart_has_all(
    spark, broker, relay, tmp_path
):
    fill(broker, 20_000)
    query = Query(spark, tmp_path, [relay], retryTimeout="500ms")
    half = Moment(b"GET /log/read", answered=5_000_000)
    running = kill_at(relay, broker, half, lambda: query.start(availableNow=True))
    where = r"topic orders, node 1 \(127.*\), log \w+, sequences \[0, 20000\): broken off at \d+: .*\(tried for 0.5 s\)"
    with pytest.raises(Exception, match=where):
        running.awaitTermination()
    where = r"topic orders, node 1, log \w+, sequences \[0, 20000\): topic orders at 127.*: .*\(tried for 0.5 s\)"
    with pytest.raises(Exception, match=where):
        query.start(processingTime="0 seconds").awaitTermination()
    broker.daemon.restart()

    query.run()

    assert numbers(query.bodies()) == list(range(20_000))


def test_a_node_that_vanishes_holds_up_nobody_else_and_is_read_when_it_is_back(spark, start_broker, tmp_path):
    steady, shaky = start_broker(), start_broker()
    for broker in (steady, shaky):
        broker.publish("orders", b"000001")
    query = Query(spark, tmp_path, [steady, shaky], channel="lake")
    running = query.start(processingTime="0 seconds")
    try:
        until(lambda: [found.depth("orders", "lake") for found in (steady, shaky)] == [0, 0], seconds=PATIENCE)
        shaky.daemon.kill()  # not right after a publish: a batch that is planned with what it has waits for it
        steady.publish("orders", b"000003")
        until(lambda: steady.depth("orders", "lake") == 0, seconds=PATIENCE)
        shaky.daemon.restart()
        shaky.publish("orders", b"000002")
        until(lambda: shaky.depth("orders", "lake") == 0, seconds=PATIENCE)
    finally:
        running.stop()

    assert numbers(query.bodies()) == [1, 1, 2, 3]


def test_who_is_away_and_who_is_back_is_said_in_the_log(start_broker, caplog):
    steady, shaky = start_broker(), start_broker()
    for broker in (steady, shaky):
        broker.publish("orders", b"x")
    source = stream_reader([steady, shaky], retryTimeout="1s")
    start = source.initialOffset()
    shaky.daemon.kill()
    for _ in range(3):
        source.latestOffset(start, source.getDefaultReadLimit())
    shaky.daemon.restart()
    source.latestOffset(start, source.getDefaultReadLimit())

    said = [record.getMessage() for record in caplog.records]
    assert said[0].startswith(f"{shaky.address} is away, its messages wait: ")
    assert said[1:] == [f"{shaky.address} is back"]


def stream_reader(brokers, **more):
    """The source as a query has it beside its driver, without Spark."""
    raw = {"nsqd": ",".join(broker.address for broker in brokers), "topic": "orders", "startingOffsets": "earliest"}
    raw |= {"pollTimeout": "100ms"} | more
    return LogStreamReader(source_options(raw, streaming=True), columns(raw))


def outrun(broker, topic="orders"):
    """Publish much, and let retention take all of it but the last segment; where the log begins now."""
    for _ in range(20):
        broker.publish(topic, *(b"." * 300 for _ in range(10)))
    end = broker.facts(topic)["next"]
    broker.ask(f"/channel/commit?topic={topic}&channel=done&sequence={end}&create=true", b"")
    until(lambda: broker.facts(topic)["first"] > end - 100, seconds=60)
    return broker.facts(topic)["first"]


def test_a_log_truncated_under_a_slow_query_is_a_loss_with_the_range(spark, start_broker, tmp_path):
    broker = start_broker("--max-bytes-per-file=4096")
    broker.publish("orders", *(b"%06d" % n for n in range(100)))
    rows = []

    def slowly(frame, number):
        rows.extend(frame.collect())
        if len(rows) == 10:
            outrun(broker)

    options = {"nsqd": broker.address, "topic": "orders", "startingOffsets": "earliest", "maxMessagesPerTrigger": "10"}
    frame = spark.readStream.format("lapwing").options(**options).load()
    query = frame.writeStream.foreachBatch(slowly).option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    where = r"topic orders, node 1 \(127.*\), log \w+, sequences \[10, \d+\): the log begins at \d+, .*by retention"
    with pytest.raises(Exception, match=where):
        query.awaitTermination()
    assert len(rows) == 10


def test_a_log_truncated_between_plan_and_read_is_a_loss_with_the_range(start_broker):
    broker = start_broker("--max-bytes-per-file=4096")
    broker.publish("orders", *(b"%06d" % n for n in range(100)))
    source = stream_reader([broker])
    start = source.initialOffset()
    source.latestOffset(start, source.getDefaultReadLimit())
    (task,) = source.partitions(start, source.latestOffset(start, source.getDefaultReadLimit()))
    first = outrun(broker)

    with pytest.raises(DataLoss, match=r"topic orders, node 1 \(.*, sequences \[0, 100\): from 0 on: .*OUT_OF_RANGE"):
        list(source.read(task))
    careless = stream_reader([broker], failOnDataLoss="false")
    assert first > 100
    assert list(careless.read(task)) == []


def test_a_read_from_the_earliest_names_what_retention_has_deleted(start_broker, caplog):
    broker = start_broker("--max-bytes-per-file=4096")
    broker.publish("orders", b"old")
    first = outrun(broker)
    source = stream_reader([broker])
    source.initialOffset()

    [warning] = [record.getMessage() for record in caplog.records]
    assert f"retention has deleted the oldest: topic orders, node 1 begins at {first} (" in warning


def test_a_topic_that_is_deleted_under_a_query_is_a_loss(broker, caplog):
    broker.publish("orders", b"x", b"y")
    source, careless = stream_reader([broker]), stream_reader([broker], failOnDataLoss="false", retryTimeout="500ms")
    start, limit = source.initialOffset(), source.getDefaultReadLimit()
    for reader in (source, careless):
        assert reader.initialOffset() == reader.latestOffset(start, limit) == start
    end = source.latestOffset(start, limit)
    broker.ask("/topic/delete?topic=orders", b"")

    with pytest.raises(DataLoss, match=r"the topic was deleted; its log \w+ was read up to 0; at least 2 messages"):
        source.latestOffset(start, limit)
    with pytest.raises(DataLoss, match=r"topic orders, node 1, log \w+, sequences \[0, 2\): the topic was deleted"):
        source.partitions(start, end)
    assert [careless.latestOffset(start, limit) for _ in range(2)] == [{}, {}]
    assert careless.partitions(start, end) == []
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["data loss", "data loss"]


def test_a_run_to_the_end_does_not_pass_over_a_topic_that_was_deleted(broker):
    broker.publish("orders", b"x")
    start = stream_reader([broker]).initialOffset()
    broker.ask("/topic/delete?topic=orders", b"")
    again = stream_reader([broker])
    again.prepareForTriggerAvailableNow()

    with pytest.raises(DataLoss, match="topic orders, node 1"):
        again.latestOffset(start, again.getDefaultReadLimit())


def test_a_node_that_has_left_nsqlookupd_keeps_its_place_and_is_logged_as_away(start_broker, caplog):
    lookupd = start_nsqlookupd()
    with lookupd:
        brokers = [start_broker(f"--lookupd-tcp-address={lookupd.tcp}") for _ in range(2)]
        for broker in brokers:
            broker.publish("orders", b"x")
        raw = {"lookupd": lookupd.http, "topic": "orders", "startingOffsets": "earliest", "pollTimeout": "50ms"}
        source = LogStreamReader(source_options(raw, streaming=True), columns(raw))
        until(lambda: len(survey(source_options(raw, streaming=True)).nodes) == 2)
        start = source.initialOffset()
        source.latestOffset(start, source.getDefaultReadLimit())
        brokers[1].daemon.stop()
        until(lambda: len(survey(source_options(raw, streaming=True)).nodes) == 1)
        end = source.latestOffset(start, source.getDefaultReadLimit())
        urllib.request.urlopen(f"{lookupd.url}/producer/forget?node={brokers[1].address}", data=b"", timeout=60).close()
        restarted = LogStreamReader(source_options(raw, streaming=True), columns(raw))
        restarted.latestOffset(end, restarted.getDefaultReadLimit())

    assert [end["orders"][node]["sequence"] for node in ("1", "2")] == [1, 0]
    # once by each reader: the second knows the address from the checkpoint, although nsqlookupd has forgotten it
    assert caplog.text.count(f"{brokers[1].address} is away, its messages wait") == 2


# --- writing


@pytest.mark.parametrize(
    "moment",
    [
        Moment(b"POST /stage?", sent=0.5),
        Moment(b"POST /stage?", answered=1),
        Moment(b"POST /stage/commit", sent=1.0),
        Moment(b"POST /stage/commit", answered=1),
    ],
    ids=["half a part staged", "a part staged and not answered", "a commit sent", "a commit done and not answered"],
)
def test_a_broker_killed_while_it_is_written_to_has_every_row_once(spark, broker, relay, tmp_path, moment):
    copy = Copy(spark, tmp_path, relay.address, retryTimeout="30s", batchBytes="1000000")
    copy.add(*(f"{n:06}{BODY.decode()}" for n in range(10_000)))
    running = kill_at(relay, broker, moment, copy.start)
    broker.daemon.restart()
    running.awaitTermination()
    copy.add("010000 the next batch")
    copy.run()

    assert numbers(broker.bodies("copy")) == list(range(10_001))


def test_an_executor_killed_while_it_stages_leaves_nothing_behind(spark, broker, relay, tmp_path):
    copy = Copy(spark, tmp_path, relay.address, batchBytes="100000")
    copy.add(*(f"{n:06}{BODY.decode()}" for n in range(2_000)))
    relay.hold_at(Moment(b"POST /stage?", sent=0.5))
    running = copy.start()
    assert relay.reached.wait(PATIENCE)
    os.kill(owner(relay.held), signal.SIGKILL)
    relay.release()
    with pytest.raises(Exception, match="Python worker exited unexpectedly"):
        running.awaitTermination()
    assert broker.ask("/log/offsets")["topics"] == []

    copy.run()

    assert numbers(broker.bodies("copy")) == list(range(2_000))


def test_a_broker_that_stays_away_at_commit_is_named_and_the_batch_is_published_once_when_it_is_back(
    spark, broker, relay, tmp_path
):
    copy = Copy(spark, tmp_path, relay.address, retryTimeout="500ms")
    copy.add("000000", "000001")
    running = kill_at(relay, broker, Moment(b"POST /stage/commit", answered=1), copy.start)
    where = rf"topic copy, committing batch 0 of query-.* at {relay.address}: .*\(tried for 0.5 s\)"
    with pytest.raises(Exception, match=where):
        running.awaitTermination()
    broker.daemon.restart()

    copy.run()

    assert numbers(broker.bodies("copy")) == [0, 1]
