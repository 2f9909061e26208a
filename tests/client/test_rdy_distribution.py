"""How max_in_flight is shared out, without a clock or a socket."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapwing.client.rdy_distribution import Mode, RdyDistribution


def flow_of(max_in_flight, *keys, cap=2500, now=0.0):
    flow = RdyDistribution(max_in_flight, rng=random.Random(7))
    for key in keys:
        flow.add(key, cap=cap, now=now)
    return flow


def rdys(flow):
    return {key: share.rdy for key, share in flow.shares.items()}


def test_the_first_connection_gets_everything():
    assert RdyDistribution(5).add("a", cap=2500, now=0) == [("a", 5)]


def test_a_second_connection_halves_it_and_the_first_is_lowered_before_the_second_is_raised():
    flow = flow_of(5, "a")

    assert flow.add("b", cap=2500, now=1) == [("a", 2), ("b", 2)]


def test_nobody_gets_more_than_its_nsqd_allows():
    assert rdys(flow_of(10_000, "a", "b", cap=2500)) == {"a": 2500, "b": 2500}


def test_zero_pauses_everything_and_more_wakes_it():
    flow = flow_of(10, "a", "b")

    assert flow.resize(0, now=1) == [("a", 0), ("b", 0)]
    assert flow.resize(10, now=2) == [("a", 5), ("b", 5)]


def test_the_same_value_is_not_said_twice():
    flow = flow_of(10, "a", "b")

    assert flow.resize(10, now=1) == []


def test_the_share_of_a_lost_connection_goes_to_the_others_at_once():
    flow = flow_of(10, "a", "b")

    assert flow.remove("a", now=1) == [("b", 10)]
    assert flow.remove("a", now=1) == []


def test_with_more_connections_than_turns_the_first_ones_have_them():
    assert rdys(flow_of(2, "a", "b", "c")) == {"a": 1, "b": 1, "c": 0}


def test_a_turn_that_becomes_free_is_taken_by_one_that_waits():
    flow = flow_of(2, "a", "b", "c")

    assert flow.remove("a", now=1) == [("c", 1)]


def test_an_idle_connection_loses_its_turn():
    flow = flow_of(1, "a", "b")

    assert flow.redistribute(now=9.9) == []
    assert [order for order in flow.redistribute(now=10.0) if order[1] == 0] in ([("a", 0)], [])
    assert sum(rdys(flow).values()) == 1


def test_a_busy_connection_loses_its_turn_only_after_a_longer_time():
    flow = flow_of(1, "a", "b")
    flow.shares["a"].last_message = 29.0

    assert flow.redistribute(now=29.5) == []
    flow.shares["a"].last_message = 30.0
    flow.redistribute(now=30.0)
    assert flow.shares["a"].rdy_set == 30.0


def test_over_time_every_connection_gets_its_turn():
    flow = flow_of(1, *"abcd")
    seen = set()
    for tick in range(200):
        flow.redistribute(now=tick * 5.0)
        seen |= {key for key, rdy in rdys(flow).items() if rdy}

    assert seen == set("abcd")


def test_where_there_are_turns_for_all_nothing_is_redistributed():
    assert flow_of(4, *"abcd").redistribute(now=1000) == []


def test_a_pause_takes_everything_and_a_probe_gives_one():
    flow = flow_of(10, "a", "b")

    assert sorted(flow.hold(now=1)) == [("a", 0), ("b", 0)]
    assert flow.redistribute(now=100) == []
    orders = flow.probe(now=2)
    assert len(orders) == 1
    assert orders[0][1] == 1
    assert sorted(flow.release(now=3)) == [("a", 5), ("b", 5)]


def test_a_connection_that_comes_during_a_pause_gets_nothing():
    flow = flow_of(10, "a")
    flow.hold(now=1)

    assert flow.add("b", cap=2500, now=2) == []


def test_when_the_probed_connection_is_lost_another_is_probed():
    flow = flow_of(10, "a", "b")
    flow.hold(now=1)
    [(probed, _)] = flow.probe(now=2)
    other = "b" if probed == "a" else "a"

    assert flow.remove(probed, now=3) == [(other, 1)]


def test_the_connection_that_delivered_last_is_probed():
    flow = flow_of(10, *"abc")
    flow.shares["b"].last_message = 5.0
    flow.hold(now=6)

    assert flow.probe(now=7) == [("b", 1)]


def test_a_probe_that_brings_nothing_moves_on():
    flow = flow_of(10, "a", "b")
    flow.hold(now=1)
    [(probed, _)] = flow.probe(now=2)
    other = "b" if probed == "a" else "a"

    assert flow.probe_elsewhere(1.0, now=2.5) == []
    assert flow.probe_elsewhere(1.0, now=3) == [(probed, 0), (other, 1)]
    flow.shares[other].last_message = 3.5
    assert flow.probe_elsewhere(1.0, now=30) == []
    flow.release(now=31)
    assert flow.probe_elsewhere(1.0, now=60) == []


def test_a_probe_of_the_only_connection_stays_there():
    flow = flow_of(10, "a")
    flow.hold(now=1)

    assert flow.probe(now=2) == [("a", 1)]
    assert flow.probe_elsewhere(1.0, now=9) == []


def test_a_probe_without_connections_orders_nothing():
    flow = RdyDistribution(10)
    flow.hold(now=1)

    assert flow.probe(now=2) == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 5), st.integers(1, 10)),
        st.tuples(st.just("remove"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("resize"), st.integers(0, 12), st.just(0)),
        st.tuples(st.sampled_from(["hold", "probe", "release", "redistribute"]), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@given(steps=STEPS, start=st.integers(0, 12), seed=st.integers(0, 5))
def test_the_sum_never_exceeds_max_in_flight_at_any_moment(steps, start, seed):
    flow = RdyDistribution(start, rng=random.Random(seed))
    actual = {}
    for now, (step, value, cap) in enumerate(steps):
        allowed_before = flow.max_in_flight
        if step == "add":
            if value in flow.shares:
                continue
            actual[value] = 0
            orders = flow.add(value, cap=cap, now=now * 4.0)
        elif step == "remove":
            actual.pop(value, None)
            orders = flow.remove(value, now=now * 4.0)
        elif step == "resize":
            orders = flow.resize(value, now=now * 4.0)
        else:
            orders = getattr(flow, step)(now=now * 4.0)
        for key, rdy in orders:
            assert rdy != actual[key]
            actual[key] = rdy
            assert sum(actual.values()) <= max(allowed_before, flow.max_in_flight)
        assert actual == rdys(flow)
        assert sum(actual.values()) <= flow.max_in_flight
        assert all(share.rdy <= share.cap for share in flow.shares.values())
        if flow.mode is Mode.HELD:
            assert not any(actual.values())
        if flow.mode is Mode.PROBING:
            assert sum(actual.values()) <= 1


@pytest.mark.parametrize("count", [1, 3, 7])
def test_in_normal_flow_everybody_has_a_turn_when_there_are_enough(count):
    flow = flow_of(7, *range(count))

    assert all(rdy >= 1 for rdy in rdys(flow).values())
