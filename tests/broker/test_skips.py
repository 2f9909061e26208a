"""Runs of sequences against sets of numbers."""

from hypothesis import given
from hypothesis import strategies as st

from lapwing.broker.topic.skips import Runs, SkippedRuns, each_gap, runs_of

SETS = st.lists(st.sets(st.integers(0, 60), max_size=12), max_size=8)


@given(SETS, st.integers(0, 61))
def test_runs_that_are_merged_hold_what_either_had(some: list[set[int]], place: int) -> None:
    skipped, kept, expected = SkippedRuns(), Runs(), set[int]()
    for numbers in some:
        expected |= numbers
        skipped.merge(runs_of(numbers))
        kept.add(runs_of(numbers))

        assert skipped.runs == kept.runs == runs_of(expected)
        assert skipped.count == len(expected)
    assert [*skipped.runs_from(place)] == [run for run in runs_of(expected) if run[1] > place]
    assert (place in skipped) is (place in expected)
    missing = runs_of({*range(place, 61)} - expected)
    assert [*each_gap(place, 61, skipped.runs_from(place))] == missing
