"""Failures of messages: how many, since when, of which kind; counted apart from deliveries and kept in the journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lapwing.broker.failures.dead_letters import REASONS
from lapwing.log.journal.journal import FailureState
from lapwing.records import dataclass

_LOST_ONLY: Final = 1  # every failure was a lost connection
_ONLY_ALONE: Final = 2  # it is only delivered alone from now on: the last chance of one that only lost connections
_DOOM: Final = 4  # times the number of the reason it is given up for; 0: it is not
_DOOM_MASK: Final = 7 * _DOOM
_DEATHS: Final = 64  # times how often it was given up before
_MOST_ERRORS: Final = 4 << 20  # bytes of errors that one channel keeps, the newest

_DOOMS: Final = {reason: number for number, reason in enumerate(REASONS, 1)}


@dataclass(slots=True)
class FailureCounts:
    """Counts of what happened to a channel's messages since the start, beside being finished."""

    failures: int = 0
    dead: int = 0  # given up: moved to the dead-letter topic, or dropped
    expired: int = 0
    lost: int = 0  # with a side log that is missing or damaged
    overflowed: int = 0
    throttled: int = 0  # deliveries that had to wait for the rate
    claimed: int = 0
    redriven: int = 0


class Failure(FailureState):
    """The failures of one message, as the journal keeps them."""

    __slots__ = ()

    @property
    def lost_only(self) -> bool:
        """Whether every failure was a lost connection."""
        return bool(self.flags & _LOST_ONLY)

    @property
    def only_alone(self) -> bool:
        """Whether it is only delivered alone from now on: its next failure is the last one."""
        return bool(self.flags & _ONLY_ALONE)

    @property
    def doom(self) -> str:
        """The reason for which it is given up, or an empty string."""
        number = (self.flags & _DOOM_MASK) // _DOOM
        return REASONS[number - 1] if 0 < number <= len(REASONS) else ""

    @property
    def deaths(self) -> int:
        """The number of times that it was given up in this channel before."""
        return self.flags // _DEATHS


_NEVER: Final = Failure()


class Failures:
    """The failures of one channel's messages, and what changed since the journal was last written."""

    __slots__ = ("_error_bytes", "_errors", "_journaled", "changed", "records")

    def __init__(self, *, journaled: bool = True) -> None:
        self.records: dict[int, Failure] = {}  # always the same dictionary
        self._errors: dict[int, str] = {}  # the last that consumers reported; not journaled
        self._error_bytes = 0
        self.changed: dict[int, None] = {}  # since the journal was last written
        self._journaled = journaled

    def get(self, sequence: int) -> Failure:
        """Return the failures of a message; of one that never failed, none."""
        return self.records.get(sequence, _NEVER)

    def error(self, sequence: int) -> str:
        """Return the last error that a consumer reported for a message."""
        return self._errors.get(sequence, "")

    def add(self, sequence: int, *, lost: bool, now: int, error: str = "") -> Failure:
        """Count a failure; `lost` if it was a lost connection. `now` is Unix ns."""
        self.count([sequence], lost=lost, now=now, error=error)
        return self.records[sequence]

    def count(self, sequences: Sequence[int], *, lost: bool, now: int, error: str = "") -> None:
        """Count a failure of each of these messages; those that fail for the first time share a record."""
        records, known = self.records, self.records.get
        fresh = Failure(1, now, _LOST_ONLY if lost else 0)
        for sequence in sequences:
            record = known(sequence)
            if record is None:
                records[sequence] = fresh
                continue
            count, first, flags = record
            flags = (flags | _LOST_ONLY if not count else flags) if lost else flags & ~_LOST_ONLY
            records[sequence] = Failure(count + 1, first or now, flags)
        if self._journaled:
            self.changed.update(dict.fromkeys(sequences))
        if error:
            for sequence in sequences:
                self._note(sequence, error)

    def try_alone(self, sequence: int) -> None:
        """Note that a message gets its last chance: it is only delivered alone, after a restart too."""
        count, first, flags = self.get(sequence)
        self._set(sequence, Failure(count, first, flags | _ONLY_ALONE))

    def last_chances(self, sequences: Iterable[int]) -> dict[int, None]:
        """Return which messages are only delivered alone from now on, in the same order."""
        flags = {sequence: self.get(sequence).flags for sequence in sequences}
        return {sequence: None for sequence in flags if flags[sequence] & (_ONLY_ALONE | _DOOM_MASK) == _ONLY_ALONE}

    def doom(self, sequence: int, reason: str, error: str = "") -> Failure:
        """Note that a message is given up, and why: it is not delivered again, after a restart neither."""
        count, first, flags = self.get(sequence)
        record = Failure(count, first, flags & ~_DOOM_MASK | _DOOMS[reason] * _DOOM)
        self._set(sequence, record)
        if error:
            self._note(sequence, error)
        return record

    def pardon(self, sequence: int) -> None:
        """Note that a message is not given up after all."""
        count, first, flags = self.get(sequence)
        self._set(sequence, Failure(count, first, flags & ~_DOOM_MASK))

    def revive(self, sequence: int, deaths: int) -> None:
        """Begin again with a message that was given up `deaths` times."""
        self._forget_error(sequence)
        self._set(sequence, Failure(flags=deaths * _DEATHS))

    def drop(self, sequences: Iterable[int]) -> None:
        """Forget the failures of messages that are finished."""
        records, changed = self.records, self.changed
        for sequence in sequences:
            if records.pop(sequence, None) is not None:
                if self._errors:
                    self._forget_error(sequence)
                if self._journaled:
                    changed[sequence] = None

    def drop_below(self, sequence: int) -> None:
        """Forget the failures of all messages below `sequence`."""
        self.drop([each for each in self.records if each < sequence])

    def clear(self) -> None:
        """Forget all failures."""
        if self._journaled:
            self.changed.update(dict.fromkeys(self.records))
        self.records.clear()
        self._errors.clear()
        self._error_bytes = 0

    def doomed(self) -> list[int]:
        """Return the messages that are given up, and not moved yet."""
        return [sequence for sequence, record in self.records.items() if record.flags & _DOOM_MASK]

    def _set(self, sequence: int, record: Failure) -> None:
        self.records[sequence] = record
        if self._journaled:
            self.changed[sequence] = None

    def _note(self, sequence: int, error: str) -> None:
        self._forget_error(sequence)
        self._errors[sequence] = error
        self._error_bytes += len(error)
        while self._error_bytes > _MOST_ERRORS:
            self._forget_error(next(iter(self._errors)))

    def _forget_error(self, sequence: int) -> None:
        self._error_bytes -= len(self._errors.pop(sequence, ""))

    # --- the journal -------------------------------------------------------------------------------------------

    def changes(self) -> tuple[list[tuple[int, Failure]], list[int]]:
        """Return what was set and what was dropped since the last call."""
        changed, self.changed = self.changed, {}
        records = self.records
        added = [(each, records[each]) for each in changed if each in records]
        return added, [each for each in changed if each not in records]

    def restore(self, saved: Mapping[int, FailureState], unfinished: Iterable[int]) -> None:
        """Take over what the journal has, of messages that are not finished."""
        for sequence in unfinished:
            state = saved.get(sequence)
            if state is not None:
                self.records[sequence] = Failure(*state)
        self.changed = dict.fromkeys(each for each in saved if each not in self.records)
