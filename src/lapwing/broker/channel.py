"""A channel of a topic: messages come in and go out, consumers come and go, time passes, and orders from above."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lapwing.broker import checkpoint, delivery, overflow, way_back
from lapwing.broker.channel_core import ChannelCore
from lapwing.broker.dead_letters import REJECTED
from lapwing.broker.delivery_limits import limits_of, same_limits
from lapwing.broker.holder import FATAL, PARKED, Holder
from lapwing.broker.holds import Hold
from lapwing.broker.pending import Reason
from lapwing.broker.settings import ChannelSettings
from lapwing.broker.skips import runs_of, union
from lapwing.broker.subscription import Subscription, Window
from lapwing.errors import CorruptChunk, CursorConflict, Exiting, OutOfRange, TooManyConsumers

if TYPE_CHECKING:
    from lapwing.broker.topic import Topic


_COPIED: Final = 200  # messages that are copied to a side log before others have their turn
_COPIED_BYTES: Final = 4 << 20  # the same in bytes
_LOOKED: Final = 50_000  # messages that are looked at


class Channel(ChannelCore):
    """One channel of one topic."""

    topic: Topic

    # --- messages come in --------------------------------------------------------------------------------------

    def accept(self, start: int, stop: int, deferrals: Iterable[tuple[int, int]], *, now: int) -> None:
        """Take [start, stop) from the topic; `deferrals` are (sequence, delay)."""
        cursor = self.reader.sequence
        self.message_count += max(stop - max(start, cursor), 0)
        for sequence, delay in deferrals:
            if sequence >= cursor:
                self.wait_first(sequence, until=now + delay)
        if self.ephemeral:
            self._drop_overflow(start, stop)
        self.changed()

    def pass_by(self, start: int, stop: int) -> None:
        """Pass over [start, stop) without delivering it: the topic has dropped it before handing it over."""
        self.ahead.add(start, stop)
        self.pass_over()
        self.journal_later()

    def _drop_overflow(self, start: int, stop: int) -> None:
        """Drop the newest of [start, stop), which has just come, that an ephemeral channel has no room for."""
        room = self.options.mem_queue_size + sum(max(each.room, 0) for each in self.subscriptions)
        surplus = self.depth - room
        if surplus > 0:
            start = max(stop - surplus, start, self.ahead.end)
            if start < stop:
                self.dropped_count += stop - start
                self.ahead.add(start, stop)

    # --- messages go out ---------------------------------------------------------------------------------------

    def deliver(self, now: int) -> None:
        """Deliver ready messages to the subscriptions with room."""
        if not self.stands_still(now):
            delivery.deliver(self, now)
        if self.sheds:
            overflow.shed(self, now=now)

    def deliver_to(self, subscription: Subscription, *, now: int) -> None:
        """Deliver ready messages to one subscription at once, as far as it has room."""
        if not self.stands_still(now):
            delivery.deliver_to(self, subscription, now)

    # --- consumers answer --------------------------------------------------------------------------------------

    def requeue(
        self,
        sequence: int,
        holder: Holder,
        *,
        delay: int,
        now: int,
        reason: Reason = Reason.REQUEUED,
        error: str = "",
    ) -> None:
        """Take a message back from its holder, ready at once or after `delay`. Raises `NotOwner`, `NotInFlight`."""
        self.pending.take(sequence, holder)
        holder.requeued_count += 1
        self.requeue_count += 1
        self.give_back([sequence], reason, delay=delay, now=now, consumer=holder.name, error=error)

    def requeue_run(self, sequences: Sequence[int], holder: Holder, *, delay: int, now: int) -> list[int]:
        """Take messages back as `requeue` does, as far as `holder` holds them; return the places of the others."""
        held, missing = holder.in_flight, []
        taken: list[int] = []
        for place, sequence in enumerate(sequences):
            if held.pop(sequence, None) is None:
                missing.append(place)
            else:
                taken.append(sequence)
        holder.requeued_count += len(taken)
        self.requeue_count += len(taken)
        if taken:
            self.give_back(taken, Reason.REQUEUED, delay=delay, now=now, consumer=holder.name)
        return missing

    def give_back(
        self,
        sequences: Sequence[int],
        reason: Reason,
        *,
        now: int,
        delay: int = 0,
        consumer: str = "",
        error: str = "",
    ) -> None:
        """Make messages ready again, defer them, or give them up, that no holder has any more."""
        way_back.give_back(self, sequences, reason, now=now, delay=delay, consumer=consumer, error=error)
        self.schedule(self.pending.deferred.next_due())
        self.changed()

    def reject(self, sequence: int, holder: Holder, *, now: int, error: str = "") -> None:
        """Give a message up that its holder never wants again. Raises `NotOwner`, `NotInFlight`."""
        self.pending.take(sequence, holder)
        way_back.give_up(self, [sequence], REJECTED, now=now, consumer=holder.name, error=error)

    # --- consumers come and go ---------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Add a consumer. Raises `Exiting` or `TooManyConsumers`."""
        if self.exiting:
            raise Exiting
        limit = self.options.max_channel_consumers
        if limit > 0 and len(self.subscriptions) >= limit:
            raise TooManyConsumers(f"consumers for {self.topic.name}:{self.name} exceeds limit of {limit}")
        self.subscriptions[subscription] = None
        self.window_count += isinstance(subscription, Window)
        self.pending.holders.attach(subscription.holder)
        if PARKED in self.pending.holders.named and isinstance(subscription, Window):
            self._unpark(self.pending.holders.named[PARKED])
        if subscription.room > 0:
            self.mark_ready(self)

    def _unpark(self, parked: Holder) -> None:
        """Requeue the messages that wait for a claim: a consumer has come that cannot claim."""
        attempts = self.pending.attempts
        ready = [sequence for sequence in sorted(parked.in_flight) if attempts.get(sequence) != FATAL]
        for sequence in ready:
            del parked.in_flight[sequence]
        self.give_back(ready, Reason.RELEASED, now=0)

    def unsubscribe(
        self, subscription: Subscription, *, now: int, reason: Reason, keep_in_flight: bool = False
    ) -> None:
        """Remove a consumer. Messages of a holder without a name are ready again, before everything else.

        With `keep_in_flight` they wait for their timeout instead, as in NSQ.
        """
        if self.subscriptions.pop(subscription, self) is self:
            return
        self.window_count -= isinstance(subscription, Window)
        holder = subscription.holder
        self.pending.holders.detach(holder)
        if not (holder.named or holder.attached or (keep_in_flight and not self.exiting)):
            self.give_back(self.pending.take_all(holder), reason, now=now, consumer=holder.name)

    # --- time passes -------------------------------------------------------------------------------------------

    def scan(self, now: int) -> None:
        """Requeue messages whose timeout has passed, and make deferred ones ready that are due."""
        self.scheduled = None
        if self.holds:
            if self.holds.drop_ended(now):
                self.changed()
            self.schedule(self.holds.next_end())
        if self.limits is not None:
            self.mark_ready(self)  # the rate may allow more by now
        for holder, late in self.pending.expire(now):
            self.timeout_count += len(late)
            self.give_back(late, Reason.TIMED_OUT, now=now, consumer=holder.name)
        ripe = self.pending.ripen(now, behind=self.topic.fanned_out)
        if ripe:
            self.changed()
            if self.pending.failures.records:
                way_back.resume(self, [each for each in ripe if self.pending.failures.get(each).doom], now=now)
        self.schedule(self.pending.leases.next_deadline())
        self.schedule(self.pending.deferred.next_due())

    # --- orders from above -------------------------------------------------------------------------------------

    def apply(self, effective: ChannelSettings, *, now: int) -> None:
        """Put settings in force."""
        if not same_limits(effective, self.effective):
            self.limits = limits_of(effective, now=now)
        self.sheds = overflow.sheds(effective)
        self.effective = effective
        for subscription in self.subscriptions:
            if subscription.default_timeout:
                subscription.timeout = effective.msg_timeout
        until = effective.paused_until - self.topic.skew
        if until > now:
            self.hold(Hold.PAUSED_UNTIL, until=until)
        else:
            self.lift(Hold.PAUSED_UNTIL)
        self.mark_ready(self)

    def empty(self, *, keep: Collection[int] = ()) -> None:
        """Finish every message of the channel; the copies of `keep` stay in the side log."""
        self.pending.clear(keep=keep)
        self.ahead.clear()
        self.finished_ahead.clear()
        self.claimed_ahead.clear()
        self.reader.seek(self.topic.fanned_out)
        self.quiet_until = 0
        self.changed()

    def seek(self, sequence: int, *, back: bool = False) -> None:
        """Move the cursor: every message before `sequence` is finished, every one from it on is delivered (again).

        Unfinished messages that the side log has come from there: the log may have them no more, or with another body.
        Raises `CursorConflict` when that goes back and `back` is false, `ReadFailed` and `WriteFailed`.
        """
        log = self.topic.log
        sequence = min(sequence, self.topic.fanned_out)
        if sequence >= self.cursor or self._passed_over_from(sequence):
            self.pending.finish_below(sequence)
            self.reader.seek(max(sequence, self.cursor, log.first))
        elif back:
            sequence = max(sequence, log.first)
            skips = checkpoint.find_skips(self, sequence)  # first: when the disk cannot be read, nothing has changed
            self.side_logged.flush()
            copied = self.side_logged.sequences
            kept = {each for each in self.pending.sequences() if each >= sequence and each in copied}
            self.empty(keep=kept)
            self.reader.seek(sequence)
            checkpoint.skip(self, skips)
            kept.difference_update(self.pending.sequences())
            self.ahead.merge(runs_of(kept))
            self.pending.give_back(sorted(kept), Reason.RETURNED, now=0)
        else:
            raise CursorConflict(f"the cursor of {self.topic.name}/{self.name} is at {self.cursor}, past {sequence}")
        self.pass_over()
        self.schedule(self.pending.deferred.next_due())
        self.quiet_until = 0  # the move is journaled at once
        self.changed()

    def move(self, sequence: int) -> None:
        """Move the cursor alone: pending messages stay pending, wherever it goes.

        A message that is in flight and is delivered again then changes hands, as on its first delivery. Messages that
        the log has no more, or with another body, stay where they are. Raises `ReadFailed` and `WriteFailed`.
        """
        log, before = self.topic.log, self.cursor
        sequence = min(max(sequence, log.first), log.end)
        if sequence < before:
            self.side_logged.flush()
            self.overlap = max(self.overlap, before)
            pending, copied = self.pending, self.side_logged.sequences
            for ready in [ready for ready in pending.requeued if ready >= sequence and ready not in copied]:
                pending.requeued.remove(ready)
            self.claimed_ahead = {each for each in copied if each >= sequence and self._differs(each)}
            waiting = [*pending.deferred.sequences(), *pending.alone, *pending.requeued, *self.claimed_ahead]
            skipped = runs_of(each for each in waiting if sequence <= each < before)
            self.ahead.merge(union(skipped, self.topic.emptied.since(sequence)))
        self.reader.seek(sequence)
        self.pass_over()
        self.quiet_until = 0  # the move is journaled at once
        self.changed()

    def _differs(self, sequence: int) -> bool:
        """Return whether the log delivers something else than the copy that is in the side log. Raises `ReadFailed`."""
        if sequence in self.topic.deleted:
            return True
        try:
            return self.topic.log.frame(sequence) != self.side_logged.frame(sequence)
        except (OutOfRange, CorruptChunk):
            return True

    def force(self, sequence: int, holder: Holder, *, delivered: int) -> None:
        """Put a message in flight with `holder`, whatever became of it before."""
        if sequence >= self.cursor:
            self.overlap = max(self.overlap, sequence + 1)
        self.pending.disown(range(sequence, sequence + 1))
        self.side_logged.notice([sequence])
        self.pending.holders[holder] = None
        self.pending.leases.hold([sequence], holder, timeout=None, delivered=delivered)
        self.changed()

    def _passed_over_from(self, sequence: int) -> bool:
        """Return whether the cursor has only jumped over [sequence, cursor): all of it was deferred, not delivered."""
        count = self.cursor - sequence
        pending = self.pending
        if len(pending.attempts) + len(pending.deferred) < count:
            return False
        return all(pending.deliveries(each) == 0 for each in range(sequence, self.cursor))

    def take_back(self, sequences: Iterable[int], *, now: int, dues: Mapping[int, int] = MappingProxyType({})) -> None:
        """Make finished messages below the cursor ready again, as far as they can still be read.

        The messages in `dues` are deferred until then.
        """
        unfinished, copied = set(self.pending.sequences()), self.side_logged.sequences
        first = self.topic.log.first
        there = [each for each in sequences if each not in unfinished and (each >= first or each in copied)]
        early = [each for each in there if dues.get(each, 0) > now]
        self.give_back([each for each in there if dues.get(each, 0) <= now], Reason.RETURNED, now=now)
        for sequence in early:
            self.give_back([sequence], Reason.RETURNED, now=now, delay=dues[sequence] - now)

    def close(self) -> None:
        """Refuse further calls, and hang up on all consumers."""
        self.exiting = True
        for subscription in list(self.subscriptions):
            subscription.hang_up()

    def copy_aside(self, below: int) -> bool:
        """Copy pending messages below that sequence into the side log, so that they pin no segment.

        Return whether all of them are there; a call copies so few that others do not wait for long. Raises `LogError`.
        """
        side = self.side_logged
        looked = size = 0
        while side.copied_below < below:
            some = self.pending.between(side.copied_below, below, _COPIED)
            frames = []
            for sequence in some:
                if sequence in side.sequences or sequence in self.topic.deleted:
                    continue
                if (frame := self.headed_frame(sequence)) is not None:
                    frames.append((sequence, frame))
                    size += len(frame)
                    if size > _COPIED_BYTES:
                        some = some[: some.index(sequence) + 1]
                        break
            if frames:
                side.keep(frames)
            looked += len(some)
            side.copied_below = some[-1] + 1 if len(some) == _COPIED or size > _COPIED_BYTES else below
            if size > _COPIED_BYTES or frames or looked >= _LOOKED:
                break
        return side.copied_below >= below
