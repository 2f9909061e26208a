"""One cursor over a topic's log, and who gets the next slice.

A message of the topic is, for this channel, exactly one of: ahead of the cursor (waiting for its first delivery),
in flight with one consumer, requeued and ready, deferred, or finished. Only the middle three are written down;
what stands below the cursor and in none of them is finished, so finishing a message is forgetting it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable
from random import Random
from typing import TYPE_CHECKING, Final

from lapwing import kernel, names
from lapwing.broker.deferred import Deferred
from lapwing.broker.finished import Ahead, runs_of
from lapwing.broker.inflight import InFlight
from lapwing.broker.latency import Latencies
from lapwing.errors import CorruptChunk, CursorConflict, Exiting, NotInFlight, NotOwner, OutOfRange, TooManyConsumers

if TYPE_CHECKING:
    from lapwing.broker.options import Options
    from lapwing.broker.subscriber import Subscriber
    from lapwing.broker.topic import Topic
    from lapwing.log.journal import ChannelState, Journal
    from lapwing.log.sidelog import SideLog

SLICE: Final = 256 * 1024  # bytes given to one consumer at a time
TELLING: Final = 5_000  # ns of rest for the journal per unfinished message that it was told of


class Channel:
    """One channel of one topic."""

    def __init__(
        self, name: str, topic: Topic, options: Options, *, cursor: int, touched: Callable[[Channel], None]
    ) -> None:
        self.name = name
        self.topic = topic
        self.ephemeral = names.ephemeral(name)
        self.paused = False
        self.exiting = False
        self.subscribers: list[Subscriber] = []
        self.requeued: deque[tuple[int, int]] = deque()  # sequence, and the cursor for which it waits
        self.deferred = Deferred()
        self.attempts: dict[int, int] = {}  # deliveries so far of what is not on its first one
        self.settings: dict[str, object] = {}
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
        self._in_flight = InFlight(options.max_msg_timeout)
        self._ahead = Ahead()
        self._reader = topic.log.reader(cursor)
        self._turn = 0
        self._random = Random(f"{topic.name}/{name}")
        self._side: SideLog | None = None
        self._sided: set[int] = set()
        self._stamps: dict[int, int] = {}  # publish times of what is in flight, when latencies are wanted

    # --- what it shows -----------------------------------------------------------------------------------------

    @property
    def cursor(self) -> int:
        """The first sequence that was never delivered nor passed over."""
        return self._reader.sequence

    @property
    def depth(self) -> int:
        """How many messages are ready to be delivered."""
        waiting = self.topic.fanned_out - self._reader.sequence
        return max(waiting, 0) - self._ahead.count + len(self.requeued)

    @property
    def in_flight_count(self) -> int:
        """How many messages consumers hold."""
        return sum(len(subscriber.in_flight) for subscriber in self.subscribers)

    def needed_from(self) -> int:
        """The first sequence of the topic's log that this channel may still read."""
        low = self.cursor
        for subscriber in self.subscribers:
            if subscriber.in_flight:
                low = min(low, min(subscriber.in_flight))
        if self.requeued:
            low = min(low, min(sequence for sequence, _ in self.requeued))
        if len(self.deferred):
            low = min(low, min(self.deferred.sequences()))
        if low < self.cursor and self._sided:
            left = [sequence for sequence in self._unfinished() if sequence not in self._sided]
            low = min(left, default=self.cursor)
        return low

    def oldest(self) -> int | None:
        """The lowest sequence that is not finished, if any is left."""
        low = min(self._unfinished(), default=None)
        if low is None:
            self._pass_over()
            return self.cursor if self.cursor < self.topic.fanned_out else None
        return low

    # --- messages come in --------------------------------------------------------------------------------------

    def accept(self, start: int, stop: int, deferrals: Iterable[tuple[int, int]], *, now: int) -> None:
        """Take [start, stop) of the topic, which has just handed it over; `deferrals` are (sequence, delay)."""
        self.message_count += stop - start
        for sequence, delay in deferrals:
            self.wait_first(sequence, until=now + delay)
        if self.ephemeral:
            self._drop_overflow(stop)
        self.dirty = True
        self._touched(self)

    def wait_first(self, sequence: int, *, until: int) -> None:
        """Let a message that was never delivered wait until then; the cursor jumps over it."""
        self._ahead.add(sequence, sequence + 1)
        self.attempts[sequence] = 0
        self.deferred.defer(sequence, until=until)
        self._schedule(until)

    def pass_by(self, start: int, stop: int) -> None:
        """Never deliver [start, stop), which the topic has dropped before handing it over."""
        self._ahead.add(start, stop)
        self._pass_over()
        self.dirty = True

    def _drop_overflow(self, stop: int) -> None:
        """Drop the newest that an ephemeral channel has no room for."""
        room = self._options.mem_queue_size + sum(max(subscriber.room, 0) for subscriber in self.subscribers)
        surplus = self.depth - room
        if surplus > 0:
            start = max(stop - surplus, self.cursor, self._ahead.end)
            if start < stop:
                self.dropped_count += stop - start
                self._ahead.add(start, stop)

    # --- messages go out ---------------------------------------------------------------------------------------

    def deliver(self, now: int) -> None:
        """Give what is ready to those who have room, evenly."""
        if self.paused or self.exiting:
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
        self._schedule(self._in_flight.soonest)

    def _give(self, subscriber: Subscriber, count: int, now: int) -> None:
        """Deliver up to `count` messages to one consumer: what was requeued when its turn has come, else fresh ones."""
        while count > 0 and subscriber.room > 0:
            if self._ahead.count:
                self._pass_over()
            cursor = self._reader.sequence
            stop = self.topic.fanned_out
            if self.requeued:
                sequence, behind = self.requeued[0]
                if behind <= cursor:
                    self.requeued.popleft()
                    count -= self._redeliver(sequence, subscriber, now)
                    continue
                stop = min(stop, behind)
            stop = self._ahead.clear_until(stop)
            if cursor >= stop:
                return
            count -= self._deliver_fresh(subscriber, stop, count, now)

    def _pass_over(self) -> None:
        jumped = self._ahead.pass_over(self._reader.sequence)
        if jumped != self._reader.sequence:
            self._reader.seek(jumped)

    def _deliver_fresh(self, subscriber: Subscriber, stop: int, count: int, now: int) -> int:
        """Hand over one slice of the log; how many messages that were."""
        reader = self._reader
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
            self._in_flight.deliver(run, subscriber, now=now)
        given = sum(map(len, runs))
        subscriber.message_count += given
        self.delivered[subscriber.locality] += given
        if frames:
            subscriber.unsent += len(frames)
            subscriber.send(frames)
        return taken

    def _inspect(self, frames: bytes, run: range, sample_rate: int) -> tuple[bytes, list[range]]:
        """Look at each message: note when it was published, and drop what a sampling consumer does not want."""
        positions, _ = kernel.scan_frames(frames, 0, len(frames))
        if self.latencies is not None:
            for index, sequence in enumerate(run):
                at = positions[index] + 8
                self._stamps[sequence] = int.from_bytes(frames[at : at + 8], "big")
        if not sample_rate:
            return frames, [run]
        kept = [index for index in range(len(run)) if self._random.randrange(100) <= sample_rate]
        self.discarded_count += len(run) - len(kept)
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
        self._in_flight.deliver(range(sequence, sequence + 1), subscriber, now=now)
        if self.latencies is not None:
            self._stamps[sequence] = int.from_bytes(frame[8:16], "big")
        subscriber.message_count += 1
        self.delivered[subscriber.locality] += 1
        subscriber.unsent += len(frame)
        subscriber.send(kernel.with_attempts(frame, attempts))
        return 1

    def _frame(self, sequence: int) -> bytes | None:
        """The frame of one message; None when it is lost to a corrupt chunk, which the log has already told of."""
        try:
            if sequence in self._sided and self._side is not None:
                return self._side.frame(sequence)
            return self.topic.log.frame(sequence)
        except (OutOfRange, CorruptChunk) as error:
            self.topic.report(f"channel {self.name}: message {sequence} cannot be delivered again: {error}")
            return None

    # --- consumers answer --------------------------------------------------------------------------------------

    def finish_run(self, block: bytes, subscriber: Subscriber, *, now: int) -> list[bytes]:
        """Finish a run of messages, given as the lines of their FINs; the ids that `subscriber` does not hold."""
        held = subscriber.in_flight
        before = len(held)
        if self.latencies is not None or self._sided:
            self._before_finish(block, held, now)
        missing = kernel.finish(block, self.topic.id_base, held, self.attempts)
        subscriber.finish_count += before - len(held)
        self.dirty = True
        self._touched(self)
        return missing

    def _before_finish(self, block: bytes, held: Container[int], now: int) -> None:
        gone: list[int] = []
        for at in range(4, len(block), 21):
            sequence = self.topic.sequence_of(block[at : at + 16])
            if sequence in held:
                stamp = self._stamps.pop(sequence, None)
                if self.latencies is not None and stamp is not None:
                    self.latencies.record(now - stamp, now=now)
                if sequence in self._sided:
                    gone.append(sequence)
        if gone:
            self._leave_side(gone)

    def requeue(self, sequence: int, subscriber: Subscriber, *, delay: int, now: int) -> None:
        """Take a message back from its consumer, ready at once (behind all that waits) or after `delay`."""
        self._take_from(sequence, subscriber)
        subscriber.requeue_count += 1
        self.requeue_count += 1
        self.attempts.setdefault(sequence, 1)
        if delay > 0:
            self.deferred.defer(sequence, until=now + delay)
            self._schedule(now + delay)
        else:
            self.requeued.append((sequence, self.topic.fanned_out))
        self.dirty = True
        self._touched(self)

    def touch(self, sequence: int, subscriber: Subscriber, *, timeout: int, now: int) -> None:
        """Give a consumer more time for a message."""
        self._check_holder(sequence, subscriber)
        self._in_flight.touch(sequence, subscriber, timeout=timeout, now=now)
        self._schedule(self._in_flight.soonest)

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
        if sequence in self._sided:
            self._leave_side([sequence])
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
        if keep_in_flight and subscriber.in_flight and not self.exiting:
            return
        self.subscribers.remove(subscriber)
        held = sorted(subscriber.in_flight, reverse=True)
        subscriber.in_flight = {}
        for sequence in held:
            self.attempts.setdefault(sequence, 1)
            self.requeued.appendleft((sequence, 0))
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
        for subscriber, late in self._in_flight.expire(now):
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
        self._schedule(self._in_flight.next_deadline())
        self._schedule(self.deferred.next_due())

    def _schedule(self, due: int | None) -> None:
        if due is not None and (self.scheduled is None or due < self.scheduled):
            self.scheduled = due
            self.topic.schedule(due, self)

    # --- orders from above -------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Drop all that waits, is in flight or deferred."""
        for subscriber in self.subscribers:
            subscriber.in_flight = {}
            subscriber.lease = None
        self.subscribers = self.consumers
        self._in_flight.clear()
        self.deferred.clear()
        self.requeued.clear()
        self.attempts.clear()
        self._stamps.clear()
        self._ahead.clear()
        self._leave_side(list(self._sided))
        self._reader.seek(self.topic.fanned_out)
        self.dirty = True
        self._touched(self)

    def seek(self, sequence: int, *, back: bool = False) -> None:
        """Move the cursor: all before `sequence` is done, all from it on is to be delivered (again).

        Raises `CursorConflict` when that goes back and nobody said `back`.
        """
        log = self.topic.log
        sequence = min(sequence, self.topic.fanned_out)
        if sequence >= self.cursor:
            self._finish_below(sequence)
            self._reader.seek(max(sequence, log.first))
        elif back:
            self.empty()
            self._reader.seek(max(sequence, log.first))
            for extra in log.extras(self.cursor, self.topic.fanned_out):
                if extra.defer:
                    self.wait_first(extra.sequence, until=log.timestamp(extra.sequence) + extra.defer)
        else:
            raise CursorConflict(f"the cursor of {self.topic.name}/{self.name} is at {self.cursor}, past {sequence}")
        self._pass_over()
        self._schedule(self.deferred.next_due())
        self.dirty = True
        self._touched(self)

    def _finish_below(self, sequence: int) -> None:
        for subscriber in self.subscribers:
            for held in [held for held in subscriber.in_flight if held < sequence]:
                del subscriber.in_flight[held]
        self.subscribers = [each for each in self.subscribers if each.in_flight or not each.closing]
        waiting = [(number, behind) for number, behind in self.requeued if number >= sequence]
        self.requeued = deque(waiting)
        self.deferred.drop_below(sequence)
        for number in [number for number in self.attempts if number < sequence]:
            del self.attempts[number]
        self._leave_side([number for number in self._sided if number < sequence])

    def close(self) -> None:
        """Refuse what comes, and hang up on all consumers."""
        self.exiting = True
        for subscriber in self.consumers:
            subscriber.hang_up()

    # --- what survives a crash ---------------------------------------------------------------------------------

    def _unfinished(self) -> list[int]:
        """All below the cursor that is not finished, in no order."""
        sequences = [sequence for sequence, _ in self.requeued]
        for subscriber in self.subscribers:
            sequences.extend(subscriber.in_flight)
        sequences.extend(self.deferred.sequences())
        return sequences

    def tell(self, journal: Journal, *, now: int | None = None) -> None:
        """Write down in the topic's journal how far this channel has come."""
        self._in_flight.next_deadline()  # drops the leases that have been answered for
        added, removed = self.deferred.changes()
        if removed:
            journal.deferred(self.name, [], removed)  # before what was added: it may have come to wait again
        if added:
            deferrals = [(sequence, due, self.attempts.get(sequence, 1)) for sequence, due in added.items()]
            journal.deferred(self.name, deferrals, [])
        pending = [sequence for sequence, _ in self.requeued]
        for subscriber in self.subscribers:
            pending.extend(subscriber.in_flight)
        attempts = {sequence: self.attempts[sequence] for sequence in pending if sequence in self.attempts}
        journal.progress(self.name, self.cursor, runs_of(pending), attempts)
        self.dirty = False
        if now is not None:
            self.quiet_until = now + len(pending) * TELLING

    def restore(self, state: ChannelState, *, now: int) -> None:
        """Go on from what the journal knew: what was in flight is ready again."""
        log = self.topic.log
        self._reader.seek(min(max(state.cursor, log.first), log.end))
        self.attempts = dict(state.attempts)
        sided = self._open_side()
        # set aside, and with its segment gone, after the journal was last written: nobody has said that it is finished
        unknown = [sequence for sequence in sided if state.cursor <= sequence < self.cursor]

        def there(sequence: int) -> bool:
            return (sequence >= log.first and sequence not in log.lost) or sequence in sided

        for start, stop in [*state.unfinished, *runs_of(set(unknown) - state.deferred.keys())]:
            for sequence in range(start, min(stop, self.cursor)):
                if there(sequence):
                    self.attempts.setdefault(sequence, 1)
                    self.requeued.append((sequence, 0))
        due = {sequence: until for sequence, until in state.deferred.items() if there(sequence)}
        for sequence in due:
            self.attempts.setdefault(sequence, 0)
        self.deferred.restore({sequence: until for sequence, until in due.items() if sequence < self.cursor})
        self._restore_ahead(due)
        self._leave_side(list(sided.difference(self._unfinished())))
        self._schedule(self.deferred.next_due())
        self.dirty = True

    def _restore_ahead(self, known: dict[int, int]) -> None:
        """Find again what the cursor has to jump over: what waits for its time, and what was dropped in the topic.

        What was published deferred, and had not reached the journal as such, waits from its publish on.
        """
        log, topic = self.topic.log, self.topic
        waiting = {sequence: until for sequence, until in known.items() if sequence >= self.cursor}
        for extra in log.extras(self.cursor, topic.fanned_out):
            if extra.defer and extra.sequence not in known:
                waiting[extra.sequence] = log.timestamp(extra.sequence) + extra.defer
        dropped = [(max(start, self.cursor), stop) for start, stop in topic.emptied() if stop > self.cursor]
        alone = [at for at in waiting if not any(start <= at < stop for start, stop in dropped)]
        for start, stop in sorted([*dropped, *((sequence, sequence + 1) for sequence in alone)]):
            if start in waiting and stop == start + 1 and (start, stop) not in dropped:
                self.wait_first(start, until=waiting[start])
            else:
                self._ahead.add(start, stop)

    # --- stragglers --------------------------------------------------------------------------------------------

    def set_aside(self, below: int) -> None:
        """Copy what is unfinished below that sequence into the side log, so that it pins no segment."""
        moving = [sequence for sequence in self._unfinished() if sequence < below and sequence not in self._sided]
        if not moving:
            return
        if self._side is None:
            self._side = self.topic.side_log(self.name)
        moved = []
        for sequence in sorted(moving):
            frame = self._frame(sequence)
            if frame is not None:
                self._side.put(sequence, frame)
                moved.append(sequence)
        self._side.flush()
        self._sided.update(moved)  # only now: what the disk has refused still needs its segment

    def _open_side(self) -> set[int]:
        if self.topic.has_side_log(self.name):
            self._side = self.topic.side_log(self.name)
            self._sided = self._side.sequences()
            for note in self._side.notes:
                self.topic.report(note)
        return self._sided

    def _leave_side(self, sequences: list[int]) -> None:
        if self._side is not None and sequences:
            self._side.drop(sequences)
            self._sided.difference_update(sequences)
