"""Leases: messages that were delivered together, with their holder and deadline.

A lease covers everything that one holder was given within a few milliseconds, so that a delivery of a thousand
messages costs one object and one deadline. Each holder's own dictionary maps the sequences it holds to their leases: a
FIN looks in one place only, and can never finish a message of another holder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.holder import Holder

SHARED: Final = 5_000_000  # ns within which deliveries to one holder share a lease: a deadline may be so late
FEW: Final = 1024  # number of leases below which settled ones are not searched for


@dataclass(slots=True)
class Lease:
    """Messages that one holder was given together."""

    holder: Holder
    delivered: int  # ns
    timeout: int | None  # ns; None: the holder keeps it for ever
    deadline: int | None  # ns
    runs: list[range] = field(default_factory=list)


class Leases:
    """All leases of one channel, by deadline."""

    __slots__ = ("_heap", "_many", "_number", "max_timeout")

    def __init__(self, max_timeout: int) -> None:
        self.max_timeout = max_timeout
        self._heap: list[tuple[int, int, Lease]] = []
        self._many = FEW  # number of leases at which settled ones are dropped before another is added
        self._number = 0

    def __len__(self) -> int:
        """Return how many leases have a deadline, including some that are settled."""
        return len(self._heap)

    def deliver(self, run: range, holder: Holder, *, timeout: int | None, now: int) -> None:
        """Put a run of messages in flight with `holder`, until the timeout has passed."""
        lease = holder.lease
        if lease is None or now - lease.delivered > SHARED or lease.timeout != timeout:
            deadline = None if timeout is None else now + timeout + SHARED
            lease = self._lease(holder, delivered=now, timeout=timeout, deadline=deadline)
            holder.lease = lease
        lease.runs.append(run)
        holder.active = now
        if holder.in_flight:
            holder.in_flight.update(dict.fromkeys(run, lease))
        else:
            holder.in_flight = dict.fromkeys(run, lease)

    def hold(self, sequences: Iterable[int], holder: Holder, *, timeout: int | None, delivered: int) -> None:
        """Put messages in flight with `holder` as if they had been delivered at that time."""
        deadline = None if timeout is None else delivered + timeout + SHARED
        lease = self._lease(holder, delivered=delivered, timeout=timeout, deadline=deadline)
        holder.active = max(holder.active, delivered)
        for sequence in sequences:
            lease.runs.append(range(sequence, sequence + 1))
            holder.in_flight[sequence] = lease

    def touch(self, sequence: int, holder: Holder, *, timeout: int, now: int) -> None:
        """Give `holder` a whole new timeout, but never past `max_timeout` from the delivery."""
        lease = holder.in_flight[sequence]
        deadline = min(now + timeout, lease.delivered + self.max_timeout)
        renewed = self._lease(holder, delivered=lease.delivered, timeout=lease.timeout, deadline=deadline)
        renewed.runs.append(range(sequence, sequence + 1))
        holder.in_flight[sequence] = renewed

    def expire(self, now: int) -> list[tuple[Holder, list[int]]]:
        """Take messages from their holders whose deadline has passed: from whom, and which, in order of delivery."""
        expired: list[tuple[Holder, list[int]]] = []
        while self._heap and self._heap[0][0] <= now:
            _, _, lease = heappop(self._heap)
            held = lease.holder.in_flight
            late: list[int] = []
            for run in lease.runs:
                for sequence in run:  # twice in one lease, when it was requeued and delivered again within moments
                    if held.get(sequence) is lease:
                        del held[sequence]
                        late.append(sequence)
            if late:
                expired.append((lease.holder, late))
            if lease.holder.lease is lease:
                lease.holder.lease = None
        return expired

    def next_deadline(self) -> int | None:
        """Return the earliest time at which `expire` has something to do; drop leases that are settled."""
        heap = self._heap
        while heap and self._settled(heap[0][2]):
            heappop(heap)
        return heap[0][0] if heap else None

    @property
    def soonest(self) -> int | None:
        """The earliest deadline, which may be settled since."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Drop all leases; the caller clears the holders' dictionaries."""
        self._heap.clear()

    def _lease(self, holder: Holder, *, delivered: int, timeout: int | None, deadline: int | None) -> Lease:
        lease = Lease(holder, delivered, timeout, deadline)
        if deadline is None:
            return lease
        if len(self._heap) >= self._many:  # each TOUCH makes a lease
            self._heap = [entry for entry in self._heap if not self._settled(entry[2])]
            heapify(self._heap)
            self._many = max(2 * len(self._heap), FEW)
        self._number += 1
        heappush(self._heap, (deadline, self._number, lease))
        return lease

    @staticmethod
    def _settled(lease: Lease) -> bool:
        """Return whether nothing of a lease is in flight under it any more (an open lease may still grow)."""
        held = lease.holder.in_flight
        if lease.holder.lease is lease:
            return False
        return all(held.keys().isdisjoint(run) or (len(run) == 1 and held[run[0]] is not lease) for run in lease.runs)
