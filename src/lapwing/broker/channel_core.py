"""The state of a channel: its cursor, what is pending, its settings and counts; and the calls that need nothing else.

For a channel a message of the topic is exactly one of: ahead of the cursor (waiting for its first delivery), in flight
with one holder, requeued, deferred, or finished. The middle three are in `pending`; a message below the cursor that is
not there is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from lapwing import kernel, names
from lapwing.broker.dead_letter_link import DeadLetterLink
from lapwing.broker.failures import FailureCounts
from lapwing.broker.holder import Holder
from lapwing.broker.holds import FOREVER, Hold, Holds
from lapwing.broker.latency import Latencies
from lapwing.broker.pending import Pending
from lapwing.broker.settings import ChannelSettings, default_dead_topic
from lapwing.broker.side_logged import SideLogged
from lapwing.broker.skips import Bookmark, EmptiedRuns, Run, Runs, SkippedRuns, runs_of
from lapwing.errors import CorruptChunk, OutOfRange, ReadFailed
from lapwing.log.segment import time_of

if TYPE_CHECKING:
    from lapwing.broker.deleted import DeletedRuns
    from lapwing.broker.delivery_limits import DeliveryLimits
    from lapwing.broker.options import Options
    from lapwing.broker.storage import Store
    from lapwing.broker.subscription import Subscription
    from lapwing.log.journal import HolderState
    from lapwing.log.log import TopicLog


class Mover(Protocol):
    """The mover of dead letters, as a channel sees it."""

    def add(self, channel: ChannelCore, consumers: Mapping[int, str]) -> None:
        """Take messages that the channel gives up, with the names of who held them last."""

    def update_mark(self, channel: ChannelCore) -> None:
        """Note how far the channel agrees with its dead-letter topic."""


class ChannelTopic(Protocol):
    """A topic, as its channels see it."""

    name: str
    ephemeral: bool
    log: TopicLog
    store: Store
    fanned_out: int
    id_base: int
    emptied: EmptiedRuns
    deleted: DeletedRuns
    report: Callable[[str], None]

    @property
    def skew(self) -> int:
        """ns from the broker's time to that of the machine's clock."""

    @property
    def mover(self) -> Mover:
        """The mover of dead letters."""

    def schedule(self, due: int, channel: Any) -> None:
        """Have the channel's `scan` called at that time."""

    def sequence_of(self, message_id: bytes) -> int:
        """Return the sequence that an id names, or -1."""

    def changed(self) -> None:
        """Have the state of the topic saved with the next checkpoint."""

    def checkpoint(self, *, now: int | None = None, sync: bool = False) -> bool:
        """Save the state of the topic and its channels."""


