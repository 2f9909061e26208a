"""What the options of a stream do to its batches: a real broker, and the source as Spark calls it, without Spark."""

import time

import pytest

from lapwing.spark.data_source import columns
from lapwing.spark.options import source_options
from lapwing.spark.source import offsets as o
from lapwing.spark.source.offsets import OffsetError
from lapwing.spark.source.stream_reader import LogStreamReader


class Stream:
    """A query's source, asked for one batch after the other."""

    def __init__(self, broker, **options):
        raw = {"nsqd": broker.address, "startingOffsets": "earliest", "pollTimeout": "50ms", **options}
        if "startingTimestamp" in raw:
            del raw["startingOffsets"]
        if not any(name in raw for name in ("topic", "subscribe", "subscribePattern")):
            raw["topic"] = "orders"
        self.source = LogStreamReader(source_options(raw, streaming=True), columns(raw))
        self.position = self.source.initialOffset()
        assert self.source.latestOffset(self.position, self.source.getDefaultReadLimit()) == self.position
        assert self.source.partitions(self.position, self.position) == []

    def batch(self):
        """The next one: what each of its tasks reads, as (topic, start, stop)."""
        end = self.source.latestOffset(self.position, self.source.getDefaultReadLimit())
        parts = [part for task in self.source.partitions(self.position, end) for part in task.parts]
        self.position = end
        return [(part.topic, part.start, part.stop) for part in parts]


def publish(broker, count, topic="orders", size=10):
    broker.publish(topic, *(b"." * size for _ in range(count)))


def test_the_largest_batch_is_given_in_messages_or_in_bytes(broker):
    publish(broker, 100, size=74)  # 108 bytes in the log, with the frame's head
    by_count, by_size = Stream(broker, maxOffsetsPerTrigger="40"), Stream(broker, maxBytesPerTrigger="5000")

    assert [by_count.batch() for _ in range(4)] == [
        [("orders", 0, 40)], [("orders", 40, 80)], [("orders", 80, 100)], [],
    ]  # fmt: skip
    ((_, start, stop),) = by_size.batch()
    assert start == 0
    assert 40 <= stop <= 50


def test_a_batch_waits_until_it_is_worth_it_but_not_for_ever(broker):
    publish(broker, 3)
    patient = Stream(broker, minOffsetsPerTrigger="5", maxTriggerDelay="1h")

    assert patient.batch() == []
    publish(broker, 2)
    assert patient.batch() == [("orders", 0, 5)]

    hasty, begun = Stream(broker, minMessagesPerTrigger="9", maxTriggerDelay="300ms"), time.monotonic()
    while not (found := hasty.batch()):
        assert time.monotonic() - begun < 10, "maxTriggerDelay is over"
    assert found == [("orders", 0, 5)]


def test_tasks_are_as_many_or_as_small_as_asked_for(broker):
    publish(broker, 10)

    assert Stream(broker, minPartitions="2").batch() == [("orders", 0, 5), ("orders", 5, 10)]
    assert Stream(broker, maxRecordsPerPartition="4").batch() == [
        ("orders", 0, 3), ("orders", 3, 6), ("orders", 6, 10),
    ]  # fmt: skip


def test_a_stream_begins_at_a_time_or_where_it_is_told(broker):
    publish(broker, 5)
    stamp = int(broker.messages("orders")[-1]["timestamp"]) // 1_000_000
    since = str(stamp + 3_600_000)

    with pytest.raises(OffsetError, match="topic orders, node 1: no message at or after the starting timestamp"):
        Stream(broker, startingTimestamp=since)
    late = Stream(broker, startingTimestamp=since, startingOffsetsByTimestampStrategy="latest")
    early = Stream(broker, startingTimestamp="1")
    places = {name: Stream(broker, startingOffsets=name) for name in ("latest", '{"orders": {"1": 3}}')}
    publish(broker, 1)

    assert late.batch() == [("orders", 5, 6)]
    assert early.batch() == [("orders", 0, 6)]
    assert [stream.batch() for stream in places.values()] == [[("orders", 5, 6)], [("orders", 3, 6)]]


def test_several_topics_and_patterns_take_in_what_comes_later(broker):
    publish(broker, 2, "orders.nl")
    some = Stream(broker, subscribe="orders.nl,orders.de", startingOffsets="latest")
    alike = Stream(broker, subscribePattern=r"orders\..*")
    publish(broker, 3, "orders.de")
    publish(broker, 1, "invoices")

    assert alike.batch() == [("orders.nl", 0, 2)]
    assert some.batch() == []
    assert alike.batch() == some.batch() == [("orders.de", 0, 3)]
    assert sorted(o.from_json(alike.position)) == ["orders.de", "orders.nl"]
