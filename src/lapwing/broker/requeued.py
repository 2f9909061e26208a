"""Messages that are ready to be delivered again, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator


class Requeued:
    """A queue of sequences. Each waits until the channel's cursor has reached the place it was queued behind."""

    __slots__ = ("_entries", "_order")

    def __init__(self) -> None:
        self._order: deque[tuple[int, int]] = deque()  # sequence, place; also entries that were removed since
        self._entries: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def append(self, sequence: int, *, behind: int) -> None:
        """Queue a message behind all others, until the cursor has reached `behind`."""
        entry = sequence, behind
        self._entries[sequence] = entry
        self._order.append(entry)

    def prepend(self, sequence: int) -> None:
        """Queue a message before all others."""
        entry = sequence, 0
        self._entries[sequence] = entry
        self._order.appendleft(entry)

    def merge(self, sequences: Iterable[int]) -> None:
        """Queue rising sequences that were never delivered, each before the messages that wait behind it."""
        waiting: deque[tuple[int, int]] = deque()
        rest = deque(entry for entry in self._order if self._entries.get(entry[0]) is entry)
        for sequence in sequences:
            while rest and rest[0][1] <= sequence:
                waiting.append(rest.popleft())
            entry = self._entries[sequence] = sequence, 0
            waiting.append(entry)
        self._order = waiting + rest

    def first(self) -> tuple[int, int] | None:
        """Return the first message, and the place that the cursor must have reached before it is delivered."""
        order = self._order
        while order:
            entry = order[0]
            if self._entries.get(entry[0]) is entry:
                return entry
            order.popleft()
        return None

    def remove(self, sequence: int) -> bool:
        """Take a message out; return whether it was here."""
        if self._entries.pop(sequence, None) is None:
            return False
        if self._order[0][0] == sequence:
            self._order.popleft()
        elif len(self._order) > 2 * len(self._entries) + 16:
            self._order = deque(entry for entry in self._order if self._entries.get(entry[0]) is entry)
        return True

    def clear(self) -> None:
        """Take all messages out."""
        self._order.clear()
        self._entries.clear()
