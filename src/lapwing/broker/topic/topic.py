"""A topic: write the messages of a turn to its log, and hand them to its channels.

`fanned_out` is the sequence up to which messages have been handed to channels. It stands still while the topic is
paused or has no channel, and a new channel begins there: the first one gets the backlog, later ones the tail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from lapwing import ids, kernel, names
from lapwing.broker.channel.channel import Channel
from lapwing.broker.channel.holds import Hold
from lapwing.broker.keeper import checkpoint
from lapwing.broker.settings.definitions import TopicSettings
from lapwing.broker.topic import batch as batches
from lapwing.broker.topic import dedup
from lapwing.broker.topic.admission import Admission
from lapwing.broker.topic.cold import NO_CHANNELS, NO_SETTINGS, ColdTopic, Leftovers
from lapwing.broker.topic.dedup import DedupWindow
from lapwing.broker.topic.deleted import DeletedRuns
from lapwing.broker.topic.skips import EmptiedRuns, Run
from lapwing.errors import Exiting, LimitReached, LogError, ReadFailed, WriteFailed
from lapwing.log.segments.attributes import Rows

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.failures.dead_letter_mover import DeadLetterMover
    from lapwing.broker.keeper.storage import Store
    from lapwing.broker.topic.batch import Batch
    from lapwing.broker.topic.receipt import Receipt
    from lapwing.kernel._road import Inlet
    from lapwing.log.catalog import TopicEntry
    from lapwing.log.journal.journal import JournalState


NONE_LOST: Final = range(0)
_NOTHING_COUNTED: Final = (0, 0)
_NO_CHANNELS: Final[Mapping[str, Channel]] = MappingProxyType({})


class Topic:
    """One topic: its log, its channels, and how far messages were handed from one to the others.

    The broker packs a topic that nobody uses. It is `exiting` then, as a deleted one: who keeps it looks it up again.
    """

    __slots__ = (
        "__weakref__", "_broker", "admission", "answers_wait", "channels", "counted", "dedup", "deleted",
        "door_state", "dropped_count", "effective", "emptied", "ephemeral", "exiting", "fanned_out", "has_extras",
        "held", "id_base", "inlet", "kept", "log", "lost", "message_bytes", "message_count", "moved", "name",
        "options", "paused", "report", "saved_state", "settings", "store", "trimmed_bytes", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, broker: Broker, store: Store) -> None:
        log = store.log
        self.name = name
        self.ephemeral = names.ephemeral(name)
        self.exiting = False
        self.options = broker.options
        self.answers_wait = broker.options.answers_wait and not self.ephemeral
        self.log = log
        self.id_base = ids.base(log.node)
        self.fanned_out = log.first  # messages below were handed to the channels
        self.admission: Admission | None = None  # limits on publishes, if there are any
        self.dedup: DedupWindow | None = None  # recognises repeated ids, where the topic is set to
        self.message_count = 0
        self.message_bytes = 0
        self.dropped_count = 0  # messages that did not fit an ephemeral topic
        self.waiting: list[tuple[Receipt, int]] = []  # of this turn, with the first sequence of each
        self.has_extras = False  # whether a message that was not handed over may be deferred
        self.counted = _NOTHING_COUNTED  # messages and bytes before this turn, in case its write fails
        self.paused = False
        self.held = False  # until it is known which channels the topic begins with
        self.kept = 0  # callers that come back to it later
        self.channels: Mapping[str, Channel] = _NO_CHANNELS
        self.settings: Mapping[str, Any] = NO_SETTINGS  # its own
        self.effective: TopicSettings = broker.settings.plain_topic  # what holds, with policies and flags
        self.store = store
        self.deleted = DeletedRuns()
        self.door_state: dict[str, Any] = {}  # JSON that a door keeps with the topic
        self.saved_state: dict[str, Any] = {}  # what of it is in the journal
        self.report: Callable[[str], None] = broker.report
        self._broker = broker
        self.moved = False  # fanned_out has changed since it was saved
        self.emptied = EmptiedRuns()
        self.trimmed_bytes = 0  # twice what was left after it was last trimmed for taking much memory
        self.lost = NONE_LOST  # sequences not handed over yet that a crash took
        self.inlet: Inlet | None = None  # the way in for messages that need no look

    def pack(self, now: int) -> ColdTopic | None:
        """Return the topic as a small value; None where it is in use, or has something to save.

        Nobody may use the topic itself afterwards.
        """
        if self.held or self.waiting or self.exiting or self.kept or self.dedup is not None:
            return None
        if self.log.unsynced and self.options.durability == "fsync":
            return None  # receipts wait for it
        if self.fanned_out < self.log.end and not self.stands_still:
            return None  # a read has failed, and is tried again
        if self.moved or self.emptied.changed or self.deleted.changed or self.door_state != self.saved_state:
            return None
        channels = {name: channel.pack(now) for name, channel in self.channels.items()}
        cold = {name: channel for name, channel in channels.items() if channel is not None}
        if len(cold) < len(channels):
            return None
        self.shut_inlet()
        store = self.store.pack()
        if store is None:
            return None
        rare = self.deleted or self.emptied.runs or self.lost or self.door_state
        packed = ColdTopic(
            self.name,
            store,
            fanned_out=self.fanned_out,
            paused=self.paused,
            settings=self.settings,
            channels=cold or NO_CHANNELS,
            message_count=self.message_count,
            message_bytes=self.message_bytes,
            leftovers=Leftovers(self.deleted, self.emptied, self.door_state, self.lost) if rare else None,
        )
        self.close()
        return packed

    def unpack(self, cold: ColdTopic) -> None:
        """Be as the topic that was packed."""
        self.fanned_out, self.has_extras = cold.fanned_out, True
        self.paused, self.settings = cold.paused, cold.settings
        self.message_count, self.message_bytes = cold.message_count, cold.message_bytes
        if cold.leftovers is not None:
            self.deleted, self.emptied, self.door_state, self.lost = cold.leftovers
            self.saved_state = dict(self.door_state)
        for each in cold.channels.values():
            channel = self.new_channel(each.name, cursor=each.cursor)
            channel.unpack(each)
            self.add_channel(channel)

    def __str__(self) -> str:
        return f"topic {self.name}"

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Keep the topic from being packed meanwhile, for a caller that uses it again later."""
        self.kept += 1
        try:
            yield
        finally:
            self.kept -= 1

    @property
    def depth(self) -> int:
        """The number of messages that wait in the topic for a channel."""
        return self.log.end - self.fanned_out - len(self.lost)

    @property
    def skew(self) -> int:
        """ns from the broker's time, which deadlines go by, to the machine's clock, which messages are stamped with."""
        return self._broker.skew

    @property
    def staged_from(self) -> int | None:
        """The sequence from which on a start looks for parts of batches and for ticks of schedules; None: nowhere."""
        places = self._broker.staged_from.get(self.name)
        return min(places.values()) if places else None

    @property
    def mover(self) -> DeadLetterMover:
        """The mover of dead letters."""
        return self._broker.mover

    @property
    def stands_still(self) -> bool:
        """Whether messages wait in the topic rather than in channels."""
        return self.paused or self.held or not self.channels

    # --- taking messages -----------------------------------------------------------------------------------------

    def append(self, batch: Batch, receipt: Receipt, *, now: int) -> None:
        """Take a batch, all or none; `receipt` is settled when the turn's messages are written. Raises `BrokerError`.

        Messages that repeat an id are not stored; the receipt waits for those that they repeat.
        """
        window, repeated = self.dedup, -1
        new: Sequence[tuple[int, bytes]] = ()
        if window is not None and batch.rows and not batch.own:
            new = kernel.message_ids(batch.rows)
            repeats = window.repeats(new, now=now)
            if len(repeats) == batch.count:
                repeated = max(repeats.values())
            elif repeats:
                first = self.log.next
                body = dedup.without(batch.body, {sequence - first for sequence in repeats})
                batch = batches.headed(self, body, now=now)
                new = kernel.message_ids(batch.rows)
        if self.admission is not None and repeated < 0 and not batch.own:
            self.admission.check(batch.count, batch.size, batch.beyond(self.admission.max_msg_size))
        if self.exiting:
            raise Exiting
        if not self.waiting:
            self._broker.work.write(self)
            self.counted = (self.message_count, self.message_bytes)
        if repeated >= 0:
            self.waiting.append((receipt, repeated))
            return
        self.waiting.append((receipt, self.log.next))
        self.message_count += batch.count
        self.message_bytes += batch.size
        if self.ephemeral and self.stands_still:
            self._append_fitting(batch, now)
        else:
            self.log.append(batch.frames, batch.count, now=now, rows=batch.rows)
        if window is not None and new:
            window.add(new, now=now)
        if batch.deferred:
            self.has_extras = True

    def _append_fitting(self, batch: Batch, now: int) -> None:
        """Append those messages of a batch that fit the memory of an ephemeral topic; drop the others."""
        first, count, frames, rows = self.log.next, batch.count, batch.frames, batch.rows
        room = max(self.options.mem_queue_size - (first - self.fanned_out), 0)
        if room < count:
            self.dropped_count += count - room
            count, end = kernel.take_frames(frames, 0, len(frames), room, len(frames))
            frames = frames[:end]
            rows = Rows(first, 1 << 62, rows).between(first, first + count)
        if count:
            self.log.append(frames, count, now=now, rows=rows)

    def lawful_delay(self, defer: int) -> int:
        """Return the delay that a message keeps: none beyond NSQ's memory limit, where that was asked for."""
        limit = self.options.deferred_limit
        if limit is not None and self.stands_still and self.log.next - self.fanned_out >= limit:
            return 0
        return defer

    def write_pending(self, *, now: int) -> None:
        """Write what this turn has brought so far, before its end."""
        if self.waiting:
            self.commit(now)

    # --- ids -----------------------------------------------------------------------------------------------------

    def id_of(self, sequence: int) -> str:
        """Return the id of a message, as consumers see it."""
        return f"{self.id_base + sequence:016x}"

    def sequence_of(self, message_id: bytes) -> int:
        """Return the sequence that an id names, or -1 if it is none of this topic's."""
        try:
            node, sequence = ids.decode(message_id)
        except ValueError:
            return -1
        return sequence if node == self.log.node else -1

    def sequences_of(self, message_ids: Sequence[bytes]) -> list[int]:
        """Return the sequences that ids name, -1 for those that are none of this topic's."""
        if ids.well_formed(message_ids):
            base, most = self.id_base, ids.MOST_SEQUENCE
            numbers = [int(message_id, 16) - base for message_id in message_ids]
            return [number if 0 <= number <= most else -1 for number in numbers]
        return [self.sequence_of(message_id) for message_id in message_ids]

    # --- the end of a turn -------------------------------------------------------------------------------------

    def commit(self, now: int) -> None:
        """Write what this turn brought, hand it to the channels, and settle its receipts (with `fsync`, later).

        Raises `WriteFailed` after settling them with that error; nothing of the batch is kept then.
        """
        if self.exiting:
            return  # deleted in this turn: its receipts are settled
        waiting, self.waiting = self.waiting, []
        try:
            if self.log.pending:
                self.log.flush()
        except WriteFailed as error:
            self._refuse(waiting, error)
            raise
        except Exception as error:  # such as want of memory: what was not written is forgotten, so that nothing waits
            try:
                self.log.take_back()
            finally:
                self._refuse(waiting, LogError(f"{self.name}: {type(error).__name__}: {error}"))
            raise
        if self.dedup is not None:
            self.dedup.written()
        self._broker.growth.note(self.name)
        if self.answers_wait:
            self._broker.work.sync(self, waiting)
        else:
            for receipt, sequence in waiting:
                receipt.settle(sequence, None)
        self.fan_out(now)

    def _refuse(self, waiting: Sequence[tuple[Receipt, int]], error: LogError) -> None:
        """Settle receipts of messages that were not written."""
        self.message_count, self.message_bytes = self.counted
        if self.dedup is not None:
            self.dedup.take_back()
        for receipt, sequence in waiting:
            receipt.settle(sequence, error)

    # --- messages that intakes take ------------------------------------------------------------------------------

    def let_in(self) -> Inlet | None:
        """Let plain messages in without a look at each, where nothing is to be looked at; return the way in."""
        looks = self.ephemeral or self.exiting or self.admission is not None or self.dedup is not None
        if self.inlet is None and self._broker.round is not None and not looks:
            tail = self.log.tail
            if tail is not None:
                self.inlet = self._broker.round.open(self, tail, self.id_base)
        return self.inlet

    def shut_inlet(self) -> None:
        """Have every publish looked at from now on."""
        inlet, self.inlet = self.inlet, None
        if inlet is not None and self._broker.round is not None:
            self._broker.round.shut(inlet)

    def grew(self, now: int) -> None:
        """Hand messages to the channels that were let in and are written."""
        self._broker.keeper.note_written(self)
        self._broker.growth.note(self.name)
        self.fan_out(now)

    def show(self, now: int) -> None:
        """Hand messages to the channels that nobody could see before, as no record had them."""
        if not self.exiting:
            self._broker.growth.note(self.name)
            self.fan_out(now)

    # --- handing over --------------------------------------------------------------------------------------------

    def fan_out(self, now: int) -> None:
        """Hand new messages to the channels, unless the topic stands still; retried when a read fails."""
        try:
            self.try_fan_out(now)
        except ReadFailed as error:
            self._broker.read_stalls.add(self, error, now=now)

    def try_fan_out(self, now: int) -> None:
        """Hand new messages to the channels, unless the topic stands still. Raises `ReadFailed`, and nothing moves.

        After a kill a message may be handed over a second time. Its delay begins again then: when it was published is
        known by a clock that may have been set since, and no message may come early.
        """
        start, stop = self.fanned_out, self.log.end
        if start >= stop or self.stands_still:
            return
        deferrals: list[tuple[int, int]] = []
        if self.has_extras:
            deferrals = [(extra.sequence, extra.defer) for extra in self.log.extras(start, stop) if extra.defer]
            self.has_extras = self.log.pending
        self.fanned_out = stop
        self.moved = True
        for channel in self.channels.values():
            if self.lost:
                self._accept_around(channel, start, stop, deferrals, now)
            else:
                channel.accept(start, stop, deferrals, now=now)
        self.lost = NONE_LOST

    def _accept_around(
        self, channel: Channel, start: int, stop: int, deferrals: Sequence[tuple[int, int]], now: int
    ) -> None:
        """Hand [start, stop) to a channel, except for what is lost."""
        lost = self.lost
        channel.accept(start, lost.start, [each for each in deferrals if each[0] < lost.start], now=now)
        channel.pass_by(lost.start, lost.stop)
        channel.accept(lost.stop, stop, [each for each in deferrals if each[0] >= lost.stop], now=now)

    # --- channels ----------------------------------------------------------------------------------------------

    def create_channel(self, name: str, *, now: int, cursor: int | None = None, sync: bool = True) -> Channel:
        """Return the channel of that name, created if there is none, at `cursor` or where the topic stands.

        A new one is saved, with `sync` as publishes are; without it the caller has `Broker.save_topic` do that. Raises
        `LimitReached` or `Exiting`.
        """
        channel = self.channels.get(name)
        if channel is None:
            limit = self.options.max_channels
            if 0 < limit <= len(self.channels):
                raise LimitReached("channels", limit, where=f"topic {self.name}", flag="--max-channels")
            if self.exiting:
                raise Exiting
            start = self.fanned_out if cursor is None else cursor
            channel = self.new_channel(name, cursor=start)
            if start < self.fanned_out:
                channel.skip(channel.find_skips(start))
            self.add_channel(channel)
            self._broker.settings.apply_channel(channel, now=now)
            self.fan_out(now)
            self._broker.checkpoint_topic(self, sync=sync)
            self._broker.changed("channel", self.name, name, created=True)
        return channel

    def add_channel(self, channel: Channel) -> None:
        """Add a new channel to those of the topic."""
        if isinstance(self.channels, dict):
            self.channels[channel.name] = channel
        else:
            self.channels = {channel.name: channel}

    def new_channel(self, name: str, *, cursor: int) -> Channel:
        """Return a new channel, which is not among the topic's channels yet."""
        broker = self._broker
        plain = broker.settings.plain_channel
        channel = Channel(name, self, self.options, cursor=cursor, mark_ready=broker.work.deliver, effective=plain)
        if broker.drained:
            channel.hold(Hold.DRAINED)
        return channel

    def delete_channel(self, name: str) -> None:
        """Delete a channel with everything it has, and hang up on its consumers."""
        channel = self.channels[name]
        if isinstance(self.channels, dict):
            del self.channels[name]
        channel.close()
        self.moved = True
        self.store.forget(name)
        self.set_admission()
        self._broker.checkpoint_topic(self)
        self._broker.changed("channel", self.name, name, created=False)

    def drop_channels(self) -> None:
        """Drop the channels of a topic that is deleted: each has the topic."""
        self.channels = _NO_CHANNELS

    def delete(self, start: int, stop: int) -> int:
        """Delete the messages [start, stop): no reader sees them any more; return how many there were."""
        for channel in self.channels.values():
            if channel.side_logged.sequences:
                copied = channel.side_logged.sequences.between(start, stop, stop - start)
                channel.side_logged.leave([each for each in copied if each not in self.deleted])
        count = self.deleted.add(start, stop)
        if count:
            self.changed()
            for channel in self.channels.values():
                self._broker.mark_ready(channel)  # its cursor may pass them
        return count

    def changed(self) -> None:
        """Have the state of the topic saved with the next checkpoint."""
        self._broker.keeper.note_changed(self)

    def save(self) -> None:
        """Save the state of the topic now, as publishes are saved; when the disk refuses, with a later checkpoint."""
        self._broker.checkpoint_topic(self, sync=True)

    def deliver_later(self, channel: Channel) -> None:
        """Have the channel deliver in the next turn."""
        self._broker.work.deliver_later(channel)

    def schedule(self, due: int, channel: Channel) -> None:
        """Have the channel's `scan` called at that time."""
        self._broker.agenda.add(due, channel)

    # --- orders from above -------------------------------------------------------------------------------------

    def keep_settings(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have these settings of its own, which are not in force yet; return those before."""
        before, self.settings = self.settings, own
        return before

    def apply(self, effective: TopicSettings, *, now: int) -> None:
        """Put settings in force."""
        self.effective = effective
        self.set_admission()
        self.set_dedup(now=now)

    def set_admission(self) -> None:
        """Put the limits on publishes in force, if there are any."""
        draining, problem, most = self._broker.draining, self._broker.memory_problem, self.options.max_msg_size
        remote = self._broker.remote_problem
        bounded = [
            channel
            for channel in self.channels.values()
            if channel.effective.overflow == "reject" and (channel.effective.max_depth or channel.effective.max_bytes)
        ]
        own = self.effective.max_msg_size
        if draining or problem is not None or remote is not None or bounded or own < most:
            self.admission = Admission(
                self, draining=draining, memory_problem=problem, remote_problem=remote, max_msg_size=min(own, most),
                bounded=bounded,
            )  # fmt: skip
            self.shut_inlet()
        else:
            self.admission = None

    def set_dedup(self, *, now: int) -> None:
        """Recognise repeated ids as the settings demand; a new window is read back from the log."""
        span, most = self.effective.dedup_window, self.effective.dedup_max
        if not span:
            self.dedup = None
        elif self.dedup is None or (self.dedup.span, self.dedup.most) != (span, most):
            before, window = self.dedup, DedupWindow(span, most)
            try:
                self.write_pending(now=now)  # the ids of this turn are read back too
            except WriteFailed as error:
                self._broker.fail(error)  # nothing of this turn is in the log, and its publishers have the error
            try:
                window.read_back(self.store.whole_log, now=now, skew=self.skew)
            except ReadFailed as error:
                self.report(f"topic {self.name}: ids of earlier messages are not known, repeats may be stored: {error}")
            if before is not None:
                window.continue_counts(before)
            self.dedup = window
            self.shut_inlet()

    def empty(self) -> None:
        """Drop the messages that wait in the topic; channels keep theirs."""
        start, stop = self.fanned_out, self.log.end
        self.fanned_out = stop
        self.moved = True
        if self.channels and start < stop:
            self.emptied.add(start, stop, passed=min(channel.cursor for channel in self.channels.values()))
            for channel in self.channels.values():
                channel.pass_by(start, stop)
        self.lost = NONE_LOST
        self._broker.checkpoint_topic(self)

    def pause(self, paused: bool, *, now: int) -> None:
        """Stop or resume handing messages to channels."""
        self.paused = paused
        self.moved = True
        if not paused:
            self.fan_out(now)
        self._broker.checkpoint_topic(self)

    def release(self, *, now: int) -> None:
        """Hand messages to channels: it is known which channels the topic begins with."""
        self.held = False
        self.fan_out(now)

    def close(self) -> None:
        """Refuse further calls, and hang up on all consumers."""
        self.exiting = True
        self.shut_inlet()
        for receipt, sequence in self.waiting:
            receipt.settle(sequence, Exiting())
        self.waiting = []
        for channel in self.channels.values():
            channel.close()

    # --- what survives a crash ---------------------------------------------------------------------------------

    def take_over(self, entry: TopicEntry) -> None:
        """Take over what the catalog has."""
        self.paused = entry.paused
        if entry.settings:
            self.settings = dict(entry.settings)

    def restore(self, state: JournalState) -> None:
        """Rebuild the topic, without its channels, from the journal; the settings of the catalog are there."""
        log = self.log
        known = state.fanned_out if state.fanned_out is not None else log.first
        cursors = [channel.cursor for channel in state.channels.values()]
        self.fanned_out = min(max([known, log.first, *cursors]), log.end)
        self._restore_emptied(state.emptied)
        self.deleted = DeletedRuns([*state.deleted, (0, state.trimmed)])
        self.deleted.forget_below(log.first)
        self.deleted.forget_from(log.end)
        self.door_state = checkpoint.read_note(state.notes.get(checkpoint.DOOR, b""))
        self.saved_state = dict(self.door_state)
        self._leave_out(log.lost)
        self.has_extras = True

    def _restore_emptied(self, saved: list[Run] | None) -> None:
        """Take over the emptied runs; an old data path has them among the settings in the catalog."""
        before, old = self.settings, self.settings.get("emptied")
        if old is not None:
            self.settings = {name: value for name, value in before.items() if name != "emptied"}
        if saved is not None:
            self.emptied = EmptiedRuns(saved)
        elif isinstance(old, list):
            self.emptied.replace([(run[0], run[1]) for run in old if isinstance(run, list) and _is_run(run)])
            try:
                self.checkpoint()  # before the catalog is written without them
            except WriteFailed:
                self.settings = before
        self.emptied.cut(self.log.end)  # a power loss has cut the log there: other messages are to come

    def _leave_out(self, lost: range) -> None:
        """Have no channel wait for messages that a crash took."""
        if lost and self.fanned_out >= lost.start:
            self.fanned_out = max(self.fanned_out, lost.stop)
            self.emptied.cut(lost.start)
            self.emptied.add(lost.start, lost.stop, passed=0)
        else:
            self.lost = lost

    def save_place(self) -> None:
        """Have the journal written again with the place of the topic, although that has not changed."""
        self.moved = True

    def checkpoint(self, *, now: int | None = None, sync: bool = False) -> bool:
        """Save the state of the topic and its channels; return whether nothing is left to save.

        Given the time, a channel with very much unfinished is saved less often than others, as that costs more. Raises
        `WriteFailed`; the next call tries again.
        """
        journal = self.store.journal
        if journal is None:
            return True
        if self.moved:
            journal.fanned_out(self.fanned_out)
            self.moved = False
        if self.emptied.changed:
            journal.emptied(self.emptied.runs)
            self.emptied.changed = False
        if self.deleted.changed:
            journal.deleted(self.deleted.take_changes())
        if self.door_state != self.saved_state:
            journal.note("", checkpoint.DOOR, json.dumps(self.door_state).encode())
            self.saved_state = dict(self.door_state)
        for channel in self.channels.values():
            if channel.dirty and not channel.ephemeral and (now is None or channel.quiet_until <= now):
                checkpoint.save(channel, journal, now=now)
        journal.flush(sync=sync)
        return not any(channel.dirty for channel in self.channels.values() if not channel.ephemeral)


def _is_run(run: list[object]) -> bool:
    return [*map(type, run)] == [int, int]
