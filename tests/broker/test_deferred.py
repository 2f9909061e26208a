"""What waits for its time."""

from pathlib import Path

import pytest

from lapwing.broker.deferred import Deferred
from play import MINUTE, Stage


def test_what_is_due_comes_out_earliest_first() -> None:
    deferred = Deferred()
    for sequence, until in ((1, 30), (2, 10), (3, 20), (4, 40)):
        deferred.defer(sequence, until=until)

    assert deferred.next_due() == 10
    assert deferred.ripe(9) == []
    assert deferred.ripe(30) == [2, 3, 1]
    assert deferred.sequences() == [4]
    assert 4 in deferred
    assert 1 not in deferred


def test_a_new_time_replaces_the_old_one() -> None:
    deferred = Deferred()
    deferred.defer(1, until=10)
    deferred.defer(1, until=50)

    assert deferred.next_due() == 50
    assert deferred.ripe(49) == []
    assert deferred.ripe(50) == [1]
    assert deferred.next_due() is None


def test_the_journal_hears_of_each_change_once() -> None:
    deferred = Deferred()
    deferred.defer(1, until=10)
    deferred.defer(2, until=20)
    assert deferred.changes() == ({1: 10, 2: 20}, [])
    deferred.ripe(10)
    deferred.defer(1, until=99)

    assert deferred.changes() == ({1: 99}, [1])
    assert deferred.changes() == ({}, [])


def test_what_came_and_went_between_two_looks_was_never_added() -> None:
    deferred = Deferred()
    deferred.defer(1, until=10)
    deferred.ripe(10)

    assert deferred.changes() == ({}, [1])


def test_what_the_journal_knew_is_no_news() -> None:
    deferred = Deferred()
    deferred.restore({1: 20, 2: 10})

    assert deferred.changes() == ({}, [])
    assert deferred.next_due() == 10
    assert deferred.ripe(20) == [2, 1]
    assert deferred.changes() == ({}, [2, 1])


def test_nothing_below_a_cursor_waits_any_more() -> None:
    deferred = Deferred()
    for sequence in range(5):
        deferred.defer(sequence, until=10 * (5 - sequence))
    deferred.drop_below(3)

    assert sorted(deferred.sequences()) == [3, 4]
    assert len(deferred._heap) == 2  # else who seeks on and on keeps what was dropped, until it would be due
    assert deferred.changes() == ({3: 20, 4: 10}, [0, 1, 2])
    assert deferred.ripe(100) == [4, 3]


def test_clearing_is_told_and_complete() -> None:
    deferred = Deferred()
    deferred.defer(1, until=10)
    deferred.changes()
    deferred.defer(2, until=20)
    deferred.clear()

    assert (len(deferred), deferred.next_due(), deferred.ripe(99)) == (0, None, [])
    assert deferred.changes() == ({}, [1, 2])


def test_nothing_is_noted_where_no_journal_ever_asks() -> None:
    deferred = Deferred(journaled=False)
    for sequence in range(5):
        deferred.defer(sequence, until=sequence)
    deferred.ripe(2)
    deferred.drop_below(4)
    deferred.clear()

    assert deferred.changes() == ({}, [])


@pytest.mark.parametrize(("topic", "channel", "told"), [
    ("t", "c", True), ("t", "c#ephemeral", False), ("t#ephemeral", "c", False),
])  # fmt: skip
def test_ephemeral_channels_have_nobody_to_tell(tmp_path: Path, topic: str, channel: str, told: bool) -> None:
    stage = Stage(tmp_path)
    consumer = stage.consumer(channel, topic=topic)
    stage.client().publish(b"x", topic=topic)
    consumer.requeue(consumer.received()[0], delay=MINUTE)

    added, _ = stage.channel(channel, topic).pending.deferred.changes()
    assert bool(added) is told


def test_what_waits_for_centuries_is_written_down_like_any_other(tmp_path: Path) -> None:
    longest = 2**63 - 1  # ns, the longest duration there is
    stage = Stage(tmp_path, max_req_timeout=longest)
    consumer = stage.consumer()
    stage.client().publish(b"deferred", delay=longest).publish(b"requeued")
    consumer.requeue(1, delay=longest)
    stage.checkpoint()
    stage.kill()

    assert stage.broker.problem is None
    assert sorted(stage.channel().pending.deferred.sequences()) == [0, 1]
