"""Runs of sequences: the places beyond a cursor that it skips, and sets of sequences in little memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import sub
from typing import TYPE_CHECKING

from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.topic.deleted import DeletedRuns

Run = tuple[int, int]  # [start, stop)


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The place of a channel before a seek."""

    cursor: int
    unfinished: tuple[Run, ...]  # below the cursor
    target: int  # of the seek: from there on messages may have been finished since
    finished: tuple[Run, ...] = ()  # from the cursor on


class SkippedRuns:
    """Runs of sequences ahead of a cursor that need no first delivery: deferred, dropped, or done already."""

    __slots__ = ("_runs", "count")

    def __init__(self) -> None:
        self._runs: deque[list[int]] = deque()  # [start, stop), rising, never touching
        self.count = 0

    def add(self, start: int, stop: int) -> None:
        """Skip [start, stop), which lies beyond all that was added before."""
        if self._runs and self._runs[-1][1] == start:
            self._runs[-1][1] = stop
        else:
            self._runs.append([start, stop])
        self.count += stop - start

    def __contains__(self, sequence: int) -> bool:
        first = bisect_right(self._runs, sequence, key=_stop)
        return first < len(self._runs) and self._runs[first][0] <= sequence

    @property
    def runs(self) -> list[Run]:
        """The runs, rising."""
        return [(start, stop) for start, stop in self._runs]

    def merge(self, runs: Sequence[Run]) -> None:
        """Skip `runs` too, wherever they lie; they rise and do not overlap each other."""
        if not runs:
            return
        if runs[0][0] >= self.end:
            for start, stop in runs:
                self.add(start, stop)
            return
        mine = self._runs
        first = bisect_left(mine, runs[0][0], key=_stop)  # those that touch none of the new ones stay as they are
        last = bisect_right(mine, runs[-1][1], key=_start)
        touched = [(start, stop) for start, stop in islice(mine, first, last)]
        merged = union(touched, runs)
        self.count += count_of(merged) - count_of(touched)
        mine.rotate(-first)
        for _ in touched:
            mine.popleft()
        mine.extendleft([start, stop] for start, stop in reversed(merged))
        mine.rotate(first)

    def runs_from(self, sequence: int) -> Iterator[Run]:
        """Yield the runs that do not lie below `sequence`, rising."""
        first = bisect_right(self._runs, sequence, key=_stop)
        return ((start, stop) for start, stop in islice(self._runs, first, None))

    def pass_over(self, cursor: int) -> int:
        """Return the cursor after skipping the runs that begin at (or before) it."""
        runs = self._runs
        while runs and runs[0][0] <= cursor:
            start, stop = runs.popleft()
            self.count -= stop - start
            cursor = max(cursor, stop)
        return cursor

    def clear_until(self, stop: int) -> int:
        """Return the nearest sequence that is skipped, or `stop` if there is none before it."""
        return min(self._runs[0][0], stop) if self._runs else stop

    @property
    def end(self) -> int:
        """The end of the last run."""
        return self._runs[-1][1] if self._runs else 0

    def clear(self) -> None:
        """Forget all runs."""
        self._runs.clear()
        self.count = 0

    def note_finished(self, finished: Sequence[int], cursor: int, into: Runs) -> None:
        """Add to `into` which of these messages, that are finished now, the cursor is to skip."""
        into.add(runs_of(each for each in finished if each >= cursor and each in self))

    def finished_runs(self, unfinished: Callable[[], Iterable[int]]) -> Sequence[Run]:
        """Return what was looked at beyond the cursor and is finished; here nothing is looked at."""
        return ()

    def has_passed(self, sequence: int) -> bool:
        """Return whether a message beyond the cursor was looked at, and does not wait; here none is looked at."""
        return False

    def deleted_in(self, deleted: DeletedRuns) -> int:
        """Return how many of the skipped messages are deleted."""
        return sum(deleted.count(start, stop) for start, stop in self.runs)


