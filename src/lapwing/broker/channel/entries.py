"""Pending messages, one by one: for people, and for protocols that show them."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from heapq import nsmallest
from itertools import chain
from typing import TYPE_CHECKING, Final

from lapwing.broker.channel.ledger import State
from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.channel.ledger import Holder, Ledger

_AT_ONCE: Final = 20_000  # sequences that are looked at in one step


SHOWN: Final = (State.IN_FLIGHT, State.READY, State.DEFERRED)  # states in which a message is shown as pending


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


def entry_of(ledger: Ledger, sequence: int, *, now: int) -> Entry | None:
    """Return a pending message; None when it is not pending. What is on its way to the dead-letter topic is not."""
    return _entry(ledger, sequence, ledger.holder_of(sequence), now)


def _entry(ledger: Ledger, sequence: int, holder: Holder | None, now: int) -> Entry | None:
    deliveries, failures = ledger.deliveries(sequence), ledger.failures.get(sequence).failures
    if holder is not None:
        if holder is ledger.mover:
            return None
        lease = holder.in_flight[sequence]
        idle = max(now - lease.delivered, 0)
        name = "" if holder.parked else holder.name
        deadline = None if holder.keeps else lease.deadline
        return Entry(sequence, State.IN_FLIGHT, deliveries, name, idle, deadline, failures)
    if sequence in ledger.ready or sequence in ledger.alone:
        return Entry(sequence, State.READY, deliveries, failures=failures)
    due = ledger.deferred.due(sequence)
    if due is not None:
        return Entry(sequence, State.DEFERRED, deliveries, deadline=due, failures=failures)
    return None


class PendingScan:
    """Finds the lowest sequences that are pending beyond a place, in steps so that others get their turn.

    It looks at what was pending when it began; what is found may be pending no more.
    """

    def __init__(
        self,
        ledger: Ledger,
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
        self._left = [list(some) for some in _sequences(ledger, states, holder)]
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


def _sequences(ledger: Ledger, states: Container[State], name: str | None) -> Iterator[Iterable[int]]:
    if State.IN_FLIGHT in states:
        for holder in _holders(ledger, name):
            yield holder.in_flight
    if name is None and State.READY in states:
        yield ledger.ready
        yield ledger.alone
    if name is None and State.DEFERRED in states:
        yield ledger.deferred.sequences()


def entries(
    ledger: Ledger,
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
        leases = [each.in_flight for each in _holders(ledger, holder)]
        latest = now - min_idle
        found = [each for held in leases for each, lease in held.items() if each > after and lease.delivered <= latest]
    else:
        found = [each for some in _sequences(ledger, SHOWN, holder) for each in some if each > after]
    lowest = nsmallest(limit, found) if limit < len(found) >> 3 else sorted(found)[:limit]
    owners = _owners(ledger, lowest)
    shown = (_entry(ledger, sequence, owners.get(sequence), now) for sequence in lowest)
    return [entry for entry in shown if entry is not None]


def _holders(ledger: Ledger, name: str | None) -> list[Holder]:
    return [each for each in ledger.holders if each is not ledger.mover and (name is None or each.name == name)]


def _owners(ledger: Ledger, sequences: list[int]) -> dict[int, Holder]:
    """Return who holds which of these messages; one look at each holder, however many messages there are."""
    wanted = set(sequences)
    return {each: holder for holder in ledger.holders for each in holder.in_flight.keys() & wanted}
