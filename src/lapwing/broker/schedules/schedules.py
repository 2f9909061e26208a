"""The schedules of a broker: each tick is published once, through crashes too.

A tick is an ordinary message that names its schedule and its time. So the log itself knows which ticks it has: after a
crash it is read from a mark on, which is saved from time to time; the log keeps what is behind the mark meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final

from lapwing.broker.failures import dead_letters
from lapwing.broker.schedules.definition import BY_HAND, NAME, TIME, Definition, is_over, parse
from lapwing.broker.schedules.timing import SECOND, next_ticks
from lapwing.broker.settings import times
from lapwing.broker.topic import batch, dedup
from lapwing.broker.topic.receipt import CallReceipt, Receipt
from lapwing.broker.topic.topic import Topic
from lapwing.errors import LapwingError, LogError, SettingRefused

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.log.schedule_files import ScheduleFiles

MOST: Final = 1000  # schedules of one node
LARGEST: Final = 8 << 20  # bytes of their documents together: each change writes them all
LATE: Final = 10 * SECOND  # a tick that comes later is missed: see `misfire`
SAVE: Final = 10 * SECOND  # ns between two writes of the progress, and the longest time without a look at the clock
_RETRY: Final = SECOND
_SET_BACK: Final = 3 * 3600 * SECOND  # by less, a clock that is set back repeats no tick; by more, its time holds
_COUNTED: Final = 1000  # missed ticks that are counted one by one
_AT_ONCE: Final = 50  # schedules that are looked at before others get their turn
_MISSED_AT_ONCE: Final = 100  # missed ticks after which others get their turn


class Schedule:
    """One schedule and how far it is; times are those of the machine's clock, Unix ns."""

    def __init__(self, definition: Definition, *, since: int, last: int) -> None:
        self.definition = definition
        self.size = len(json.dumps(definition.document()))  # bytes of its document
        self.since = since  # when it got its ticks
        self.last = last  # up to here every tick is published, missed or left out
        self.ran = 0  # the last tick that was published; 0: none is known
        self.due: int | None = last  # when it is looked at next
        self.published = 0  # ticks, since the start of the process
        self.missed = 0
        self.problem = ""  # why the last attempt failed
        self.known = False  # whether the log was read for ticks that an earlier process has published
        self.publishing = False
        self.log = ""  # identity of the log that `mark` is a place in
        self.mark = 0  # every tick in the log before it is not behind `last`
        self.marked = last  # the last tick before the mark
        self.unsynced = False  # whether ticks of an earlier process may be in the log that are not synced

    @property
    def state(self) -> str:
        """Its state: paused, done, failing or active."""
        if self.definition.paused:
            return "paused"
        if self.problem:
            return "failing"
        return "done" if self.known and self.definition.timing.after(self.last) is None else "active"

    def upcoming(self, now: int, count: int) -> list[int]:
        """Return its next ticks, as if it were not paused."""
        return next_ticks(self.definition.timing, max(self.last, now), count)

    def carry_on(self, before: Schedule) -> None:
        """Take over what a schedule with the same ticks has done."""
        self.since, self.marked, self.ran, self.due = before.since, before.marked, before.ran, self.last
        self.published, self.missed, self.known = before.published, before.missed, before.known
        self.publishing = before.publishing
        if self.definition.topic == before.definition.topic:
            self.log, self.mark, self.unsynced = before.log, before.mark, before.unsynced

    def note_published(self, tick: int) -> None:
        """Note that the log has a tick."""
        self.last = self.ran = self.due = tick
        self.published += 1
        self.problem = ""

    def set_mark(self, topic: Topic, mark: int) -> None:
        """Note that every tick up to `last` is in the log before the mark, and synced where that is asked for."""
        self.log, self.mark, self.marked = topic.log.identity, min(mark, topic.log.end), self.last
        self.unsynced = False

    def advance_mark(self, topic: Topic) -> None:
        """Move the mark to the end of the log, which holds no tick that is not known."""
        if not (self.unsynced and topic.log.unsynced):
            self.set_mark(topic, topic.log.end)

    def next_tick(self, now: int) -> int | None:
        """Return the tick to publish now, if there is one; set `due` and pass over what is missed."""
        timing, misfire = self.definition.timing, self.definition.misfire
        first = timing.after(self.last)
        if first is None or first > now:
            self.due = first
            return None
        if first > now - LATE or misfire == "all":
            return first
        on_time = timing.after(now - LATE)
        if on_time is None or on_time > now:
            on_time = None
        newest = timing.until(now) or first
        tick = on_time or (newest if misfire == "once" else None)
        stop = tick or newest + 1
        self.missed += sum(1 for _ in islice(takewhile(lambda each: each < stop, timing.coming(first - 1)), _COUNTED))
        if tick is None:
            self.last = newest
            self.due = timing.after(newest)
        return tick


