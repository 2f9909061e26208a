"""What waits for its time."""

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from example_counts import examples
from lapwing.broker.channel.deferred import Deferred
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
    assert deferred.changes() == ({3: 20, 4: 10}, [0, 1, 2])
    assert deferred.ripe(100) == [4, 3]


def test_what_was_taken_out_takes_no_memory_until_it_would_be_due() -> None:
    deferred = Deferred()
    for first in range(0, 50_000, 5000):
        for sequence in range(first, first + 5000):
            deferred.defer(sequence, until=100_000 - sequence)
        deferred.drop_below(first + 4990)

    assert len(deferred) == 10
    assert deferred._order._length < 100
    assert deferred.ripe(100_000) == list(range(49_999, 49_989, -1))


def test_the_deliveries_of_a_message_are_here_while_it_waits() -> None:
    attempts = {1: 0, 2: 7}
    deferred = Deferred(attempts)
    for sequence in (1, 2, 3):
        deferred.defer(sequence, until=10 * sequence)
    deferred.defer(2, until=25)

    assert attempts == {}
    assert [deferred.deliveries(sequence) for sequence in (1, 2, 3, 4)] == [0, 7, 1, None]
    assert deferred.remove(3)
    assert deferred.ripe(25) == [1, 2]
    assert attempts == {1: 0, 2: 7, 3: 1}


class DeferredMachine(RuleBasedStateMachine):
    """Does the same to a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.deferred = Deferred()
        self.model: dict[int, int] = {}

    @rule(sequences=st.lists(st.integers(0, 60), max_size=20), until=st.integers(0, 50))
    def defer(self, sequences: list[int], until: int) -> None:
        for place, sequence in enumerate(sequences):
            self.deferred.defer(sequence, until=until + place)
            self.model[sequence] = until + place

    @rule(sequence=st.integers(0, 60))
    def remove(self, sequence: int) -> None:
        assert self.deferred.remove(sequence) == (self.model.pop(sequence, None) is not None)

    @rule(sequence=st.integers(0, 60))
    def drop_below(self, sequence: int) -> None:
        self.deferred.drop_below(sequence)
        self.model = {each: until for each, until in self.model.items() if each >= sequence}

    @rule(now=st.integers(0, 80), most=st.integers(1, 40))
    def ripe(self, now: int, most: int) -> None:
        due = sorted((until, sequence) for sequence, until in self.model.items() if until <= now)
        found = self.deferred.ripe(now, most)
        assert [self.model[sequence] for sequence in found] == [until for until, _ in due[:most]]
        for sequence in found:
            del self.model[sequence]

    @invariant()
    def agree(self) -> None:
        assert len(self.deferred) == len(self.model)
        assert {each: self.deferred.due(each) for each in self.deferred.sequences()} == self.model
        assert self.deferred.next_due() == min(self.model.values(), default=None)
        assert self.deferred.lowest(20) == min((each for each in self.model if each >= 20), default=None)


def test_it_does_what_a_dict_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapwing.broker.channel.deferred._FRESH", 5)
    monkeypatch.setattr("lapwing.log.side.sequence_map._FRESH", 7)
    monkeypatch.setattr("lapwing.log.side.sequence_map._LARGE", 20)
    DeferredMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30)
    DeferredMachine.TestCase().runTest()


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

    added, _ = stage.channel(channel, topic).ledger.deferred.changes()
    assert bool(added) is told


def test_what_waits_for_centuries_is_written_down_like_any_other(tmp_path: Path) -> None:
    longest = 2**63 - 1  # ns, the longest duration there is
    stage = Stage(tmp_path, max_req_timeout=longest)
    consumer = stage.consumer()
    stage.client().publish(b"deferred", delay=longest).publish(b"requeued")
    consumer.requeue(1, delay=longest)
    stage.checkpoint()
    stage.kill()

    assert stage.broker.keeper.problem is None
    assert sorted(stage.channel().ledger.deferred.sequences()) == [0, 1]


def test_a_kill_ends_no_delay_early_although_the_clock_was_set(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.consumer()
    stage.checkpoint()
    stage.client().publish(b"later", delay=MINUTE)  # a kill forgets that it was handed to the channel
    stage.now += 60 * MINUTE
    stage.kill()
    client = stage.consumer()

    stage.pass_time(MINUTE - 1)
    assert client.received() == []
    stage.pass_time(1)
    assert client.received() == [0]
