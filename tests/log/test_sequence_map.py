"""Many rows by sequence in few bytes."""

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from example_counts import examples
from lapwing.log.side import sequence_map
from lapwing.log.side.sequence_map import SequenceMap

SEQUENCES = st.integers(0, 200)


class SequenceMapMachine(RuleBasedStateMachine):
    """Does the same to a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.map = SequenceMap(2)
        self.model: dict[int, tuple[int, int]] = {}

    @rule(sequences=st.lists(SEQUENCES, max_size=30), value=st.integers(-5, 5))
    def set(self, sequences: list[int], value: int) -> None:
        for sequence in sequences:
            self.map.set(sequence, sequence * 10, value)
            self.model[sequence] = sequence * 10, value

    @rule(sequences=st.lists(SEQUENCES, max_size=60))
    def pop(self, sequences: list[int]) -> None:
        for sequence in sequences:
            assert self.map.pop(sequence) == self.model.pop(sequence, None)

    @rule(start=SEQUENCES, length=st.integers(0, 100), most=st.integers(1, 50))
    def look_between(self, start: int, length: int, most: int) -> None:
        expected = sorted(sequence for sequence in self.model if start <= sequence < start + length)[:most]
        assert self.map.between(start, start + length, most) == expected

    @rule()
    def clear(self) -> None:
        self.map.clear()
        self.model.clear()

    @invariant()
    def agree(self) -> None:
        assert len(self.map) == len(self.model)
        assert bool(self.map) == bool(self.model)
        assert sorted(self.map) == sorted(self.model)
        assert {sequence: self.map.get(sequence) for sequence in self.map} == self.model
        for sequence in (0, 7, 100, 199):
            assert self.map.get(sequence) == self.model.get(sequence)
            assert (sequence in self.map) == (sequence in self.model)


class Small(SequenceMapMachine):
    """The same with arrays that are made, merged and thinned out early."""


def test_it_does_what_a_dict_does(monkeypatch) -> None:
    monkeypatch.setattr(sequence_map, "_FRESH", 7)
    monkeypatch.setattr(sequence_map, "_LARGE", 40)
    SequenceMapMachine.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=30)
    SequenceMapMachine.TestCase().runTest()


@given(st.lists(st.integers(0, 10**6)))
def test_rows_come_back_in_any_order(sequences: list[int]) -> None:
    rows = SequenceMap(1)
    for sequence in sequences:
        rows.set(sequence, -sequence)

    assert all(rows.get(sequence) == (-sequence,) for sequence in sequences)


def test_a_million_take_less_than_a_dict() -> None:
    tracemalloc.start()
    rows = SequenceMap(1)
    for sequence in range(200_000):
        rows.set(2 * sequence, sequence)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert size / 200_000 < 30
    assert rows.get(100) == (50,)
