"""Messages that are not ready before a certain time."""

from collections.abc import ItemsView, Iterable
from heapq import heapify, heappop, heappush


class Deferred:
    """Sequences by the time at which they are ready, and the changes since they were last saved."""

    __slots__ = ("_added", "_due", "_heap", "_journaled", "_removed")

    def __init__(self, *, journaled: bool = True) -> None:
        self._journaled = journaled
        self._due: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self._added: dict[int, int] = {}
        self._removed: list[int] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._due

    def due(self, sequence: int) -> int | None:
        """Return when a message is ready; None when it does not wait."""
        return self._due.get(sequence)

    def sequences(self) -> list[int]:
        """Return every sequence, in no order."""
        return list(self._due)

    def defer(self, sequence: int, *, until: int) -> None:
        """Defer a message until that time."""
        self._due[sequence] = until
        if self._journaled:
            self._added[sequence] = until
        heappush(self._heap, (until, sequence))

    def items(self) -> ItemsView[int, int]:
        """Return every sequence with its time, in no order."""
        return self._due.items()

    def remove(self, sequence: int) -> bool:
        """Take one message out before its time; return whether it was here."""
        if self._due.pop(sequence, None) is None:
            return False
        self._left(sequence)
        return True

    def restore(self, due: dict[int, int], *, gone: Iterable[int] = ()) -> None:
        """Begin with what was saved; `gone` was saved too, and is not deferred any more."""
        self._due = dict(due)
        self._removed.extend(gone)
        self._heap = [(until, sequence) for sequence, until in due.items()]
        heapify(self._heap)

    def ripe(self, now: int) -> list[int]:
        """Take out the messages that are due, the earliest first."""
        ready: list[int] = []
        heap = self._heap
        while heap and heap[0][0] <= now:
            until, sequence = heappop(heap)
            if self._due.get(sequence) == until:
                del self._due[sequence]
                self._left(sequence)
                ready.append(sequence)
        return ready

    def next_due(self) -> int | None:
        """Return when the next one is ready."""
        heap = self._heap
        while heap and self._due.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def drop_below(self, sequence: int) -> None:
        """Take out every message below `sequence`."""
        done = [waiting for waiting in self._due if waiting < sequence]
        for waiting in done:
            del self._due[waiting]
            self._left(waiting)
        if done:
            self._heap = [(until, waiting) for waiting, until in self._due.items()]
            heapify(self._heap)

    def clear(self) -> None:
        """Take out every message."""
        if self._journaled:
            self._removed.extend(self._due)
        self._added.clear()
        self._due.clear()
        self._heap.clear()

    def _left(self, sequence: int) -> None:
        if self._journaled:  # even if it was added since the last save: the journal may know it from before a restart
            self._added.pop(sequence, None)
            self._removed.append(sequence)

    def changes(self) -> tuple[dict[int, int], list[int]]:
        """Return what was added and removed since the last call; a message in both was removed first."""
        added, removed = self._added, self._removed
        self._added, self._removed = {}, []
        return added, removed
