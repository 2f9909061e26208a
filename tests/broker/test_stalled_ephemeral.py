"""An ephemeral channel whose consumer does not keep up: what it drops takes neither memory nor disk."""

from pathlib import Path

import pytest

from lapwing.wire.nsq.commands import Rdy
from play import Client, Stage

TOPIC, CHANNEL = "t#ephemeral", "c#ephemeral"


def flood(stage: Stage, topic: str, batches: int, size: int = 10_000) -> int:
    """Publish in batches of 100; the most bytes that the topic's log held after one."""
    most = 0
    for _ in range(batches):
        stage.client().publish(*[b"x" * size] * 100, topic=topic)
        most = max(most, stage.broker.existing(topic).log.bytes)
    return most


def drained(consumer: Client, ready: int = 2500) -> list[tuple[int, int]]:
    """Everything that the consumer gets when it asks for that many: sequences and attempts."""
    found: list[tuple[int, int]] = []
    while messages := consumer.say(Rdy(ready)).take()[0]:
        found += [(sequence, attempts) for sequence, attempts, _ in messages]
        ready -= len(messages)
    return found


def test_what_an_ephemeral_channel_drops_does_not_stay_in_memory() -> None:
    stage = Stage(mem_queue_size=100)
    consumer = stage.consumer(CHANNEL, topic=TOPIC, ready=0)
    most = flood(stage, TOPIC, 200)
    channel = stage.channel(CHANNEL, TOPIC)

    assert (channel.depth, channel.dropped_count) == (100, 19_900)
    assert most < 40 << 20
    stage.checkpoint()
    assert channel.topic.log.bytes < 20 << 20
    assert drained(consumer) == [(sequence, 1) for sequence in range(100)]
    consumer.finish(*range(100))
    stage.client().publish(b"more", topic=TOPIC)
    assert consumer.received() == [20_000]
    assert not channel.ledger.attempts
    assert not channel.side_logged.sequences


def test_a_message_in_flight_for_long_does_not_keep_all_after_it_in_memory() -> None:
    stage = Stage(mem_queue_size=100)
    holder = stage.consumer(CHANNEL, topic=TOPIC, ready=1)
    stage.client().publish(b"held", topic=TOPIC)
    worker = stage.consumer(CHANNEL, topic=TOPIC, ready=2500)
    for _ in range(60):
        flood(stage, TOPIC, 1)
        worker.finish(*worker.received())
        stage.checkpoint()

    assert stage.broker.existing(TOPIC).log.bytes < 20 << 20
    holder.leave()
    assert worker.take()[0] == [(0, 2, b"held")]


def test_a_stalled_ephemeral_channel_keeps_no_segment_of_a_durable_topic(tmp_path: Path) -> None:
    stage = Stage(tmp_path, mem_queue_size=100, max_bytes_per_file=1 << 20)
    consumer = stage.consumer(CHANNEL, ready=50)
    other = stage.consumer("other")
    for _ in range(12):
        flood(stage, "t", 1)
        other.finish(*other.received())
        stage.checkpoint(trim=True)
    log = stage.broker.existing("t").log
    assert log.end - log.first <= 300
    assert consumer.received() == list(range(50))
    consumer.finish(*range(50))

    assert drained(consumer) == [(sequence, 1) for sequence in range(50, 150)]


@pytest.mark.parametrize("topic", [TOPIC, "t"])
def test_messages_that_were_requeued_stay_in_their_place_among_those_set_aside(tmp_path: Path, topic: str) -> None:
    stage = Stage(tmp_path, mem_queue_size=100, max_bytes_per_file=1 << 20)
    consumer = stage.consumer(CHANNEL, topic=topic, ready=2)
    stage.client().publish(*[b"early"] * 10, topic=topic)
    assert consumer.received() == [0, 1]
    consumer.say(Rdy(0)).requeue(0)
    stage.client().publish(*[b"late"] * 10, topic=topic)
    flood(stage, topic, 60)
    stage.checkpoint(trim=True)

    assert stage.channel(CHANNEL, topic).depth == 100
    assert drained(consumer)[:20] == [(at, 2 if at == 0 else 1) for at in (*range(2, 10), 0, *range(10, 21))]
