"""Accept a batch: frame it, append it to the log, fan it out.

`fanned_out` is the sequence up to which messages have been handed to channels. It stands still while the topic is
paused or has no channel, and a new channel begins there: the first one gets the backlog, later ones the tail.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from heapq import heappush
from typing import TYPE_CHECKING, Any, Final, Protocol

from lapwing import ids, kernel, names
from lapwing.broker import checkpoint
from lapwing.broker.admission import Admission, admission_of
from lapwing.broker.channel import Channel
from lapwing.broker.deleted import DeletedRuns
from lapwing.broker.settings import TopicSettings
from lapwing.broker.side_logged import set_backlog_aside
from lapwing.broker.skips import EmptiedRuns
from lapwing.errors import Exiting, LapwingError, PublishRefused, ReadFailed, WriteFailed
from lapwing.log.log import Extra
from lapwing.log.retention import RetentionLimits

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.dead_letter_mover import DeadLetterMover
    from lapwing.broker.storage import Store
    from lapwing.log.journal import ChannelState
    from lapwing.log.log import TopicLog
    from lapwing.log.sidelog import MessageStore


class Receipt(Protocol):
    """Where a publish is acknowledged."""

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        """Note that the messages are in the log from `sequence` on (synced, with `fsync`), or why they are not."""


class _NoReceipt:
    """For a publish whose caller learns the outcome in another way."""

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        """Do nothing."""


_NO_RECEIPT: Final = _NoReceipt()


_TRIM_ABOVE: Final = 32 << 20


class Topic:
    """One topic: its log, its channels, and where between the two it stands."""

    def __init__(self, name: str, broker: Broker, store: Store) -> None:
        self.name = name
        self.ephemeral = names.ephemeral(name)
        self.paused = False
        self.exiting = False
        self.held = False  # until those who know say which channels it shall begin with
        self.channels: dict[str, Channel] = {}
        self.settings: dict[str, Any] = {}  # its own
        self.effective: TopicSettings = broker.settings.plain_topic  # what holds, with policies and flags
        self.message_count = 0
        self.message_bytes = 0
        self.dropped_count = 0  # what did not fit an ephemeral topic
        self.store = store
        self.log: TopicLog = store.log
        self.id_base = ids.base(store.log.node)
        self.fanned_out = store.log.first
        self.admission: Admission | None = None  # limits on publishes, if there are any
        self.deleted = DeletedRuns()
        self.door_state: dict[str, Any] = {}  # JSON that a door keeps with the topic
        self._saved_state: dict[str, Any] = {}  # what of it is in the journal
        self.waiting: list[tuple[Receipt, int]] = []  # of this turn, with the first sequence of each
        self.report: Callable[[str], None] = broker.report
        self._broker = broker
        self._options = broker.options
        self._moved = False  # fanned_out has changed since the journal heard of it
        self._has_extras = False
        self.emptied = EmptiedRuns()
        self._trim_above = _TRIM_ABOVE  # bytes in memory at which an ephemeral topic does not wait for the next trim
        self._lost = range(0)  # sequences not handed over yet that a crash took: there is nothing to hand over
        self._counted = (0, 0)  # messages and bytes before this turn, should it come to nothing

    def __str__(self) -> str:
        return f"topic {self.name}"

    @property
    def depth(self) -> int:
        """How many messages wait in the topic for a channel."""
        return self.log.end - self.fanned_out - len(self._lost)

    @property
    def skew(self) -> int:
        """ns from the broker's time, which deadlines go by, to that of the machine's clock, which messages tell."""
        return self._broker.skew

    @property
    def mover(self) -> DeadLetterMover:
        """The mover of dead letters."""
        return self._broker.mover

    @property
    def stands_still(self) -> bool:
        """Whether messages wait here rather than in channels."""
        return self.paused or self.held or not self.channels

    # --- messages come in --------------------------------------------------------------------------------------

    def publish(
        self,
        body: bytes,
        receipt: Receipt,
        *,
        now: int,
        defer: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take one message; `receipt` is settled when the turn's batch is written."""
        if self.admission is not None:
            self.admission.check(1, len(body), len(body))
        log = self.log
        sequence = log.next
        extras: Sequence[Extra] = ()
        if defer or headers:
            extras = [Extra(sequence, defer=self._lawful(defer), headers=dict(headers or {}))]
        frames = kernel.frame_one(body, self.id_base + sequence, now + self._broker.skew)
        self._append(frames, 1, len(body), receipt, extras, now)

    def publish_batch(self, body: bytes, receipt: Receipt, *, now: int) -> int:
        """Take the messages of an MPUB body, all or none, and return their number. Raises `PublishRefused`."""
        options = self._options
        stamp = now + self._broker.skew
        largest = options.max_msg_size if self.admission is None else self.admission.max_msg_size
        try:
            frames, count = kernel.frame_mpub(
                body, self.id_base + self.log.next, stamp, options.max_batch_count, largest
            )
        except PublishRefused as error:
            if self.admission is not None and error.code == kernel.TOO_BIG and error.value <= options.max_msg_size:
                self.admission.check(0, 0, error.value)  # it is the topic's own limit
            raise
        size = len(body) - 4 - 4 * count
        if self.admission is not None:
            self.admission.check(count, size, 0)
        self._append(frames, count, size, receipt, (), now)
        return count

    def publish_run(self, data: bytes, line: bytes, receipt: Receipt, *, now: int) -> tuple[int, int] | None:
        """Take the messages of whole PUBs or MPUBs that begin with `line`; how many they and the commands are.

        Return None, with nothing taken, where `data` is anything else, or the topic takes no more.
        """
        if self.exiting:
            return None
        options = self._options
        found = kernel.frame_pubs(
            data, line, self.id_base + self.log.next, now + self._broker.skew,
            options.max_batch_count, options.max_msg_size, options.max_body_size,
        )  # fmt: skip
        if found is None:
            return None
        frames, messages, commands = found
        self._append(frames, messages, len(frames) - kernel.HEAD * messages, receipt, (), now)
        return messages, commands

    def publish_many(
        self,
        bodies: Sequence[bytes],
        receipt: Receipt,
        *,
        now: int,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Take several messages, all or none."""
        if self.admission is not None:
            self.admission.check(len(bodies), sum(map(len, bodies)), max(map(len, bodies), default=0))
        first = self.log.next
        frames = kernel.frame_bodies(bodies, self.id_base + first, now + self._broker.skew)
        extras: list[Extra] = []
        if headers:
            extras = [Extra(sequence, headers=dict(headers)) for sequence in range(first, first + len(bodies))]
        self._append(frames, len(bodies), sum(map(len, bodies)), receipt, extras, now)

    def publish_framed(
        self, frames: bytes, count: int, size: int, receipt: Receipt, *, now: int, extras: Sequence[Extra] = ()
    ) -> None:
        """Take frames that carry the ids from the log's `next` on; `size` is that of their bodies."""
        if self.admission is not None:
            self.admission.check(count, size, size if count == 1 else 0)
        self._append(frames, count, size, receipt, extras, now)

    def publish_own(self, bodies: Sequence[bytes], extras: Sequence[Extra], receipt: Receipt, *, now: int) -> None:
        """Take messages of the broker itself, which no limit refuses; the extras carry the sequences from `next` on."""
        frames = kernel.frame_bodies(bodies, self.id_base + self.log.next, now + self._broker.skew)
        self._append(frames, len(bodies), sum(map(len, bodies)), receipt, extras, now)

    def publish_frames(self, frames: bytes, count: int, size: int, extras: Sequence[Extra], *, now: int) -> None:
        """Take frames that carry the ids from the log's `next` on, and write them now; raises `WriteFailed`.

        `size` is that of the bodies. Where publishes wait for a sync, the caller sees to that.
        """
        self._append(frames, count, size, _NO_RECEIPT, extras, now)
        self.write_pending(now=now)

    def write_pending(self, *, now: int) -> None:
        """Write what this turn has brought so far, before its end."""
        if self.waiting:
            self.commit(now)

    def _append(
        self, frames: bytes, count: int, size: int, receipt: Receipt, extras: Sequence[Extra], now: int
    ) -> None:
        if self.exiting:
            raise Exiting
        if not self.waiting:
            self._broker.dirty_topics.append(self)
            self._counted = (self.message_count, self.message_bytes)
        self.waiting.append((receipt, self.log.next))
        self.message_count += count
        self.message_bytes += size
        if self.ephemeral and self.stands_still:
            room = max(self._options.mem_queue_size - (self.log.next - self.fanned_out), 0)
            if room < count:
                self.dropped_count += count - room
                count, end = kernel.take_frames(frames, 0, len(frames), room, len(frames))
                frames = frames[:end]
                extras = [extra for extra in extras if extra.sequence < self.log.next + count]
        if count:
            self.log.append(frames, count, now=now, extras=extras)
        if extras and any(extra.defer for extra in extras):
            self._has_extras = True

    def _lawful(self, defer: int) -> int:
        """The delay a message keeps: where NSQ's memory limit was asked for, what overflows it loses its delay."""
        limit = self._options.deferred_limit
        if limit is not None and self.stands_still and self.log.next - self.fanned_out >= limit:
            return 0
        return defer

    # --- the end of a turn -------------------------------------------------------------------------------------

    def commit(self, now: int) -> None:
        """Write what this turn brought, hand it to the channels, and settle its receipts (with `fsync`, later).

        Raises `WriteFailed` after settling them with that error; nothing of the batch is kept then.
        """
        if self.exiting:
            return  # deleted in this very turn, and its publishers know
        waiting, self.waiting = self.waiting, []
        try:
            if self.log.pending:
                self.log.flush()
        except WriteFailed as error:
            self._has_extras = True
            self.message_count, self.message_bytes = self._counted
            for receipt, sequence in waiting:
                receipt.settle(sequence, error)
            raise
        if self._broker.grown is not None:
            self._broker.grown[self.name] = None
        if self._options.durability == "fsync" and not self.ephemeral:
            self._broker.unsynced.append((self, waiting))
        else:
            for receipt, sequence in waiting:
                receipt.settle(sequence, None)
        self.fan_out(now)

    def fan_out(self, now: int) -> None:
        """Hand new messages to the channels, unless the topic stands still; retried when a read fails."""
        try:
            self.try_fan_out(now)
        except ReadFailed as error:
            self._broker.read_failed(self, error, now=now)

    def try_fan_out(self, now: int) -> None:
        """Hand new messages to the channels, unless the topic stands still. Raises `ReadFailed`, and nothing moves."""
        start, stop = self.fanned_out, self.log.end
        if start >= stop or self.stands_still:
            return
        deferrals: list[tuple[int, int]] = []
        if self._has_extras:
            deferrals = [(extra.sequence, extra.defer) for extra in self.log.extras(start, stop) if extra.defer]
            self._has_extras = self.log.pending
        self.fanned_out = stop
        self._moved = True
        for channel in self.channels.values():
            if self._lost:
                self._accept_around(channel, start, stop, deferrals, now)
            else:
                channel.accept(start, stop, deferrals, now=now)
        self._lost = range(0)
        if self.ephemeral and self.log.bytes > self._trim_above:
            self.trim(now=now)
            self._trim_above = max(_TRIM_ABOVE, 2 * self.log.bytes)

    def _accept_around(
        self, channel: Channel, start: int, stop: int, deferrals: Sequence[tuple[int, int]], now: int
    ) -> None:
        """Hand [start, stop) to a channel, but for what is lost."""
        lost = self._lost
        channel.accept(start, lost.start, [each for each in deferrals if each[0] < lost.start], now=now)
        channel.pass_by(lost.start, lost.stop)
        channel.accept(lost.stop, stop, [each for each in deferrals if each[0] >= lost.stop], now=now)

    # --- channels ----------------------------------------------------------------------------------------------

    def create_channel(self, name: str, *, now: int, cursor: int | None = None) -> Channel:
        """The channel of that name, made if there is none; it begins where the topic stands."""
        channel = self.channels.get(name)
        if channel is None:
            if self.exiting:
                raise Exiting
            start = self.fanned_out if cursor is None else cursor
            channel = self._new_channel(name, cursor=start)
            if start < self.fanned_out:
                checkpoint.skip(channel, checkpoint.find_skips(channel, start))
            self.channels[name] = channel
            self._broker.settings.apply_channel(channel, now=now)
            self._has_extras = True
            self.fan_out(now)
            self._broker.checkpoint_topic(self)
            self._broker.changed("channel", self.name, name, created=True)
        return channel

    def _new_channel(self, name: str, *, cursor: int) -> Channel:
        broker = self._broker
        plain = broker.settings.plain_channel
        return Channel(name, self, self._options, cursor=cursor, mark_ready=broker.mark_ready, effective=plain)

    def delete_channel(self, name: str) -> None:
        """Drop a channel with all it has, and hang up on its consumers."""
        channel = self.channels.pop(name)
        channel.close()
        self._moved = True
        self.store.forget(name)
        self.set_admission()
        self._broker.checkpoint_topic(self)
        self._broker.changed("channel", self.name, name, created=False)

    def delete(self, start: int, stop: int) -> int:
        """Delete the messages [start, stop): no reader sees them any more; return how many there were."""
        count = self.deleted.add(start, stop)
        if count:
            self.changed()
            for channel in self.channels.values():
                self._broker.mark_ready(channel)  # its cursor may pass them
        return count

    def changed(self) -> None:
        """Have the state of the topic saved with the next checkpoint."""
        self._broker.journal_later(self)

    def side_log(self, channel: str) -> MessageStore:
        """Where a channel keeps its stragglers."""
        return self.store.side_log(channel)

    def has_side_log(self, channel: str) -> bool:
        """Whether a channel has ever had stragglers."""
        return self.store.has_side_log(channel)

    def schedule(self, due: int, channel: Channel) -> None:
        """Have the channel's deadlines looked at then."""
        heappush(self._broker.agenda, (due, id(channel), channel))

    # --- orders from above -------------------------------------------------------------------------------------

    def set_admission(self) -> None:
        """Put the limits on publishes in force."""
        self.admission = admission_of(
            self,
            draining=self._broker.drain is not None,
            memory_problem=self._broker.memory_problem,
            max_msg_size=self._options.max_msg_size,
        )

    def empty(self) -> None:
        """Drop what waits in the topic; channels keep theirs."""
        start, stop = self.fanned_out, self.log.end
        self.fanned_out = stop
        self._moved = True
        if self.channels and start < stop:
            self.emptied.add(start, stop, passed=min(channel.cursor for channel in self.channels.values()))
            for channel in self.channels.values():
                channel.pass_by(start, stop)
        self._lost = range(0)
        self._broker.checkpoint_topic(self)

    def pause(self, paused: bool, *, now: int) -> None:
        """Stop, or go on, handing messages to channels."""
        self.paused = paused
        self._moved = True
        if not paused:
            self._has_extras = True
            self.fan_out(now)
        self._broker.checkpoint_topic(self)

    def release(self, *, now: int) -> None:
        """It is known which channels the topic begins with: let messages flow."""
        self.held = False
        self._has_extras = True
        self.fan_out(now)

    def close(self) -> None:
        """Refuse what comes, and hang up on all consumers."""
        self.exiting = True
        for receipt, sequence in self.waiting:
            receipt.settle(sequence, Exiting())
        self.waiting = []
        for channel in self.channels.values():
            channel.close()

    # --- what survives a crash ---------------------------------------------------------------------------------

    def checkpoint(self, *, now: int | None = None, sync: bool = False) -> bool:
        """Write down how far topic and channels have come; whether that is all of it.

        Given the time, a channel with very much unfinished is told of more seldom than others, as it costs that much
        more. Raises `WriteFailed`, and tries again the next time.
        """
        journal = self.store.journal
        if journal is None:
            return True
        if self._moved:
            journal.fanned_out(self.fanned_out)
            self._moved = False
        if self.emptied.changed:
            journal.emptied(self.emptied.runs)
            self.emptied.changed = False
        if self.deleted.changed:
            journal.deleted(self.deleted.take_changes())
        if self.door_state != self._saved_state:
            journal.note("", checkpoint.DOOR, json.dumps(self.door_state).encode())
            self._saved_state = dict(self.door_state)
        for channel in self.channels.values():
            if channel.dirty and not channel.ephemeral and (now is None or channel.quiet_until <= now):
                checkpoint.save(channel, journal, now=now)
        journal.flush(sync=sync)
        return not any(channel.dirty for channel in self.channels.values() if not channel.ephemeral)

    def restore(self, *, now: int) -> None:
        """Go on from what the journal knew."""
        journal = self.store.journal
        if journal is None:
            return
        state = journal.load()
        log = self.log
        known = state.fanned_out if state.fanned_out is not None else log.first
        cursors = [channel.cursor for channel in state.channels.values()]
        self.fanned_out = min(max([known, log.first, *cursors]), log.end)
        self._restore_emptied(state.emptied)
        self.deleted = DeletedRuns([*state.deleted, (0, state.trimmed)])
        self.deleted.forget_below(log.first)
        self.deleted.forget_from(log.end)
        self.door_state = checkpoint.read_note(state.notes.get(checkpoint.DOOR, b""))
        self._saved_state = dict(self.door_state)
        self._leave_out(log.lost)
        for name, entry in state.channels.items():
            self.bring_back(name, entry, now=now)
        if log.lost or max([known, *cursors]) > log.end:  # a crash took it: what comes next must not be mistaken for it
            self._moved = True
            self._broker.checkpoint_topic(self)
            journal.compact()
        self._has_extras = True

    def _restore_emptied(self, saved: list[tuple[int, int]] | None) -> None:
        """Take over the emptied runs; an old data path has them among the settings in the catalog."""
        old = self.settings.pop("emptied", None)
        if saved is not None:
            self.emptied.runs = saved
        elif isinstance(old, list):
            self.emptied.replace([(run[0], run[1]) for run in old if isinstance(run, list) and _is_run(run)])
            try:
                self.checkpoint()  # before the catalog is written without them
            except WriteFailed:
                self.settings["emptied"] = old
        self.emptied.cut(self.log.end)  # a power loss has cut the log there: other messages are to come

    def bring_back(self, name: str, state: ChannelState, *, now: int) -> Channel:
        """A channel as it was."""
        channel = self._new_channel(name, cursor=self.log.first)
        self.channels[name] = channel
        checkpoint.restore(channel, state, now=now, longest=self._options.max_req_timeout)
        return channel

    def _leave_out(self, lost: range) -> None:
        """Let no channel wait for messages that a crash took."""
        if lost and self.fanned_out >= lost.start:
            self.fanned_out = max(self.fanned_out, lost.stop)
            self.emptied.cut(lost.start)
            self.emptied.add(lost.start, lost.stop, passed=0)
        else:
            self._lost = lost

    def trim(self, *, now: int) -> None:
        """Delete segments that no channel needs; copy messages to a side log where they alone pin a segment."""
        log = self.log
        needed = self.fanned_out
        if self.effective.keep == "trimmed":
            needed = min(needed, self.deleted.jump(log.first))
        moved = False
        for channel in self.channels.values():
            low = channel.needed_from()
            if channel.ephemeral and self._is_stalled(channel):
                set_backlog_aside(channel)
            edge = log.segment_start(channel.cursor)
            if low < edge:
                channel.copy_aside(edge)
                low = channel.needed_from()
                moved = True
            needed = min(needed, low)
        if moved:
            self.checkpoint()  # before the segment goes: a straggler that no journal knows of would look finished
        # of two clocks that disagree the earlier one: what is deleted too soon does not come back
        log.release(needed, now=now + min(self.skew, 0), limits=self._retention)
        self.deleted.forget_below(log.first)

    def _is_stalled(self, channel: Channel) -> bool:
        """Return whether an ephemeral channel keeps segments that it has not been reading."""
        log, cursor = self.log, channel.cursor
        if log.segment_start(cursor) >= log.segment_start(log.end):
            return False
        # in memory, while it drops more than it keeps; on disk, wherever it does not read the newest segment
        return not self.ephemeral or 2 * channel.ahead.count > self.fanned_out - cursor

    @property
    def _retention(self) -> RetentionLimits:
        """What the log keeps although no channel needs it."""
        settings = self.effective
        return RetentionLimits(
            settings.retention_bytes,
            settings.retention_age,
            self._options.min_free_bytes,
            settings.retention_count,
        )

    def sequence_of(self, message_id: bytes) -> int:
        """The sequence that an id names, or -1 if it is none of this topic's."""
        try:
            node, sequence = ids.decode(message_id)
        except ValueError:
            return -1
        return sequence if node == self.log.node else -1


def _is_run(run: list[object]) -> bool:
    return [*map(type, run)] == [int, int]
