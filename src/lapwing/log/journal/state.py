"""The state of a topic and its channels as the journal keeps it, and how entries are folded into it.

A journal is read from its beginning, and each entry changes what is known so far. Where bytes of it are damaged, they
may have deferred any message that the channel had by then, or deferred it again for longer. So these messages are in
doubt unless a later entry mentions them: they are unfinished, and may be deferred.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Final, NamedTuple

from lapwing.records import dataclass

Run = tuple[int, int]  # sequences [start, stop)

_MANY: Final = 100_000  # messages in doubt that are not kept apart: the cursor is set back instead


class HeldRun(NamedTuple):
    """Messages [start, stop) that a named holder got together."""

    start: int
    stop: int
    delivered: int  # time of the last delivery, ns
    deliveries: int


class FailureState(NamedTuple):
    """The failures of one message."""

    failures: int = 0
    first: int = 0  # time of the first one, Unix ns
    flags: int = 0  # the broker gives them their meaning


@dataclass(slots=True)
class HolderState:
    """A named holder: it keeps its messages while it is not connected."""

    seen: int = 0  # time of its last request, ns
    active: int = 0  # time at which it last got a message, ns
    runs: list[HeldRun] = field(default_factory=list)


@dataclass(slots=True)
class ChannelState:
    """A channel as it was saved. A message is in at most one of `unfinished`, `deferred` and the holders' runs."""

    cursor: int = 0
    unfinished: list[Run] = field(default_factory=list)  # below the cursor, to be delivered again
    attempts: dict[int, int] = field(default_factory=dict)  # deliveries of unfinished and deferred messages
    deferred: dict[int, int] = field(default_factory=dict)  # sequence -> due, ns
    holders: dict[str, HolderState] = field(default_factory=dict)
    failures: dict[int, FailureState] = field(default_factory=dict)
    notes: dict[str, bytes] = field(default_factory=dict)  # by key; the broker gives them their meaning
    doubtful: set[int] = field(default_factory=set)  # of unfinished and deferred: may be deferred, who knows until when
    all_doubtful: bool = False  # so may be everything from the cursor on


@dataclass(slots=True)
class JournalState:
    """A topic and its channels as they were saved."""

    fanned_out: int | None = None
    channels: dict[str, ChannelState] = field(default_factory=dict)
    emptied: list[Run] | None = None  # runs that no channel gets; None: the journal was written before it had them
    deleted: list[Run] = field(default_factory=list)  # runs that were deleted one by one, rising
    trimmed: int = 0  # everything below is trimmed
    notes: dict[str, bytes] = field(default_factory=dict)  # of the topic itself
    written: int = 0  # time of the last write, ns


@dataclass(slots=True)
class ChannelFold:
    """One channel while a journal is read."""

    cursor: int = 0
    runs: list[Run] = field(default_factory=list)
    tried: Sequence[int] = ()  # sequences and their deliveries, in turns: only those of the last entry are looked at
    deferred: dict[int, tuple[int, int]] = field(default_factory=dict)  # sequence -> due, attempts
    holders: dict[str, HolderState] = field(default_factory=dict)
    failures: dict[int, FailureState] = field(default_factory=dict)
    notes: dict[str, bytes] = field(default_factory=dict)
    broken: bool = False  # bytes are lost since the last entry about its progress
    doubtful: set[int] = field(default_factory=set)  # may be unfinished, and may be deferred
    doubtful_due: set[int] = field(default_factory=set)  # deferred, and may be deferred for longer
    again: int | None = None  # everything from here on is in doubt

    @property
    def attempts(self) -> dict[int, int]:
        """The deliveries of unfinished messages."""
        return dict(zip(self.tried[::2], self.tried[1::2], strict=True))

    def progress(self, cursor: int, runs: list[Run], tried: Sequence[int]) -> None:
        """Replace the cursor and what is unfinished below it."""
        if self.broken:
            self._doubt(cursor)
        self.cursor, self.runs, self.tried = cursor, runs, tried
        if self.doubtful:
            self.doubtful = _outside(self.doubtful, runs)

    def lose(self) -> None:
        """Note that entries are lost here."""
        self.broken = True
        self.notes.clear()  # a later one may be lost
        self.doubtful_due.update(self.deferred)

    def defer(self, added: Iterable[tuple[int, int, int]], removed: Iterable[int]) -> None:
        """Add deferred messages, as (sequence, due, attempts), then remove some."""
        mentioned = []
        for sequence, due, attempts in added:
            self.deferred[sequence] = (due, attempts)
            mentioned.append(sequence)
        for sequence in removed:
            self.deferred.pop(sequence, None)
            mentioned.append(sequence)
        if self.doubtful:
            self.doubtful.difference_update(mentioned)
        if self.doubtful_due:
            self.doubtful_due.difference_update(mentioned)

    def hold(self, name: str, holder: HolderState) -> None:
        """Replace a holder."""
        self.holders[name] = holder
        if self.doubtful:
            self.doubtful = _outside(self.doubtful, [(run.start, run.stop) for run in holder.runs])

    def _doubt(self, cursor: int) -> None:
        """Note that the cursor came to `cursor`, and that entries on the way are lost."""
        self.broken = False
        if cursor - self.cursor + sum(stop - start for start, stop in self.runs) > _MANY:
            self.again = self.cursor if self.again is None else min(self.again, self.cursor)
        else:
            self.doubtful.update(*[range(*run) for run in self.runs], range(self.cursor, cursor))

    def settle(self) -> None:
        """Make everything that is still in doubt unfinished."""
        if self.again is not None:
            self.cursor, self.runs = min([self.again, *self.doubtful, *[start for start, _ in self.runs]]), []
            for holder in self.holders.values():
                holder.runs = [run for run in holder.runs if run.start < self.cursor]
        elif self.doubtful:
            held = [(run.start, run.stop) for holder in self.holders.values() for run in holder.runs]
            self.doubtful = _outside(self.doubtful, held).difference(self.deferred)
            self.runs += [(sequence, sequence + 1) for sequence in sorted(self.doubtful)]

    def cut(self, end: int) -> bool:
        """Drop what is held, waits or has failed from `end` on; return whether there was something."""
        changed = False
        for holder in self.holders.values():
            runs = [run._replace(stop=min(run.stop, end)) for run in holder.runs if run.start < end]
            changed |= runs != holder.runs
            holder.runs = runs
        gone = [sequence for sequence in {*self.deferred, *self.failures} if sequence >= end]
        for sequence in gone:
            self.deferred.pop(sequence, None)
            self.failures.pop(sequence, None)
        return changed or bool(gone)

    def state(self) -> ChannelState:
        """Return the channel as it was saved."""
        attempts = self.attempts
        attempts.update((sequence, tries) for sequence, (_, tries) in self.deferred.items() if tries)
        due = {sequence: due for sequence, (due, _) in self.deferred.items()}
        notes = {key: value for key, value in self.notes.items() if value}
        return ChannelState(
            self.cursor, self.runs, attempts, due, self.holders, self.failures, notes,
            doubtful=self.doubtful | self.doubtful_due, all_doubtful=self.again is not None,
        )  # fmt: skip


