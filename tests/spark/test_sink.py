"""`df.write` and `df.writeStream` into topics: exactly once, whoever dies."""

import os
import signal
import subprocess
import sys

import pytest
from proxy import Proxy
from queries import Copy

pytestmark = pytest.mark.spark

DRIVER = """
import sys
from lapwing.spark.session import local_session
source, checkpoint, address = sys.argv[1:]
spark = local_session("driver", cores=2)
rows = spark.readStream.schema("body string").json(source)
query = (
    rows.writeStream.format("lapwing").options(nsqd=address, topic="copy", checkpointLocation=checkpoint)
    .trigger(availableNow=True).start()
)
query.awaitTermination()
"""


def write(frame, broker, **options):
    frame.write.format("lapwing").mode("append").options(nsqd=broker.address, **options).save()


def test_a_frame_becomes_messages_with_all_they_can_carry(spark, broker):
    rows = [("one", "orders", {"k": "v"}, 0, None), ("two", "invoices", {}, None, "key")]
    columns = "body string, topic string, headers map<string,string>, defer_ms int, key string"
    write(spark.createDataFrame(rows, columns).coalesce(1), broker)

    assert [(m["body"], m["headers"]) for m in broker.messages("orders")] == [("one", {"k": "v"})]
    assert [(m["body"], m["headers"]) for m in broker.messages("invoices")] == [("two", {"key": "key"})]


def test_a_large_frame_arrives_whole(spark, broker):
    write(spark.range(30_000).selectExpr("string(id) as body"), broker, topic="numbers", batchBytes="50000")

    assert sorted(map(int, broker.bodies("numbers"))) == list(range(30_000))


def test_headers_are_a_map_or_the_text_of_an_object(spark, broker):
    text = spark.sql("""select 'a' as body, '{"k": "v", "l": "w"}' as headers union all select 'b', null""")
    write(text, broker, topic="t")
    write(spark.sql("select 'c' as body, map('k', 'v') as headers"), broker, topic="t")

    rows = spark.read.format("lapwing").options(nsqd=broker.address, topic="t", includeHeaders="true").load()
    found = {row["body"].decode(): row["headers"] or {} for row in rows.select("body", "headers").collect()}
    assert found == {"a": {"k": "v", "l": "w"}, "b": {}, "c": {"k": "v"}}


@pytest.mark.parametrize("text", ["no", "[]", '{"k": 1}'])
def test_headers_that_are_no_object_of_strings_are_refused(spark, broker, text):
    with pytest.raises(Exception, match="row 0: headers are no JSON object of strings"):
        write(spark.sql(f"select 'd' as body, '{text}' as headers"), broker, topic="t")


def test_a_write_with_a_name_and_a_number_happens_once(spark, broker):
    frame = spark.createDataFrame([("x",)], "body string")
    for batch in ("1", "1", "2", "1"):
        write(frame, broker, topic="once", sinkId="nightly", batchId=batch)

    assert broker.bodies("once") == ["x", "x"]


def test_at_least_once_is_for_any_nsq_server_and_goes_to_the_next_one(spark, broker):
    frame = spark.createDataFrame([("x", 0), ("y", 3_600_000)], "body string, defer_ms long").coalesce(1)
    frame.write.format("lapwing").mode("append").options(
        nsqd=f"127.0.0.1:1,{broker.address}", topic="plain", mode="atleastonce"
    ).save()

    assert broker.bodies("plain") == ["x", "y"]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("1 as body", {"topic": "t"}, "column body is int, string or binary expected"),
        ("'x' as body, 1 as price", {"topic": "t"}, "unknown column price"),
        ("'x' as text", {"topic": "t"}, "unknown column text"),
        ("'t' as topic", {}, "the column body is missing"),
        ("'x' as body", {}, "neither an option nor a column names the topic"),
        ("'x' as body, map('a', 1) as headers", {"topic": "t"}, "map<string,string> expected"),
        ("'x' as body, 'soon' as defer_ms", {"topic": "t"}, "column defer_ms is string"),
        ("'x' as body", {"topic": "t", "sinkid": "a"}, "sinkId and batchId belong together"),
    ],
)
def test_columns_that_are_no_message_are_refused_by_name(spark, columns, options, said):
    frame = spark.sql(f"select {columns}").write.format("lapwing").mode("append")
    with pytest.raises(Exception, match=said):
        frame.options(nsqd="127.0.0.1:1", **options).save()


