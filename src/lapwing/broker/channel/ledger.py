"""The ledger of a channel: where each of its messages is, and who holds it.

A message is in exactly one state. It is AHEAD while it waits at the cursor for its first delivery, and FINISHED below
the cursor when the ledger does not know it; the ledger has all the others:

    READY       to be delivered again, in order; some wait until the cursor has reached a place
    IN_FLIGHT   with one holder, until its deadline
    DEFERRED    not ready before a certain time
    ALONE       ready, for a consumer that holds nothing else
    MOVING      on its way to the dead-letter topic

`MOVES` is the table of what may follow what. Deliveries that one holder got within a few milliseconds share a lease, so
that a delivery of a thousand messages costs one object and one deadline. Each holder's own dictionary maps what it
holds to leases: a FIN looks in one place only, and can never finish a message of another holder.

`setup.py` compiles this module as `_ledger`, with the types of `_ledger.pxd`; `broker/channel/__init__` chooses the
form.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from lapwing.broker.channel.deferred import Deferred
from lapwing.broker.failures.failures import Failures
from lapwing.errors import NotInFlight, NotOwner

if TYPE_CHECKING:
    from lapwing.broker.channel.keys import Keys
    from lapwing.broker.channel.latency import Latencies
    from lapwing.broker.channel.side_logged import SideLogged

SHARED: Final = 5_000_000  # ns within which deliveries to one holder share a lease: a deadline may be so late
FEW: Final = 1024  # number of leases below which settled ones are not searched for
RIPE: Final = 250  # deferred messages that become ready before others have their turn
MOVER: Final = "dead letters"  # the name of the mover
PARKED: Final = "\N{EMPTY SET} given back"  # the named holder of messages that wait for a claim; no client can name it
FATAL: Final = 2**63 - 1  # deliveries of a parked message that nobody is to get without a claim; no more are counted
NO_FAILURES: Final = Failures(journaled=False)  # of channels in which none was ever counted


class State(Enum):
    """The state of a message in a channel."""

    AHEAD = "ahead"
    READY = "ready"
    IN_FLIGHT = "in_flight"
    DEFERRED = "deferred"
    ALONE = "alone"
    MOVING = "moving"
    FINISHED = "finished"


MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.AHEAD: frozenset({State.IN_FLIGHT, State.DEFERRED, State.MOVING, State.FINISHED}),
    State.READY: frozenset(set(State) - {State.READY}),
    State.IN_FLIGHT: frozenset(set(State) - {State.IN_FLIGHT}),
    State.DEFERRED: frozenset(set(State) - {State.DEFERRED}),
    State.ALONE: frozenset(set(State) - {State.ALONE, State.READY}),  # a last chance stays one
    State.MOVING: frozenset({State.DEFERRED, State.FINISHED, State.AHEAD}),  # nobody takes it from the mover
    State.FINISHED: frozenset({State.READY, State.DEFERRED, State.AHEAD}),  # an operator takes it back
}  # a seek makes any message one that is ahead, or finished


class Reason(Enum):
    """The reason why a message comes back from its holder."""

    REQUEUED = "requeued"  # the consumer failed at it
    RELEASED = "released"  # the consumer did not try it
    TIMED_OUT = "timed out"
    DISCONNECTED = "disconnected"  # the connection was lost
    CLOSED = "closed"  # the consumer had announced its end, or the broker stops
    RESTARTED = "restarted"  # the broker was
    CLAIMED = "claimed"  # an operator took it from its holder
    RETURNED = "returned"  # an operator undid that it was finished
    REFUSED = "refused"  # its dead-letter topic did not take it


# in tuples: an enumeration computes its hash in Python
_BEHIND: Final = (Reason.REQUEUED, Reason.RELEASED, Reason.TIMED_OUT)  # wait behind what waits already
FAILURES: Final = (Reason.REQUEUED, Reason.TIMED_OUT, Reason.DISCONNECTED)


class Lease:
    """Messages that one holder was given together."""

    __slots__ = ("deadline", "delivered", "holder", "runs", "timeout")

    def __init__(self, holder: Holder, delivered: int, timeout: int | None, deadline: int | None) -> None:
        self.holder = holder
        self.delivered = delivered  # ns
        self.timeout = timeout  # ns; None: the holder keeps it for ever
        self.deadline = deadline  # ns
        self.runs: list[Sequence[int]] = []

    def settled(self) -> bool:
        """Return whether nothing is in flight under the lease any more (an open lease may still grow)."""
        held = self.holder.in_flight
        if self.holder.lease is self:
            return False
        if not held:
            return True
        for run in self.runs:
            if len(run) == 1:
                if held.get(run[0]) is self:
                    return False
            elif not held.keys().isdisjoint(run):
                return False
        return True


class Holder:
    """A consumer that holds messages of one channel.

    An anonymous holder belongs to one connection and ends with it. A named holder outlives connections and restarts:
    its messages stay with it until they are finished, given back or claimed.
    """

    __slots__ = (
        "active", "attached", "delivered_count", "finished_count", "in_flight", "keeps", "lease", "name", "named",
        "requeued_count", "seen",
    )  # fmt: skip

    def __init__(self, name: str = "", *, named: bool = False) -> None:
        self.name = name  # as shown to people; unique among named holders only
        self.named = named
        self.in_flight: dict[int, Lease] = {}  # sequence to lease
        self.lease: Lease | None = None  # the newest, which deliveries of the same moment join
        self.seen = 0  # time of its last request, ns; kept by the sessions of a named holder
        self.active = 0  # time at which it last got a message, ns
        self.attached = 0  # subscriptions that deliver to it
        self.keeps = False  # whether its messages do not time out for now
        self.delivered_count = 0
        self.finished_count = 0
        self.requeued_count = 0

    @property
    def parked(self) -> bool:
        """Whether it is nobody, and its messages wait for a claim."""
        return self.named and self.name == PARKED

    @property
    def gone(self) -> bool:
        """Whether nothing keeps the holder: no name, no subscription, and nothing in flight."""
        return not (self.named or self.attached or self.in_flight)


class Ready:
    """A queue of sequences. Each waits until the channel's cursor has reached the place it was queued behind."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: OrderedDict[int, int] = OrderedDict()  # in order: sequence, place

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self._places

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def append(self, sequences: Iterable[int], *, behind: int) -> None:
        """Queue messages behind all others, until the cursor has reached `behind`."""
        for sequence in sequences:
            self._places[sequence] = behind

    def prepend(self, sequences: Sequence[int]) -> None:
        """Queue messages before all others, in the order given."""
        places = self._places
        for sequence in reversed(sequences):
            places[sequence] = 0
            places.move_to_end(sequence, last=False)

    def merge(self, sequences: Iterable[int]) -> None:
        """Queue rising sequences that were never delivered, each before the messages that wait behind it."""
        rest = list(self._places.items())
        merged: OrderedDict[int, int] = OrderedDict()
        at = 0
        for sequence in sequences:
            while at < len(rest) and rest[at][1] <= sequence:
                merged[rest[at][0]] = rest[at][1]
                at += 1
            merged[sequence] = 0
        merged.update(rest[at:])
        self._places = merged

    def first(self) -> tuple[int, int] | None:
        """Return the first message, and the place that the cursor must have reached before it is delivered."""
        for entry in self._places.items():
            return entry
        return None

    def first_run(self, cursor: int, most: int) -> list[int]:
        """Return the messages at the head, at most `most`, that follow each other and may be delivered at `cursor`."""
        run: list[int] = []
        for sequence, behind in self._places.items():
            if behind > cursor or len(run) >= most or (run and sequence != run[-1] + 1):
                break
            run.append(sequence)
        return run

    def remove(self, sequence: int) -> bool:
        """Take a message out; return whether it was here."""
        return self._places.pop(sequence, None) is not None

    def clear(self) -> None:
        """Take all messages out."""
        self._places.clear()