class Schedules:
    """All schedules of a broker, by name."""

    def __init__(self, broker: Broker, files: ScheduleFiles | None) -> None:
        self._broker = broker
        self._files = files
        self._by_name: dict[str, Schedule] = {}
        self._saved: dict[str, Any] = {}  # the progress in the file
        self._next_save = 0
        self._wall = 0  # time of the last step
        self._left_out: dict[str, Any] = {}  # what the file has and this version does not understand
        self.unreadable = ""  # why it is not known what was put
        self.on_change: Callable[[], None] = lambda: None  # there may be something to do at once

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Schedule | None:
        """Return the schedule of that name, if there is one."""
        return self._by_name.get(name)

    def all(self) -> list[Schedule]:
        """Return all schedules, by name."""
        return [self._by_name[name] for name in sorted(self._by_name)]

    @property
    def active(self) -> bool:
        """Whether `step` has something to do, now or later."""
        return bool(self._by_name)

    # --- changing ----------------------------------------------------------------------------------------------

    def put(self, name: str, document: Any, *, now: int) -> Schedule:
        """Add a schedule, or change the one of its name; what has the same ticks carries on.

        Raises `SettingRefused`, or `LogError` when it cannot be saved.
        """
        wall = now + self._broker.skew
        definition = parse(name, document, now=wall)
        before = self._by_name.get(name)
        same = before is not None and definition.ticks_like(before.definition)
        if is_over(definition, wall) and not same:
            raise SettingRefused(f"at: {definition.when} has passed")
        if before is None and len(self._by_name) >= MOST:
            raise SettingRefused(f"this node has {MOST} schedules, the most that it may have: remove one first")
        if before is not None and same:
            definition = replace(definition, timing=before.definition.timing)
        schedule = Schedule(definition, since=wall, last=wall)
        schedule.known = True
        if before is not None and same:
            resumed = before.definition.paused and not definition.paused
            schedule.last = max(wall, before.last) if resumed else before.last
            schedule.carry_on(before)
        others = sum(each.size for each in self._by_name.values() if each is not before)
        if others + schedule.size > LARGEST and (before is None or schedule.size > before.size):
            raise SettingRefused(f"the schedules of a node have at most {LARGEST} bytes together: shorten the body")
        self._change(name, schedule)
        return schedule

    def set_paused(self, schedule: Schedule, paused: bool, *, now: int) -> Schedule:
        """Pause a schedule, or resume it; ticks that came meanwhile are left out. Raises `LogError`."""
        return self.put(schedule.definition.name, schedule.definition.document() | {"paused": paused}, now=now)

    def remove(self, name: str) -> bool:
        """Remove a schedule; return whether there was one. Raises `LogError` when that cannot be saved."""
        if name not in self._by_name:
            return False
        self._change(name, None)
        return True

    def _change(self, name: str, schedule: Schedule | None) -> None:
        if self.unreadable:
            raise LogError(self.unreadable)
        changed = {key: each for key, each in self._by_name.items() if key != name}
        if schedule is not None:
            changed[name] = schedule
        if self._files is not None:
            documents = {
                key: {**each.definition.document(), "since": each.since, "last": each.last}
                for key, each in changed.items()
            }
            self._files.save({**self._left_out, **documents})
        before = self._by_name.get(name)
        if before is not None:
            self._hold(before, None)
        self._by_name = changed
        if schedule is not None and schedule.log:
            self._hold(schedule, schedule.mark)
        self._next_save = 0
        self.on_change()

    def run(self, schedule: Schedule, receipt: Receipt, *, now: int) -> None:
        """Publish the message of a schedule now, beside its ticks. Raises `BrokerError` or `LogError`."""
        self._publish(schedule, now + self._broker.skew, receipt, now=now, by_hand=True)

    # --- stepping ----------------------------------------------------------------------------------------------

    def step(self, *, now: int) -> int | None:
        """Publish the ticks that have come, missed ones last; return when to look again, or None without a schedule."""
        wall = self._wall = now + self._broker.skew
        for schedule in self._by_name.values():
            if schedule.last > wall + _SET_BACK:
                schedule.last = schedule.due = wall
        missed = 0
        for _, schedule in sorted(self._due(wall), key=lambda each: (each[0] <= wall - LATE, each[0]))[:_AT_ONCE]:
            missed -= schedule.missed
            self._step_of(schedule, wall, now)
            missed += schedule.missed
            if missed > _MISSED_AT_ONCE:
                break
        if now >= self._next_save:
            self.save_progress()
            self._next_save = now + SAVE
        if not self._by_name:
            return None
        next_due = min((due for due, _ in self._due(wall + SAVE)), default=wall + SAVE)
        return max(next_due - self._broker.skew, now)

    def _due(self, wall: int) -> list[tuple[int, Schedule]]:
        """Return the schedules that are to be looked at up to a time, each with its own."""
        waiting = [(each.due, each) for each in self._by_name.values() if not each.publishing]
        return [(due, each) for due, each in waiting if due is not None and due <= wall]

    def _step_of(self, schedule: Schedule, wall: int, now: int) -> None:
        try:
            if not schedule.known:
                self._catch_up(schedule)  # a paused one too, or the log would keep for it what is behind the mark
            if schedule.definition.paused:
                schedule.due = None
                return
            tick = schedule.next_tick(wall)
            if tick is not None:
                receipt = CallReceipt(partial(self._settle, schedule, tick))
                self._publish(schedule, tick, receipt, now=now)
                schedule.publishing = True
        except (LapwingError, OSError) as error:
            self._failed(schedule, error)
        except Exception as error:  # of this schedule alone, whatever it is
            problem = f"{type(error).__name__}: {error}"
            if problem != schedule.problem:
                self._broker.report(f"schedule {schedule.definition.name}: {problem}")
            self._failed(schedule, LapwingError(problem))

    def _publish(self, schedule: Schedule, tick: int, receipt: Receipt, *, now: int, by_hand: bool = False) -> None:
        definition, time = schedule.definition, times.show(tick)
        topic = self._broker.topic(definition.topic)
        headers = {**definition.headers, NAME: definition.name, TIME: time, dedup.HEADER: f"{definition.name}@{time}"}
        if by_hand:
            headers[BY_HAND] = "manual"
        topic.append(batch.with_headers(topic, definition.body, headers, now=now), receipt, now=now)

    def _settle(self, schedule: Schedule, tick: int, sequence: int, error: LapwingError | None) -> None:
        """Note the end of a publish: the tick is in the log (synced, with `fsync`), or why not."""
        topic = self._broker.topics.get(schedule.definition.topic)
        current = self._by_name.get(schedule.definition.name, schedule)
        if current.since == schedule.since:
            schedule = current  # it may have been changed meanwhile, and has the same ticks
        schedule.publishing = False
        if error is not None:
            self._failed(schedule, error)
        else:
            schedule.note_published(max(tick, schedule.last))
            if isinstance(topic, Topic):
                schedule.set_mark(topic, sequence + 1)
        self.on_change()

    def _failed(self, schedule: Schedule, error: Exception) -> None:
        schedule.problem = str(error)
        schedule.due = self._wall + _RETRY

    # --- what survives a crash ---------------------------------------------------------------------------------

    def restore(self, *, now: int) -> None:
        """Take the schedules of the last process; one that is not understood is reported, and stays in the file."""
        if self._files is None:
            return
        wall = now + self._broker.skew
        try:
            found = self._files.load()
        except LogError as error:
            self.unreadable = f"{error}. No schedule runs or can be changed: restore the file, or move it away"
            self._broker.report(self.unreadable)
            return
        try:
            progress = self._files.load_progress()
        except LogError as error:
            progress = None
            self._broker.report(f"{error}. Schedules continue from now on, as the last ticks are not known")
        for name, entry in found.items():
            try:
                self._by_name[name] = _restored(name, dict(entry), progress, wall)
            except (SettingRefused, KeyError, TypeError, ValueError) as error:
                self._left_out[name] = entry
                self._broker.report(f"schedule {name} does not run: {error}")
        for schedule in self._by_name.values():
            self._hold(schedule, schedule.mark)

    def _catch_up(self, schedule: Schedule) -> None:
        """Find the ticks that an earlier process has published behind the mark. Raises `LogError`."""
        name = schedule.definition.topic
        if name in self._broker.unopened:
            raise LogError(self._broker.unopened[name].reason)
        topic = self._broker.find(name)
        if topic is not None:
            log = topic.store.whole_log
            start = max(schedule.mark if schedule.log == log.identity else 0, log.first)
            found = 0
            for extra in log.extras(start, log.end):
                tick = _tick_of(schedule.definition.name, extra.headers)
                if tick > found and dead_letters.is_served(log, extra.sequence):
                    found = tick
            if found and self._broker.options.durability == "fsync":
                log.sync_again(start)  # the process that wrote them may not have done so
                schedule.unsynced = True
            schedule.last, schedule.ran = max(schedule.last, found), max(schedule.ran, found)
            schedule.log, schedule.mark = log.identity, min(start, log.end)
            self._hold(schedule, schedule.mark)
            self._next_save = 0  # places behind the end of the log may be used again
        schedule.known = True

    def save_progress(self) -> None:
        """Save how far each schedule is, where that has changed."""
        for schedule in self._by_name.values():
            topic = self._broker.topics.get(schedule.definition.topic)
            if isinstance(topic, Topic) and schedule.known and not schedule.publishing:
                schedule.advance_mark(topic)
        progress = {
            name: [each.since, each.marked, each.log, each.mark, each.ran] for name, each in self._by_name.items()
        }
        if self._files is None or progress == self._saved:
            return
        try:
            self._files.save_progress(progress)
        except LogError as error:
            self._broker.fail(error)
            return
        self._saved = progress
        for schedule in self._by_name.values():
            self._hold(schedule, schedule.mark)

    def _hold(self, schedule: Schedule, mark: int | None) -> None:
        """Have the log of a schedule keep what is behind the saved mark; with None, nothing."""
        name, key = schedule.definition.topic, f"schedule {schedule.definition.name}"
        places = self._broker.staged_from.setdefault(name, {})
        if mark is None:
            places.pop(key, None)
        else:
            places[key] = mark
        if not places:
            del self._broker.staged_from[name]


def _restored(name: str, entry: dict[str, Any], progress: dict[str, Any] | None, wall: int) -> Schedule:
    since, last = int(entry.pop("since")), int(entry.pop("last"))
    definition = parse(name, entry, now=since)
    if progress is None:
        return Schedule(definition, since=since, last=max(last, wall))
    known, marked, log, mark, *ran = progress.get(name, (since, last, "", 0))
    schedule = Schedule(definition, since=since, last=max(last, marked if known == since else 0))
    if known == since:
        schedule.log, schedule.mark, schedule.ran = str(log), int(mark), int(ran[0]) if ran else 0
    return schedule


def _tick_of(name: str, headers: Any) -> int:
    """Return the tick that a message is of, or 0."""
    if headers.get(NAME) != name or BY_HAND in headers:
        return 0
    try:
        return times.parse(headers.get(TIME, ""))
    except ValueError:
        return 0
