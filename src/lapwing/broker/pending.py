"""Pending messages of a channel: in flight with a holder, requeued (some to be delivered alone), or deferred.

Every message that is not finished, and no longer waits for its first delivery at the cursor, is in exactly one of the
three. Finishing a message is dropping it from here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.broker.deferred import Deferred
from lapwing.broker.failures import Failures
from lapwing.broker.holder import FATAL, Holder, Holders
from lapwing.broker.leases import Lease, Leases
from lapwing.broker.requeued import Requeued

if TYPE_CHECKING:
    from lapwing.broker.latency import Latencies
    from lapwing.broker.side_logged import SideLogged

MOVER: Final = "dead letters"  # the name of the mover
NO_FAILURES: Final = Failures(journaled=False)  # of channels in which none was ever counted
RIPE: Final = 250  # deferred messages that become ready before others have their turn
_FIN: Final = 21  # bytes of one line in a run of FINs: `FIN <id>\n`


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


_BEHIND: Final = frozenset({Reason.REQUEUED, Reason.RELEASED, Reason.TIMED_OUT})  # wait behind what waits already
FAILURES: Final = frozenset({Reason.REQUEUED, Reason.TIMED_OUT, Reason.DISCONNECTED})


class Pending:
    """Leases, holders, and the messages that wait to be delivered again."""

    def __init__(
        self, side_logged: SideLogged, latencies: Latencies | None, *, max_timeout: int, journaled: bool
    ) -> None:
        self.leases = Leases(max_timeout)
        self.holders = Holders()
        self.requeued = Requeued()
        self.alone: dict[int, None] = {}  # to be delivered to a consumer that holds nothing else, in order
        self.failures: Failures = NO_FAILURES  # read only; see `own_failures`
        self.attempts: dict[int, int] = {}  # deliveries so far, of messages neither deferred nor on their first one
        self.deferred = Deferred(self.attempts, journaled=journaled)
        self.side_logged = side_logged
        self._latencies = latencies
        self._failed = NO_FAILURES.records
        self._journaled = journaled
        self._stamps: Collection[int] = latencies.stamps.keys() if latencies is not None else ()

    # --- who holds what ----------------------------------------------------------------------------------------

    def in_flight_or_requeued(self) -> list[int]:
        """Return the sequences of all messages that are not deferred, in no order."""
        sequences = [*self.requeued, *self.alone]
        for holder in self.holders:
            sequences.extend(holder.in_flight)
        return sequences

    def sequences(self) -> list[int]:
        """Return the sequences of all pending messages, in no order."""
        return self.in_flight_or_requeued() + self.deferred.sequences()

    def __contains__(self, sequence: int) -> bool:
        if sequence in self.requeued or sequence in self.alone or sequence in self.deferred:
            return True
        return self.holders.of(sequence) is not None

    def lowest(self, start: int = 0) -> int | None:
        """Return the lowest pending sequence from `start` on."""
        if start:
            lows = [sequence for sequence in self.in_flight_or_requeued() if sequence >= start]
            low = self.deferred.lowest(start)
            return min(lows if low is None else [*lows, low], default=None)
        lows = [min(holder.in_flight) for holder in self.holders if holder.in_flight]
        lows += [min(each) for each in (self.requeued, self.alone) if each]
        low = self.deferred.lowest()
        return min(lows if low is None else [*lows, low], default=None)

    def between(self, start: int, stop: int, most: int) -> list[int]:
        """Return the first `most` pending sequences of [start, stop), rising."""
        found = [sequence for sequence in self.in_flight_or_requeued() if start <= sequence < stop]
        found += self.deferred.between(start, stop, most)
        return sorted(found)[:most]

    def deliveries(self, sequence: int) -> int:
        """Return how often a pending message was delivered."""
        deliveries = self.deferred.deliveries(sequence) if self.deferred else None
        return self.attempts.get(sequence, 1) if deliveries is None else deliveries

    def drop_holder(self, name: str, *, now: int) -> list[int]:
        """Remove a named holder, and finish everything it holds; return these messages."""
        holder = self.holders.named.pop(name)
        finished = self.finish(list(holder.in_flight), now=now)
        holder.named = False
        self.holders.drop_if_gone(holder)
        return finished

    # --- finishing ---------------------------------------------------------------------------------------------

    def finish(self, sequences: Iterable[int], *, now: int) -> list[int]:
        """Finish messages, whoever holds them; return those that were pending, in no order."""
        wanted = set(sequences)
        finished: list[int] = []
        for holder in list(self.holders):
            held = holder.in_flight
            mine = held.keys() & wanted
            for sequence in mine:
                del held[sequence]
            holder.finished_count += len(mine)
            finished += mine
            self.holders.drop_if_gone(holder)
        finished += [sequence for sequence in wanted.difference(finished) if self.remove_waiting(sequence)]
        for sequence in finished:
            self.attempts.pop(sequence, None)
        self._finished(finished, now)
        return finished

    def finish_count(self, sequences: list[int], *, now: int) -> int:
        """Finish messages, whoever holds them; return how many were pending.

        The same as `finish`, in one call of the kernel for each holder that has any of them.
        """
        if self.side_logged.sequences or self._stamps or self._failed:
            return len(self.finish(sequences, now=now))
        left, holders = sequences, self.holders
        for holder in list(holders):
            held = holder.in_flight
            if held and left:
                before = len(held)
                left = kernel.finish_sequences(left, held, self.attempts)
                holder.finished_count += before - len(held)
                holders.drop_if_gone(holder)
        return len(sequences) - len(left) + (len(self.finish(left, now=now)) if left else 0)

    def finish_run(self, block: bytes, base: int, holder: Holder, *, now: int) -> list[bytes]:
        """Finish the messages that a run of FINs names, as far as `holder` holds them; return the other ids.

        The same as `finish`, but for one holder and in one call of the kernel. The ids count from `base`.
        """
        held = holder.in_flight
        before = len(held)
        noted: Collection[int] = ()
        if self.side_logged.sequences or self._stamps or self._failed:
            noted = self._noted(block, base, held)
        missing = kernel.finish(block, base, held, self.attempts)
        holder.finished_count += before - len(held)
        if noted:
            self._finished([sequence for sequence in noted if sequence not in held], now)
        return missing

    def _noted(self, block: bytes, base: int, held: Mapping[int, object]) -> set[int]:
        """Return the messages in flight that a run of FINs may name and that more is known of than their lease."""
        notes = self.side_logged.sequences, self._stamps, self._failed
        if len(block) // _FIN < min(len(held), sum(map(len, notes))):
            named = [_number(block[at : at + 16]) - base for at in range(4, len(block), _FIN)]
            return {each for each in named if each in held and any(each in note for note in notes)}
        return {each for each in held if any(each in note for note in notes)}

    def remove_waiting(self, sequence: int) -> bool:
        """Remove a message that waits to be delivered again; return whether it did."""
        if self.requeued.remove(sequence) or self.deferred.remove(sequence):
            return True
        return bool(self.alone) and self.alone.pop(sequence, self) is None

    def _finished(self, sequences: Sequence[int], now: int) -> None:
        self.side_logged.leave(sequences)
        if self._failed:
            for sequence in sequences:
                self.failures.drop(sequence)
        if self._latencies is not None:
            for sequence in sequences:
                self._latencies.finished(sequence, now=now)

    def drop(self, sequence: int) -> None:
        """Drop a message that is nowhere any more: it cannot be read, or nobody wants it."""
        self.remove_waiting(sequence)
        self.attempts.pop(sequence, None)
        self.failures.drop(sequence)
        self.side_logged.leave([sequence])

    def finish_below(self, sequence: int) -> None:
        """Finish every message below `sequence`, without counting it as anybody's."""
        for holder in list(self.holders):
            for held in [held for held in holder.in_flight if held < sequence]:
                del holder.in_flight[held]
                self._unstamp(held)
            self.holders.drop_if_gone(holder)
        for waiting in [waiting for waiting in (*self.requeued, *self.alone) if waiting < sequence]:
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
            self.holders.drop_if_gone(holder)
        self.leases.clear()
        self.deferred.clear()
        self.requeued.clear()
        self.alone.clear()
        self.failures.clear()
        self.attempts.clear()
        if self._latencies is not None:
            self._latencies.stamps.clear()
        self.side_logged.leave_all(keep=keep)

    # --- coming back -------------------------------------------------------------------------------------------

    def disown(self, run: range, keeper: Holder | None = None) -> None:
        """Take messages from everybody but `keeper`, as if they had never been delivered."""
        for sequence in run:
            for holder in list(self.holders):
                if holder is not keeper and holder.in_flight.pop(sequence, None) is not None:
                    self.holders.drop_if_gone(holder)
            self.remove_waiting(sequence)
            self.attempts.pop(sequence, None)
            self._unstamp(sequence)

    def take(self, sequence: int, holder: Holder) -> None:
        """Take a message from `holder`. Raises `NotOwner` or `NotInFlight`."""
        self.holders.check(sequence, holder)
        del holder.in_flight[sequence]

    def take_pending(self, sequences: Iterable[int]) -> list[int]:
        """Take pending messages from wherever they are; return them. What was given up is so no longer.

        What is on its way to the dead-letter topic is left alone.
        """
        taken: list[int] = []
        for sequence in sequences:
            holder = self.holders.of(sequence)
            if holder is not None:
                if holder is self.holders.mover:
                    continue
                del holder.in_flight[sequence]
                self.holders.drop_if_gone(holder)
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
        self.leases.next_deadline()  # drops its leases, which refer to the holder
        self.holders.drop_if_gone(holder)
        return sequences

    def expire(self, now: int) -> list[tuple[Holder, list[int]]]:
        """Take the messages from their holders whose timeout has passed, in order of delivery."""
        late = self.leases.expire(now)
        for holder, _ in late:
            self.holders.drop_if_gone(holder)
        return late

    def give_back(self, sequences: Sequence[int], reason: Reason, *, now: int, behind: int = 0, delay: int = 0) -> None:
        """Make messages ready again, or defer them by `delay`, that were taken from their holder.

        This is the only way back for a message, whatever the reason. After a failure or a timeout the messages wait
        until the cursor has reached `behind`; otherwise they come before everything else. A last chance stays one.
        """
        self.side_logged.notice(sequences)
        for sequence in sequences:
            self.attempts.setdefault(sequence, 1)
            self._unstamp(sequence)
        if delay > 0:
            for sequence in sequences:
                self.deferred.defer(sequence, until=now + delay)
            return
        if self._failed and reason not in FAILURES:
            sequences = self.keep_alone(sequences)
        if reason in _BEHIND:
            for sequence in sequences:
                self.requeued.append(sequence, behind=behind)
        else:
            for sequence in reversed(sequences):
                self.requeued.prepend(sequence)

    def ripen(self, now: int, *, behind: int) -> list[int]:
        """Make deferred messages ready that are due, at most `RIPE` of them, and return them.

        Those that are given up wait nowhere then.
        """
        ripe = self.deferred.ripe(now, RIPE)
        for sequence in self.keep_alone(ripe) if self._failed else ripe:
            if not self._failed or not self.failures.get(sequence).doom:
                self.requeued.append(sequence, behind=behind)
        return ripe

    def wait_alone(self, sequence: int) -> None:
        """Have a message that was taken from its holder delivered alone."""
        self.attempts.setdefault(sequence, 1)
        self._unstamp(sequence)
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
            self._unstamp(sequence)
        mover = self.holders.mover
        if mover is None:
            mover = self.holders.mover = Holder(MOVER)
            self.holders.attach(mover)
        mover.in_flight.update(dict.fromkeys(sequences, Lease(mover, now, None, None)))

    def refuse_move(self, sequences: Iterable[int], *, now: int, delay: int) -> list[int]:
        """Defer messages that could not be moved; return which of them the mover still had."""
        mover = self.holders.mover
        moving = mover.in_flight if mover is not None else {}
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
        """Put pending messages in flight with `to`, whoever has them; return which, in the order given.

        A message in flight is left with its holder for `min_idle` ns from its delivery. `delivered` is the new time of
        delivery (now), and the claim counts as one unless `counted` is false. A former holder can no longer finish it.
        """
        claimed: list[int] = []
        for sequence in dict.fromkeys(sequences):
            holder = self.holders.of(sequence)
            if holder is not None and holder is self.holders.mover:
                continue
            if holder is not None:
                if now - holder.in_flight[sequence].delivered < min_idle:
                    continue
                del holder.in_flight[sequence]
                if holder is not to:
                    self.holders.drop_if_gone(holder)
            elif not self.remove_waiting(sequence):
                continue
            self._unstamp(sequence)
            if counted:
                self.attempts[sequence] = min(self.attempts.get(sequence, 1) + 1, FATAL)
            else:
                self.attempts.setdefault(sequence, 1)
            claimed.append(sequence)
        if claimed:
            self.holders[to] = None
            self.leases.hold(claimed, to, timeout=timeout, delivered=now if delivered is None else min(delivered, now))
        return claimed

    def _unstamp(self, sequence: int) -> None:
        if self._latencies is not None:
            self._latencies.stamps.pop(sequence, None)


def _number(message_id: bytes) -> int:
    try:
        return int(message_id, 16)
    except ValueError:
        return -1
