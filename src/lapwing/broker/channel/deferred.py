"""Messages that are not ready before a certain time, in few bytes each: there may be millions of them."""

from array import array
from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from lapwing.log.side.sequence_map import SequenceMap

LATEST: Final = 2**63 - 1  # ns; the latest time that can be kept
_FRESH: Final = 4096  # entries of the heap before they are sorted into a run
_EVERYTHING: Final = 1 << 62


class Deferred:
    """Sequences by the time at which they are ready, and the changes since they were last saved.

    The deliveries of a message are here while it waits, and in `attempts` before and after.
    """

    __slots__ = ("_added", "_attempts", "_journaled", "_order", "_removed", "_rows")

    def __init__(self, attempts: dict[int, int] | None = None, *, journaled: bool = True) -> None:
        self._attempts = {} if attempts is None else attempts
        self._journaled = journaled
        self._rows = SequenceMap(2)  # due, deliveries
        self._order = _DueOrder()
        self._added: dict[int, int] = {}
        self._removed: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._rows

    def due(self, sequence: int) -> int | None:
        """Return when a message is ready; None when it does not wait."""
        row = self._rows.get(sequence)
        return None if row is None else row[0]

    def deliveries(self, sequence: int) -> int | None:
        """Return how often a message was delivered; None when it does not wait."""
        row = self._rows.get(sequence)
        return None if row is None else row[1]

    def sequences(self) -> list[int]:
        """Return every sequence, in no order."""
        return list(self._rows)

    def lowest(self, start: int = 0) -> int | None:
        """Return the lowest sequence from `start` on."""
        return self._rows.lowest(start)

    def between(self, start: int, stop: int, most: int) -> list[int]:
        """Return the first `most` sequences of [start, stop), rising."""
        return self._rows.between(start, stop, most)

    def defer(self, sequence: int, *, until: int) -> None:
        """Defer a message until that time."""
        until = min(until, LATEST)
        before = self._rows.get(sequence)
        self._rows.set(sequence, until, self._attempts.pop(sequence, 1 if before is None else before[1]))
        if self._journaled:
            self._added[sequence] = until
        self._order.add(until, sequence)

    def note_saved(self, sequences: Iterable[int]) -> None:
        """Note that the journal has messages as deferred that are not here: it is to drop them with the next save."""
        if self._journaled:
            self._removed.extend(sequences)

    def remove(self, sequence: int) -> bool:
        """Take one message out before its time; return whether it was here."""
        row = self._rows.pop(sequence)
        if row is None:
            return False
        self._left(sequence, row[1])
        self._order.thin_out(self._rows)
        return True

    def restore(self, due: dict[int, int], *, gone: Iterable[int] = ()) -> None:
        """Begin with what was saved; `gone` was saved too, and is not deferred any more."""
        self._removed.extend(gone)
        for sequence in sorted(due):
            until = min(due[sequence], LATEST)
            self._rows.set(sequence, until, self._attempts.pop(sequence, 1))
            self._order.add(until, sequence)

    def ripe(self, now: int, most: int = _EVERYTHING) -> list[int]:
        """Take out the messages that are due, the earliest first, at most `most` of them."""
        ready: list[int] = []
        while len(ready) < most and (entry := self._order.pop(now)) is not None:
            until, sequence = entry
            row = self._rows.get(sequence)
            if row is not None and row[0] == until:
                self._rows.pop(sequence)
                self._left(sequence, row[1])
                ready.append(sequence)
        return ready

    def next_due(self) -> int | None:
        """Return when the next one is ready."""
        while (entry := self._order.first()) is not None:
            if self.due(entry[1]) == entry[0]:
                return entry[0]
            self._order.pop(LATEST)
        return None

    def drop_below(self, sequence: int) -> None:
        """Take out every message below `sequence`."""
        for waiting in self._rows.between(0, sequence, _EVERYTHING):
            self.remove(waiting)
            self._attempts.pop(waiting, None)

    def clear(self) -> None:
        """Take out every message."""
        if self._journaled:
            self._removed.extend(self._rows)
        self._added.clear()
        self._rows.clear()
        self._order = _DueOrder()

    def _left(self, sequence: int, deliveries: int) -> None:
        self._attempts[sequence] = deliveries
        if self._journaled:  # even if it was added since the last save: the journal may know it from before a restart
            self._added.pop(sequence, None)
            self._removed.append(sequence)

    def changes(self) -> tuple[dict[int, int], list[int]]:
        """Return what was added and removed since the last call; a message in both was removed first."""
        added, removed = self._added, self._removed
        self._added, self._removed = {}, []
        return added, removed


class _DueOrder:
    """Times and sequences, the earliest first: a small heap, and runs that were sorted once.

    An entry stays after its message was taken out elsewhere; whoever takes an entry compares it with the message.
    """

    __slots__ = ("_heads", "_heap", "_length", "_runs")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []  # until, sequence
        self._runs: dict[int, tuple[array[int], array[int], int]] = {}  # times, sequences, place of the next one
        self._heads: list[tuple[int, int]] = []  # time of the next one, number of the run
        self._length = 0

    def add(self, until: int, sequence: int) -> None:
        heap = self._heap
        heappush(heap, (until, sequence))
        self._length += 1
        if len(heap) >= _FRESH:
            heap.sort()
            self._add_run(array("q", [entry[0] for entry in heap]), array("q", [entry[1] for entry in heap]))
            heap.clear()

    def _add_run(self, times: "array[int]", sequences: "array[int]") -> None:
        number = max(self._runs, default=0) + 1
        self._runs[number] = times, sequences, 0
        heappush(self._heads, (times[0], number))

    def first(self) -> tuple[int, int] | None:
        """Return the earliest entry."""
        head = None
        if self._heads:
            times, sequences, place = self._runs[self._heads[0][1]]
            head = times[place], sequences[place]
        if self._heap and (head is None or self._heap[0] < head):
            return self._heap[0]
        return head

    def pop(self, now: int) -> tuple[int, int] | None:
        """Take the earliest entry out, unless its time is after `now`."""
        entry = self.first()
        if entry is None or entry[0] > now:
            return None
        self._length -= 1
        if self._heap and self._heap[0] == entry:
            return heappop(self._heap)
        number = self._heads[0][1]
        times, sequences, place = self._runs[number]
        place += 1
        if place < len(times):
            self._runs[number] = times, sequences, place
            heapreplace(self._heads, (times[place], number))
        else:
            del self._runs[number]
            heappop(self._heads)
        return entry

    def thin_out(self, rows: SequenceMap) -> None:
        """Drop the entries of messages that were taken out, when they are most."""
        if self._length <= 2 * len(rows) + 64:
            return
        self._heap = [entry for entry in self._heap if _is_current(rows, *entry)]
        heapify(self._heap)
        runs, self._runs, self._heads = self._runs, {}, []
        self._length = len(self._heap)
        for times, sequences, place in runs.values():
            left = [
                entry for entry in zip(times[place:], sequences[place:], strict=True) if _is_current(rows, *entry)
            ]
            if left:
                self._add_run(array("q", [entry[0] for entry in left]), array("q", [entry[1] for entry in left]))
                self._length += len(left)


def _is_current(rows: SequenceMap, until: int, sequence: int) -> bool:
    row = rows.get(sequence)
    return row is not None and row[0] == until