@dataclass(slots=True)
class JournalFold:
    """A journal up to some place."""

    version: int = 1
    kinds: dict[int, str] = field(default_factory=dict)  # the names of the entries' kinds, as its writer knew them
    fanned_out: int | None = None
    emptied: list[Run] | None = None
    deleted: list[Run] = field(default_factory=list)
    trimmed: int = 0
    notes: dict[str, bytes] = field(default_factory=dict)
    channels: dict[str, ChannelFold] = field(default_factory=dict)
    floor: int | None = None  # where channels may have begun that are first mentioned behind bytes that are lost

    def lose(self, *, all_before: bool) -> None:
        """Note that bytes are lost here; with `all_before`, the first ones of the file."""
        fanned_out = self.fanned_out
        self.floor = 0 if all_before or fanned_out is None else min(fanned_out, self.floor or fanned_out)
        self.notes.clear()  # a later one may be lost
        for one in self.channels.values():
            one.lose()

    def channel(self, name: str) -> ChannelFold:
        """Return what is known of a channel."""
        one = self.channels.get(name)
        if one is None:
            one = self.channels[name] = ChannelFold(self.floor or 0, broken=self.floor is not None)
        return one

    def cut(self, end: int) -> bool:
        """Drop what is known of messages from `end` on, except for cursors; return whether there was something.

        The log does not have them, after a power loss, and will give their sequences to other messages.
        """
        deleted = [(start, min(stop, end)) for start, stop in self.deleted if start < end]
        trimmed = min(self.trimmed, end)
        changed = (deleted, trimmed) != (self.deleted, self.trimmed)
        self.deleted, self.trimmed = deleted, trimmed
        for one in self.channels.values():
            changed |= one.cut(end)
        return changed

    def settle(self) -> None:
        """End the reading: decide what is still in doubt."""
        for one in self.channels.values():
            one.settle()
        self.deleted = joined_runs([run for run in self.deleted if run[1] > self.trimmed])

    def state(self) -> JournalState:
        """Return the topic and its channels as they were saved."""
        channels = {name: one.state() for name, one in self.channels.items()}
        notes = {key: value for key, value in self.notes.items() if value}
        return JournalState(self.fanned_out, channels, self.emptied, self.deleted, self.trimmed, notes)


def _outside(sequences: set[int], runs: Iterable[Run]) -> set[int]:
    """Return the sequences that lie in none of the runs, which may be of any length."""
    joined = joined_runs(runs)
    starts = [start for start, _ in joined]
    found = set()
    for sequence in sequences:
        at = bisect_right(starts, sequence) - 1
        if at < 0 or sequence >= joined[at][1]:
            found.add(sequence)
    return found


def joined_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the same sequences as rising runs that do not touch."""
    made: list[Run] = []
    for start, stop in sorted(runs):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(stop, made[-1][1]))
        else:
            made.append((start, stop))
    return made
