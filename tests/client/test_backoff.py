"""How long a consumer holds back, and how long a connection waits."""

import random

from lapwing.client.backoff import Backoff, Delays, Signal, Verdict


def play(backoff, signal):
    """One signal outside of a pause; the verdict and the pause it causes, which then passes."""
    verdict = backoff.signal(signal)
    duration = backoff.duration if verdict is Verdict.PAUSE else 0.0
    backoff.over()
    return verdict, duration


def test_failures_double_the_pause_and_success_steps_down_one_level_at_a_time():
    backoff = Backoff(multiplier=0.2, longest=2.0)

    durations = [round(play(backoff, Signal.BACKOFF)[1], 3) for _ in range(4)]
    assert durations == [0.4, 0.8, 1.6, 1.6]
    assert round(play(backoff, Signal.RESUME)[1], 3) == 0.8
    assert round(play(backoff, Signal.RESUME)[1], 3) == 0.4
    assert play(backoff, Signal.RESUME)[0] is Verdict.RECOVERED
    assert backoff.level == 0


def test_many_failures_in_one_pause_count_once():
    backoff = Backoff()
    backoff.signal(Signal.BACKOFF)

    assert backoff.signal(Signal.BACKOFF) is Verdict.NOTHING
    assert backoff.signal(Signal.RESUME) is Verdict.NOTHING
    assert backoff.level == 1


def test_a_requeue_without_blame_keeps_the_level():
    backoff = Backoff()

    assert backoff.signal(Signal.CONTINUE) is Verdict.NOTHING
    play(backoff, Signal.BACKOFF)
    assert play(backoff, Signal.CONTINUE) == (Verdict.PAUSE, 2.0)
    assert backoff.level == 1


def test_success_without_backoff_changes_nothing():
    assert Backoff().signal(Signal.RESUME) is Verdict.NOTHING


def test_a_longest_pause_of_zero_switches_it_off():
    assert Backoff(longest=0).signal(Signal.BACKOFF) is Verdict.NOTHING


def test_a_multiplier_over_the_limit_still_pauses_for_the_limit():
    assert play(Backoff(multiplier=10, longest=3), Signal.BACKOFF) == (Verdict.PAUSE, 3)


def test_full_jitter_stays_below_the_full_pause():
    backoff = Backoff(strategy="full_jitter", rng=random.Random(1))
    pauses = {play(backoff, Signal.BACKOFF)[1] for _ in range(30)}

    assert len(pauses) > 20
    assert all(0 <= pause <= 120 for pause in pauses)


def test_waits_between_attempts_grow_to_their_limit_with_jitter():
    delays = Delays(longest=4.0, first=0.1, rng=random.Random(3))
    waits = [delays.next() for _ in range(12)]

    for number, wait in enumerate(waits):
        full = min(4.0, 0.1 * 2**number)
        assert full / 2 <= wait <= full
    delays.reset()
    assert delays.next() <= 0.1


def test_ten_thousand_failures_do_not_overflow():
    delays = Delays(longest=15.0)

    assert all(delays.next() <= 15.0 for _ in range(10_000))
