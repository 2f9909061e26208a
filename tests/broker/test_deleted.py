"""Runs of deleted sequences against a plain set."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lapwing.broker.deleted import DeletedRuns

spans = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda span: (span[0], span[0] + span[1]))


@settings(max_examples=500)
@given(st.lists(spans, max_size=12), spans, st.integers(0, 50), st.integers(0, 12))
def test_runs_are_what_a_set_of_sequences_would_be(runs, window, below, count):
    deleted, naive = DeletedRuns(), set()
    for start, stop in runs:
        assert deleted.add(start, stop) == len(set(range(start, stop)) - naive)
        naive |= set(range(start, stop))
    start, stop = window
    alive = [each for each in range(start, stop) if each not in naive]

    assert deleted.total == len(naive)
    assert [each in deleted for each in range(60)] == [each in naive for each in range(60)]
    assert deleted.count(start, stop) == stop - start - len(alive)
    assert [each for run in deleted.live(start, stop) for each in range(*run)] == alive
    assert [each for run in deleted.live_back(start, stop) for each in reversed(range(*run))] == alive[::-1]
    assert deleted.skip(start, stop, count) == (
        stop if count > len(alive) else alive[count - 1] + 1 if count else deleted.jump(start) if alive else stop
    )
    assert deleted.jump(start) == next(each for each in range(start, 100) if each not in naive)
    again = DeletedRuns(deleted.take_changes())
    assert again.runs() == deleted.runs()
    assert again.take_changes() == deleted.take_changes() == []
    deleted.forget_below(below)
    assert deleted.total == len({each for each in naive if each >= below})
    assert [each for run in deleted.runs() for each in range(*run)] == sorted(each for each in naive if each >= below)


def test_neighbours_are_joined():
    deleted = DeletedRuns([(3, 4), (1, 2), (2, 3)])

    assert deleted.runs() == [(1, 4)]
