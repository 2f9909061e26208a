"""One cursor over a topic's log, and who gets the next slice.

For a channel a message of the topic is exactly one of: ahead of the cursor (waiting for its first delivery), in flight
with one holder, requeued, deferred, or finished. The middle three are in `pending`; a message below the cursor that is
not there is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from lapwing import names
from lapwing.broker import checkpoint, delivery, overflow, way_back
from lapwing.broker.dead_letter_link import DeadLetterLink
from lapwing.broker.dead_letters import REJECTED
from lapwing.broker.delivery_limits import DeliveryLimits, limits_of, same_limits
from lapwing.broker.failures import FailureCounts
from lapwing.broker.holder import FATAL, PARKED, Holder
from lapwing.broker.latency import Latencies
from lapwing.broker.pending import Pending, Reason
from lapwing.broker.settings import ChannelSettings, default_dead_topic
from lapwing.broker.side_logged import SideLogged
from lapwing.broker.skips import Run, Runs, SkippedRuns, runs_of, union
from lapwing.broker.subscription import Subscription, Window
from lapwing.errors import (
    CorruptChunk,
    CursorConflict,
    Exiting,
    OutOfRange,
    ReadFailed,
    TooManyConsumers,
)
from lapwing.log.segment import time_of

if TYPE_CHECKING:
    from lapwing.broker.options import Options
    from lapwing.broker.seek import Bookmark
    from lapwing.broker.topic import Topic
    from lapwing.log.journal import HolderState


class Channel:
    """One channel of one topic."""

    def __init__(
        self,
        name: str,
        topic: Topic,
        options: Options,
        *,
        cursor: int,
        mark_ready: Callable[[Channel], None],
        effective: ChannelSettings,
    ) -> None:
        self.name = name
        self.topic = topic
        self.ephemeral = names.ephemeral(name)
        self.paused = False
        self.exiting = False
        self.subscriptions: dict[Subscription, None] = {}  # the oldest first
        self.reader = topic.log.reader(cursor)
        self.ahead = SkippedRuns()
        self.finished_ahead = Runs()  # of those that it skips, the ones that are finished
        self.saved_ahead: list[Run] = []  # what of them is in the journal
        self.side_logged = SideLogged(topic, name)
        self.latencies = Latencies(options) if options.e2e_processing_latency_percentiles else None
        self.pending = Pending(
            self.side_logged,
            self.latencies,
            max_timeout=options.max_msg_timeout,
            journaled=not (self.ephemeral or topic.ephemeral),
        )
        self.settings: dict[str, Any] = {}  # its own
        self.effective = effective  # what holds, with policies, flags and defaults
        self.paused_until = 0  # ns; the end of a pause that has one
        self.door_state: dict[str, Any] = {}  # JSON that a door keeps with the channel
        self.saved_state: dict[str, Any] = {}  # what of it is in the journal
        self.saved_holders: dict[str, HolderState] = {}  # the named holders as they are in the journal
        self.overlap = 0  # messages from the cursor up to here may be in flight, and are taken from their holder
        self.bookmark: Bookmark | None = None  # where it stood before the last seek
        self.dead: DeadLetterLink | None = None
        self.notes: dict[str, bytes] = {}  # as the journal has them
        self.counts = FailureCounts()
        self.limits: DeliveryLimits | None = None
        self.sheds = False  # whether it drops or gives up what is too much
        self.reserved: dict[Subscription, int | None] = {}  # consumers kept for messages delivered alone, and these
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.delivered = [0, 0, 0]  # by locality of the consumer: elsewhere, same region, same zone
        self.dropped_count = 0  # what did not fit an ephemeral channel
        self.discarded_count = 0  # what a sampling consumer did not want
        self.dirty = True  # something the journal has not been told
        self.quiet_until = 0  # the journal need not hear of it before, ns
        self.scheduled: int | None = None
        self._mark_ready = mark_ready
        self.topology_aware = options.topology_aware
        self._options = options
        self.turn = 0  # counts deliveries, so that another consumer is first each time
        self.random = Random(f"{topic.name}/{name}")

    def __str__(self) -> str:
        return f"channel {self.topic.name}/{self.name}"

    # --- what it shows -----------------------------------------------------------------------------------------

    @property
    def cursor(self) -> int:
        """The first sequence that was neither delivered nor skipped."""
        return self.reader.sequence

    @property
    def depth(self) -> int:
        """How many messages are ready to be delivered."""
        waiting = max(self.topic.fanned_out - self.reader.sequence, 0) - self.ahead.count
        if self.topic.deleted:
            waiting -= self._deleted_ahead()
        return waiting + len(self.pending.requeued) + len(self.pending.alone)

    def _deleted_ahead(self) -> int:
        """Return how many messages that wait for their first delivery are deleted."""
        deleted = self.topic.deleted
        skipped = sum(deleted.count(start, stop) for start, stop in self.ahead.runs) if self.ahead.count else 0
        return deleted.count(self.reader.sequence, self.topic.fanned_out) - skipped

    @property
    def in_flight_count(self) -> int:
        """How many messages are in flight."""
        return self.pending.in_flight_count

    def waiting_bytes(self) -> int:
        """About how many bytes of messages wait for their first delivery."""
        return self.topic.log.bytes_from(self.cursor)

    def dead_link(self) -> DeadLetterLink:
        """Return what ties the channel to dead letters, created if there is nothing yet."""
        if self.dead is None:
            self.dead = DeadLetterLink()
        return self.dead

    @property
    def dead_topic(self) -> str:
        """The name of the topic for messages that are given up; empty when they are dropped."""
        named = self.effective.dead_topic
        return default_dead_topic(self.topic.name, self.name) if named is None else named

    def needed_from(self) -> int:
        """Return the first sequence of the topic's log that this channel may still read."""
        self.pass_over()  # with nothing to deliver nobody else does
        low, copied = self.pending.lowest(), self.side_logged.sequences
        if low is None or low >= self.cursor:
            return self.cursor
        if copied:
            low = min((each for each in self.pending.sequences() if each not in copied), default=self.cursor)
        return min(low, self.cursor)

    def oldest(self) -> int | None:
        """Return the lowest sequence that is not finished, if any is left."""
        self.pass_over()
        low = self.pending.lowest()
        if self.cursor < self.topic.fanned_out:
            return self.cursor if low is None else min(low, self.cursor)
        return low

    def published_at(self, sequence: int) -> int | None:
        """Return when an unfinished message was published; None when that cannot be read, now or any more."""
        try:
            if sequence in self.side_logged.sequences:
                return time_of(self.side_logged.frame(sequence))
            return self.topic.log.timestamp(sequence)
        except (OutOfRange, CorruptChunk, ReadFailed):
            return None

    def frame(self, sequence: int) -> bytes | None:
        """Return the frame of an unfinished message; None when it is lost to a corrupt chunk. Raises `ReadFailed`."""
        try:
            if sequence in self.side_logged.sequences:
                return self.side_logged.frame(sequence)
            return self.topic.log.frame(sequence)
        except (OutOfRange, CorruptChunk) as error:
            self.topic.report(f"channel {self.name}: message {sequence} cannot be delivered again: {error}")
            return None

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

    def wait_first(self, sequence: int, *, until: int) -> None:
        """Defer a message that was never delivered; the cursor skips it."""
        self.ahead.add(sequence, sequence + 1)
        self.pending.attempts[sequence] = 0
        self.pending.deferred.defer(sequence, until=until)
        self.schedule(until)

    def pass_by(self, start: int, stop: int) -> None:
        """Never deliver [start, stop), which the topic has dropped before handing it over."""
        self.ahead.add(start, stop)
        self.pass_over()
        self.dirty = True

    def _drop_overflow(self, start: int, stop: int) -> None:
        """Drop the newest of [start, stop), which has just come, that an ephemeral channel has no room for."""
        room = self._options.mem_queue_size + sum(max(each.room, 0) for each in self.subscriptions)
        surplus = self.depth - room
        if surplus > 0:
            start = max(stop - surplus, start, self.ahead.end)
            if start < stop:
                self.dropped_count += stop - start
                self.ahead.add(start, stop)

    # --- messages go out ---------------------------------------------------------------------------------------

    def deliver(self, now: int) -> None:
        """Deliver ready messages to the subscriptions with room."""
        if not (self.paused or self.exiting or self.paused_until > now):
            delivery.deliver(self, now)
        if self.sheds:
            overflow.shed(self, now=now)

    def deliver_to(self, subscription: Subscription, *, now: int) -> None:
        """Deliver ready messages to one subscription at once, as far as it has room."""
        if not (self.paused or self.exiting or self.paused_until > now):
            delivery.deliver_to(self, subscription, now)

    def pass_over(self) -> None:
        """Move the cursor past what it skips."""
        jumped = self.ahead.pass_over(self.reader.sequence)
        deleted = self.topic.deleted
        while deleted and (beyond := deleted.jump(jumped)) != jumped:
            jumped = self.ahead.pass_over(min(beyond, max(self.topic.fanned_out, jumped)))
            if jumped < beyond:
                break
        if jumped != self.reader.sequence:
            self.reader.seek(jumped)

    # --- consumers answer --------------------------------------------------------------------------------------

    def finish(self, sequences: Iterable[int], *, now: int) -> list[int]:
        """Finish messages, whoever holds them; return those that were pending."""
        finished = self.pending.finish(sequences, now=now)
        if self.ahead.count and (ahead := [sequence for sequence in finished if sequence >= self.cursor]):
            self.finished_ahead.add(runs_of(ahead))
        self.changed()
        return finished

    def finish_ahead(self, runs: Sequence[Run]) -> None:
        """Finish messages that wait for their first delivery; the cursor skips them, after a restart too."""
        self.ahead.merge(runs)
        self.finished_ahead.add(runs)
        self.changed()

    def finish_count(self, sequences: list[int], *, now: int) -> int:
        """Finish messages, whoever holds them; return how many were pending."""
        count = self.pending.finish_count(sequences, now=now)
        self.changed()
        return count

    def finish_run(self, block: bytes, holder: Holder, *, now: int) -> list[bytes]:
        """Finish a run of messages, given as the lines of their FINs; return the ids that `holder` does not hold."""
        missing = self.pending.finish_run(block, self.topic.id_base, holder, now=now)
        self.changed()
        return missing

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
        """Put pending messages in flight with `to`, whoever has them; return which. See `Pending.claim`."""
        claimed = self.pending.claim(
            sequences, to, now=now, min_idle=min_idle, timeout=timeout, delivered=delivered, counted=counted
        )
        self.schedule(self.pending.leases.soonest)
        self.changed()
        return claimed

    def touch(self, sequence: int, holder: Holder, *, timeout: int, now: int) -> None:
        """Give a holder more time for a message. Raises `NotOwner` or `NotInFlight`."""
        self.pending.check_holder(sequence, holder)
        self.pending.leases.touch(sequence, holder, timeout=timeout, now=now)
        self.schedule(self.pending.leases.soonest)

    # --- consumers come and go ---------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Add a consumer. Raises `Exiting` or `TooManyConsumers`."""
        if self.exiting:
            raise Exiting
        limit = self._options.max_channel_consumers
        if limit > 0 and len(self.subscriptions) >= limit:
            raise TooManyConsumers(f"consumers for {self.topic.name}:{self.name} exceeds limit of {limit}")
        self.subscriptions[subscription] = None
        self.pending.attach(subscription.holder)
        if PARKED in self.pending.named and isinstance(subscription, Window):
            self._unpark(self.pending.named[PARKED])
        if subscription.room > 0:
            self._mark_ready(self)

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
        holder = subscription.holder
        self.pending.detach(holder)
        if not (holder.named or holder.attached or (keep_in_flight and not self.exiting)):
            self.give_back(self.pending.take_all(holder), reason, now=now, consumer=holder.name)

    # --- time passes -------------------------------------------------------------------------------------------

    def scan(self, now: int) -> None:
        """Requeue messages whose timeout has passed, and make deferred ones ready that are due."""
        self.scheduled = None
        if self.paused_until:
            if self.paused_until <= now:
                self.paused_until = 0
                self._mark_ready(self)
            else:
                self.schedule(self.paused_until)
        if self.limits is not None:
            self._mark_ready(self)  # the rate may allow more by now
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

    def schedule(self, due: int | None) -> None:
        """Have `scan` called at that time, if not before."""
        if due is not None and (self.scheduled is None or due < self.scheduled):
            self.scheduled = due
            self.topic.schedule(due, self)

    def changed(self) -> None:
        """Have the channel journaled, and deliver at the end of this turn."""
        self.dirty = True
        self._mark_ready(self)

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
        self.paused_until = until if until > now else 0
        if self.paused_until:
            self.schedule(self.paused_until)
        self._mark_ready(self)

    def empty(self) -> None:
        """Finish every message of the channel."""
        self.pending.clear()
        self.ahead.clear()
        self.finished_ahead.clear()
        self.reader.seek(self.topic.fanned_out)
        self.quiet_until = 0
        self.changed()

    def seek(self, sequence: int, *, back: bool = False) -> None:
        """Move the cursor: every message before `sequence` is finished, every one from it on is delivered (again).

        Raises `CursorConflict` when that goes back and `back` is false, and `ReadFailed`.
        """
        log = self.topic.log
        sequence = min(sequence, self.topic.fanned_out)
        if sequence >= self.cursor or self._passed_over_from(sequence):
            self.pending.finish_below(sequence)
            self.reader.seek(max(sequence, self.cursor, log.first))
        elif back:
            sequence = max(sequence, log.first)
            skips = checkpoint.find_skips(self, sequence)  # first: when the disk cannot be read, nothing has changed
            self.empty()
            self.reader.seek(sequence)
            checkpoint.skip(self, skips)
        else:
            raise CursorConflict(f"the cursor of {self.topic.name}/{self.name} is at {self.cursor}, past {sequence}")
        self.pass_over()
        self.schedule(self.pending.deferred.next_due())
        self.quiet_until = 0  # the move is journaled at once
        self.changed()

    def move(self, sequence: int) -> None:
        """Move the cursor alone: pending messages stay pending, wherever it goes.

        A message that is in flight and is delivered again then changes hands, as on its first delivery.
        """
        log, before = self.topic.log, self.cursor
        sequence = min(max(sequence, log.first), log.end)
        if sequence < before:
            self.overlap = max(self.overlap, before)
            for waiting in [waiting for waiting in self.pending.requeued if waiting >= sequence]:
                self.pending.requeued.remove(waiting)
            deferred = runs_of(each for each in self.pending.deferred.sequences() if sequence <= each < before)
            self.ahead.merge(union(deferred, self.topic.emptied.since(sequence)))
        self.reader.seek(sequence)
        self.pass_over()
        self.quiet_until = 0  # the move is journaled at once
        self.changed()

    def force(self, sequence: int, holder: Holder, *, delivered: int) -> None:
        """Put a message in flight with `holder`, whatever became of it before."""
        if sequence >= self.cursor:
            self.overlap = max(self.overlap, sequence + 1)
        self.pending.disown(range(sequence, sequence + 1))
        self.pending.holders[holder] = None
        self.pending.leases.hold([sequence], holder, timeout=None, delivered=delivered)
        self.changed()

    def named_holder(self, name: str) -> Holder:
        """Return the holder of that name, created if there is none. It lives until `drop_holder`."""
        if name not in self.pending.named:
            self.changed()
        return self.pending.named_holder(name)

    def drop_holder(self, name: str, *, now: int) -> int:
        """Remove a named holder, and finish everything it holds; return how many messages that were."""
        count = self.pending.drop_holder(name, now=now)
        self.changed()
        return count

    def _passed_over_from(self, sequence: int) -> bool:
        """Whether the cursor has only jumped over [sequence, cursor): all of it was deferred and never delivered."""
        count = self.cursor - sequence
        untried = self.pending.attempts
        return len(untried) >= count and all(untried.get(each) == 0 for each in range(sequence, self.cursor))

    def take_back(self, sequences: Iterable[int], *, now: int) -> None:
        """Make finished messages below the cursor ready again, as far as they can still be read."""
        unfinished, copied = set(self.pending.sequences()), self.side_logged.sequences
        first = self.topic.log.first
        there = [each for each in sequences if each not in unfinished and (each >= first or each in copied)]
        self.give_back(there, Reason.RETURNED, now=now)

    def close(self) -> None:
        """Refuse further calls, and hang up on all consumers."""
        self.exiting = True
        for subscription in list(self.subscriptions):
            subscription.hang_up()

    def copy_aside(self, below: int) -> None:
        """Copy the unfinished messages below that sequence into the side log, so that they pin no segment."""
        copied = self.side_logged.sequences
        moving = sorted(each for each in self.pending.sequences() if each < below and each not in copied)
        if moving:
            found = ((sequence, self.frame(sequence)) for sequence in moving)
            self.side_logged.keep((sequence, frame) for sequence, frame in found if frame is not None)
