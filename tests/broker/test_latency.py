"""Times from publish to FIN, as percentiles over a moving window."""

from pathlib import Path

import pytest

from lapwing.broker.channel.latency import SAMPLES, STAMPED, Latencies, percentiles
from lapwing.broker.settings.options import Options
from play import SECOND, Stage, numbered


def latencies(window: int = 10 * SECOND) -> Latencies:
    return Latencies(
        Options(e2e_processing_latency_percentiles=(0.5,), e2e_processing_latency_window_time=window)
    )


def test_percentiles_of_a_hundred() -> None:
    assert percentiles(list(range(100, 0, -1)), (0.5, 0.95, 1.0)) == [(0.5, 51), (0.95, 96), (1.0, 100)]


def test_percentiles_of_one_and_of_none() -> None:
    assert percentiles([7], (0.01, 1.0)) == [(0.01, 7), (1.0, 7)]
    assert percentiles([], (0.5,)) == [(0.5, 0)]


def test_the_window_moves_by_halves() -> None:
    window = latencies()
    now = 1000 * SECOND
    window.record(1, now=now)
    window.record(2, now=now + 6 * SECOND)

    assert sorted(window.samples(now=now + 6 * SECOND)) == [1, 2]
    assert window.samples(now=now + 11 * SECOND) == [2]
    assert window.count(now=now + 11 * SECOND) == 1
    assert window.samples(now=now + 60 * SECOND) == []


def test_more_samples_than_are_kept_stand_for_all() -> None:
    window = latencies()
    for number in range(5 * SAMPLES):
        window.record(number, now=SECOND)
    kept = window.samples(now=SECOND)

    assert len(kept) == SAMPLES
    assert window.count(now=SECOND) == 5 * SAMPLES
    assert 2 * SAMPLES < percentiles(kept, (0.5,))[0][1] < 3 * SAMPLES


def test_a_message_may_stand_for_its_neighbours() -> None:
    window = latencies()
    window.record(5, 70, now=SECOND)
    window.record(6, 30, now=SECOND)

    assert window.count(now=SECOND) == 100
    assert sorted(window.samples(now=SECOND)) == [5, 6]


@pytest.mark.parametrize("count", [1, 2, STAMPED - 1, STAMPED, STAMPED + 1, 100, 1000])
@pytest.mark.parametrize("at_once", [True, False])
def test_of_a_long_slice_some_are_measured_and_all_are_counted(tmp_path: Path, count: int, at_once: bool) -> None:
    stage = Stage(tmp_path, e2e_processing_latency_percentiles=(0.5,), e2e_processing_latency_window_time=3600 * SECOND)
    consumer = stage.consumer(ready=count)
    stage.client().publish(*numbered(count))
    stage.pass_time(SECOND)
    if at_once:
        consumer.finish(*range(count))
    else:
        for sequence in range(count):
            consumer.finish(sequence)

    measured = stage.channel().latencies
    assert measured is not None
    assert measured.count(now=stage.now) == count
    samples = measured.samples(now=stage.now)
    assert set(samples) == {SECOND}
    assert len(samples) == count if count < STAMPED else len(samples) <= STAMPED
