"""The ring of samples: rates, ages and growth out of counters alone."""

import pytest

from lapwing.admin.history import History, Ring, Track
from lapwing.admin.pages.charts import known_points
from lapwing.client.cluster import Node, topics_of_stats

NODE = Node("a", "10.0.0.1", 4150, 4151, "1.3.0")
OTHER = Node("b", "10.0.0.2", 4150, 4151, "1.3.0")


def topics(messages, depth=0, *, in_flight=0, deferred=0, node=NODE, channel=True, name="t", channel_name="c"):
    """One topic with one channel that has had `messages`, of which `depth` wait."""
    channels = (
        [
            {
                "channel_name": channel_name,
                "depth": depth,
                "in_flight_count": in_flight,
                "deferred_count": deferred,
                "message_count": messages,
                "client_count": 1,
            }
        ]
        if channel
        else []
    )
    stats = {"topics": [{"topic_name": name, "depth": 0, "message_count": messages, "channels": channels}]}
    return topics_of_stats([(node, stats)], now=0)


def test_a_ring_keeps_its_step_and_its_capacity():
    ring = Ring(1, step=10.0, capacity=4)
    for at in range(0, 200, 5):
        ring.add(at, (float(at),))

    assert len(ring.times) <= 5
    assert list(ring.times) == sorted(ring.times)
    assert ring.times[-1] == 190.0
    assert all(later - earlier >= 9.0 for earlier, later in zip(ring.times, ring.times[1:], strict=False))


def test_a_track_is_fine_of_late_and_coarse_before():
    track = Track(("x",), ((1.0, 10), (10.0, 100)))
    for at in range(100):
        track.add(float(at), (float(at),))

    points = track.points("x")
    assert points[0] == (0.0, 0.0)
    assert points[-1] == (99.0, 99.0)
    assert [at for at, _ in points] == sorted({at for at, _ in points})
    assert len(points) < 30
    assert track.points("x", since=95.0) == [(float(at), float(at)) for at in range(95, 100)]


def test_rates_come_from_counters():
    history = History()
    history.sample(0.0, topics(100, depth=10))
    history.sample(2.0, topics(120, depth=16))

    assert history.topic_flow["t"].into == 10.0
    assert history.channel_flow["t", "c"].into == 10.0
    assert history.channel_flow["t", "c"].out == 7.0  # 20 came, 6 of them still wait
    assert history.node_flow == {NODE.name: 10.0}
    assert history.cluster.last("in") == 10.0
    assert history.cluster.last("ready") == 16.0


