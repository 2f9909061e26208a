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
        self.suspended = 0
        self.skew = 0
        self.start("a boot")

    def start(self, boot: str) -> None:
        """Begin a process, in that run of the machine."""
        self.boot = boot
        self.clock = Clock(lambda: self.wall, lambda: self.steady, lambda: self.steady + self.suspended, boot=boot)

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


@pytest.mark.parametrize("jump", [8 * HOUR, -8 * HOUR])
def test_a_process_that_was_held_up_moves_no_deadline_by_more_than_a_tenth_either(jump: int) -> None:
    machine = Machine()
    machine.wall += jump
    machine.steady += 60 * SECOND  # without a look at the clock
    machine.wall += 60 * SECOND
    before = machine.clock.now()
    machine.run(1)

    assert abs(machine.clock.now() - before - SECOND) <= SECOND // 10


def test_a_small_correction_is_followed_soon_and_time_never_goes_back() -> None:
    machine = Machine()
    machine.wall -= 2 * SECOND
    seen = [machine.clock.now()]
    for _ in range(30):
        machine.run(1)
        seen.append(machine.clock.now())

    assert seen == sorted(set(seen))
    assert (seen[-1], machine.skew) == (machine.wall, 0)


@pytest.mark.parametrize("jump", [25 * HOUR, -25 * HOUR, 3 * SECOND, 0])
def test_a_process_continues_the_time_of_the_last_one_although_the_clock_was_set(jump: int) -> None:
    machine = Machine()
    machine.run(10)
    saved, before = machine.clock.saved(), machine.clock.now()
    machine.wall += jump
    machine.start("a boot")
    machine.clock.resume(saved)

    assert (machine.clock.now(), machine.clock.skew) == (before, jump)
    machine.run(5)
    assert abs(machine.clock.now() - before - 5 * SECOND) <= SECOND // 2


def test_the_time_that_a_machine_was_suspended_has_passed_for_the_next_process() -> None:
    machine = Machine()
    saved, before = machine.clock.saved(), machine.clock.now()
    machine.suspended += HOUR
    machine.wall += HOUR
    machine.start("a boot")
    machine.clock.resume(saved)

    assert machine.clock.now() == before + HOUR


@pytest.mark.parametrize("boot", ["another boot", ""])
def test_after_a_start_of_the_machine_its_clock_leads_to_the_time_of_the_last_process(boot: str) -> None:
    machine = Machine()
    machine.wall += 8 * HOUR
    machine.run(10)
    saved, before = machine.clock.saved(), machine.clock.now()
    machine.steady = 0
    machine.wall += HOUR
    machine.start(boot)
    machine.clock.resume(saved)

    assert machine.clock.now() == before + HOUR


def test_a_clock_that_was_years_off_is_followed_at_the_next_start() -> None:
    machine = Machine()
    saved = machine.clock.saved()
    machine.wall += 10 * 365 * 24 * HOUR
    machine.start("a boot")
    machine.clock.resume(saved)

    assert machine.clock.skew == 0
