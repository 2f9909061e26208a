"""The clock of all deadlines, and the timer that wakes the broker for the next one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from lapwing.broker.broker import Broker
from lapwing.log.clock_file import SavedClock

_CATCH_UP: Final = 10  # a wrong clock is approached by a tenth of the time that passes, so that no deadline jumps
_STEP: Final = 1_000_000  # ns that it is approached by at once
_RESOLUTION: Final = 0.001  # seconds
_MOST_SKEW: Final = 7 * 86_400_000_000_000  # ns; after a clock was set by more, the next process begins with it
LATE: Final = 50_000_000  # ns after which a timer that rings was held up: then sockets are read before it counts


def _since_boot() -> int:
    """Return the ns since the machine was started, those included for which it was suspended."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Clock:
    """Wall time in ns that never jumps, whatever is done to the machine's clock: for deadlines.

    It runs with the monotonic clock and drifts towards the wall clock when that was set: a deadline may be off by a
    tenth for a while, but nothing expires at once or never. A process continues the time of the one before it. Times
    that leave the process, such as timestamps of messages, are corrected by the result of `align`.
    """

    def __init__(
        self,
        wall: Callable[[], int] = time.time_ns,
        steady: Callable[[], int] = time.monotonic_ns,
        since_boot: Callable[[], int] = _since_boot,
        *,
        boot: str = "",
    ) -> None:
        """`boot` names this run of the machine; without it only the wall clock leads to the next process."""
        self._wall = wall
        self._steady = steady
        self._since_boot = since_boot
        self._boot = boot
        self._offset = wall() - steady()
        self._aligned = steady()
        self._gap = 0  # ns that the wall clock was ahead then

    def now(self) -> int:
        """Return the time, in ns since the epoch."""
        return self._at(self._steady()) if self._gap else self._steady() + self._offset

    def _at(self, steady: int) -> int:
        most = (steady - self._aligned) // _CATCH_UP
        return steady + self._offset + max(-most, min(most, self._gap))

    @property
    def skew(self) -> int:
        """ns from this time to that of the wall clock."""
        return self._wall() - self.now()

    def saved(self) -> SavedClock:
        """Return what the next process needs to continue this time."""
        now = self.now()  # first: a process that is held up in between has the next one deliver late, not early
        return SavedClock(self._boot, self._since_boot() - now, self.skew)

    def resume(self, saved: SavedClock) -> None:
        """Continue the time of an earlier process, whatever was done to the machine's clock since."""
        if self._boot and saved.boot == self._boot:
            now = self._since_boot() - saved.since_boot
        else:
            now = self._wall() - saved.skew
        if abs(self._wall() - now) <= _MOST_SKEW:
            self._aligned = self._steady()
            self._offset, self._gap = now - self._aligned, 0

    def align(self) -> int:
        """Look at the wall clock and drift towards it from now on; return how far ahead of this one it is, in ns."""
        steady = self._steady()
        now = self._at(steady)
        gap = self._wall() - now
        step, self._gap = (gap, 0) if abs(gap) <= _STEP else (0, gap)
        self._aligned, self._offset = steady, now + step - steady
        return self._gap


class Alarm:
    """Calls the broker's scan at the time of its next deadline."""

    def __init__(
        self, broker: Broker, clock: Clock, loop: asyncio.AbstractEventLoop, schedule_flush: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._clock = clock
        self._loop = loop
        self._schedule_flush = schedule_flush
        self._armed: asyncio.TimerHandle | None = None
        self._due = 0
        self._late = False

    def arm(self) -> None:
        """Set the timer for the next deadline; cheap if nothing changed, as it is called every turn."""
        agenda = self._broker.agenda
        if not agenda:
            return
        due = agenda[0][0]
        if self._armed is not None:
            if self._due <= due:
                return
            self._armed.cancel()
        self._due = due
        delay = max((due - self._clock.now()) / 1e9, 0.0) + _RESOLUTION
        self._armed = self._loop.call_later(delay, self._ring)

    def stop(self) -> None:
        """Stop the timer."""
        if self._armed is not None:
            self._armed.cancel()

    def _ring(self) -> None:
        self._armed = None
        if not self._late and self._due and self._clock.now() - self._due > LATE:
            self._late = True  # the loop was held up: what clients have sent meanwhile is read first
            self._armed = self._loop.call_later(_RESOLUTION, self._ring)
            return
        self._late = False
        if self._broker.scan(self._clock.now()):
            self._armed = self._loop.call_soon(self._ring)  # type: ignore[assignment]  # others get their turn first
            self._due = 0
        if self._broker.has_work:
            self._schedule_flush()
        self._broker.agenda.next_due()
        self.arm()
