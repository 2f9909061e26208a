"""A machine's clock that is set, or stands still in a suspended machine: deadlines do not jump."""

import pytest

from lapwing.nsqd.clock import Clock

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
EPOCH = 1_790_000_000 * SECOND


class Machine:
    """Two clocks, of which one can be set."""

    def __init__(self) -> None:
        self.steady = 12 * HOUR
        self.wall = EPOCH
        self.clock = Clock(lambda: self.wall, lambda: self.steady)
        self.skew = 0

    def run(self, seconds: int) -> None:
        """Let time pass, looking at the clock every second as the daemon does."""
        for _ in range(seconds):
            self.steady += SECOND
            self.wall += SECOND
            self.skew = self.clock.align()


def test_an_undisturbed_clock_tells_the_time() -> None:
    machine = Machine()
    machine.run(1000)

    assert (machine.clock.now(), machine.skew) == (machine.wall, 0)


@pytest.mark.parametrize("jump", [8 * HOUR, -8 * HOUR, 3 * SECOND, -3 * SECOND])
def test_a_clock_that_was_set_moves_no_deadline_by_more_than_a_tenth(jump: int) -> None:
    machine = Machine()
    machine.run(10)
    before = machine.clock.now()
    machine.wall += jump
    machine.run(60)

    assert abs(machine.clock.now() - before - 60 * SECOND) <= 6 * SECOND


@pytest.mark.parametrize("jump", [8 * HOUR, -8 * HOUR])
def test_what_is_told_to_others_is_right_within_a_second(jump: int) -> None:
    machine = Machine()
    machine.run(10)
    machine.wall += jump
    machine.run(1)

    assert machine.clock.now() + machine.skew == machine.wall
    machine.run(100)
    assert machine.clock.now() + machine.skew == machine.wall


def test_a_small_correction_is_followed_soon_and_time_never_goes_back() -> None:
    machine = Machine()
    machine.wall -= 2 * SECOND
    seen = [machine.clock.now()]
    for _ in range(30):
        machine.run(1)
        seen.append(machine.clock.now())

    assert seen == sorted(set(seen))
    assert (seen[-1], machine.skew) == (machine.wall, 0)
