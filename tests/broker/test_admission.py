"""What a topic does not take: too much for a channel, too long a body, anything on a node that drains."""

import pytest

from appending import append
from lapwing.errors import ChannelFull, Draining, MessageTooBig, ProtocolError
from lapwing.wire.nsq.commands import Dpub, Mpub, Pub
from play import MS, SECOND, Stage, numbered


def configure(stage: Stage, **own: object) -> None:
    stage.broker.settings.change_channel(stage.channel(), own, now=stage.now)


def refusal(stage: Stage, command: object) -> str:
    with pytest.raises(ProtocolError) as caught:
        stage.client().session.handle(command, now=stage.now)
    return str(caught.value)


def test_a_topic_without_limits_looks_at_nothing(stage: Stage):
    stage.consumer()

    assert stage.broker.existing("t").admission is None


def test_a_publish_to_a_full_channel_fails_and_names_it(stage: Stage):
    consumer = stage.consumer(ready=0)
    stage.consumer("other")
    configure(stage, max_depth=3)
    stage.client().publish(b"a").publish(b"b")
    full = "channel c of topic t is full: 2 messages wait, max_depth is 3"
    assert refusal(stage, Mpub.of("t", [b"c", b"d"])) == f"E_MPUB_FAILED MPUB failed {full}"
    stage.client().publish(b"c")

    assert refusal(stage, Pub("t", b"d")) == f"E_PUB_FAILED PUB failed {full.replace('2', '3', 1)}"
    assert refusal(stage, Dpub("t", SECOND, b"d")).startswith("E_DPUB_FAILED DPUB failed channel c of topic t is full")
    assert stage.broker.existing("t").log.next == 3
    stage.consumer(ready=1)
    stage.client().publish(b"d")
    assert consumer.received() == []


def test_what_waits_in_a_paused_topic_counts_too(stage: Stage):
    stage.consumer(ready=0)
    configure(stage, max_depth=2)
    stage.broker.pause_topic("t", True, now=stage.now)
    stage.client().publish(b"a").publish(b"b")

    assert "is full" in refusal(stage, Pub("t", b"c"))


def test_publishes_of_one_turn_count_together(stage: Stage):
    stage.consumer(ready=0)
    configure(stage, max_depth=2)
    client = stage.client()
    client.session.handle(Pub("t", b"a"), now=stage.now)
    client.session.handle(Pub("t", b"b"), now=stage.now)
    with pytest.raises(ProtocolError):
        client.session.handle(Pub("t", b"c"), now=stage.now)
    stage.commit()

    assert stage.channel().depth == 2


def test_bytes_are_limited_too(stage: Stage):
    stage.consumer(ready=0)
    configure(stage, max_bytes=10_000)
    for body in numbered(9, 1000):
        stage.client().publish(body)
    assert "bytes wait, max_bytes is 10000" in refusal(stage, Pub("t", bytes(1000)))

    stage.consumer(ready=100)
    stage.client().publish(bytes(1000))


def test_a_limit_that_is_lifted_is_gone(stage: Stage):
    stage.consumer(ready=0)
    configure(stage, max_depth=1)
    stage.client().publish(b"a")
    assert "is full" in refusal(stage, Pub("t", b"b"))
    configure(stage, max_depth=None)
    stage.client().publish(b"b")

    assert stage.broker.existing("t").admission is None


def test_a_deleted_channel_refuses_nothing(stage: Stage):
    stage.consumer(ready=0)
    stage.consumer("other", ready=0)
    configure(stage, max_depth=1)
    stage.client().publish(b"a")
    stage.broker.delete_channel("t", "c")

    stage.client().publish(b"b")
    assert stage.channel("other").depth == 2


def test_a_topic_may_take_shorter_bodies_than_the_node(stage: Stage):
    topic = stage.broker.topic("t")
    stage.broker.settings.change_topic(topic, {"max_msg_size": 10}, now=stage.now)
    client = stage.client()
    client.publish(b"x" * 10, b"y" * 10)
    too_big = "message of 11 bytes: topic t takes at most 10"

    assert refusal(stage, Pub("t", b"x" * 11)) == f"E_PUB_FAILED PUB failed {too_big}"
    assert refusal(stage, Mpub.of("t", [b"x", b"y" * 11])) == f"E_MPUB_FAILED MPUB failed {too_big}"
    with pytest.raises(MessageTooBig):
        append(topic, [b"x", b"y" * 11], client, now=stage.now)  # type: ignore[arg-type]
    assert topic.log.next == 2


# --- draining ---------------------------------------------------------------------------------------------------


def test_a_node_that_drains_takes_nothing_and_delivers_what_it_has(stage: Stage):
    consumer = stage.consumer(ready=1)
    stage.client().publish(*numbered(3))
    stage.broker.begin_drain(now=stage.now)
    draining = "this node is draining and takes no new messages: publish to another one"
    assert refusal(stage, Pub("t", b"x")) == f"E_PUB_FAILED PUB failed {draining}"
    assert refusal(stage, Mpub.of("new", [b"x"])) == f"E_MPUB_FAILED MPUB failed {draining}"
    assert stage.broker.drain.progress(stage.now).state == "draining"
    assert stage.broker.drain.progress(stage.now).messages == 3

    for sequence in range(3):
        assert consumer.received() == [sequence]
        consumer.finish(sequence)
    progress = stage.broker.drain.progress(stage.now)
    assert (progress.state, progress.messages, progress.topics) == ("empty", 0, 0)


def test_topics_are_withdrawn_from_nsqlookupd_as_they_are_empty_and_come_back(stage: Stage):
    consumer = stage.consumer()
    stage.consumer(topic="u", ready=0)
    stage.client().publish(b"a").publish(b"b", topic="u")
    stage.broker.changes.clear()
    stage.broker.begin_drain(now=stage.now)
    stage.checkpoint()
    assert stage.broker.changes == []
    consumer.finish(0)
    stage.checkpoint()
    assert stage.broker.changes == [("channel", "t", "c", False), ("topic", "t", None, False)]
    stage.broker.changes.clear()
    stage.checkpoint()
    assert stage.broker.changes == []

    stage.broker.end_drain()
    assert stage.broker.changes == [("topic", "t", None, True), ("channel", "t", "c", True)]
    stage.client().publish(b"a")


def test_after_the_deadline_nothing_is_delivered_until_the_drain_ends(stage: Stage):
    consumer = stage.consumer(ready=1)
    stage.client().publish(*numbered(2))
    assert consumer.received() == [0]
    stage.broker.begin_drain(now=stage.now, deadline=stage.now + SECOND)
    stage.pass_time(SECOND)
    stage.checkpoint()
    assert stage.broker.drain.progress(stage.now).state == "expired"
    consumer.finish(0)
    stage.pass_time(MS)
    assert consumer.received() == []

    stage.broker.end_drain()
    stage.commit()
    assert consumer.received() == [1]


def test_errors_are_the_broker_s(stage: Stage):
    stage.consumer(ready=0)
    configure(stage, max_depth=1)
    topic, client = stage.broker.existing("t"), stage.client()
    with pytest.raises(ChannelFull):
        append(topic, [b"a", b"b"], client, now=stage.now)  # type: ignore[arg-type]
    stage.broker.begin_drain(now=stage.now)
    with pytest.raises(Draining):
        append(topic, b"a", client, now=stage.now)  # type: ignore[arg-type]