class Ledger:
    """The states of the messages of one channel that are neither ahead nor finished."""

    def __init__(
        self, side_logged: SideLogged, latencies: Latencies | None, *, max_timeout: int, journaled: bool
    ) -> None:
        self.holders: dict[Holder, None] = {}  # in the order in which they came
        self.named: dict[str, Holder] = {}
        self.mover: Holder | None = None  # of messages on their way to the dead-letter topic; it has no deadline
        self.ready = Ready()
        self.alone: dict[int, None] = {}  # to be delivered to a consumer that holds nothing else, in order
        self.failures: Failures = NO_FAILURES  # read only; see `own_failures`
        self.attempts: dict[int, int] = {}  # deliveries so far, of messages neither deferred nor on their first one
        self.deferred = Deferred(self.attempts, journaled=journaled)
        self.side_logged = side_logged
        self.max_timeout = max_timeout
        self._leases: list[tuple[int, int, Lease]] = []  # a heap, by deadline; some are settled
        self._many = FEW  # number of leases at which settled ones are dropped before another is added
        self._number = 0
        self._latencies = latencies
        self._keys: Keys | None = None
        self._watched = latencies is not None  # whether anything else is to be noted when a message moves
        self._failed = NO_FAILURES.records
        self._journaled = journaled
        self._stamps: Collection[int] = latencies.stamps.keys() if latencies is not None else ()

    # --- what is where -----------------------------------------------------------------------------------------

    def state_of(self, sequence: int) -> State | None:
        """Return the state of a message; None when it is not here: it is ahead, or finished."""
        holder = self.holder_of(sequence)
        if holder is not None:
            return State.MOVING if holder is self.mover else State.IN_FLIGHT
        if sequence in self.ready:
            return State.READY
        if sequence in self.alone:
            return State.ALONE
        return State.DEFERRED if sequence in self.deferred else None

    def __contains__(self, sequence: int) -> bool:
        return self.state_of(sequence) is not None

    def in_flight_or_ready(self) -> list[int]:
        """Return the sequences of all messages that are not deferred, in no order."""
        sequences = [*self.ready, *self.alone]
        for holder in self.holders:
            sequences.extend(holder.in_flight)
        return sequences

    def sequences(self) -> list[int]:
        """Return the sequences of all messages here, in no order."""
        return self.in_flight_or_ready() + self.deferred.sequences()

    def unfinished(self) -> tuple[list[int], dict[int, int]]:
        """Return the messages that are neither deferred nor with a named holder, and the deliveries of some of them."""
        found = [*self.ready, *self.alone]
        for holder in self.holders:
            if not holder.named:
                found.extend(holder.in_flight)
        attempts = self.attempts
        return found, {sequence: attempts[sequence] for sequence in found if sequence in attempts}

    @property
    def waiting(self) -> int:
        """The number of messages that could be delivered again now, or are to be delivered alone."""
        return len(self.ready) + len(self.alone)

    def lowest(self, start: int = 0) -> int | None:
        """Return the lowest sequence from `start` on."""
        if start:
            lows = [sequence for sequence in self.in_flight_or_ready() if sequence >= start]
            low = self.deferred.lowest(start)
            return min(lows if low is None else [*lows, low], default=None)
        lows = [min(holder.in_flight) for holder in self.holders if holder.in_flight]
        lows += [min(each) for each in (self.ready, self.alone) if each]
        low = self.deferred.lowest()
        return min(lows if low is None else [*lows, low], default=None)

    def between(self, start: int, stop: int, most: int) -> list[int]:
        """Return the first `most` sequences of [start, stop), rising."""
        found = [sequence for sequence in self.in_flight_or_ready() if start <= sequence < stop]
        found += self.deferred.between(start, stop, most)
        return sorted(found)[:most]

    def deliveries(self, sequence: int) -> int:
        """Return how often a message was delivered."""
        deliveries = self.deferred.deliveries(sequence) if self.deferred else None
        return self.attempts.get(sequence, 1) if deliveries is None else deliveries

    # --- holders -----------------------------------------------------------------------------------------------

    @property
    def in_flight_count(self) -> int:
        """The number of messages in flight, or on their way to the dead-letter topic."""
        count = 0
        for holder in self.holders:
            count += len(holder.in_flight)
        return count

    @property
    def with_consumers(self) -> int:
        """The number of messages that consumers hold: those in flight, except for dead letters on their way."""
        return self.in_flight_count - (len(self.mover.in_flight) if self.mover is not None else 0)

    def holder_of(self, sequence: int) -> Holder | None:
        """Return the holder of a message."""
        for holder in self.holders:
            if sequence in holder.in_flight:
                return holder
        return None

    def check(self, sequence: int, holder: Holder) -> None:
        """Raise `NotOwner` or `NotInFlight` unless `holder` holds the message."""
        if sequence not in holder.in_flight:
            raise NotOwner if self.holder_of(sequence) else NotInFlight

    def attach(self, holder: Holder) -> None:
        """Add a holder, or a further subscription of one."""
        holder.attached += 1
        self.holders[holder] = None

    def detach(self, holder: Holder) -> None:
        """Note that a subscription of the holder has ended."""
        holder.attached -= 1
        if not holder.attached:
            holder.lease = None  # nothing joins it any more
            holder.keeps = False
        self._drop_if_gone(holder)

    def by_name(self, name: str) -> Holder:
        """Return the holder of that name, created if there is none. It lives until `drop_holder`."""
        holder = self.named.get(name)
        if holder is None:
            holder = self.named[name] = Holder(name, named=True)
            self.holders[holder] = None
        return holder

    def drop_holder(self, name: str, *, now: int) -> list[int]:
        """Remove a named holder, and finish everything it holds; return these messages."""
        holder = self.named.pop(name)
        finished = self.finish(holder.in_flight, now=now, holder=holder)
        holder.named = False
        self._drop_if_gone(holder)
        return finished

    def _drop_if_gone(self, holder: Holder) -> None:
        """Drop a holder that nothing keeps."""
        if holder.gone:
            self.holders.pop(holder, None)

    # --- in flight ---------------------------------------------------------------------------------------------

    def deliver(self, run: Sequence[int], holder: Holder, *, timeout: int | None, now: int) -> None:
        """Put a run of messages in flight with `holder`, until the timeout has passed."""
        lease = holder.lease
        if lease is None or now - lease.delivered > SHARED or lease.timeout != timeout:
            deadline = None if timeout is None else now + timeout + SHARED
            lease = self._lease(holder, now, timeout, deadline)
            holder.lease = lease
        lease.runs.append(run)
        holder.active = now
        if len(run) == 1:
            holder.in_flight[run[0]] = lease
        elif holder.in_flight:
            holder.in_flight.update(dict.fromkeys(run, lease))
        else:
            holder.in_flight = dict.fromkeys(run, lease)

    def hold(self, sequences: Iterable[int], holder: Holder, *, timeout: int | None, delivered: int) -> None:
        """Put messages in flight with `holder` as if they had been delivered at that time."""
        self.holders[holder] = None
        deadline = None if timeout is None else delivered + timeout + SHARED
        lease = self._lease(holder, delivered, timeout, deadline)
        holder.active = max(holder.active, delivered)
        for sequence in sequences:
            lease.runs.append(range(sequence, sequence + 1))
            holder.in_flight[sequence] = lease

    def count_deliveries(self, sequences: Iterable[int]) -> list[int]:
        """Count another delivery of each of these messages; return how many each has had by now."""
        attempts = self.attempts
        counts: list[int] = []
        for sequence in sequences:
            count = attempts[sequence] = min(attempts.get(sequence, 1) + 1, FATAL)
            counts.append(count)
        return counts

    def touch(self, sequence: int, holder: Holder, *, timeout: int, now: int) -> None:
        """Give `holder` a whole new timeout, but never past `max_timeout` from the delivery.

        Raises `NotOwner` or `NotInFlight`.
        """
        self.check(sequence, holder)
        lease = holder.in_flight[sequence]
        deadline = min(now + timeout, lease.delivered + self.max_timeout)
        renewed = self._lease(holder, lease.delivered, lease.timeout, deadline)
        renewed.runs.append(range(sequence, sequence + 1))
        holder.in_flight[sequence] = renewed

    def expire(self, now: int) -> list[tuple[Holder, list[int]]]:
        """Take messages from their holders whose deadline has passed: from whom, and which, in order of delivery.

        A holder that keeps its messages gets another timeout for them instead.
        """
        expired: list[tuple[Holder, list[int]]] = []
        while self._leases and self._leases[0][0] <= now:
            lease = heappop(self._leases)[2]
            if lease.holder.keeps:
                self._renew(lease, now)
                continue
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
        for holder, _ in expired:
            self._drop_if_gone(holder)
        return expired

    def _renew(self, lease: Lease, now: int) -> None:
        """Give a lease another timeout, if something is in flight under it."""
        if lease.holder.lease is lease:
            lease.holder.lease = None  # nothing joins it any more
        if not lease.settled():
            lease.deadline = deadline = now + max(lease.timeout or 0, SHARED)
            self._number += 1
            heappush(self._leases, (deadline, self._number, lease))

    def next_deadline(self) -> int | None:
        """Return the earliest time at which `expire` has something to do; drop leases that are settled."""
        heap = self._leases
        while heap and heap[0][2].settled():
            heappop(heap)
        return heap[0][0] if heap else None

    @property
    def soonest(self) -> int | None:
        """The earliest deadline, which may be settled since."""
        return self._leases[0][0] if self._leases else None

    @property
    def lease_count(self) -> int:
        """The number of leases that have a deadline, including some that are settled."""
        return len(self._leases)

    def _lease(self, holder: Holder, delivered: int, timeout: int | None, deadline: int | None) -> Lease:
        lease = Lease(holder, delivered, timeout, deadline)
        if deadline is None:
            return lease
        if len(self._leases) >= self._many:  # each TOUCH makes a lease
            self._leases = [entry for entry in self._leases if not entry[2].settled()]
            heapify(self._leases)
            self._many = max(2 * len(self._leases), FEW)
        self._number += 1
        heappush(self._leases, (deadline, self._number, lease))
        return lease

    # --- finished ----------------------------------------------------------------------------------------------

    def finish(self, sequences: Iterable[int], *, now: int, holder: Holder | None = None) -> list[int]:
        """Finish messages of `holder`, or of whoever has them; return those that were here, once each.

        With a holder they are in the order given.
        """
        left = list(sequences)
        finished: list[int] = []
        for each in [*self.holders] if holder is None else [holder]:
            mine = self._pull(each, left)
            if mine:
                each.finished_count += len(mine)
                finished += mine
                left = [] if len(mine) == len(left) else [*set(left).difference(mine)]
                self._drop_if_gone(each)
        if holder is None:
            finished += [sequence for sequence in left if self.remove_waiting(sequence)]
        if self.attempts:
            for sequence in finished:
                self.attempts.pop(sequence, None)
        self._finished(finished, now)
        return finished

    def _pull(self, holder: Holder, sequences: list[int]) -> list[int]:
        """Take messages out of what a holder has in flight; return those that it had."""
        held = holder.in_flight
        return [sequence for sequence in sequences if held.pop(sequence, None) is not None] if held else []

    def remove_waiting(self, sequence: int) -> bool:
        """Remove a message that waits to be delivered again; return whether it did."""
        if self.ready.remove(sequence) or self.deferred.remove(sequence):
            return True
        return bool(self.alone) and self.alone.pop(sequence, self) is None

    def _finished(self, sequences: Sequence[int], now: int) -> None:
        self.side_logged.leave(sequences)
        if self._failed:
            self.failures.drop(sequences)
        if self._watched:
            if self._keys is not None:
                self._keys.leave(sequences)
            if self._latencies is not None:
                for sequence in sequences:
                    self._latencies.finished(sequence, now=now)

    def drop(self, sequence: int) -> None:
        """Drop a message that is nowhere any more: it cannot be read, or nobody wants it."""
        self.remove_waiting(sequence)
        self.attempts.pop(sequence, None)
        self.failures.drop([sequence])
        self.side_logged.leave([sequence])
        if self._keys is not None:
            self._keys.leave((sequence,))

    def finish_below(self, sequence: int) -> None:
        """Finish every message below `sequence`, without counting it as anybody's."""
        for holder in list(self.holders):
            for held in [held for held in holder.in_flight if held < sequence]:
                del holder.in_flight[held]
                self._moved(held)
            self._drop_if_gone(holder)
        for waiting in [waiting for waiting in (*self.ready, *self.alone) if waiting < sequence]:
            self.remove_waiting(waiting)
        self.deferred.drop_below(sequence)
        self.failures.drop_below(sequence)
        for tried in [tried for tried in self.attempts if tried < sequence]:
            del self.attempts[tried]
        self.side_logged.leave(self.side_logged.sequences.between(0, sequence, 1 << 62))

    def clear(self, *, keep: Collection[int] = ()) -> None:
        """Finish everything, without counting it as anybody's; the copies of `keep` stay in the side log."""
        for holder in list(self.holders):
            holder.in_flight = {}
            holder.lease = None
            self._drop_if_gone(holder)
        self._leases.clear()
        self.deferred.clear()
        self.ready.clear()
        self.alone.clear()
        self.failures.clear()
        self.attempts.clear()
        if self._latencies is not None:
            self._latencies.stamps.clear()
        self.side_logged.leave_all(keep=keep)

    # --- taken from where it is --------------------------------------------------------------------------------

    def disown(self, run: range, keeper: Holder | None = None) -> None:
        """Take messages from everybody but `keeper`, as if they had never been delivered."""
        for sequence in run:
            for holder in list(self.holders):
                if holder is not keeper and holder.in_flight.pop(sequence, None) is not None:
                    self._drop_if_gone(holder)
            self.remove_waiting(sequence)
            self.attempts.pop(sequence, None)
            self._moved(sequence)

    def take(self, sequence: int, holder: Holder) -> None:
        """Take a message from `holder`. Raises `NotOwner` or `NotInFlight`."""
        self.check(sequence, holder)
        del holder.in_flight[sequence]

    def take_run(self, sequences: Sequence[int], holder: Holder) -> tuple[list[int], list[int]]:
        """Take messages from `holder`; return those it held, and the places in `sequences` of the others."""
        taken = self._pull(holder, list(sequences))
        return taken, others(sequences, taken)

    def take_pending(self, sequences: Iterable[int]) -> list[int]:
        """Take messages from wherever they are; return them. What was given up is so no longer.

        What is on its way to the dead-letter topic is left alone.
        """
        taken: list[int] = []
        for sequence in sequences:
            holder = self.holder_of(sequence)
            if holder is not None:
                if holder is self.mover:
                    continue
                del holder.in_flight[sequence]
                self._drop_if_gone(holder)
            elif not self.remove_waiting(sequence):
                continue
            if self._failed and self.failures.get(sequence).doom:
                self.failures.pardon(sequence)
            taken.append(sequence)
        return taken

    def take_all(self, holder: Holder) -> list[int]:
        """Take all messages from `holder`, in rising order."""
        sequences = sorted(holder.in_flight)
        holder.in_flight = {}
        holder.lease = None
        self.next_deadline()  # drops its leases, which refer to the holder
        self._drop_if_gone(holder)
        return sequences

    # --- and put somewhere else --------------------------------------------------------------------------------

    def give_back(self, sequences: Sequence[int], reason: Reason, *, now: int, behind: int = 0, delay: int = 0) -> None:
        """Make messages ready again, or defer them by `delay`, that were taken from their holder.

        This is the only way back for a message, whatever the reason. After a failure or a timeout the messages wait
        until the cursor has reached `behind`; otherwise they come before everything else. A last chance stays one.
        """
        self.side_logged.notice(sequences)
        attempts = self.attempts
        for sequence in sequences:
            if sequence not in attempts:
                attempts[sequence] = 1
        if self._watched:
            self._come_back(sequences, delay)
        if delay > 0:
            for sequence in sequences:
                self.deferred.defer(sequence, until=now + delay)
            return
        if self._failed and reason not in FAILURES:
            sequences = self.keep_alone(sequences)
        if reason in _BEHIND:
            self.ready.append(sequences, behind=behind)
        else:
            self.ready.prepend(sequences)

    def ripen(self, now: int, *, behind: int) -> list[int]:
        """Make deferred messages ready that are due, at most `RIPE` of them, and return them.

        Those that are given up wait nowhere then.
        """
        ripe = self.deferred.ripe(now, RIPE)
        if self._failed:
            kept = self.keep_alone(ripe)
            self.ready.append([each for each in kept if not self.failures.get(each).doom], behind=behind)
        else:
            self.ready.append(ripe, behind=behind)
        return ripe

    def wait_alone(self, sequence: int) -> None:
        """Have a message that was taken from its holder delivered alone."""
        self.attempts.setdefault(sequence, 1)
        self._moved(sequence)
        self.own_failures().try_alone(sequence)
        self.alone[sequence] = None

    def keep_alone(self, sequences: Sequence[int]) -> list[int]:
        """Have those messages delivered alone that are to be, and wait nowhere; return the others."""
        last = self.failures.last_chances(sequences)
        self.alone.update(last)
        return [sequence for sequence in sequences if sequence not in last]

    def own_failures(self) -> Failures:
        """Return the failures of this channel, to be changed: most channels never have any."""
        if self.failures is NO_FAILURES:
            self.failures = Failures(journaled=self._journaled)
            self._failed = self.failures.records
        return self.failures

    def move(self, sequences: Sequence[int], *, now: int) -> None:
        """Put messages that no holder has any more in the hands of the mover of dead letters."""
        for sequence in sequences:
            self.attempts.setdefault(sequence, 1)
            self._moved(sequence)
        mover = self.mover
        if mover is None:
            mover = self.mover = Holder(MOVER)
            self.attach(mover)
        mover.in_flight.update(dict.fromkeys(sequences, Lease(mover, now, None, None)))

    def refuse_move(self, sequences: Iterable[int], *, now: int, delay: int) -> list[int]:
        """Defer messages that could not be moved; return which of them the mover still had."""
        moving = self.mover.in_flight if self.mover is not None else {}
        held = [sequence for sequence in sequences if moving.pop(sequence, None) is not None]
        self.give_back(held, Reason.REFUSED, now=now, delay=max(delay, 1))
        return held

    def claim(
        self,
        sequences: Iterable[int],
        to: Holder,
        *,
        now: int,
        min_idle: int = 0,
        timeout: int | None = None,
        delivered: int | None = None,
        counted: bool = True,
    ) -> list[int]:
        """Put messages in flight with `to`, whoever has them; return which, in the order given.

        A message in flight is left with its holder for `min_idle` ns from its delivery. `delivered` is the new time of
        delivery (now), and the claim counts as one unless `counted` is false. A former holder can no longer finish it.
        """
        claimed: list[int] = []
        for sequence in dict.fromkeys(sequences):
            holder = self.holder_of(sequence)
            if holder is not None and holder is self.mover:
                continue
            if holder is not None:
                if now - holder.in_flight[sequence].delivered < min_idle:
                    continue
                del holder.in_flight[sequence]
                if holder is not to:
                    self._drop_if_gone(holder)
            elif not self.remove_waiting(sequence):
                continue
            self._moved(sequence)
            if counted:
                self.attempts[sequence] = min(self.attempts.get(sequence, 1) + 1, FATAL)
            else:
                self.attempts.setdefault(sequence, 1)
            claimed.append(sequence)
        if claimed:
            self.hold(claimed, to, timeout=timeout, delivered=now if delivered is None else min(delivered, now))
        return claimed

    def _moved(self, sequence: int) -> None:
        if self._watched:
            if self._keys is not None:
                self._keys.moved(sequence)
            if self._latencies is not None:
                self._latencies.stamps.pop(sequence, None)

    def _come_back(self, sequences: Sequence[int], delay: int) -> None:
        if self._keys is not None and delay > 0:
            self._keys.put_off(sequences)
        if self._latencies is not None:
            for sequence in sequences:
                self._latencies.stamps.pop(sequence, None)

    def follow(self, keys: Keys | None, ready: Ready) -> None:
        """Report to `keys` from now on where messages go, if there are any; `ready` is the queue from now on."""
        self._keys = keys
        self._watched = keys is not None or self._latencies is not None
        self.ready = ready


def others(sequences: Sequence[int], done: list[int]) -> list[int]:
    """Return the places in `sequences` of those that are not `done`, which has the same order."""
    if len(done) == len(sequences):
        return []
    rest = iter(done)
    following = next(rest, None)
    places: list[int] = []
    for place, sequence in enumerate(sequences):
        if sequence == following:
            following = next(rest, None)
        else:
            places.append(place)
    return places
