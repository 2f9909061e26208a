"""Leases: what was delivered and is not yet answered for.

A lease covers all that one consumer was given within a few milliseconds, so that a delivery of a thousand messages
costs one object and one deadline. What each consumer holds stands in the consumer's own dictionary, sequence to
lease: a FIN looks in one place only, and can never finish what belongs to somebody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lapwing.broker.subscriber import Subscriber

SHARED: Final = 5_000_000  # ns within which deliveries to one consumer share a lease: a deadline may be so late
FEW: Final = 1024  # leases that are not worth a look at which of them are settled


@dataclass(slots=True)
class Lease:
    """What one consumer was given together."""

    holder: Subscriber
    delivered: int  # ns
    timeout: int  # ns
    deadline: int  # ns
    runs: list[range] = field(default_factory=list)


class InFlight:
    """All leases of one channel, by deadline."""

    __slots__ = ("_heap", "_many", "_number", "max_timeout")

    def __init__(self, max_timeout: int) -> None:
        self.max_timeout = max_timeout
        self._heap: list[tuple[int, int, Lease]] = []
        self._many = FEW  # that many leases are looked through for settled ones before another is added
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap)

    def deliver(self, run: range, holder: Subscriber, *, now: int) -> None:
        """Put a run of messages in the hands of `holder` until its timeout has passed."""
        lease = holder.lease
        if lease is None or now - lease.delivered > SHARED or lease.timeout != holder.timeout:
            lease = self._lease(holder, delivered=now, deadline=now + holder.timeout + SHARED)
            holder.lease = lease
        lease.runs.append(run)
        if holder.in_flight:
            holder.in_flight.update(dict.fromkeys(run, lease))
        else:
            holder.in_flight = dict.fromkeys(run, lease)

    def touch(self, sequence: int, holder: Subscriber, *, timeout: int, now: int) -> None:
        """Give `holder` a whole new timeout, but never past `max_timeout` from the delivery."""
        lease = holder.in_flight[sequence]
        deadline = min(now + timeout, lease.delivered + self.max_timeout)
        renewed = self._lease(holder, delivered=lease.delivered, deadline=deadline)
        renewed.runs.append(range(sequence, sequence + 1))
        holder.in_flight[sequence] = renewed

    def expire(self, now: int) -> list[tuple[Subscriber, list[int]]]:
        """Take back what was not answered in time: from whom, and which, in order of delivery."""
        expired: list[tuple[Subscriber, list[int]]] = []
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
        """When `expire` will have something to do, at the earliest."""
        heap = self._heap
        while heap and self._settled(heap[0][2]):
            heappop(heap)
        return heap[0][0] if heap else None

    @property
    def soonest(self) -> int | None:
        """The earliest deadline noted, which may have been answered for since."""
        return self._heap[0][0] if self._heap else None

    def clear(self) -> None:
        """Forget all leases; the holders' dictionaries are cleared by whoever empties the channel."""
        self._heap.clear()

    def _lease(self, holder: Subscriber, *, delivered: int, deadline: int) -> Lease:
        if len(self._heap) >= self._many:  # whoever touches one message without end makes a lease each time
            self._heap = [entry for entry in self._heap if not self._settled(entry[2])]
            heapify(self._heap)
            self._many = max(2 * len(self._heap), FEW)
        lease = Lease(holder, delivered, holder.timeout, deadline)
        self._number += 1
        heappush(self._heap, (deadline, self._number, lease))
        return lease

    @staticmethod
    def _settled(lease: Lease) -> bool:
        """Whether all of a lease has been answered for, or touched since (an open lease may still grow)."""
        held = lease.holder.in_flight
        if lease.holder.lease is lease:
            return False
        return all(held.keys().isdisjoint(run) or (len(run) == 1 and held[run[0]] is not lease) for run in lease.runs)
