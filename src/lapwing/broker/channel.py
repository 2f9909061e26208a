"""One cursor over a topic's log, and who gets the next slice.

A message of the topic is, for this channel, exactly one of: ahead of the cursor (waiting for its first delivery),
in flight with one consumer, requeued and ready, deferred, or finished. Only the middle three are written down;
what stands below the cursor and in none of them is finished, so finishing a message is forgetting it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final

from lapwing import kernel, names
from lapwing.broker import checkpoint
from lapwing.broker.deferred import Deferred
from lapwing.broker.inflight import InFlight
from lapwing.broker.latency import Latencies
from lapwing.broker.seek import Bookmark
from lapwing.broker.settings import ChannelSettings
from lapwing.broker.side_logged import SideLogged
from lapwing.broker.skips import SkippedRuns, runs_of
from lapwing.errors import (
    CorruptChunk,
    CursorConflict,
    Exiting,
    NotInFlight,
    NotOwner,
    OutOfRange,
    ReadFailed,
    TooManyConsumers,
)  # fmt: skip
from lapwing.log.segment import time_of

if TYPE_CHECKING:
    from lapwing.broker.options import Options
    from lapwing.broker.subscriber import Subscriber
    from lapwing.broker.topic import Topic

STAMPED: Final = 16  # messages of a slice whose latency is measured; each stands for its neighbours
SLICE: Final = 256 * 1024  # bytes given to one consumer at a time


class Channel:
    """One channel of one topic."""

    def __init__(
        self,
        name: str,
        topic: Topic,
        options: Options,
        *,
        cursor: int,
        touched: Callable[[Channel], None],
        effective: ChannelSettings,
    ) -> None:
        self.name = name
        self.topic = topic
        self.ephemeral = names.ephemeral(name)
        self.paused = False
        self.exiting = False
        self.subscribers: list[Subscriber] = []
        self.reader = topic.log.reader(cursor)
        self.ahead = SkippedRuns()
        self.leases = InFlight(options.max_msg_timeout)
        self.aside = SideLogged(topic, name)
        self.requeued: deque[tuple[int, int]] = deque()  # sequence, and the cursor for which it waits
        self.deferred = Deferred(told=not (self.ephemeral or topic.ephemeral))
        self.attempts: dict[int, int] = {}  # deliveries so far of what is not on its first one
        self.settings: dict[str, Any] = {}  # its own
        self.effective = effective  # what holds, with policies, flags and defaults
        self.paused_until = 0  # ns; the end of a pause that has one
        self.bookmark: Bookmark | None = None  # where it stood before the last seek
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.delivered = [0, 0, 0]  # by locality of the consumer: elsewhere, same region, same zone
        self.dropped_count = 0  # what did not fit an ephemeral channel
        self.discarded_count = 0  # what a sampling consumer did not want
        self.dirty = True  # something the journal has not been told
        self.latencies = Latencies(options) if options.e2e_processing_latency_percentiles else None
        self.quiet_until = 0  # the journal need not hear of it before, ns
        self.scheduled: int | None = None
        self._touched = touched
        self._options = options
        self._turn = 0
        self._random = Random(f"{topic.name}/{name}")
        self._sided = self.aside.sequences
        # when latencies are wanted: publish times of messages in flight, and how many others each of them stands for
        self._stamps: dict[int, tuple[int, int]] = {}

    def __str__(self) -> str:
        return f"channel {self.topic.name}/{self.name}"

    # --- what it shows -----------------------------------------------------------------------------------------

    @property
    def cursor(self) -> int:
        """The first sequence that was never delivered nor passed over."""
        return self.reader.sequence

    @property
    def depth(self) -> int:
        """How many messages are ready to be delivered."""
        waiting = self.topic.fanned_out - self.reader.sequence
        return max(waiting, 0) - self.ahead.count + len(self.requeued)

    @property
    def in_flight_count(self) -> int:
        """How many messages consumers hold."""
        return sum(len(subscriber.in_flight) for subscriber in self.subscribers)

    def waiting_bytes(self) -> int:
        """About how many bytes of messages wait for their first delivery."""
        return self.topic.log.bytes_from(self.cursor)

    def needed_from(self) -> int:
        """The first sequence of the topic's log that this channel may still read."""
        self.pass_over()  # with nothing to deliver nobody else does
        low = self.cursor
        for subscriber in self.subscribers:
            if subscriber.in_flight:
                low = min(low, min(subscriber.in_flight))
        if self.requeued:
            low = min(low, min(sequence for sequence, _ in self.requeued))
        if len(self.deferred):
            low = min(low, min(self.deferred.sequences()))
        if low < self.cursor and self._sided:
            left = [sequence for sequence in self.unfinished() if sequence not in self._sided]
            low = min([self.cursor, *left])  # what is deferred may lie ahead of the cursor
        return low

    def pending(self) -> list[int]:
        """All that is in flight, or requeued and ready, in no order."""
        sequences = [sequence for sequence, _ in self.requeued]
        for subscriber in self.subscribers:
            sequences.extend(subscriber.in_flight)
        return sequences

    def unfinished(self) -> list[int]:
        """All that was delivered or waits for its time, and is not finished, in no order."""
        return self.pending() + self.deferred.sequences()

    def oldest(self) -> int | None:
        """The lowest sequence that is not finished, if any is left."""
        self.pass_over()
        left = self.unfinished()
        if self.cursor < self.topic.fanned_out:
            left.append(self.cursor)
        return min(left, default=None)

    def published_at(self, sequence: int) -> int | None:
        """Return when one of the unfinished was published; None when that cannot be read, now or any more."""
        try:
            if sequence in self._sided:
                return time_of(self.aside.frame(sequence))
            return self.topic.log.timestamp(sequence)
        except (OutOfRange, CorruptChunk, ReadFailed):
            return None

    # --- messages come in --------------------------------------------------------------------------------------

    def accept(self, start: int, stop: int, deferrals: Iterable[tuple[int, int]], *, now: int) -> None:
        """Take [start, stop) of the topic, which has just handed it over; `deferrals` are (sequence, delay)."""
        self.message_count += stop - start
        for sequence, delay in deferrals:
            self.wait_first(sequence, until=now + delay)
        if self.ephemeral:
            self._drop_overflow(start, stop)
        self.dirty = True
        self._touched(self)

    def wait_first(self, sequence: int, *, until: int) -> None:
        """Let a message that was never delivered wait until then; the cursor jumps over it."""
        self.ahead.add(sequence, sequence + 1)
        self.attempts[sequence] = 0
        self.deferred.defer(sequence, until=until)
        self.schedule(until)

    def pass_by(self, start: int, stop: int) -> None:
        """Never deliver [start, stop), which the topic has dropped before handing it over."""
        self.ahead.add(start, stop)
        self.pass_over()
        self.dirty = True

    def _drop_overflow(self, start: int, stop: int) -> None:
        """Drop what of [start, stop), which has just come, an ephemeral channel has no room for: the newest."""
        room = self._options.mem_queue_size + sum(max(subscriber.room, 0) for subscriber in self.subscribers)
        surplus = self.depth - room
        if surplus > 0:
            start = max(stop - surplus, start, self.ahead.end)
            if start < stop:
                self.dropped_count += stop - start
                self.ahead.add(start, stop)

    # --- messages go out ---------------------------------------------------------------------------------------

    def deliver(self, now: int) -> None:
        """Give what is ready to those who have room, evenly."""
        if self.paused or self.exiting or self.paused_until > now:
            return
        waiting = self.depth
        if waiting <= 0:
            return
        ready = [subscriber for subscriber in self.subscribers if subscriber.room > 0]
        if not ready:
            return
        if len(ready) > 1:
            self._turn += 1
            shift = self._turn % len(ready)
            ready = ready[shift:] + ready[:shift]
            if self._options.topology_aware:
                ready.sort(key=lambda subscriber: -subscriber.locality)
        while ready and waiting > 0:
            share = waiting if self._options.topology_aware else -(-waiting // len(ready))
            before = waiting
            for subscriber in ready:
                self._give(subscriber, min(share, subscriber.room), now)
                waiting = self.depth
                if waiting <= 0:
                    break
            if waiting == before:
                break
            ready = [subscriber for subscriber in ready if subscriber.room > 0]
        self.dirty = True
        self.schedule(self.leases.soonest)

    def _give(self, subscriber: Subscriber, count: int, now: int) -> None:
        """Deliver up to `count` messages to one consumer: what was requeued when its turn has come, else fresh ones."""
        while count > 0 and subscriber.room > 0:
            if self.ahead.count:
                self.pass_over()
            cursor = self.reader.sequence
            stop = self.topic.fanned_out
            if self.requeued:
                sequence, behind = self.requeued[0]
                if behind <= cursor:
                    count -= self._redeliver(sequence, subscriber, now)
                    self.requeued.popleft()  # only now: what could not be read is not done with
                    continue
                stop = min(stop, behind)
            stop = self.ahead.clear_until(stop)
            if cursor >= stop:
                return
            count -= self._deliver_fresh(subscriber, stop, count, now)

    def pass_over(self) -> None:
        """Move the cursor over what needs no first delivery."""
        jumped = self.ahead.pass_over(self.reader.sequence)
        if jumped != self.reader.sequence:
            self.reader.seek(jumped)

    def _deliver_fresh(self, subscriber: Subscriber, stop: int, count: int, now: int) -> int:
        """Hand over one slice of the log; how many messages that were."""
        reader = self.reader
        try:
            frames, taken = reader.take(stop, count, SLICE)
        except OutOfRange:  # the log was cut under a cursor that stood below it
            reader.seek(self.topic.log.first)
            return 0
        if not frames:
            return 0  # the end, or a quarantined range that the log has told of and the reader has passed
        run = range(reader.sequence - taken, reader.sequence)
        if subscriber.sample_rate or self.latencies is not None:
            frames, runs = self._inspect(frames, run, subscriber.sample_rate)
        else:
            runs = [run]
        for run in runs:
            self.leases.deliver(run, subscriber, now=now)
        given = sum(map(len, runs))
        subscriber.message_count += given
        self.delivered[subscriber.locality] += given
        if frames:
            subscriber.unsent += len(frames)
            subscriber.send(frames)
        return taken

    def _inspect(self, frames: bytes, run: range, sample_rate: int) -> tuple[bytes, list[range]]:
        """Drop what a sampling consumer does not want, and note when some of the rest was published."""
        positions, _ = kernel.scan_frames(frames, 0, len(frames))
        kept: Sequence[int] = range(len(run))
        if sample_rate:
            kept = [index for index in kept if self._random.randrange(100) <= sample_rate]
            self.discarded_count += len(run) - len(kept)
        if self.latencies is not None:
            step = 1 + len(kept) // STAMPED
            for place in range(0, len(kept), step):
                index = kept[place]
                at = positions[index] + 8
                self._stamps[run[index]] = int.from_bytes(frames[at : at + 8], "big"), min(step, len(kept) - place)
        if not sample_rate:
            return frames, [run]
        parts = [frames[positions[index] : positions[index + 1]] for index in kept]
        runs = [range(run[0] + start, run[0] + stop) for start, stop in runs_of(kept)]
        return b"".join(parts), runs

    def _redeliver(self, sequence: int, subscriber: Subscriber, now: int) -> int:
        """Deliver one message again, rebuilt with its attempts; 1 if it went out, 0 if it is gone for good."""
        frame = self._frame(sequence)
        if frame is None:
            self._forget(sequence)
            return 0
        if subscriber.sample_rate and self._random.randrange(100) > subscriber.sample_rate:
            self.discarded_count += 1
            self._forget(sequence)
            return 0
        attempts = self.attempts.get(sequence, 1) + 1
        self.attempts[sequence] = attempts
        self.leases.deliver(range(sequence, sequence + 1), subscriber, now=now)
        if self.latencies is not None:
            self._stamps[sequence] = int.from_bytes(frame[8:16], "big"), 1
        subscriber.message_count += 1
        self.delivered[subscriber.locality] += 1
        subscriber.unsent += len(frame)
        subscriber.send(kernel.with_attempts(frame, attempts))
        return 1

    def _frame(self, sequence: int) -> bytes | None:
        """The frame of one message; None when it is lost to a corrupt chunk, which the log has already told of."""
        try:
            if sequence in self._sided:
                return self.aside.frame(sequence)
            return self.topic.log.frame(sequence)
        except (OutOfRange, CorruptChunk) as error:
            self.topic.report(f"channel {self.name}: message {sequence} cannot be delivered again: {error}")
            return None

    # --- consumers answer --------------------------------------------------------------------------------------

    def finish_run(self, block: bytes, subscriber: Subscriber, *, now: int) -> list[bytes]:
        """Finish a run of messages, given as the lines of their FINs; the ids that `subscriber` does not hold."""
        held = subscriber.in_flight
        before = len(held)
        if self._sided:
            self.aside.leave([each for each in self._sequences(block) if each in self._sided and each in held])
        stamped = self._stamped(block, held) if self._stamps else ()
        missing = kernel.finish(block, self.topic.id_base, held, self.attempts)
        for sequence in stamped:
            if sequence not in held:
                self._took(sequence, now)
        subscriber.finish_count += before - len(held)
        self.dirty = True
        self._touched(self)
        return missing

    def _sequences(self, block: bytes) -> Iterator[int]:
        """What a run of FINs names."""
        return (self.topic.sequence_of(block[at : at + 16]) for at in range(4, len(block), 21))

    def _stamped(self, block: bytes, held: Container[int]) -> list[int]:
        """Those in flight whose latency counts, and which a run of FINs may name: the shorter way round."""
        if len(block) // 21 < len(self._stamps):
            return [sequence for sequence in self._sequences(block) if sequence in self._stamps and sequence in held]
        return [sequence for sequence in self._stamps if sequence in held]

    def _took(self, sequence: int, now: int) -> None:
        stamp, others = self._stamps.pop(sequence, (0, 0))
        if others and self.latencies is not None:
            self.latencies.record(now + self.topic.skew - stamp, others, now=now)

    def requeue(self, sequence: int, subscriber: Subscriber, *, delay: int, now: int) -> None:
        """Take a message back from its consumer, ready at once (behind all that waits) or after `delay`."""
        self._take_from(sequence, subscriber)
        subscriber.requeue_count += 1
        self.requeue_count += 1
        self.attempts.setdefault(sequence, 1)
        if delay > 0:
            self.deferred.defer(sequence, until=now + delay)
            self.schedule(now + delay)
        else:
            self.requeued.append((sequence, self.topic.fanned_out))
        self.dirty = True
        self._touched(self)

    def touch(self, sequence: int, subscriber: Subscriber, *, timeout: int, now: int) -> None:
        """Give a consumer more time for a message."""
        self._check_holder(sequence, subscriber)
        self.leases.touch(sequence, subscriber, timeout=timeout, now=now)
        self.schedule(self.leases.soonest)

    def holder(self, sequence: int) -> Subscriber | None:
        """Who holds the message now."""
        for subscriber in self.subscribers:
            if sequence in subscriber.in_flight:
                return subscriber
        return None

    def _check_holder(self, sequence: int, subscriber: Subscriber) -> None:
        if sequence not in subscriber.in_flight:
            raise NotOwner if self.holder(sequence) else NotInFlight

    def _take_from(self, sequence: int, subscriber: Subscriber) -> None:
        self._check_holder(sequence, subscriber)
        del subscriber.in_flight[sequence]
        self._stamps.pop(sequence, None)

    def _forget(self, sequence: int) -> None:
        self.attempts.pop(sequence, None)
        self._stamps.pop(sequence, None)
        self.aside.leave([sequence])
        self.dirty = True

    # --- consumers come and go ---------------------------------------------------------------------------------

    def subscribe(self, subscriber: Subscriber) -> None:
        """Let a consumer in. Raises `Exiting` or `TooManyConsumers`."""
        if self.exiting:
            raise Exiting
        limit = self._options.max_channel_consumers
        if limit > 0 and len(self.consumers) >= limit:
            raise TooManyConsumers(f"consumers for {self.topic.name}:{self.name} exceeds limit of {limit}")
        self.subscribers.append(subscriber)

    def unsubscribe(self, subscriber: Subscriber, *, keep_in_flight: bool, now: int) -> None:
        """Let a consumer go; what it held is ready again, before all else that waits.

        With `keep_in_flight` its messages wait for their timeout instead, held by nobody: as NSQ does it.
        """
        if subscriber not in self.subscribers:
            return
        subscriber.closing = True
        subscriber.ready = 0
        subscriber.lease = None  # nothing joins it any more
        if keep_in_flight and subscriber.in_flight and not self.exiting:
            return
        self.subscribers.remove(subscriber)
        held = sorted(subscriber.in_flight, reverse=True)
        subscriber.in_flight = {}
        for sequence in held:
            self.attempts.setdefault(sequence, 1)
            self.requeued.appendleft((sequence, 0))
        self.leases.next_deadline()  # drops its leases, and with them all that the consumer was
        self.dirty = True
        self._touched(self)

    @property
    def consumers(self) -> list[Subscriber]:
        """Those who are connected."""
        return [subscriber for subscriber in self.subscribers if not subscriber.closing]

    # --- time passes -------------------------------------------------------------------------------------------

    def scan(self, now: int) -> None:
        """Requeue what expired, and ready what is due."""
        self.scheduled = None
        found = False
        if self.paused_until:
            if self.paused_until <= now:
                self.paused_until = 0
                self._touched(self)
            else:
                self.schedule(self.paused_until)
        for subscriber, late in self.leases.expire(now):
            found = True
            self.timeout_count += len(late)
            for sequence in late:
                self.attempts.setdefault(sequence, 1)
                self._stamps.pop(sequence, None)
                self.requeued.append((sequence, self.topic.fanned_out))
            if subscriber.closing and not subscriber.in_flight and subscriber in self.subscribers:
                self.subscribers.remove(subscriber)
        for sequence in self.deferred.ripe(now):
            found = True
            self.requeued.append((sequence, self.topic.fanned_out))
        if found:
            self.dirty = True
            self._touched(self)
        self.schedule(self.leases.next_deadline())
        self.schedule(self.deferred.next_due())

    def schedule(self, due: int | None) -> None:
        """Look again at that time, if not before."""
        if due is not None and (self.scheduled is None or due < self.scheduled):
            self.scheduled = due
            self.topic.schedule(due, self)

    # --- orders from above -------------------------------------------------------------------------------------

    def apply(self, effective: ChannelSettings, *, now: int) -> None:
        """Put settings in force."""
        self.effective = effective
        until = effective.paused_until - self.topic.skew
        self.paused_until = until if until > now else 0
        if self.paused_until:
            self.schedule(self.paused_until)
        self._touched(self)

    def empty(self) -> None:
        """Drop all that waits, is in flight or deferred."""
        for subscriber in self.subscribers:
            subscriber.in_flight = {}
            subscriber.lease = None
        self.subscribers = self.consumers
        self.leases.clear()
        self.deferred.clear()
        self.requeued.clear()
        self.attempts.clear()
        self._stamps.clear()
        self.ahead.clear()
        self.aside.leave(self._sided)
        self.reader.seek(self.topic.fanned_out)
        self.quiet_until = 0
        self.dirty = True
        self._touched(self)

    def seek(self, sequence: int, *, back: bool = False) -> None:
        """Move the cursor: all before `sequence` is done, all from it on is to be delivered (again).

        Raises `CursorConflict` when that goes back and nobody said `back`, and `ReadFailed`.
        """
        log = self.topic.log
        sequence = min(sequence, self.topic.fanned_out)
        if sequence >= self.cursor or self._passed_over_from(sequence):
            self._finish_below(sequence)
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
        self.schedule(self.deferred.next_due())
        self.dirty = True
        self.quiet_until = 0  # whoever moved it counts on that
        self._touched(self)

    def _passed_over_from(self, sequence: int) -> bool:
        """Whether the cursor has only jumped over [sequence, cursor): all of it was deferred and never delivered."""
        count = self.cursor - sequence
        untried = self.attempts
        return len(untried) >= count and all(untried.get(each) == 0 for each in range(sequence, self.cursor))

    def take_back(self, sequences: Iterable[int]) -> None:
        """Make finished messages below the cursor ready again, as far as they can still be read."""
        unfinished = set(self.unfinished())
        first = self.topic.log.first
        for sequence in sequences:
            if sequence not in unfinished and (sequence >= first or sequence in self._sided):
                self.attempts.setdefault(sequence, 1)
                self.requeued.append((sequence, 0))
        self.dirty = True
        self._touched(self)

    def _finish_below(self, sequence: int) -> None:
        for subscriber in self.subscribers:
            for held in [held for held in subscriber.in_flight if held < sequence]:
                del subscriber.in_flight[held]
                self._stamps.pop(held, None)
        self.subscribers = [each for each in self.subscribers if each.in_flight or not each.closing]
        waiting = [(number, behind) for number, behind in self.requeued if number >= sequence]
        self.requeued = deque(waiting)
        self.deferred.drop_below(sequence)
        for number in [number for number in self.attempts if number < sequence]:
            del self.attempts[number]
        self.aside.leave([number for number in self._sided if number < sequence])

    def close(self) -> None:
        """Refuse what comes, and hang up on all consumers."""
        self.exiting = True
        for subscriber in self.consumers:
            subscriber.hang_up()

    # --- stragglers --------------------------------------------------------------------------------------------

    def set_aside(self, below: int) -> None:
        """Copy what is unfinished below that sequence into the side log, so that it pins no segment."""
        moving = sorted(sequence for sequence in self.unfinished() if sequence < below and sequence not in self._sided)
        if moving:
            found = ((sequence, self._frame(sequence)) for sequence in moving)
            self.aside.keep((sequence, frame) for sequence, frame in found if frame is not None)