def test_rows_that_are_no_message_are_refused_and_nothing_is_published(spark, broker):
    too_big = spark.sql("select repeat('x', 1048577) as body union all select 'fine'")
    with pytest.raises(Exception, match=r"topic t, batch 0, .* a body of 1048577 bytes, the broker takes 1048576"):
        write(too_big, broker, topic="t")
    with pytest.raises(Exception, match="'a b' is no name for a topic"):
        write(spark.sql("select 'x' as body, 'a b' as topic"), broker)
    with pytest.raises(Exception, match="the column body is null"):
        write(spark.sql("select string(null) as body"), broker, topic="t")
    overwriting = spark.sql("select 'x' as body").write.format("lapwing").mode("overwrite")
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        overwriting.options(nsqd=broker.address, topic="t").save()

    assert broker.ask("/log/offsets")["topics"] == []


def test_a_broker_that_is_away_is_named(spark):
    frame = spark.sql("select 'x' as body").write.format("lapwing").mode("append")
    with pytest.raises(Exception, match=r"topic t, batch 0, task 0, at 127.0.0.1:1: .*refused"):
        frame.options(nsqd="127.0.0.1:1", topic="t", retryTimeout="200ms").save()


def test_a_batch_that_spark_does_again_is_not_published_again(spark, broker, tmp_path):
    copy = Copy(spark, tmp_path, broker.address)
    copy.add("a", "b")
    copy.run()
    copy.forget_last_commit()
    copy.add("c")
    copy.run()
    assert broker.bodies("copy") == ["a", "b", "c"]

    copy.forget_last_commit()
    broker.daemon.kill()
    broker.daemon.restart()
    copy.run()
    assert broker.bodies("copy") == ["a", "b", "c"]


def test_all_batches_of_a_query_go_to_one_broker(spark, start_broker, tmp_path):
    brokers = [start_broker(), start_broker()]
    copy = Copy(spark, tmp_path, *(broker.address for broker in brokers))
    for batch in (("a", "b"), ("c", "d")):
        copy.add(*batch)
        copy.run()

    held = [broker for broker in brokers if broker.ask("/log/offsets?topic=copy")["topics"]]
    assert [broker.bodies("copy") for broker in held] == [["a", "b", "c", "d"]]


@pytest.mark.timeout(400)
@pytest.mark.skipif(
    not os.environ.get("LAPWING_SOAK"),
    reason="starts two more Sparks: `make soak-long`; test_faults.py kills the broker at these moments",
)
def test_a_driver_killed_between_stage_and_commit_and_again_after_the_commit(spark, broker, tmp_path):
    """A real driver, killed with the broker's door held shut at that very moment; then the query is run again."""
    copy = Copy(spark, tmp_path, broker.address)
    copy.add("a", "b")
    proxy = Proxy(broker.address)
    try:
        for after in (False, True):
            proxy.hold, proxy.after = "/stage/commit", after
            proxy.held.clear()
            _kill_driver_at(proxy, copy)
            assert (broker.ask("/log/offsets")["topics"] != []) == after
    finally:
        proxy.close()

    copy.add("c")
    copy.run()

    assert sorted(broker.bodies("copy")) == ["a", "b", "c"]


def _kill_driver_at(proxy: Proxy, copy: Copy) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(copy.source), str(copy.checkpoint), proxy.address],
        start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    held = proxy.held.wait(150)
    os.killpg(driver.pid, signal.SIGKILL)
    _, said = driver.communicate()
    assert held, said.decode()
