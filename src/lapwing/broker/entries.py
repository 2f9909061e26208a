"""Pending messages, one by one: for people, and for protocols that show them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from enum import Enum
from heapq import nsmallest
from itertools import chain
from typing import TYPE_CHECKING, Final

from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.holder import Holder
    from lapwing.broker.pending import Pending

_AT_ONCE: Final = 20_000  # sequences that are looked at in one step


class State(Enum):
    """The state of a pending message."""

    IN_FLIGHT = "in_flight"
    READY = "ready"
    DEFERRED = "deferred"


@dataclass(frozen=True, slots=True)
class Entry:
    """One pending message, as shown to people and other protocols."""

    sequence: int
    state: State
    deliveries: int
    holder: str = ""
    idle: int = -1  # ns since its delivery; -1 when nobody holds it
    deadline: int | None = None  # ns; when it comes back from its holder, or is due
    failures: int = 0


def entry_of(pending: Pending, sequence: int, *, now: int) -> Entry | None:
    """Return a pending message; None when it is not pending. What is on its way to the dead-letter topic is not."""
    return _entry(pending, sequence, pending.holders.of(sequence), now)


def _entry(pending: Pending, sequence: int, holder: Holder | None, now: int) -> Entry | None:
    deliveries, failures = pending.deliveries(sequence), pending.failures.get(sequence).failures
    if holder is not None:
        if holder is pending.holders.mover:
            return None
        lease = holder.in_flight[sequence]
        idle = max(now - lease.delivered, 0)
        name = "" if holder.parked else holder.name
        return Entry(sequence, State.IN_FLIGHT, deliveries, name, idle, lease.deadline, failures)
    if sequence in pending.requeued or sequence in pending.alone:
        return Entry(sequence, State.READY, deliveries, failures=failures)
    due = pending.deferred.due(sequence)
    if due is not None:
        return Entry(sequence, State.DEFERRED, deliveries, deadline=due, failures=failures)
    return None


class PendingScan:
    """Finds the lowest sequences that are pending beyond a place, in steps so that others get their turn.

    It looks at what was pending when it began; what is found may be pending no more.
    """

    def __init__(
        self,
        pending: Pending,
        *,
        most: int,
        states: Container[State],
        holder: str | None,
        after: int,
    ) -> None:
        """Look for up to `most` sequences; with `holder`, only what that holder has in flight."""
        self.found: list[int] = []  # rising
        self.most = most
        self._after = after
        self._left = [list(some) for some in _sequences(pending, states, holder)]
        self._at = 0

    def step(self) -> bool:
        """Look at some more; return whether there is nothing left to look at."""
        if not self._left:
            return True
        some = self._left[-1]
        after = self._after
        chunk = (each for each in some[self._at : self._at + _AT_ONCE] if each > after)
        self.found = nsmallest(self.most, chain(self.found, chunk))
        self._at += _AT_ONCE
        if self._at >= len(some):
            self._left.pop()
            self._at = 0
        return not self._left


def _sequences(pending: Pending, states: Container[State], name: str | None) -> Iterator[Iterable[int]]:
    if State.IN_FLIGHT in states:
        for holder in _holders(pending, name):
            yield holder.in_flight
    if name is None and State.READY in states:
        yield pending.requeued
        yield pending.alone
    if name is None and State.DEFERRED in states:
        yield pending.deferred.sequences()


def entries(
    pending: Pending,
    *,
    now: int,
    limit: int,
    holder: str | None = None,
    min_idle: int = 0,
    after: int = -1,
) -> list[Entry]:
    """Return up to `limit` pending messages beyond the sequence `after`, in rising order, all at once.

    With `holder` or `min_idle`, only messages in flight.
    """
    if min_idle:
        leases = [each.in_flight for each in _holders(pending, holder)]
        latest = now - min_idle
        found = [each for held in leases for each, lease in held.items() if each > after and lease.delivered <= latest]
    else:
        found = [each for some in _sequences(pending, tuple(State), holder) for each in some if each > after]
    lowest = nsmallest(limit, found) if limit < len(found) >> 3 else sorted(found)[:limit]
    owners = _owners(pending, lowest)
    shown = (_entry(pending, sequence, owners.get(sequence), now) for sequence in lowest)
    return [entry for entry in shown if entry is not None]


def _holders(pending: Pending, name: str | None) -> list[Holder]:
    holders = pending.holders
    return [each for each in holders if each is not holders.mover and (name is None or each.name == name)]


def _owners(pending: Pending, sequences: list[int]) -> dict[int, Holder]:
    """Return who holds which of these messages; one look at each holder, however many messages there are."""
    wanted = set(sequences)
    return {each: holder for holder in pending.holders for each in holder.in_flight.keys() & wanted}
