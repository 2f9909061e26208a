"""What is over takes no memory: consumers, channels and topics that are gone, and messages that nobody waits for."""

import weakref

import pytest

from lapwing.broker.channel.ledger import FEW
from play import MINUTE, SECOND, Stage, numbered


def test_consumers_who_take_a_message_and_go_leave_no_lease(stage: Stage) -> None:
    stage.client().publish(b"again and again")
    for _ in range(2 * FEW):
        stage.consumer(ready=1).leave()
        stage.now += SECOND // 100

    assert stage.channel().ledger.lease_count <= FEW


def test_a_client_that_is_gone_is_held_by_nobody(stage: Stage, no_collector: None) -> None:
    client = stage.consumer(ready=1)
    client.publish(b"one")
    client.finish(*client.received())
    client.leave()
    gone = weakref.ref(client)
    del client

    assert gone() is None


@pytest.mark.parametrize("whole", [True, False], ids=["topic", "channel"])
def test_what_was_deleted_is_not_kept_until_its_last_deadline(stage: Stage, no_collector: None, whole: bool) -> None:
    consumer = stage.consumer(ready=1)
    consumer.publish(b"in flight")
    consumer.publish(b"deferred", delay=59 * MINUTE)
    stage.broker.topic("t").create_channel("other", now=stage.now)
    gone = [weakref.ref(stage.channel())]
    if whole:
        gone.append(weakref.ref(stage.broker.topic("t")))
        stage.broker.delete_topic("t")
    else:
        stage.broker.delete_channel("t", "c")
    consumer.leave()
    stage.broker.checkpoint(now=stage.now)
    stage.broker.trim(now=stage.now)

    assert all(entry[2].name != "c" for entry in stage.broker.agenda)
    assert [each() for each in gone] == [None] * len(gone)


def test_an_ephemeral_topic_is_gone_with_its_last_consumer(stage: Stage, no_collector: None) -> None:
    consumer = stage.consumer(ready=1, topic="t#ephemeral", channel="c#ephemeral")
    consumer.publish(b"in flight", topic="t#ephemeral")
    gone = weakref.ref(stage.broker.topic("t#ephemeral"))
    consumer.leave()
    stage.broker.checkpoint(now=stage.now)

    assert gone() is None


def test_no_latency_is_awaited_of_what_sampling_has_dropped() -> None:
    stage = Stage(e2e_processing_latency_percentiles=(0.99,))
    consumer = stage.consumer(ready=100, sample_rate=1)
    for _ in range(20):
        stage.client().publish(*numbered(200))
        consumer.finish(*consumer.received())

    assert stage.channel().discarded_count > 0
    assert not stage.channel().latencies.stamps


def test_emptying_a_paused_topic_again_and_again_is_noted_once(stage: Stage) -> None:
    client = stage.client().publish(b"before")
    topic = stage.broker.topic("t")
    topic.create_channel("c", now=stage.now)
    stage.broker.pause_topic("t", True, now=stage.now)
    for _ in range(5):
        client.publish(b"not wanted")
        topic.empty()

    assert topic.emptied.runs == [(1, 6)]
    assert stage.channel().depth == 1


def test_a_publisher_does_not_count_for_topics_that_are_gone(stage: Stage) -> None:
    publisher = stage.client().publish(b"stays", topic="t")
    for number in range(3):
        topic = f"reply-{number}#ephemeral"
        asker = stage.consumer(topic=topic, channel="c#ephemeral")
        publisher.publish(b"the answer", topic=topic)
        asker.leave()

    assert publisher.session.publish_counts == {"t": 1}