class Runs:
    """A set of sequences, kept as rising runs that do not touch."""

    __slots__ = ("runs",)

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs: list[Run] = union(sorted(runs), ())

    def __contains__(self, sequence: int) -> bool:
        at = bisect_right(self.runs, sequence, key=_start) - 1
        return at >= 0 and sequence < self.runs[at][1]

    def __bool__(self) -> bool:
        return bool(self.runs)

    def add(self, runs: Sequence[Run]) -> None:
        """Add rising runs."""
        if runs:
            first = bisect_left(self.runs, runs[0][0], key=_stop)
            last = bisect_right(self.runs, runs[-1][1], key=_start)
            self.runs[first:last] = union(self.runs[first:last], runs)

    def remove(self, sequence: int) -> None:
        """Remove one sequence, if it is here."""
        at = bisect_right(self.runs, sequence, key=_start) - 1
        if at >= 0 and sequence < self.runs[at][1]:
            start, stop = self.runs[at]
            left = [(start, sequence)] if start < sequence else []
            right = [(sequence + 1, stop)] if sequence + 1 < stop else []
            self.runs[at : at + 1] = left + right

    def drop_below(self, sequence: int) -> None:
        """Remove all below `sequence`."""
        at = bisect_left(self.runs, sequence, key=_start)
        if at:
            stop = self.runs[at - 1][1]
            self.runs[:at] = [(sequence, stop)] if stop > sequence else []

    def clear(self) -> None:
        """Remove all."""
        self.runs = []


def _start(run: Sequence[int]) -> int:
    return run[0]


def _stop(run: Sequence[int]) -> int:
    return run[1]


def count_of(runs: Iterable[Run]) -> int:
    """Return how many sequences are in runs that do not overlap."""
    return sum(stop - start for start, stop in runs)


def union(first: Sequence[Run], second: Sequence[Run]) -> list[Run]:
    """Return the runs that hold what either has; both rise."""
    merged: list[Run] = []
    for start, stop in sorted([*first, *second]) if second else first:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        elif start < stop:
            merged.append((start, stop))
    return merged


def gaps(start: int, stop: int, runs: Iterable[Run]) -> list[Run]:
    """Return what of [start, stop) is in none of the rising runs."""
    return list(each_gap(start, stop, runs))


def each_gap(start: int, stop: int, runs: Iterable[Run]) -> Iterator[Run]:
    """Yield the same, one at a time."""
    for first, last in runs:
        if first >= stop:
            break
        if start < first:
            yield start, first
        if last > start:
            start = last
    if start < stop:
        yield start, stop


class EmptiedRuns:
    """Runs that a topic dropped before it handed them over: a channel that is behind skips them."""

    __slots__ = ("changed", "runs")

    def __init__(self, runs: Sequence[Run] = ()) -> None:
        self.runs = list(runs)  # rising
        self.changed = False  # since they were last saved

    def add(self, start: int, stop: int, *, passed: int) -> None:
        """Add [start, stop), which lies beyond all others; forget the runs below `passed`, where no cursor is."""
        runs = self.since(passed)
        if runs and runs[-1][1] == start:
            start = runs.pop()[0]
        self.replace([*runs, (start, stop)])

    def replace(self, runs: list[Run]) -> None:
        """Make `runs` the runs."""
        self.changed |= runs != self.runs
        self.runs = runs

    def since(self, cursor: int) -> list[Run]:
        """Return the runs that do not lie below `cursor`."""
        return [run for run in self.runs if run[1] > cursor]

    def cut(self, end: int) -> None:
        """Forget what lies from `end` on."""
        self.replace([(start, min(stop, end)) for start, stop in self.runs if start < end])


def runs_of(sequences: Iterable[int]) -> list[Run]:
    """Return the same set of sequences as runs [start, stop), in rising order."""
    ordered = sorted(sequences)
    if not ordered:
        return []
    gaps = map(sub, islice(ordered, 1, None), ordered)
    ends = [place for place, gap in enumerate(gaps, 1) if gap != 1]
    bounds = zip([0, *ends], [*ends, len(ordered)], strict=True)
    return [(ordered[first], ordered[end - 1] + 1) for first, end in bounds]
