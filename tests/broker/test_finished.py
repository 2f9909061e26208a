"""The places that a cursor jumps over."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lapwing.broker.topic.skips import Runs, SkippedRuns, count_of, gaps, runs_of


def test_a_cursor_jumps_over_what_begins_at_it() -> None:
    ahead = SkippedRuns()
    ahead.add(5, 7)
    ahead.add(7, 8)
    ahead.add(10, 11)

    assert ahead.count == 4
    assert ahead.end == 11
    assert ahead.clear_until(20) == 5
    assert ahead.pass_over(4) == 4
    assert ahead.pass_over(5) == 8
    assert ahead.count == 1
    assert ahead.clear_until(20) == 10
    assert ahead.clear_until(9) == 9


def test_a_cursor_that_lands_inside_a_run_or_behind_it_goes_on_from_its_end() -> None:
    ahead = SkippedRuns()
    ahead.add(5, 9)
    ahead.add(12, 14)

    assert ahead.pass_over(7) == 9
    assert ahead.pass_over(20) == 20
    assert (ahead.count, ahead.end) == (0, 0)


def test_clearing_forgets_all_runs() -> None:
    ahead = SkippedRuns()
    ahead.add(5, 9)
    ahead.clear()

    assert (ahead.count, ahead.end, ahead.pass_over(5), ahead.clear_until(7)) == (0, 0, 5, 7)


@given(st.sets(st.integers(0, 60)))
def test_jumping_visits_exactly_what_is_not_jumped_over(sequences: set[int]) -> None:
    ahead = SkippedRuns()
    for sequence in sorted(sequences):
        ahead.add(sequence, sequence + 1)
    visited, cursor = [], ahead.pass_over(0)
    while cursor < 61:
        stop = ahead.clear_until(61)
        visited += range(cursor, stop)
        cursor = ahead.pass_over(stop)

    assert visited == [sequence for sequence in range(61) if sequence not in sequences]
    assert ahead.count == 0


@given(st.sets(st.integers(0, 60)))
def test_runs_say_the_same_in_fewer_words(sequences: set[int]) -> None:
    runs = runs_of(sequences)

    assert [sequence for start, stop in runs for sequence in range(start, stop)] == sorted(sequences)
    assert all(before[1] < after[0] for before, after in pairwise(runs))


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_places_are_added_anywhere(before: set[int], later: set[int]) -> None:
    ahead = SkippedRuns()
    for start, stop in runs_of(before):
        ahead.add(start, stop)
    ahead.merge(runs_of(later))
    assert ahead.count == len(before | later)

    visited, cursor = [], ahead.pass_over(0)
    while cursor < 61:
        stop = ahead.clear_until(61)
        visited += range(cursor, stop)
        cursor = ahead.pass_over(stop)
    assert visited == [sequence for sequence in range(61) if sequence not in before | later]


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)), st.integers(0, 61))
def test_a_set_of_runs_is_a_set(first: set[int], second: set[int], gone: set[int], below: int) -> None:
    runs = Runs(runs_of(first))
    runs.add(runs_of(second))
    for sequence in gone:
        runs.remove(sequence)
    left = (first | second) - gone
    assert {each for each in range(61) if each in runs} == left
    assert bool(runs) == bool(left)
    assert count_of(runs.runs) == len(left)
    assert runs.runs == runs_of(left)

    runs.drop_below(below)
    assert runs.runs == runs_of(each for each in left if each >= below)


@given(st.sets(st.integers(0, 60)), st.integers(0, 61), st.integers(0, 61))
def test_gaps_are_what_is_in_no_run(sequences: set[int], start: int, stop: int) -> None:
    assert gaps(start, stop, runs_of(sequences)) == runs_of(set(range(start, stop)) - sequences)
