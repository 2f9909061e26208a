"""The times of a schedule: one, every so often, or by a cron expression in a time zone; all are Unix ns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import count, islice
from typing import TYPE_CHECKING, Final, Protocol

from lapwing import durations
from lapwing.broker.settings import times
from lapwing.errors import SettingRefused
from lapwing.records import dataclass

if TYPE_CHECKING:
    from datetime import tzinfo

    from cronsim import CronSim

SECOND: Final = 1_000_000_000  # ns
SHORTEST: Final = SECOND
_LATEST: Final = 1 << 33  # seconds; in the year 2242
_SHOWN: Final = 80  # characters of a text in an error


class Timing(Protocol):
    """The ticks of a schedule."""

    def after(self, moment: int) -> int | None:
        """Return the first tick behind a moment; None if there is none."""

    def until(self, moment: int) -> int | None:
        """Return the last tick at a moment or before; None if there is none."""

    def coming(self, moment: int) -> Iterator[int]:
        """Yield the ticks behind a moment."""


@dataclass(frozen=True, slots=True)
class At:
    """One tick."""

    time: int

    def after(self, moment: int) -> int | None:
        """Return the tick, unless it has come."""
        return self.time if moment < self.time else None

    def until(self, moment: int) -> int | None:
        """Return the tick, if it has come."""
        return self.time if self.time <= moment else None

    def coming(self, moment: int) -> Iterator[int]:
        """Yield the tick, unless it has come."""
        return iter((self.time,) if moment < self.time else ())


@dataclass(frozen=True, slots=True)
class Every:
    """A tick each period, the first of them one period after the schedule was put."""

    period: int
    since: int

    def after(self, moment: int) -> int:
        """Return the first tick behind a moment, which may lie before `since` where the clock was set back."""
        return self.since + ((moment - self.since) // self.period + 1) * self.period

    def until(self, moment: int) -> int:
        """Return the last tick at a moment or before."""
        return self.since + (moment - self.since) // self.period * self.period

    def coming(self, moment: int) -> Iterator[int]:
        """Yield the ticks behind a moment."""
        return count(self.after(moment), self.period)


@dataclass(frozen=True)
class Cron:
    """Ticks by a cron expression.

    Where the clocks are put forward, a tick at a fixed time that does not exist comes when they are; where they are
    put back, it comes once. Ticks by `*` and `*/n` follow the time that passes.
    """

    expression: str
    zone: str

    @cached_property
    def _zone(self) -> tzinfo:
        return find_zone(self.zone)

    def _walk(self, moment: int, *, back: bool) -> CronSim:
        from datetime import UTC, datetime, timedelta  # like what follows, loaded where there is a schedule

        from cronsim import CronSim

        start = datetime.fromtimestamp(moment // SECOND, UTC) + timedelta(seconds=1 if back else 0)
        return CronSim(self.expression, start.astimezone(self._zone), reverse=back)

    def after(self, moment: int) -> int | None:
        """Return the first tick behind a moment."""
        return next(self.coming(moment), None)

    def until(self, moment: int) -> int | None:
        """Return the last tick at a moment or before."""
        return next((tick for tick in _times(self._walk(moment, back=True)) if tick <= moment), None)

    def coming(self, moment: int) -> Iterator[int]:
        """Yield the ticks behind a moment; each in a third of the time that `after` needs."""
        for tick in _times(self._walk(moment, back=False)):
            if tick > moment:
                moment = tick
                yield tick


def _times(walk: CronSim) -> Iterator[int]:
    for each in walk:
        seconds = int(each.timestamp())
        if not 0 <= seconds < _LATEST:
            return
        yield seconds * SECOND


def find_zone(name: str) -> tzinfo:
    """Return the time zone of that name. Raises `SettingRefused`."""
    from datetime import UTC
    from zoneinfo import ZoneInfo, available_timezones

    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as error:  # ZoneInfoNotFoundError is a KeyError
        if not available_timezones():
            raise SettingRefused("zone: this machine has no time zones: install tzdata (pip install tzdata)") from error
        raise SettingRefused(f'zone: {name[:_SHOWN]!r} is no time zone: use a name such as "Europe/Berlin"') from error


def read_cron(expression: str, zone: str) -> Cron:
    """Return the ticks of an expression. Raises `SettingRefused`."""
    from cronsim import CronSimError

    cron = Cron(expression, zone)
    find_zone(zone)
    try:
        found = cron.after(0)
    except CronSimError as error:
        reason = str(error)
    else:
        if found is not None:
            return cron
        reason = "it never comes"
    raise SettingRefused(
        f"cron: {expression[:_SHOWN]!r} is no cron expression ({reason}): write minute, hour, day of the month, month "
        'and day of the week, such as "30 8 * * MON-FRI"'
    )


def read_every(text: str, since: int) -> Every:
    """Return the ticks of a period. Raises `SettingRefused`."""
    try:
        period = durations.parse(text)
    except ValueError as error:
        raise SettingRefused(f"every: {error}") from error
    if period < SHORTEST:
        raise SettingRefused("every: a second is the shortest period")
    return Every(period, since)


def read_at(text: str, now: int) -> At:
    """Return the one tick at a time, or a duration from now. Raises `SettingRefused`."""
    try:
        return At(times.parse(text, now=now))
    except ValueError as error:
        raise SettingRefused(f"at: {error}") from error


def next_ticks(timing: Timing, moment: int, most: int) -> list[int]:
    """Return the next ticks behind a moment."""
    return list(islice(timing.coming(moment), most))
