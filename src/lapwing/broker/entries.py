"""Pending messages, one by one: for people, and for protocols that show them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import nsmallest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lapwing.broker.pending import Pending


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


def entries(
    pending: Pending,
    *,
    now: int,
    limit: int,
    states: Collection[State] = frozenset(State),
    holder: str | None = None,
    min_idle: int = 0,
    after: int = -1,
) -> list[Entry]:
    """Return up to `limit` pending messages beyond the sequence `after`, in rising order.

    With `holder` or `min_idle`, only messages in flight.
    """
    found: list[Entry] = []
    if State.IN_FLIGHT in states:
        found = nsmallest(limit, _in_flight(pending, now, holder, min_idle, after), key=_sequence)
    if holder is not None or min_idle:
        return found
    attempts = pending.attempts
    if State.READY in states:
        ready = (Entry(each, State.READY, attempts.get(each, 1)) for each in pending.requeued if each > after)
        found += nsmallest(limit, ready, key=_sequence)
    if State.DEFERRED in states:
        waiting = (
            Entry(each, State.DEFERRED, attempts.get(each, 1), deadline=due)
            for each, due in pending.deferred.items()
            if each > after
        )
        found += nsmallest(limit, waiting, key=_sequence)
    return sorted(found, key=_sequence)[:limit]


def _in_flight(pending: Pending, now: int, name: str | None, min_idle: int, after: int) -> Iterator[Entry]:
    for holder in pending.holders:
        if name is not None and holder.name != name:
            continue
        for sequence, lease in holder.in_flight.items():
            idle = max(now - lease.delivered, 0)
            if sequence > after and idle >= min_idle:
                deliveries = pending.attempts.get(sequence, 1)
                yield Entry(sequence, State.IN_FLIGHT, deliveries, holder.name, idle, lease.deadline)


def _sequence(entry: Entry) -> int:
    return entry.sequence
