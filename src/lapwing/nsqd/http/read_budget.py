"""Bound the memory of answers that readers of logs have not taken yet."""

from __future__ import annotations

from typing import Final

from lapwing.net.server.answers import Refused

TOTAL: Final = 64 << 20  # bytes for all readers together
LEAST: Final = 64 << 10  # bytes for one reader, even if nothing is left
MAX_READERS: Final = 1024


class ReadBudget:
    """The memory that all answers under way may hold together. A reader gets smaller blocks while others hold much."""

    def __init__(self, total: int = TOTAL, readers: int = MAX_READERS) -> None:
        self._readers = readers
        self.free = total
        self.active = 0

    def take(self, wanted: int) -> ReadShare:
        """Return a share of at most `wanted` bytes. Raises `Refused` (503 TOO_MANY_READERS) when there are too many."""
        if self.active >= self._readers:
            raise Refused(503, "TOO_MANY_READERS", limit=self._readers)
        return ReadShare(self, max(min(wanted, self.free // 4), min(wanted, LEAST)))


class ReadShare:
    """The memory that one answer may hold. It is free again when nobody refers to the share: the generator of the
    answer does until it is exhausted, closed, or dropped without having been started.
    """

    __slots__ = ("_budget", "size")

    def __init__(self, budget: ReadBudget, size: int) -> None:
        self.size = size  # bytes
        self._budget = budget
        budget.active += 1
        budget.free -= size

    def shrink(self, size: int) -> None:
        """Give back what is beyond `size` bytes."""
        if size < self.size:
            self._budget.free += self.size - size
            self.size = size

    def __del__(self) -> None:
        self._budget.active -= 1
        self._budget.free += self.size
