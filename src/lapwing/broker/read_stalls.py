"""Channels and topics that wait because the disk did not return their bytes, and when each is tried again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from lapwing.errors import LogError, ReadFailed
from lapwing.records import dataclass

FIRST_WAIT: Final = 250_000_000  # ns between the first two retries; each wait is twice as long as the one before
LONGEST_WAIT: Final = 5_000_000_000  # ns

Owner = TypeVar("Owner", bound=Hashable)


@dataclass(slots=True)
class _Stall:
    error: LogError
    again: int  # time of the next retry, ns
    wait: int  # ns

    def failed_again(self, error: LogError, now: int) -> None:
        """Wait twice as long before the next retry."""
        self.error = error
        self.wait = min(max(2 * self.wait, FIRST_WAIT), LONGEST_WAIT)
        self.again = now + self.wait


class ReadStalls(Generic[Owner]):
    """The owners whose last read failed. An owner is dropped only after the same place was read."""

    def __init__(self, report: Callable[[str], None], probe: Callable[[str, int], None]) -> None:
        """`probe` reads a little of a file at an offset and raises `OSError` while the disk does not return it."""
        self._report = report
        self._probe = probe
        self.stalled: dict[Owner, _Stall] = {}  # for reading only

    def waits(self, owner: Owner, now: int) -> bool:
        """Return whether a read of `owner` failed and its next retry is not due."""
        stall = self.stalled.get(owner)
        return stall is not None and stall.again > now

    def add(self, owner: Owner, error: LogError, *, now: int) -> None:
        """Note that a read of `owner` failed."""
        stall = self.stalled.get(owner)
        if stall is None:
            self.stalled[owner] = _Stall(error, now, 0)
            self._report(f"read failed, {owner} waits and is retried: {error}")
            return
        stall.failed_again(error, now)

    def succeeded(self, owner: Owner, *, now: int) -> None:
        """Note that `owner` was retried without an error; it may have read nothing, so the place is read here."""
        stall = self.stalled.get(owner)
        if stall is None:
            return
        if isinstance(stall.error, ReadFailed):
            try:
                self._probe(stall.error.path, stall.error.offset)
            except OSError as error:
                self.add(owner, ReadFailed(stall.error.path, stall.error.offset, error), now=now)
                return
        del self.stalled[owner]
        self._report(f"{owner} can be read again")

    def drop(self, owner: Owner) -> None:
        """Forget an owner that is deleted."""
        self.stalled.pop(owner, None)

    def due(self, now: int) -> list[Owner]:
        """Return the owners to retry now."""
        return [owner for owner, stall in self.stalled.items() if stall.again <= now]

    def reasons(self) -> list[str]:
        """Return why each owner waits, in words."""
        return [f"{owner}: {stall.error}" for owner, stall in self.stalled.items()]