def test_rates_do_not_depend_on_how_often_one_looks():
    """A publisher that sends 100 messages every 10 seconds, seen every 2 seconds and every 10."""
    seen = {}
    for every in (2, 10):
        history = History()
        for at in range(0, 61, every):
            history.sample(float(at), topics(100 * (at // 10)))
        seen[every] = {round(value, 3) for at, value in history.cluster.points("in", since=20.0)}

    assert seen == {2: {10.0}, 10: {10.0}}


def test_a_restart_inside_the_averaged_time_is_no_gap():
    history = History()
    for at, count in ((0.0, 1000), (2.0, 1020), (4.0, 10), (6.0, 30)):
        history.sample(at, topics(count))

    assert history.topic_flow["t"].into == 10.0


def test_a_sawtooth_is_no_growth():
    """Spark takes all that came every 10 seconds: whatever moments we look at, the lowest ones do not rise."""
    for begin in range(10):
        history = History()
        for step in range(200):
            at = begin / 10 + step * 2.05
            history.sample(at, topics(int(at * 100), depth=int(at % 10.02 * 100)))

        assert history.growth(("t", "c"), 408.0, over=300.0) == 0.0, begin


def test_a_sawtooth_that_rises_is_growth():
    history = History()
    for step in range(200):
        at = step * 2.05
        history.sample(at, topics(int(at * 100), depth=int(at % 10.02 * 100 + at * 20)))

    assert (history.growth(("t", "c"), 408.0, over=300.0) or 0) > 4000


def test_in_flight_and_deferred_messages_have_not_left():
    history = History()
    history.sample(0.0, topics(100))
    history.sample(2.0, topics(110, in_flight=6, deferred=4))

    assert history.channel_flow["t", "c"].out == 0.0


def test_a_restarted_node_does_not_make_rates_negative():
    history = History()
    history.sample(0.0, topics(1000))
    history.sample(2.0, topics(5))
    history.sample(4.0, topics(25))

    assert history.topic_flow["t"].into == 10.0


def test_a_node_that_comes_back_is_no_flood():
    history = History()
    history.sample(0.0, topics(1000))
    for at in range(2, 32, 2):
        history.sample(float(at), topics(2000, node=OTHER))
    history.sample(32.0, topics(90_000))

    assert history.topic_flow["t"].into == 0.0


def test_the_oldest_message_is_as_old_as_the_time_when_so_many_had_come():
    history = History()
    for at in range(0, 101, 10):  # ten messages come every ten seconds
        history.sample(float(at), topics(at, depth=max(0, at - 60)))
    now = topics(100, depth=40)["t"]["channels"][0]

    age = history.age(now, 100.0)
    assert age is not None
    assert not age.at_least
    assert 20.0 <= age.seconds <= 40.0  # the 61st message came between 60 and 70; sampled every ten seconds


def test_a_backlog_from_before_our_time_is_at_least_that_old():
    history = History()
    for at in range(0, 101, 10):
        history.sample(float(at), topics(5000, depth=5000))

    age = history.age(topics(5000, depth=5000)["t"]["channels"][0], 100.0)
    assert age is not None
    assert age.at_least
    assert age.seconds == 100.0


def test_dead_letters_are_not_the_oldest_messages_of_the_cluster():
    history = History()
    for at in range(0, 101, 10):
        history.sample(float(at), topics(5, depth=5, name="t.c.dead", channel_name="dead"))

    assert (history.cluster.last("oldest"), history.cluster.last("lag")) == (0.0, 0.0)


def test_nothing_waiting_has_no_age():
    history = History()
    history.sample(0.0, topics(10))

    assert history.age(topics(10)["t"]["channels"][0], 0.0) is None


@pytest.mark.parametrize(
    ("depths", "growing"),
    [
        ([0, 100, 200, 300, 400, 500, 600], True),
        ([600, 600, 600, 600, 600, 600, 600], False),
        ([0, 900, 800, 700, 600, 500, 400], False),  # a burst that is being worked off
    ],
)
def test_growth_is_what_goes_on_growing(depths, growing):
    history = History()
    for index, depth in enumerate(depths):
        history.sample(index * 10.0, topics(1000 * index, depth=depth))

    assert bool(history.growth(("t", "c"), 60.0, over=60.0)) is growing


def test_growth_needs_to_have_been_watched():
    history = History()
    history.sample(0.0, topics(10, depth=10))

    assert history.growth(("t", "c"), 0.0, over=300.0) is None


def test_the_past_of_what_was_deleted_is_forgotten_after_an_hour():
    history = History()
    history.sample(0.0, topics(10))
    history.sample(10.0, topics(20))
    history.sample(20.0, {})
    kept = ("t", "c") in history.channels
    history.sample(5000.0, {})

    assert kept
    assert not history.channels
    assert not history.topics


def test_lapwings_own_topics_are_watched_and_not_counted():
    history = History()
    for at in (0, 10):
        own = topics(100 * at, 50, in_flight=3, name="_lapwing_stats")
        history.sample(at, topics(10 * at) | own)

    assert history.topic_flow["_lapwing_stats"].into == 100
    assert history.cluster.last("in") == 10
    assert [history.cluster.last(field) for field in ("ready", "in_flight", "lag")] == [0, 0, 0]
    assert history.node_flow == {NODE.name: 10}


def test_a_chart_has_a_gap_where_the_first_rate_would_be():
    history = History()
    history.sample(100.0, topics(50))
    history.sample(110.0, topics(150))
    track = history.channels["t", "c"]

    assert known_points(track, "in", since=0.0) == [(100.0, None), (110.0, 10.0)]
    assert known_points(track, "depth", since=0.0) == [(100.0, 0.0), (110.0, 0.0)]
