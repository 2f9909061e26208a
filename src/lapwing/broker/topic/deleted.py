"""Messages that were deleted one by one: runs of sequences that readers and cursors jump over."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class DeletedRuns:
    """Runs [start, stop) of deleted sequences, anywhere in a log; neighbours are joined.

    `changes` are the runs that were added since `take_changes` was last called, for the journal.
    """

    __slots__ = ("_changes", "_starts", "_stops", "total", "version")

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._changes: list[tuple[int, int]] = []
        self.total = 0  # sequences
        self.version = 0  # rises with each change
        for start, stop in runs:
            self.add(start, stop)
        self._changes.clear()

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __contains__(self, sequence: int) -> bool:
        at = bisect_right(self._starts, sequence) - 1
        return at >= 0 and sequence < self._stops[at]

    def add(self, start: int, stop: int) -> int:
        """Delete [start, stop); return how many of them were not deleted before."""
        if start >= stop:
            return 0
        starts, stops = self._starts, self._stops
        first = bisect_left(stops, start)  # the first run that touches the new one, or lies behind it
        last = bisect_right(starts, stop)  # behind the last one that touches it
        covered = sum(min(stops[at], stop) - max(starts[at], start) for at in range(first, last))
        added = stop - start - covered
        if not added:
            return 0
        self._changes.append((start, stop))
        if first < last:
            start, stop = min(start, starts[first]), max(stop, stops[last - 1])
        starts[first:last] = [start]
        stops[first:last] = [stop]
        self.total += added
        self.version += 1
        return added

    def forget_below(self, sequence: int) -> None:
        """Drop what is known of sequences that the log no longer holds."""
        starts, stops = self._starts, self._stops
        gone = bisect_right(stops, sequence)
        self.total -= sum(stops[at] - starts[at] for at in range(gone))
        del starts[:gone], stops[:gone]
        if starts and starts[0] < sequence:
            self.total -= sequence - starts[0]
            starts[0] = sequence

    def forget_from(self, sequence: int) -> None:
        """Drop what is known from `sequence` on: the log does not have it, and will give it to other messages."""
        starts, stops = self._starts, self._stops
        while starts and starts[-1] >= sequence:
            self.total -= stops.pop() - starts.pop()
        if stops and stops[-1] > sequence:
            self.total -= stops[-1] - sequence
            stops[-1] = sequence

    def jump(self, sequence: int) -> int:
        """Return the first sequence from there on that is not deleted."""
        at = bisect_right(self._starts, sequence) - 1
        return max(sequence, self._stops[at]) if at >= 0 else sequence

    def clear_until(self, sequence: int, stop: int) -> int:
        """Return the first deleted sequence behind `sequence`, or `stop` if there is none before it."""
        at = bisect_right(self._starts, sequence)
        return min(self._starts[at], stop) if at < len(self._starts) else stop

    def count(self, start: int, stop: int) -> int:
        """Return how many of [start, stop) are deleted."""
        first, last = bisect_right(self._stops, start), bisect_left(self._starts, stop)
        if first >= last:
            return 0
        covered = sum(self._stops[at] - self._starts[at] for at in range(first, last))
        return covered - max(start - self._starts[first], 0) - max(self._stops[last - 1] - stop, 0)

    def live(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of [start, stop) that are not deleted, in order."""
        while start < stop:
            start = self.jump(start)
            if start >= stop:
                return
            end = self.clear_until(start, stop)
            yield start, end
            start = end

    def live_back(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of [start, stop) that are not deleted, the last one first."""
        while start < stop:
            at = bisect_left(self._starts, stop) - 1
            if at < 0 or self._stops[at] <= start:
                yield start, stop
                return
            if self._stops[at] < stop:
                yield self._stops[at], stop
            stop = self._starts[at]

    def skip(self, start: int, stop: int, count: int) -> int:
        """Return the sequence behind the first `count` of [start, stop) that are not deleted."""
        for begin, end in self.live(start, stop):
            if end - begin >= count:
                return begin + count
            count -= end - begin
        return stop

    def runs(self) -> list[tuple[int, int]]:
        """Return all runs, in order."""
        return list(zip(self._starts, self._stops, strict=True))

    @property
    def changed(self) -> bool:
        """Whether runs were added since `take_changes` was last called."""
        return bool(self._changes)

    def take_changes(self) -> list[tuple[int, int]]:
        """Return the runs that were added since the last time."""
        changes, self._changes = self._changes, []
        return changes
