"""Runs of deleted sequences against a plain set, and messages that are deleted."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from lapwing.broker.topic.deleted import DeletedRuns
from lapwing.wire.nsq.commands import Rdy
from play import Stage

spans = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda span: (span[0], span[0] + span[1]))


@settings(max_examples=examples(500))
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


def test_a_copy_of_a_pending_message_is_deleted_with_it(tmp_path: Path):
    stage = Stage(tmp_path, max_bytes_per_file=300)
    consumer = stage.consumer(ready=2)
    for _ in range(4):
        stage.client().publish(b"x" * 200)
    consumer.say(Rdy(0))
    consumer.requeue(0)
    stage.channel().copy_aside(2)
    assert stage.channel().side_logged.sequences
    stage.broker.existing("t").delete(0, 1)
    consumer.leave()

    assert stage.consumer().received() == [1, 2, 3]