class ChannelCore:
    """One channel of one topic, without deliveries, the way back, and orders."""

    def __init__(
        self,
        name: str,
        topic: ChannelTopic,
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
        self.ahead = SkippedRuns()
        self.finished_ahead = Runs()  # of those that it skips, the ones that are finished
        self.saved_ahead: list[Run] = []  # what of them is in the journal
        self.claimed_ahead: set[int] = set()  # of those that it skips, the ones that somebody has claimed or got
        self.side_logged = SideLogged(topic.store, name)
        self.latencies = Latencies(options) if options.e2e_processing_latency_percentiles else None
        self.pending = Pending(
            self.side_logged,
            self.latencies,
            max_timeout=options.max_msg_timeout,
            journaled=not (self.ephemeral or topic.ephemeral),
        )
        self.settings: dict[str, Any] = {}  # its own
        self.effective = effective  # what holds, with policies, flags and defaults
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
        self.dirty = True  # since it was last saved in the journal
        self.quiet_until = 0  # earliest time of the next checkpoint, ns
        self.scheduled: int | None = None
        self.mark_ready = mark_ready  # has the channel deliver at the end of this turn
        self.topology_aware = options.topology_aware
        self.options = options
        self.turn = 0  # counts deliveries, so that another consumer is first each time
        self.random = Random(f"{topic.name}/{name}")

    # --- what it shows ----------------------------------------------------------------------------------------

    def __str__(self) -> str:
        return f"channel {self.topic.name}/{self.name}"

    @property
    def cursor(self) -> int:
        """The first sequence that was neither delivered nor skipped."""
        return self.reader.sequence

    @property
    def depth(self) -> int:
        """The number of messages that are ready to be delivered."""
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
        """The number of messages in flight."""
        return self.pending.holders.in_flight_count

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
        side = self.side_logged
        if self.cursor < side.copied_below:
            side.copied_below = 0
        low = self.pending.lowest(side.copied_below)
        return self.cursor if low is None else min(low, self.cursor)

    def oldest(self) -> int | None:
        """Return the lowest sequence that is not finished, if any is left."""
        self.pass_over()
        low = self.pending.lowest()
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

    # --- finishes, claims and holders -------------------------------------------------------------------------

    def finish(self, sequences: Iterable[int], *, now: int) -> list[int]:
        """Finish messages, whoever holds them; return those that were pending."""
        finished = self.pending.finish(sequences, now=now)
        self.note_ahead(finished)
        self.changed()
        return finished

    def note_ahead(self, finished: Sequence[int]) -> None:
        """Have messages that are finished, and that the cursor skips, skipped after a restart too."""
        if self.ahead.count and (ahead := [sequence for sequence in finished if sequence >= self.cursor]):
            self.finished_ahead.add(runs_of(ahead))
            self.claimed_ahead.difference_update(ahead)

    def finish_ahead(self, runs: Sequence[Run]) -> None:
        """Finish messages that wait for their first delivery; the cursor skips them, after a restart too."""
        self.ahead.merge(runs)
        self.finished_ahead.add(runs)
        self.changed()

    def finish_count(self, sequences: list[int], *, now: int) -> int:
        """Finish messages, whoever holds them; return how many were pending."""
        count = self.pending.finish_count(sequences, now=now)
        if self.claimed_ahead:
            self._note_claimed()
        if self.subscriptions or self.sheds:
            self.changed()
        else:
            self.journal_later()  # nobody waits for the room that this makes
        return count

    def _note_claimed(self) -> None:
        """Note which of the messages that somebody has got ahead of the cursor are finished."""
        self.claimed_ahead = {sequence for sequence in self.claimed_ahead if sequence >= self.cursor}
        self.note_ahead([sequence for sequence in self.claimed_ahead if sequence not in self.pending])

    def finish_run(self, block: bytes, holder: Holder, *, now: int) -> list[bytes]:
        """Finish a run of messages, given as the lines of their FINs; return the ids that `holder` does not hold."""
        missing = self.pending.finish_run(block, self.topic.id_base, holder, now=now)
        if self.claimed_ahead:
            self._note_claimed()
        self.changed()
        return missing

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
        if self.ahead.count:
            self.claimed_ahead.update(sequence for sequence in claimed if sequence >= self.cursor)
        self.schedule(self.pending.leases.soonest)
        self.changed()
        return claimed

    def touch(self, sequence: int, holder: Holder, *, timeout: int, now: int) -> None:
        """Give a holder more time for a message. Raises `NotOwner` or `NotInFlight`."""
        self.pending.holders.check(sequence, holder)
        self.pending.leases.touch(sequence, holder, timeout=timeout, now=now)
        self.schedule(self.pending.leases.soonest)

    def named_holder(self, name: str) -> Holder:
        """Return the holder of that name, created if there is none. It lives until `drop_holder`."""
        if name not in self.pending.holders.named:
            self.changed()
        return self.pending.holders.by_name(name)

    def drop_holder(self, name: str, *, now: int) -> int:
        """Remove a named holder, and finish everything it holds; return how many messages that were."""
        finished = self.pending.drop_holder(name, now=now)
        self.note_ahead(finished)
        self.changed()
        return len(finished)

    # --- holds ------------------------------------------------------------------------------------------------

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

    # --- moves on ---------------------------------------------------------------------------------------------

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

    def wait_first(self, sequence: int, *, until: int) -> None:
        """Defer a message that was never delivered; the cursor skips it."""
        self.ahead.add(sequence, sequence + 1)
        self.pending.attempts[sequence] = 0
        self.pending.deferred.defer(sequence, until=until)
        self.schedule(until)

    def schedule(self, due: int | None) -> None:
        """Have `scan` called at that time, if not before."""
        if due is not None and (self.scheduled is None or due < self.scheduled):
            self.scheduled = due
            self.topic.schedule(due, self)

    def changed(self) -> None:
        """Have the channel journaled, and deliver at the end of this turn."""
        self.dirty = True
        self.mark_ready(self)

    def journal_later(self) -> None:
        """Have the channel journaled with the next checkpoint."""
        self.dirty = True
        self.topic.changed()
