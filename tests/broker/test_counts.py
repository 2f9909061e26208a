"""Frozen counts: what HTTP, statsd, metrics and the admin page read."""

from lapwing.broker import stats
from play import SECOND, Stage, numbered


def test_a_topic_and_its_channels_are_counted(stage: Stage) -> None:
    consumer = stage.consumer(ready=4, locality=2)
    stage.consumer("other", ready=0)
    stage.client().publish(*numbered(10, size=8)).publish(b"deferred", delay=SECOND)
    consumer.finish(0)
    consumer.requeue(1)

    (topic,) = stats.topic_stats(stage.broker, now=stage.now) or []
    assert (topic.name, topic.depth, topic.message_count, topic.message_bytes) == ("t", 0, 11, 108)
    assert (topic.log_first, topic.log_next, topic.paused) == (0, 11, False)
    one, other = topic.channels
    assert (one.name, one.depth, one.in_flight_count, one.deferred_count) == ("c", 5, 4, 1)
    assert (one.message_count, one.requeue_count, one.timeout_count, one.client_count) == (11, 1, 0, 1)
    assert (one.zone_local_count, one.region_local_count, one.global_count) == (6, 0, 0)
    assert one.clients == (consumer.session.stats(),)
    assert (other.depth, other.deferred_count, other.cursor) == (10, 1, 0)


def test_what_is_beyond_the_memory_counts_as_on_disk() -> None:
    stage = Stage(mem_queue_size=3)
    stage.consumer(ready=0)
    stage.client().publish(*numbered(10))

    (topic,) = stats.topic_stats(stage.broker, now=stage.now) or []
    assert (topic.channels[0].depth, topic.channels[0].backend_depth) == (10, 7)


def test_filters_choose_topics_and_channels(stage: Stage) -> None:
    for name in ("b", "a"):
        stage.consumer("c", topic=name)
    stage.consumer("d", topic="a")

    def found(**filters: str) -> list[tuple[str, list[str]]] | None:
        answer = stats.topic_stats(stage.broker, now=stage.now, clients=False, **filters)  # type: ignore[arg-type]
        return answer and [(topic.name, [channel.name for channel in topic.channels]) for topic in answer]

    assert found() == [("a", ["c", "d"]), ("b", ["c"])]
    assert found(topic="a", channel="d") == [("a", ["d"])]
    assert found(channel="d") == [("a", ["d"])]
    assert found(topic="none") is None
    assert found(topic="b", channel="d") == []


def test_clients_are_named_only_when_asked_for(stage: Stage) -> None:
    stage.consumer()
    (topic,) = stats.topic_stats(stage.broker, now=stage.now, clients=False) or []

    assert (topic.channels[0].clients, topic.channels[0].client_count) == (None, 1)


def test_producers_are_those_who_have_published(stage: Stage) -> None:
    stage.consumer()
    producer = stage.client().publish(b"a")

    assert stats.producers(stage.broker) == [producer.session.stats()]


def test_the_age_of_the_oldest_unfinished_message(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"a")
    stage.pass_time(3 * SECOND)
    stage.client().publish(b"b")
    stage.pass_time(2 * SECOND)
    channel = stage.channel()
    assert stats.oldest_age(channel, now=stage.now) == 5 * SECOND
    consumer.finish(0)
    assert stats.oldest_age(channel, now=stage.now) == 2 * SECOND
    consumer.finish(1)

    assert stats.oldest_age(channel, now=stage.now) == 0


def test_times_from_publish_to_fin_are_percentiles() -> None:
    stage = Stage(e2e_processing_latency_percentiles=(0.5, 1.0), msg_timeout=1000 * SECOND)
    consumer = stage.consumer()
    stage.client().publish(*numbered(4))
    for sequence in range(4):
        stage.pass_time(SECOND)
        consumer.finish(sequence)

    (topic,) = stats.topic_stats(stage.broker, now=stage.now) or []
    assert topic.channels[0].latency == stats.Latency(4, ((0.5, 3 * SECOND), (1.0, 4 * SECOND)))
    assert topic.latency == topic.channels[0].latency


def test_a_redelivery_is_timed_from_its_publish_too() -> None:
    stage = Stage(e2e_processing_latency_percentiles=(1.0,))
    consumer = stage.consumer()
    stage.client().publish(b"a")
    stage.pass_time(SECOND)
    consumer.requeue(0)
    stage.pass_time(SECOND)
    consumer.finish(0)

    (topic,) = stats.topic_stats(stage.broker, now=stage.now) or []
    assert topic.channels[0].latency == stats.Latency(1, ((1.0, 2 * SECOND),))


def test_without_percentiles_nothing_is_timed(stage: Stage) -> None:
    consumer = stage.consumer()
    stage.client().publish(b"a")
    consumer.finish(0)
    (topic,) = stats.topic_stats(stage.broker, now=stage.now) or []

    assert topic.latency == topic.channels[0].latency == stats.Latency(0, None)
