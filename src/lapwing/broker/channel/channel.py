"""A channel of a topic: messages come in and go out, consumers answer, come and go, time passes, and orders from above.

For a channel a message of the topic is exactly one of: ahead of the cursor (waiting for its first delivery), in flight
with one holder, requeued, deferred, or finished. The middle three are in its ledger; a message below the cursor that
is not there is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from lapwing import kernel, names
from lapwing.broker.channel import delivery
from lapwing.broker.channel.delivery_limits import by_key, limits_of, same_keys, same_limits
from lapwing.broker.channel.holds import FOREVER, Hold, Holds
from lapwing.broker.channel.keys import KeyedReady, Keys
from lapwing.broker.channel.latency import Latencies
from lapwing.broker.channel.ledger import FAILURES, FATAL, PARKED, Holder, Ledger, Ready, Reason, State, others
from lapwing.broker.channel.side_logged import SideLogged
from lapwing.broker.channel.subscription import STANDBY, Subscription, Window
from lapwing.broker.failures import overflow
from lapwing.broker.failures.dead_letter_link import DeadLetterLink
from lapwing.broker.failures.dead_letters import ATTEMPTS, EXPIRED, REJECTED
from lapwing.broker.failures.failures import FailureCounts
from lapwing.broker.failures.retry import delay_after
from lapwing.broker.settings.definitions import ChannelSettings, default_dead_topic
from lapwing.broker.topic.cold import ColdChannel
from lapwing.broker.topic.skips import Bookmark, Run, Runs, SkippedRuns, runs_of, union
from lapwing.errors import CorruptChunk, CursorConflict, Exiting, OutOfRange, ReadFailed, TooManyConsumers
from lapwing.log.segments.segment import time_of

if TYPE_CHECKING:
    from lapwing.broker.channel.delivery_limits import DeliveryLimits
    from lapwing.broker.settings.options import Options
    from lapwing.broker.topic.topic import Topic
    from lapwing.log.journal.journal import HolderState
    from lapwing.log.segments.reader import Reader

LATEST: Final = 2**63 - 1  # ns; the latest time that the journal can keep
_COPIED: Final = 200  # messages that are copied to a side log before others have their turn
_COPIED_BYTES: Final = 4 << 20  # the same in bytes
_LOOKED: Final = 50_000  # messages that are looked at
_REFUSED: Final = 1_000_000_000  # ns that a message waits at least when its dead-letter topic refuses it
_FIN: Final = 21  # bytes of one line in a run of FINs: `FIN <id>\n`
_QUIET: Final = 10_000_000_000  # ns between two log lines of one channel about dropped messages

Skip = tuple[int, int, int | None]  # [start, stop) to skip, and when it is due if it is a deferred message, ns


class Channel:
    """One channel of one topic."""

    def __init__(
        self,
        name: str,
        topic: Topic,
        options: Options,
        *,
        cursor: int,
        mark_ready: Callable[[Any], None],
        effective: ChannelSettings,
    ) -> None:
        self.name = name
        self.topic = topic
        self.ephemeral = names.ephemeral(name)
        self.holds = Holds()  # why it stands still
        self.exiting = False
        self.subscriptions: dict[Subscription, None] = {}  # the oldest first
        self.window_count = 0  # how many of them are windows
        self.reader = topic.log.reader(cursor)
        self._again: Reader | None = None  # of messages that are delivered again
        self.ahead = SkippedRuns()
        self.finished_ahead = Runs()  # of those that it skips, the ones that are finished
        self.saved_ahead: list[Run] = []  # what of them is in the journal
        self.side_logged = SideLogged(topic.store, name)
        self.latencies = Latencies(options) if options.e2e_processing_latency_percentiles else None
        self.ledger: Ledger = Ledger(
            self.side_logged,
            self.latencies,
            max_timeout=options.max_msg_timeout,
            journaled=not (self.ephemeral or topic.ephemeral),
        )
        self.settings: dict[str, Any] = {}  # its own
        self.effective: ChannelSettings = effective  # what holds, with policies, flags and defaults
        self.door_state: dict[str, Any] = {}  # JSON that a door keeps with the channel
        self.saved_state: dict[str, Any] = {}  # what of it is in the journal
        self.saved_holders: dict[str, HolderState] = {}  # the named holders as they are in the journal
        self.overlap = 0  # messages from the cursor up to here may be in flight, and are taken from their holder
        self.bookmark: Bookmark | None = None  # where it stood before the last seek
        self.dead: DeadLetterLink | None = None
        self.notes: dict[str, bytes] = {}  # as the journal has them
        self.counts = FailureCounts()
        self.limits: DeliveryLimits | None = None
        self.keys: Keys | None = None  # where it delivers by key
        self.sheds = False  # whether it drops or gives up what is too much
        self.reserved: dict[Subscription, int | None] = {}  # consumers kept for messages delivered alone, and these
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.delivered = [0, 0, 0]  # by locality of the consumer: elsewhere, same region, same zone
        self.dropped_count = 0  # what did not fit an ephemeral channel
        self.discarded_count = 0  # what a sampling consumer did not want
        self.dirty = True  # since it was last saved in the journal
        self.quiet_until = 0  # earliest time of the next checkpoint, ns
        self.scheduled: int | None = None
        self.mark_ready = mark_ready  # has the channel deliver at the end of this turn
        self.topology_aware = options.topology_aware
        self.options = options
        self.turn = 0  # counts deliveries, so that another consumer is first each time
        self.random = Random(f"{topic.name}/{name}")

    def pack(self, now: int) -> ColdChannel | None:
        """Return the channel as a small value; None where it is in use, a message is pending, or it has to be saved."""
        ledger, latencies = self.ledger, self.latencies
        used = bool(self.subscriptions or self.dirty or self.ephemeral or ledger.named or self.dead is not None)
        pending = ledger.lowest() is not None or ledger.attempts or ledger.failures.records or ledger.failures.changed
        skips = self.ahead.count or self.finished_ahead or self.saved_ahead
        measured = latencies is not None and latencies.count(now=now)
        if used or pending or skips or measured or self.door_state or self.holds.keys() - {Hold.PAUSED}:
            return None
        return ColdChannel(
            self.name, self.cursor, self.depth, self.paused, self.settings, self.bookmark, self.notes, self.counts,
            self.message_count, self.requeue_count, self.timeout_count, self.discarded_count, self.delivered,
        )  # fmt: skip

    def unpack(self, cold: ColdChannel) -> None:
        """Be as the channel that was packed."""
        self.settings, self.bookmark, self.notes, self.counts = cold.settings, cold.bookmark, cold.notes, cold.counts
        self.message_count, self.discarded_count = cold.message_count, cold.discarded_count
        self.requeue_count, self.timeout_count = cold.requeue_count, cold.timeout_count
        self.delivered = [*cold.delivered]
        self.dirty = False
        if cold.paused:
            self.hold(Hold.PAUSED)

    # --- what it shows -------------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"channel {self.topic.name}/{self.name}"

    @property
    def cursor(self) -> int:
        """The first sequence that was neither delivered nor skipped."""
        return self.reader.sequence

    def state_of(self, sequence: int) -> State:
        """Return where a message of the topic is for this channel."""
        state = self.ledger.state_of(sequence)
        if state is not None:
            return state
        fresh = self.cursor <= sequence < self.topic.fanned_out and sequence not in self.ahead
        return State.AHEAD if fresh and sequence not in self.topic.deleted else State.FINISHED

    @property
    def depth(self) -> int:
        """The number of messages that are ready to be delivered."""
        return delivery.depth_of(self)

    def deleted_ahead(self) -> int:
        """Return how many messages that wait for their first delivery are deleted."""
        deleted = self.topic.deleted
        skipped = self.ahead.deleted_in(deleted) if self.ahead.count else 0
        return deleted.count(self.reader.sequence, self.topic.fanned_out) - skipped

    @property
    def in_flight_count(self) -> int:
        """The number of messages in flight."""
        return self.ledger.in_flight_count

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
        self.pass_over()  # deliveries do this only when there is something to deliver
        self.side_logged.need_from(self.cursor)
        low = self.ledger.lowest(self.side_logged.copied_below)
        return self.cursor if low is None else min(low, self.cursor)

    def oldest(self) -> int | None:
        """Return the lowest sequence that is not finished, if any is left."""
        self.pass_over()
        low = self.ledger.lowest()
        if self.cursor < self.topic.fanned_out:
            return self.cursor if low is None else min(low, self.cursor)
        return low

    def is_gone(self, sequence: int) -> bool:
        """Return whether a message was deleted, and the channel has no copy that came back with a redrive."""
        return sequence in self.topic.deleted and sequence not in self.side_logged.sequences

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

    def read_again(self, start: int, stop: int, max_bytes: int) -> tuple[bytes, int]:
        """Return frames of the log from `start` on, and how many; none where they are not served. Raises `ReadFailed`.

        A reader of its own stays where the last call ended: what is requeued comes mostly in order.
        """
        reader = self._again
        if reader is None:
            reader = self._again = self.topic.log.reader(start)
        reader.seek(start)
        try:
            return reader.take(stop, stop - start, max_bytes)
        except (OutOfRange, CorruptChunk):
            return b"", 0

    def headed_frame(self, sequence: int) -> bytes | None:
        """Return the same with the headers of the message, if it has some. Raises `ReadFailed`."""
        if sequence in self.side_logged.sequences:
            try:
                return self.side_logged.headed_frame(sequence)
            except (OutOfRange, CorruptChunk):
                return self.frame(sequence)  # which reports it
        frame = self.frame(sequence)
        rows = self.topic.log.rows(sequence, sequence + 1) if frame is not None else b""
        return kernel.with_headers(frame, rows) if frame is not None and rows else frame

    # --- messages come in ----------------------------------------------------------------------------------------

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

    def wait_first(self, sequence: int, *, until: int) -> None:
        """Defer a message that was never delivered; the cursor skips it."""
        self.ahead.add(sequence, sequence + 1)
        self.ledger.attempts.setdefault(sequence, 0)
        self.ledger.deferred.defer(sequence, until=until)
        self.schedule(until)

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

    # --- messages go out -----------------------------------------------------------------------------------------

    def deliver(self, now: int) -> None:
        """Deliver ready messages to the subscriptions with room."""
        if not (self.holds or self.exiting) or not self.stands_still(now):
            delivery.deliver(self, now)
        if self.sheds:
            overflow.shed(self, now=now)

    def deliver_to(self, subscription: Subscription, *, now: int) -> None:
        """Deliver ready messages to one subscription at once, as far as it has room."""
        if not self.stands_still(now):
            delivery.deliver_to(self, subscription, now)
            self.topic.changed()

    # --- consumers answer ----------------------------------------------------------------------------------------

    def finish(self, sequences: Iterable[int], *, now: int, holder: Holder | None = None) -> list[int]:
        """Finish messages of `holder`, or of whoever has them; return those that were pending."""
        finished = self.ledger.finish(sequences, now=now, holder=holder)
        if self.ahead.count:
            self.note_ahead(finished)
        if self.subscriptions or self.sheds:
            self.changed()
        else:
            self.journal_later()  # nobody waits for the room that this makes
        return finished

    def finish_run(self, block: bytes, holder: Holder, *, now: int) -> list[bytes]:
        """Finish a run of messages, given as the lines of their FINs; return the ids that `holder` does not hold."""
        sequences = kernel.fin_sequences(block, self.topic.id_base)
        missing = others(sequences, self.finish(sequences, now=now, holder=holder))
        return [block[_FIN * place + 4 : _FIN * place + 20] for place in missing] if missing else []

    def finish_given_up(self, sequences: Iterable[int], *, now: int) -> None:
        """Finish messages that were given up: their copies are written, or nobody wants them."""
        self.counts.dead += len(self.finish(sequences, now=now))

    def finish_copied(self, sequence: int, *, now: int) -> None:
        """Finish a message whose copy was written before a crash, also if its delivery was not saved."""
        if self.finish([sequence], now=now):
            self.counts.dead += 1
        elif self.cursor <= sequence < self.topic.fanned_out:
            self.finish_ahead([(sequence, sequence + 1)])
            self.counts.dead += 1

    def note_ahead(self, finished: Sequence[int]) -> None:
        """Have messages that are finished, and that the cursor skips, skipped after a restart too."""
        if self.ahead.count:
            self.ahead.note_finished(finished, self.cursor, self.finished_ahead)

    def finished_runs(self) -> list[Run]:
        """Return which messages from the cursor on are finished, and skipped after a restart too."""
        finished = self.finished_ahead
        finished.drop_below(self.cursor)
        looked_at = self.ahead.finished_runs(self.ledger.sequences) if self.ahead.count else ()
        return union(finished.runs, looked_at) if looked_at else finished.runs

    def finish_ahead(self, runs: Sequence[Run]) -> None:
        """Finish messages that wait for their first delivery; the cursor skips them, after a restart too."""
        self.ahead.merge(runs)
        self.finished_ahead.add(runs)
        self.changed()

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
        self.ledger.check(sequence, holder)
        self.requeue_run([sequence], holder, delay=delay, now=now, reason=reason, error=error)

    def requeue_run(
        self,
        sequences: Sequence[int],
        holder: Holder,
        *,
        delay: int,
        now: int,
        reason: Reason = Reason.REQUEUED,
        error: str = "",
    ) -> list[int]:
        """Take messages back as `requeue` does, as far as `holder` holds them; return the places of the others."""
        taken, missing = self.ledger.take_run(sequences, holder)
        holder.requeued_count += len(taken)
        self.requeue_count += len(taken)
        if taken:
            self.give_back(taken, reason, delay=delay, now=now, consumer=holder.name, error=error)
        return missing

    def reject(self, sequence: int, holder: Holder, *, now: int, error: str = "") -> None:
        """Give a message up that its holder never wants again. Raises `NotOwner`, `NotInFlight`."""
        self.ledger.take(sequence, holder)
        self.give_up([sequence], REJECTED, now=now, consumer=holder.name, error=error)

    def touch(self, sequence: int, holder: Holder, *, timeout: int, now: int) -> None:
        """Give a holder more time for a message. Raises `NotOwner` or `NotInFlight`."""
        self.ledger.touch(sequence, holder, timeout=timeout, now=now)
        self.schedule(self.ledger.soonest)

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
        """Put pending messages in flight with `to`, whoever has them; return which. See `Ledger.claim`.

        Where the channel delivers by key, a message that waits for its key is left.
        """
        if self.keys is not None:
            sequences = self.keys.claimable(self, dict.fromkeys(sequences))
        claimed = self.ledger.claim(
            sequences, to, now=now, min_idle=min_idle, timeout=timeout, delivered=delivered, counted=counted
        )
        self.schedule(self.ledger.soonest)
        self.changed()
        return claimed

    # --- messages come back --------------------------------------------------------------------------------------

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
        """Make messages ready again, defer them, or give them up, that were taken from their holder.

        `delay` is what the consumer asked for, `consumer` its name, and `error` the error that it reported.
        """
        self._give_back(sequences, reason, now=now, delay=delay, consumer=consumer, error=error)
        self.schedule(self.ledger.deferred.next_due())
        self.changed()

    def _give_back(
        self,
        sequences: Sequence[int],
        reason: Reason,
        *,
        now: int,
        delay: int,
        consumer: str,
        error: str,
    ) -> None:
        """Count failures, then make messages ready again, defer them, have them delivered alone, or give them up."""
        ledger, behind = self.ledger, self.topic.fanned_out
        if reason not in FAILURES:
            ledger.give_back(sequences, reason, now=now, behind=behind, delay=delay)
            return
        self.counts.failures += len(sequences)
        failures, settings = ledger.own_failures(), self.effective
        lost, wall = reason is Reason.DISCONNECTED, now + self.topic.skew
        if not settings.max_attempts and not settings.retry_first:
            failures.count(sequences, lost=lost, now=wall, error=error)
            ledger.give_back(sequences, reason, now=now, behind=behind, delay=delay)
            return
        ready: list[int] = []
        hopeless: list[int] = []
        for sequence in sequences:
            failure = failures.add(sequence, lost=lost, now=wall, error=error)
            if settings.max_attempts and failure.failures >= settings.max_attempts:
                if failure.lost_only and not failure.only_alone:
                    ledger.wait_alone(sequence)
                else:
                    hopeless.append(sequence)
                continue
            wait = delay or delay_after(failure.failures, settings, self.random.random)
            if wait:
                ledger.give_back((sequence,), reason, now=now, delay=wait)
            else:
                ready.append(sequence)
        ledger.give_back(ready, reason, now=now, behind=behind)
        if hopeless:
            self.give_up(hopeless, ATTEMPTS, now=now, consumer=consumer)

    def give_up(
        self, sequences: Sequence[int], reason: str, *, now: int, consumer: str = "", error: str = ""
    ) -> None:
        """Give messages up that no holder has: they go to the dead-letter topic, or nowhere if the channel has none."""
        ledger = self.ledger
        if not sequences:
            return
        if not self.dead_topic:
            self._drop(sequences, reason, now)
            return
        failures = ledger.own_failures()
        for sequence in sequences:
            failures.doom(sequence, reason, error)
        ledger.move(sequences, now=now)
        self.topic.mover.add(self, dict.fromkeys(sequences, consumer))
        self.changed()

    def _drop(self, sequences: Sequence[int], reason: str, now: int) -> None:
        for sequence in sequences:
            self.ledger.drop(sequence)
        self.note_ahead(sequences)
        self.counts.dead += len(sequences)
        self.changed()
        link = self.dead_link()
        if now >= link.quiet_until:
            link.quiet_until = now + _QUIET
            name = f"{self.topic.name}/{self.name}"
            self.topic.report(
                f"channel {name}: gave up message {sequences[0]} ({reason}) and dropped it, as dead_topic is empty; "
                f"{self.counts.dead} so far"
            )

    def expire(self, sequences: Sequence[int], *, now: int, fresh: bool) -> None:
        """Deal with messages that are too old to be delivered; `fresh` if they never were."""
        ledger = self.ledger
        self.counts.expired += len(sequences)
        if self.effective.expired_to_dead and self.dead_topic:
            if fresh:
                ledger.attempts.update(dict.fromkeys(sequences, 0))
            for sequence in sequences:
                ledger.remove_waiting(sequence)
            self.give_up(sequences, EXPIRED, now=now)
            return
        if not fresh:
            for sequence in sequences:
                ledger.drop(sequence)
        self.changed()

    def resume(self, sequences: Iterable[int], *, now: int) -> None:
        """Move messages on that were given up before: they waited, or the broker was restarted meanwhile."""
        ledger = self.ledger
        by_reason: dict[str, list[int]] = {}
        for sequence in sequences:
            by_reason.setdefault(ledger.failures.get(sequence).doom, []).append(sequence)
        for reason, doomed in by_reason.items():
            self.give_up(doomed, reason, now=now)

    def refuse(self, sequences: Iterable[int], *, now: int) -> None:
        """Have messages wait with the longest delay, as their dead-letter topic does not take them."""
        ledger = self.ledger
        ledger.refuse_move(sequences, now=now, delay=max(self.effective.retry_max, _REFUSED))
        self.schedule(ledger.deferred.next_due())
        self.changed()

    def retry_letter(self, sequence: int, *, now: int) -> None:
        """Deal with a dead letter that is given up: it never becomes another one.

        After too many failures it is tried again with the longest delay; one that nobody wants any more is finished.
        """
        failures = self.ledger.own_failures()
        if failures.get(sequence).doom == ATTEMPTS:
            failures.pardon(sequence)
            self.refuse([sequence], now=now)
            return
        self.finish_given_up([sequence], now=now)

    # --- consumers come and go -----------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> None:
        """Add a consumer. Raises `Exiting` or `TooManyConsumers`."""
        if self.exiting:
            raise Exiting
        limit = self.options.max_channel_consumers
        if limit > 0 and len(self.subscriptions) >= limit:
            raise TooManyConsumers(f"consumers for {self.topic.name}:{self.name} exceeds limit of {limit}")
        self.subscriptions[subscription] = None
        self.window_count += isinstance(subscription, Window)
        self.ledger.attach(subscription.holder)
        self._set_hold(subscription)
        if PARKED in self.ledger.named and isinstance(subscription, Window):
            self._unpark(self.ledger.named[PARKED])
        if subscription.room > 0:
            self.mark_ready(self)

    def _set_hold(self, subscription: Subscription) -> None:
        """Have messages time out, or stay with the consumer while its connection lives."""
        if isinstance(subscription, Window):
            subscription.holder.keeps = subscription.heartbeats and self.effective.hold == "connection"

    def _unpark(self, parked: Holder) -> None:
        """Requeue the messages that wait for a claim: a consumer has come that cannot claim."""
        attempts = self.ledger.attempts
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
        self.ledger.detach(holder)
        if not (holder.named or holder.attached or (keep_in_flight and not self.exiting)):
            self.give_back(self.ledger.take_all(holder), reason, now=now, consumer=holder.name)
        if self.limits is not None:
            self.mark_ready(self)  # another may be the active one now

    def named_holder(self, name: str) -> Holder:
        """Return the holder of that name, created if there is none. It lives until `drop_holder`."""
        if name not in self.ledger.named:
            self.changed()
        return self.ledger.by_name(name)

    def drop_holder(self, name: str, *, now: int) -> int:
        """Remove a named holder, and finish everything it holds; return how many messages that were."""
        finished = self.ledger.drop_holder(name, now=now)
        self.note_ahead(finished)
        self.changed()
        return len(finished)

    # --- time passes ---------------------------------------------------------------------------------------------

    def scan(self, now: int) -> None:
        """Requeue messages whose timeout has passed, and make deferred ones ready that are due."""
        self.scheduled = None
        if self.holds:
            if self.holds.drop_ended(now):
                self.changed()
            self.schedule(self.holds.next_end())
        if self.limits is not None:
            self.mark_ready(self)  # the rate may allow more by now
        for holder, late in self.ledger.expire(now):
            self.timeout_count += len(late)
            self.give_back(late, Reason.TIMED_OUT, now=now, consumer=holder.name)
        ripe = self.ledger.ripen(now, behind=self.topic.fanned_out)
        if ripe:
            self.changed()
            if self.ledger.failures.records:
                self.resume([each for each in ripe if self.ledger.failures.get(each).doom], now=now)
        self.schedule(self.ledger.next_deadline())
        self.schedule(self.ledger.deferred.next_due())

    def schedule(self, due: int | None) -> None:
        """Have `scan` called at that time, if not before."""
        if due is not None and (self.scheduled is None or due < self.scheduled):
            self.scheduled = due
            self.topic.schedule(due, self)

    def changed(self) -> None:
        """Have the channel journaled, and deliver at the end of this turn."""
        self.dirty = True
        self.mark_ready(self)

    def save(self, *, now: int, sync: bool = False) -> None:
        """Save the topic with this channel, however much of it is unfinished. Raises `WriteFailed`."""
        self.dirty = True
        self.quiet_until = 0
        self.topic.checkpoint(now=now, sync=sync)

    def deliver_later(self) -> None:
        """Have it deliver in the next turn: it has had its share of this one."""
        self.topic.deliver_later(self)

    def journal_later(self) -> None:
        """Have the channel journaled with the next checkpoint."""
        self.dirty = True
        self.topic.changed()

    # --- orders from above ---------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Whether an operator paused it."""
        return Hold.PAUSED in self.holds

    def stands_still(self, now: int) -> bool:
        """Return whether it delivers nothing at that time."""
        return self.exiting or (bool(self.holds) and self.holds.at(now))

    def hold(self, reason: Hold, *, until: int = FOREVER) -> None:
        """Have it deliver nothing for this reason, until it is lifted or the time has come."""
        self.holds[reason] = until
        if until < FOREVER:
            self.schedule(until)

    def lift(self, reason: Hold) -> None:
        """End a reason to stand still; it delivers again if there is no other."""
        if self.holds.pop(reason, None) is not None:
            self.changed()

    def apply(self, effective: ChannelSettings, *, now: int) -> None:
        """Put settings in force."""
        if not same_limits(effective, self.effective):
            if not same_keys(effective, self.effective):
                self._set_keys(effective)
            self.limits = limits_of(effective, self.limits, self.keys, now=now)
        self.sheds = overflow.sheds(effective)
        self.effective = effective
        for subscription in self.subscriptions:
            if subscription.default_timeout:
                subscription.timeout = effective.msg_timeout
            self._set_hold(subscription)
            subscription.withhold(STANDBY, on=False)  # the next delivery chooses the active one, if there is to be one
        until = effective.paused_until - self.topic.skew
        if until > now:
            self.hold(Hold.PAUSED_UNTIL, until=until)
        else:
            self.lift(Hold.PAUSED_UNTIL)
        self.mark_ready(self)

    def _set_keys(self, effective: ChannelSettings) -> None:
        """Deliver by key, in another way, or no longer so."""
        self.forget_keys()
        ready = Ready()
        ready.append(self.ledger.ready, behind=0)
        skips = SkippedRuns()
        skips.merge(self.ahead.runs)
        if by_key(effective):
            self.keys = Keys(effective, self.ledger, skips)
            self.ahead = self.keys.passed
            self.ledger.follow(self.keys, KeyedReady(self.keys, ready))
        else:
            self.keys, self.ahead = None, skips
            self.ledger.follow(None, ready)

    def forget_keys(self) -> None:
        """Have the keys of all messages looked at again, where the channel delivers by key."""
        if self.keys is not None:
            self.finished_ahead = Runs(self.finished_runs())
            self.keys.passed.look_again()
            self.keys.restart()

    def empty(self, *, keep: Collection[int] = ()) -> None:
        """Finish every message of the channel; the copies of `keep` stay in the side log."""
        self.ledger.clear(keep=keep)
        self.ahead.clear()
        self.finished_ahead.clear()
        self.reader.seek(self.topic.fanned_out)
        self.quiet_until = 0
        self.changed()

    def seek(self, sequence: int, *, back: bool = False) -> None:
        """Move the cursor: every message before `sequence` is finished, every one from it on is delivered (again).

        Unfinished messages that the side log has come from there: the log may have them no more, or with another body.
        Raises `CursorConflict` when that goes back and `back` is false, `ReadFailed` and `WriteFailed`.
        """
        self.forget_keys()
        log = self.topic.log
        sequence = min(sequence, self.topic.fanned_out)
        if sequence >= self.cursor or self._passed_over_from(sequence):
            self.ledger.finish_below(sequence)
            self.reader.seek(max(sequence, self.cursor, log.first))
        elif back:
            sequence = max(sequence, log.first)
            skips = self.find_skips(sequence)  # first: when the disk cannot be read, nothing has changed
            self.side_logged.flush()
            copied = self.side_logged.sequences
            kept = {each for each in self.ledger.sequences() if each >= sequence and each in copied}
            self.empty(keep=kept)
            self.side_logged.need_from(sequence)
            self.reader.seek(sequence)
            self.skip(skips)
            kept.difference_update(self.ledger.sequences())
            self.ahead.merge(runs_of(kept))
            self.ledger.give_back(sorted(kept), Reason.RETURNED, now=0)
        else:
            raise CursorConflict(f"the cursor of {self.topic.name}/{self.name} is at {self.cursor}, past {sequence}")
        self.pass_over()
        self.schedule(self.ledger.deferred.next_due())
        self.quiet_until = 0  # the move is journaled at once
        self.changed()

    def move(self, sequence: int) -> None:
        """Move the cursor alone: pending messages stay pending, wherever it goes.

        A message that is in flight and is delivered again then changes hands, as on its first delivery. Messages that
        the log has no more, or with another body, stay where they are. Raises `ReadFailed` and `WriteFailed`.
        """
        self.forget_keys()
        log, before = self.topic.log, self.cursor
        sequence = min(max(sequence, log.first), log.end)
        if sequence < before:
            self.side_logged.flush()
            self.side_logged.need_from(sequence)
            self.overlap = max(self.overlap, before)
            self.finished_ahead.drop_below(before)  # what it had skipped and passed comes again
            ledger, copied = self.ledger, self.side_logged.sequences
            for ready in [ready for ready in ledger.ready if ready >= sequence and ready not in copied]:
                ledger.ready.remove(ready)
            differing = [each for each in copied if each >= sequence and self._differs(each)]
            waiting = [*ledger.deferred.sequences(), *ledger.alone, *ledger.ready, *differing]
            skipped = runs_of(each for each in waiting if sequence <= each < before)
            self.ahead.merge(union(skipped, self.topic.emptied.since(sequence)))
        self.reader.seek(sequence)
        self.pass_over()
        self.quiet_until = 0  # the move is journaled at once
        self.changed()

    def find_skips(
        self,
        cursor: int,
        known: Mapping[int, int] = MappingProxyType({}),
        settled: Sequence[Run] = (),
        *,
        begin: int | None = None,
    ) -> list[Skip]:
        """Find what a channel has to skip from `cursor` on: deferred messages, and runs that are `settled` or emptied.

        A message that was published deferred, and is not `known`, waits from its publish on, or from `begin`: the time
        of its publish is that of a clock that may have been set since. Raises `ReadFailed`.
        """
        log, topic = self.topic.log, self.topic
        waiting = {sequence: until for sequence, until in known.items() if sequence >= cursor}
        for extra in log.extras(cursor, topic.fanned_out):
            if extra.defer and extra.sequence not in known:
                start = log.timestamp(extra.sequence) - topic.skew if begin is None else begin
                waiting[extra.sequence] = min(start + extra.defer, LATEST)
        dropped = union(sorted(settled), [(max(start, cursor), stop) for start, stop in topic.emptied.since(cursor)])
        alone = [at for at in waiting if not any(start <= at < stop for start, stop in dropped)]
        skips: list[Skip] = [(start, stop, None) for start, stop in dropped]
        skips += [(sequence, sequence + 1, waiting[sequence]) for sequence in alone]
        return sorted(skips, key=lambda skip: skip[0])

    def skip(self, skips: Sequence[Skip]) -> None:
        """Have a channel's cursor skip what `find_skips` found."""
        for start, stop, due in skips:
            if due is None:
                self.ahead.add(start, stop)
            else:
                self.wait_first(start, until=due)

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
        self.ledger.disown(range(sequence, sequence + 1))
        self.side_logged.notice([sequence])
        self.ledger.holders[holder] = None
        self.ledger.hold([sequence], holder, timeout=None, delivered=delivered)
        self.changed()

    def _passed_over_from(self, sequence: int) -> bool:
        """Return whether the cursor has only jumped over [sequence, cursor): all of it was deferred, not delivered."""
        count = self.cursor - sequence
        ledger = self.ledger
        if len(ledger.attempts) + len(ledger.deferred) < count:
            return False
        return all(ledger.deliveries(each) == 0 for each in range(sequence, self.cursor))

    def take_back(self, sequences: Iterable[int], *, now: int, dues: Mapping[int, int] = MappingProxyType({})) -> None:
        """Make finished messages below the cursor ready again, as far as they can still be read.

        The messages in `dues` are deferred until then.
        """
        unfinished, copied = set(self.ledger.sequences()), self.side_logged.sequences
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
            some = self.ledger.between(side.copied_below, below, _COPIED)
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
