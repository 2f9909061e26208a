"""The messages that a cursor passed by: they wait for their key, while those behind them are delivered."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import compress
from typing import TYPE_CHECKING

from lapwing import kernel
from lapwing.broker.topic.skips import Run, Runs, SkippedRuns, gaps, runs_of

if TYPE_CHECKING:
    from lapwing.broker.topic.deleted import DeletedRuns


class PassedBy(SkippedRuns):
    """The skips of a cursor of which a part has been looked at, up to `position`.

    Of that part the cursor skips every message but those that wait, so these alone are kept: nine bytes each. Beyond it
    the skips are runs, as in the base class.
    """

    __slots__ = ("_alive", "_first", "_from", "_order", "position", "waiting")

    def __init__(self, skips: SkippedRuns) -> None:
        super().__init__()
        self._runs, self.count = skips._runs, skips.count
        self.position = 0  # the first sequence that was not looked at
        self.waiting = 0  # how many messages wait below
        self._from = 0  # the cursor, as of the last look; less than `position` if anything lies between them
        self._order: array[int] = array("q")  # the messages that wait, rising, with some that do so no longer
        self._alive = bytearray()  # which of them wait
        self._first = 0  # place of the first one that does

    # --- what the base class has -----------------------------------------------------------------------------------

    def __contains__(self, sequence: int) -> bool:
        if self._from <= sequence < self.position:
            return not self.has(sequence)
        return SkippedRuns.__contains__(self, sequence)

    @property
    def runs(self) -> list[Run]:
        """The runs, rising."""
        return [*self._without(self.sequences()), *((start, stop) for start, stop in self._runs)]

    def runs_from(self, sequence: int) -> Iterator[Run]:
        """Yield the runs that do not lie below `sequence`, rising."""
        return (run for run in self.runs if run[1] > sequence)

    def merge(self, runs: Sequence[Run]) -> None:
        """Skip `runs` too, wherever they lie; they rise and do not overlap each other."""
        position = self.position
        for start, stop in runs:
            if start < position:
                for sequence in self._between(start, min(stop, position)):
                    self.take(sequence)
        super().merge([(max(start, position), stop) for start, stop in runs if stop > position])

    def pass_over(self, cursor: int) -> int:
        """Return the cursor after skipping what begins at (or before) it; messages before `cursor` wait no longer."""
        if self._from < self.position:
            low = self._drop_below(cursor)
            if low is not None:
                return low
            cursor = max(cursor, self.position)
        self._from = self.position = SkippedRuns.pass_over(self, cursor)
        return self.position

    def _drop_below(self, cursor: int) -> int | None:
        """Have what lies below `cursor` passed; return the first message that waits, None if there is none."""
        order, alive, at = self._order, self._alive, self._first
        dropped = 0
        while at < len(order) and (order[at] < cursor or not alive[at]):
            dropped += alive[at]
            at += 1
        self._first = at
        self.waiting -= dropped
        low = order[at] if at < len(order) else self.position
        self.count -= low - self._from - dropped
        self._from = low
        if at == len(order):
            self._forget()
            return None
        self._thin_out()
        return low

    def clear_until(self, stop: int) -> int:
        """Return the nearest sequence that is skipped, or `stop` if there is none before it."""
        if self.waiting:
            following = self._from
            for sequence in self.sequences():
                if sequence != following:
                    break
                following += 1
            if following < self.position:
                return min(following, stop)
        return SkippedRuns.clear_until(self, stop)

    def clear(self) -> None:
        """Forget all runs, and all that was looked at."""
        super().clear()
        self.position = self._from = 0
        self._forget()

    def note_finished(self, finished: Sequence[int], cursor: int, into: Runs) -> None:
        """Add to `into` which of these are skipped beyond what was looked at."""
        if self._runs and finished and max(finished) >= self.position:
            into.add(runs_of(each for each in finished if each >= max(cursor, self.position) and each in self))

    def deleted_in(self, deleted: DeletedRuns) -> int:
        """Return how many of the skipped messages are deleted."""
        beyond = sum(deleted.count(start, stop) for start, stop in self._runs)
        if self._from >= self.position:
            return beyond
        waiting = self.waiting
        for start, stop in deleted.live(self._from, self.position):
            waiting -= self._alive.count(1, self._place(start), self._place(stop))
        return beyond + deleted.count(self._from, self.position) - waiting

    # --- what was looked at ----------------------------------------------------------------------------------------

    @property
    def most_runs(self) -> int:
        """The number of runs, at most, that lie between messages that wait."""
        return max(min(self.waiting, self.position - self._from - self.waiting), 0)

    def look_from(self, cursor: int) -> int:
        """Return the first sequence to be looked at, given the cursor."""
        if self.position < cursor:
            self.pass_over(cursor)
        return self.position

    def skip_at(self, sequence: int) -> int:
        """Return the end of the run that is skipped at a place beyond `position`; the place if there is none."""
        runs = self._runs
        return max(sequence, runs[0][1]) if runs and runs[0][0] <= sequence else sequence

    def clear_beyond(self, sequence: int, stop: int) -> int:
        """Return where the next run is skipped beyond what was looked at, or `stop` if there is none before it."""
        runs = self._runs
        return max(min(runs[0][0], stop), sequence) if runs else stop

    def looked_until(self, position: int) -> None:
        """Note that the messages below `position` were looked at; those that are to wait are added before."""
        before, self.position = self.position, position
        runs = self._runs
        skipped = 0
        while runs and runs[0][0] < position:
            start, stop = runs[0]
            skipped += min(stop, position) - start
            if stop > position:
                runs[0][0] = position
                break
            runs.popleft()
        new = len(self._order) - self._place(before)
        self.count += position - before - skipped - new

    def wait(self, sequences: list[int]) -> None:
        """Have rising messages wait that are looked at now; they lie beyond all others that were."""
        self._order.extend(sequences)
        self._alive += b"\1" * len(sequences)
        self.waiting += len(sequences)

    def has(self, sequence: int) -> bool:
        """Return whether a message waits."""
        at = self._place(sequence)
        return at < len(self._order) and self._order[at] == sequence and bool(self._alive[at])

    def take(self, sequence: int) -> bool:
        """Have a message skipped from now on; return whether it waited."""
        order = self._order
        at = kernel.place_among(order, sequence, self._first)
        if at >= len(order) or order[at] != sequence or not self._alive[at]:
            return False
        self._alive[at] = 0
        self.waiting -= 1
        self.count += 1
        return True

    def put_back(self, sequence: int) -> None:
        """Have a message wait again that was looked at and is skipped."""
        at = self._place(sequence)
        if at < len(self._order) and self._order[at] == sequence:
            self._alive[at] = 1
        else:
            self._order.insert(at, sequence)
            self._alive.insert(at, 1)
        self.waiting += 1
        self.count -= 1

    def sequences(self) -> Iterator[int]:
        """Yield the messages that wait, rising."""
        order, alive = self._order, self._alive
        if self._first:
            order, alive = order[self._first :], alive[self._first :]
        return compress(order, alive)

    def finished_runs(self, unfinished: Callable[[], Iterable[int]]) -> Sequence[Run]:
        """Return what was looked at and is finished: it neither waits nor is among `unfinished`."""
        start, stop = self._from, self.position
        if start >= stop:
            return ()
        pending = sorted(each for each in unfinished() if start <= each < stop)
        return self._without(merge(self.sequences(), pending) if pending else self.sequences())

    def _without(self, sequences: Iterable[int]) -> list[Run]:
        """Return what was looked at from the cursor on, without these messages, which rise."""
        if self._from >= self.position:
            return []
        return gaps(self._from, self.position, ((each, each + 1) for each in sequences))

    def has_passed(self, sequence: int) -> bool:
        """Return whether a message was looked at, and does not wait."""
        return self._from <= sequence < self.position and not self.has(sequence)

    def look_again(self) -> None:
        """Have everything looked at again that waits."""
        runs = self.runs
        self.clear()
        for start, stop in runs:
            self.add(start, stop)

    def _between(self, start: int, stop: int) -> list[int]:
        first, last = self._place(start), self._place(stop)
        return [*compress(self._order[first:last], self._alive[first:last])]

    def _place(self, sequence: int) -> int:
        return kernel.place_among(self._order, sequence, self._first)

    def _thin_out(self) -> None:
        """Drop the places of messages that wait no longer, where they are most of them."""
        gone = len(self._order) - self.waiting
        if gone > 4096 and gone > self.waiting:
            self._order = array("q", self.sequences())
            self._alive = bytearray(b"\1") * len(self._order)
            self._first = 0

    def _forget(self) -> None:
        self._order, self._alive = array("q"), bytearray()
        self._first = self.waiting = 0
