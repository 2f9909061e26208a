"""What is done, or waits elsewhere, beyond the cursor: the places that a cursor jumps over."""

from collections import deque
from collections.abc import Iterable


class SkippedRuns:
    """Runs of sequences ahead of a cursor that need no first delivery: deferred, dropped, or done already."""

    __slots__ = ("_runs", "count")

    def __init__(self) -> None:
        self._runs: deque[list[int]] = deque()  # [start, stop), rising, never touching
        self.count = 0

    def add(self, start: int, stop: int) -> None:
        """Jump over [start, stop), which lies beyond all that was added before."""
        if self._runs and self._runs[-1][1] == start:
            self._runs[-1][1] = stop
        else:
            self._runs.append([start, stop])
        self.count += stop - start

    def pass_over(self, cursor: int) -> int:
        """Where the cursor stands after jumping over the runs that begin at (or before) it."""
        runs = self._runs
        while runs and runs[0][0] <= cursor:
            start, stop = runs.popleft()
            self.count -= stop - start
            cursor = max(cursor, stop)
        return cursor

    def clear_until(self, stop: int) -> int:
        """The nearest sequence that must be jumped over, or `stop` if there is none before it."""
        return min(self._runs[0][0], stop) if self._runs else stop

    @property
    def end(self) -> int:
        """Where the last run ends."""
        return self._runs[-1][1] if self._runs else 0

    def clear(self) -> None:
        """Forget all runs."""
        self._runs.clear()
        self.count = 0


def runs_of(sequences: Iterable[int]) -> list[tuple[int, int]]:
    """The same set of sequences as runs [start, stop), in rising order."""
    runs: list[tuple[int, int]] = []
    start = stop = -1
    for sequence in sorted(sequences):
        if sequence == stop:
            stop += 1
            continue
        if stop > start:
            runs.append((start, stop))
        start, stop = sequence, sequence + 1
    if stop > start:
        runs.append((start, stop))
    return runs
