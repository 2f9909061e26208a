"""`mode=subscribe`: any NSQ server as a stream, through a channel and a spool directory."""

from pathlib import Path

import pytest

from daemons import until
from lapwing.spark.options import source_options
from lapwing.spark.source import columns
from lapwing.spark.subscribe import SubscribeStreamReader

pytestmark = pytest.mark.spark


def reader(broker, tmp_path, **more):
    raw = {"nsqd": broker.address, "topic": "orders", "mode": "subscribe", "channel": "spark", "retryTimeout": "2s"}
    raw |= {"spoolDirectory": str(tmp_path / "spool"), "pollTimeout": "2s"} | more
    return SubscribeStreamReader(source_options(raw, streaming=True), columns(raw))


def begin(source):
    """Where the query begins, after the first batch, which has nothing in it."""
    start = source.initialOffset()
    assert source.latestOffset(start, source.getDefaultReadLimit()) == start
    assert source.partitions(start, start) == []
    return start


def rows_of(reader, start, end):
    return [row for task in reader.partitions(start, end) for batch in reader.read(task) for row in batch.to_pylist()]


def test_messages_are_in_a_file_before_they_are_finished(broker, tmp_path):
    broker.publish("orders", *(b"%d" % n for n in range(6000)))
    source = reader(broker, tmp_path)
    start = begin(source)
    end = source.latestOffset(start, source.getDefaultReadLimit())

    assert sorted(int(row["body"]) for row in rows_of(source, start, end)) == list(range(6000))
    assert end == {"files": 3}  # as many as a channel gives without being finished, in each
    until(lambda: broker.depth("orders", "spark") == 0)
    assert rows_of(reader(broker, tmp_path), start, end) == rows_of(source, start, end)


def test_what_was_spooled_and_not_yet_read_is_read_after_a_restart(broker, tmp_path):
    broker.publish("orders", b"x")
    first = reader(broker, tmp_path)
    start = begin(first)
    first.latestOffset(start, first.getDefaultReadLimit())

    again = reader(broker, tmp_path)
    end = again.latestOffset(start, again.getDefaultReadLimit())

    assert [row["body"] for row in rows_of(again, start, end)] == [b"x"]


def test_files_are_deleted_once_spark_is_done_with_them_and_numbers_go_on(broker, tmp_path):
    source = reader(broker, tmp_path)
    position = begin(source)
    for round_ in range(4):
        broker.publish("orders", b"%d" % round_)
        position = source.latestOffset(position, source.getDefaultReadLimit())

    assert position == {"files": 4}
    assert sorted(path.name[:20] for path in Path(tmp_path / "spool").iterdir()) == [f"{n:020}" for n in (2, 3)]


def test_a_limit_is_kept_and_nothing_is_lost_by_it(broker, tmp_path):
    broker.publish("orders", *(b"%d" % n for n in range(10)))
    source = reader(broker, tmp_path, maxMessagesPerTrigger="4")
    position, seen = begin(source), []
    while len(seen) < 10:
        end = source.latestOffset(position, source.getDefaultReadLimit())
        batch = rows_of(source, position, end)
        assert 0 < len(batch) <= 4
        seen += batch
        position = end

    assert sorted(int(row["body"]) for row in seen) == list(range(10))


def test_a_query_on_a_channel(spark, broker, tmp_path, checkpoint):
    broker.publish("orders", *(b"%d" % n for n in range(100)))
    options = {"nsqd": broker.address, "topic": "orders", "mode": "subscribe", "channel": "spark"}
    frame = spark.readStream.format("lapwing").options(spoolDirectory=str(tmp_path / "spool"), **options).load()
    query = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    for _ in range(2):
        query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
        broker.publish("orders", b"100")

    bodies = [int(bytes(row.body)) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(bodies) == list(range(101))
