"""The FINs that answer a run of message frames, on both twins."""

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapwing.kernel import pure
from lapwing.wire import frames

try:
    from lapwing.kernel import _speed
except ImportError:
    TWINS: list[ModuleType] = [pure]
else:
    TWINS = [pure, _speed]

RUN = pure.frame_bodies([b"one", b"", b"three" * 50], 7 << 54 | 41, 1)
FINS = b"".join(b"FIN %016x\n" % (7 << 54 | sequence) for sequence in (41, 42, 43))


@pytest.fixture(params=TWINS, ids=lambda twin: twin.__name__.rpartition(".")[2])
def twin(request: pytest.FixtureRequest) -> ModuleType:
    chosen: ModuleType = request.param
    return chosen


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_whole_frame_gets_its_fin_in_order(twin: ModuleType, kind: type) -> None:
    assert twin.fins_of(kind(RUN), 0, len(RUN)) == (FINS, 3, len(RUN))


def test_a_torn_frame_is_left_for_later(twin: ModuleType) -> None:
    assert twin.fins_of(RUN, 0, len(RUN) - 1) == (FINS[:42], 2, 34 + 3 + 34)
    assert twin.fins_of(RUN[:33], 0, 33) == (b"", 0, 0)


def test_another_kind_of_frame_ends_the_run(twin: ModuleType) -> None:
    data = frames.OK + RUN + frames.HEARTBEAT
    start = len(frames.OK)

    assert twin.fins_of(data, 0, len(data)) == (b"", 0, 0)
    assert twin.fins_of(data, start, len(data)) == (FINS, 3, start + len(RUN))


def test_a_stop_past_the_end_reads_no_further(twin: ModuleType) -> None:
    assert twin.fins_of(RUN, 0, 1 << 40) == (FINS, 3, len(RUN))
    with pytest.raises(ValueError):
        twin.fins_of(RUN, -1, len(RUN))


@given(data=st.binary(max_size=200), start=st.integers(0, 250), stop=st.integers(0, 250))
def test_the_twins_agree_on_any_bytes(data: bytes, start: int, stop: int) -> None:
    answers = [twin.fins_of(data + RUN, start, stop) for twin in TWINS]

    assert all(answer == answers[0] for answer in answers)
