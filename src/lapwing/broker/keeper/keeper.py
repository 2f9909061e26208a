"""Keep the broker's data: save what has changed, delete what is not needed, and pack the topics that nobody uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from lapwing.broker.channel.channel import Channel
from lapwing.broker.keeper import trimming
from lapwing.broker.topic.cold import ColdTopic
from lapwing.errors import LogError, ReadFailed
from lapwing.log.catalog import ChannelEntry, TopicEntry

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.topic.receipt import Receipt
    from lapwing.broker.topic.topic import Topic

PROBING: Final = 1_000_000_000  # ns between two attempts to write to a disk that has refused
IDLE: Final = 2_000_000_000  # ns without use after which a topic is packed
SOON: Final = 250_000_000  # the same of a topic that was never packed, where there are very many such
_MANY_NEW: Final = 500
_MOST_NEW: Final = 1000  # topics that were never packed; beyond it each new one has others packed
_PACKED_AT_ONCE: Final = 25  # topics: a millisecond or two


def catalog_entry(topic: Topic | ColdTopic) -> TopicEntry:
    """Return what the catalog keeps of a topic."""
    channels = [ChannelEntry(each.name, each.paused, each.settings) for each in topic.channels.values()]
    return TopicEntry(topic.name, topic.paused, channels, topic.settings)


class Keeper:
    """The topics that have to be saved, indexed, trimmed or packed, and whether the disk takes writes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.problem: str | None = None  # why the last write failed, until one succeeds
        self._probe_at = 0  # when to try a disk again that has refused a write, ns
        self._stale: dict[Topic, None] = {}  # changed since they were saved
        self.unindexed: dict[Topic, None] = {}  # logs that were written to since the last checkpoint; for reading only
        self._trimmable: dict[Topic, None] = {}  # changed since they were trimmed
        self._used: dict[Topic, int] = {}  # topics that may be packed, and when they were used, ns
        self._new: dict[Topic, int] = {}  # the same of topics that were never packed
        self._unsynced_cold: dict[str, None] = {}  # cold topics whose logs have something to sync
        self.catalog_changed = True  # since it was last saved
        self.catalog_saves = 0  # that were begun
        self.catalog_due = False  # whether it is to be saved at the end of this turn; for reading only
        self.save_catalog_later: Callable[[], object] = self.save_catalog  # at a checkpoint

    # --- noting ------------------------------------------------------------------------------------------------

    def note_written(self, topic: Topic) -> None:
        """Note that the log of a topic was written to: its index records are written with the next checkpoint."""
        self.problem = None
        self.unindexed[topic] = None

    def note_changed(self, topic: Topic) -> None:
        """Have the state of a topic saved with the next checkpoint."""
        self._stale[topic] = None

    def note_trimmable(self, topic: Topic) -> None:
        """Have the log of a topic trimmed with the next trim."""
        self._trimmable[topic] = None

    def note_opened(self, topic: Topic) -> None:
        """Note that a topic was opened at the start, or later: it is packed unless it is in use."""
        self.unindexed[topic] = None  # messages may have been found without a record
        self.pack(topic, now=self._broker.now)

    def note_unpacked(self, topic: Topic) -> None:
        """Note that a cold topic is used."""
        self._unsynced_cold.pop(topic.name, None)
        self._used[topic] = self._broker.now

    def note_new(self, topic: Topic) -> None:
        """Note that a topic was created, which may be packed sooner than others.

        Where topics are created faster than idle ones are packed, each new one has the two oldest packed: the memory
        that very many topics in use have taken once is not returned to the system.
        """
        if topic.ephemeral:
            return
        now = self._broker.now
        self._new[topic] = now
        if len(self._new) > _MOST_NEW:
            for oldest in list(islice(self._new, 2)):
                if not oldest.waiting:
                    self.write_index(oldest, now)
                    self.save(oldest, now)
                self._new.pop(oldest, None)
                self.pack(oldest, now=now)

    def drop(self, topic: Topic) -> None:
        """Drop a topic that is deleted."""
        for known in (self._used, self._new):
            known.pop(topic, None)

    def fail(self, error: Exception) -> None:
        """Note that a write failed; health is bad until one succeeds."""
        if self.problem is None:
            self._broker.report(f"write failed: {error}; publishes are refused until writes succeed again")
        self.problem = str(error)

    def _probe(self, now: int) -> None:
        """Try to write to the disk again: publishers may stay away for as long as health is bad."""
        if now < self._probe_at:
            return
        self._probe_at = now + PROBING
        try:
            self._broker.storage.try_writing()
        except OSError as error:
            self.problem = str(error)
        else:
            self.problem = None
            self._broker.report("writes succeed again; publishes are taken")

    # --- checkpoints -------------------------------------------------------------------------------------------

    def checkpoint_topic(self, topic: Topic, *, now: int | None = None, sync: bool = False) -> LogError | None:
        """Save the state of a topic now, or, when the disk refuses, with a later checkpoint; return that error.

        Given the time, without channels with so much unfinished that they are saved less often. With `sync`, it
        survives what an acknowledged publish survives.
        """
        try:
            if not topic.checkpoint(now=now, sync=sync and self._broker.options.durability == "fsync"):
                self._stale[topic] = None
        except LogError as error:
            self._stale[topic] = None
            self.fail(error)
            return error
        return None

    def save_topic(self, topic: Topic, receipt: Receipt) -> None:
        """Save the state of a topic now; settle `receipt` when it survives what an acknowledged publish survives."""
        error = self.checkpoint_topic(topic)
        journal = topic.store.journal
        options = self._broker.options
        if error is not None or journal is None or not options.answers_wait:
            receipt.settle(0, error)
        else:
            if options.durability == "fsync":
                journal.want_sync()
            self._broker.work.sync(topic, [(receipt, 0)])

    def begin_checkpoint(self, now: int) -> Checkpoint:
        """Retry what the disk has refused; return the work of saving what has changed since the last time."""
        if self.problem is not None:
            self._probe(now)
        self._retry_reads(now)
        work = [(self.write_index, topic) for topic in self.unindexed] + [(self.save, topic) for topic in self._stale]
        return Checkpoint(self, iter(work))

    def write_index(self, topic: Topic, now: int) -> None:
        """Have the log of a topic that was written to write its index records."""
        if topic not in self.unindexed:
            return  # it was saved meanwhile
        self._note_used(topic, now)
        del self.unindexed[topic]
        if not topic.exiting:
            try:
                topic.log.write_index()
            except LogError as error:
                self.unindexed[topic] = None
                self.fail(error)

    def save(self, topic: Topic, now: int) -> None:
        """Save the state of a topic that has changed to its journal."""
        if topic not in self._stale:
            return  # it was saved meanwhile
        self._note_used(topic, now)
        del self._stale[topic]
        if topic.exiting:
            return
        try:
            if topic.ephemeral:
                if not trimming.trim(topic, self._broker.options, now=now):  # at once, as it takes memory
                    self._stale[topic] = None
            else:
                self._trimmable[topic] = None
                if not topic.checkpoint(now=now):
                    self._stale[topic] = None
        except LogError as error:
            self._stale[topic] = None
            self.fail(error)

    def _retry_reads(self, now: int) -> None:
        """Retry what waits for the disk: deliveries at the end of this turn, what concerns a whole topic at once."""
        stalls = self._broker.read_stalls
        for owner in stalls.due(now):
            if owner.exiting:
                stalls.drop(owner)
            elif isinstance(owner, Channel):
                self._broker.mark_ready(owner)
            else:
                try:
                    owner.try_fan_out(now)
                    trimming.trim(owner, self._broker.options, now=now)
                except ReadFailed as error:
                    stalls.add(owner, error, now=now)
                except LogError as error:
                    self.fail(error)
                else:
                    stalls.succeeded(owner, now=now)

    # --- the catalog -------------------------------------------------------------------------------------------

    def note_catalog(self, *, at_once: bool) -> None:
        """Have the catalog saved at the end of this turn, or with the next checkpoint."""
        self.catalog_changed = True
        self.catalog_due |= at_once

    def save_catalog(self) -> bool:
        """Write which topics, channels and policies there are, with their settings; return whether that worked."""
        broker = self._broker
        self.catalog_due = False
        self.begin_catalog()
        entries = [topic.entry for topic in broker.unopened.values()]
        entries += [catalog_entry(topic) for topic in broker.topics.values() if not topic.ephemeral]
        try:
            broker.storage.catalog.save(entries, broker.settings.policies.documents())
        except (LogError, OSError) as error:
            self.fail_catalog(error)
            return False
        return True

    def begin_catalog(self) -> int:
        """Note that a save of the catalog begins, which has all changes so far; return its number."""
        self.catalog_changed = False
        self.catalog_saves += 1
        return self.catalog_saves

    def fail_catalog(self, error: Exception) -> None:
        """Note that the catalog could not be saved; the next checkpoint tries again."""
        self.catalog_changed = True
        self.fail(error)

    # --- cold topics -------------------------------------------------------------------------------------------

    def _note_used(self, topic: Topic, now: int) -> None:
        """Note that a topic was used, behind all that were used before."""
        known = self._new if topic in self._new else self._used
        known.pop(topic, None)
        if not topic.exiting and not topic.ephemeral:
            known[topic] = now

    def pack_idle(self, now: int) -> bool:
        """Pack some topics that were not used for a while; return whether there are more.

        A topic in use takes ten times the memory of a cold one. Where very many are created they are packed sooner, or
        most would be in use at the same time.
        """
        soon = SOON if len(self._new) > _MANY_NEW else IDLE
        idle = [(self._new, topic) for topic in self._unused(self._new, now - soon)]
        idle += [(self._used, topic) for topic in self._unused(self._used, now - IDLE)]
        for known, topic in idle[:_PACKED_AT_ONCE]:
            del known[topic]
            if not topic.exiting and any(channel.dirty for channel in topic.channels.values()):  # as after a start
                self.checkpoint_topic(topic, now=now)
            self.pack(topic, now=now)
        return len(idle) > _PACKED_AT_ONCE

    def _unused(self, known: dict[Topic, int], since: int) -> list[Topic]:
        """Return topics that were not used since then, a few more than are packed at once."""
        old = islice(takewhile(lambda each: each[1] <= since, known.items()), _PACKED_AT_ONCE + 1)
        return [topic for topic, _ in old if topic not in self.unindexed and topic not in self._stale]

    def pack(self, topic: Topic, *, now: int) -> None:
        """Have a cold topic take the place of one that is not used; one that is in use is looked at again later."""
        if topic.exiting:
            return
        cold = topic.pack(now)
        if cold is None:
            self._new.pop(topic, None)
            self._used[topic] = now
            return
        self._broker.topics[topic.name] = cold
        for known in (self.unindexed, self._stale, self._trimmable, self._used, self._new):
            known.pop(topic, None)
        self.note_cold(cold)

    def note_cold(self, topic: ColdTopic) -> None:
        """Note that a topic is cold: it may have something to sync."""
        if topic.log.unsynced:
            self._unsynced_cold[topic.name] = None

    def unsynced(self) -> Iterator[Topic]:
        """Yield the topics whose logs have something to sync; the caller syncs each before it takes the next."""
        for topic in [*self._new, *self._used, *self.unindexed]:  # others have nothing to sync
            if not topic.ephemeral and not topic.exiting and topic.log.unsynced:
                yield topic
        for name in list(self._unsynced_cold):
            if name in self._unsynced_cold and (found := self._broker.find(name)) is not None:
                yield found
                if found not in self.unindexed and found not in self._stale:  # nobody else has used it
                    self.pack(found, now=self._broker.now)

    # --- trimming ----------------------------------------------------------------------------------------------

    def trim(self, *, now: int, everywhere: bool) -> bool:
        """Delete segments that no channel needs: of topics that have changed since the last time, or of all.

        Return whether that is done; else another call is wanted soon.
        """
        broker, done = self._broker, True
        changed, self._trimmable = self._trimmable, {}
        for each in list(broker.topics.values()) if everywhere else changed:
            if isinstance(each, ColdTopic) and each.log.has_one_segment:
                continue
            topic = broker.find(each.name) if isinstance(each, ColdTopic) else each
            if topic is None or topic.exiting:
                continue
            if not topic.ephemeral and topic not in self._new:
                self._used.setdefault(topic, now)
            self.report_news(topic)
            try:
                if not trimming.trim(topic, broker.options, now=now):
                    self._trimmable[topic] = None
                    done = False
            except ReadFailed as error:
                broker.read_stalls.add(topic, error, now=now)
            except (LogError, OSError) as error:
                self.fail(error)
        return done

    def report_news(self, topic: Topic) -> None:
        """Report damage and repairs of a topic's files."""
        for note in topic.store.news():
            self._broker.report(note)

    # --- the end -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Save every topic and the catalog, and release the data path."""
        broker = self._broker
        for topic in broker.topics_in_use():
            if not topic.channels:
                self.pack(topic, now=broker.now)
            if topic.exiting:
                continue
            for channel in topic.channels.values():
                channel.dirty = True
            self.checkpoint_topic(topic)
            topic.close()
            try:
                topic.store.close()
            except (LogError, OSError) as error:
                broker.report(f"topic {topic.name}: could not be saved in full: {error}")
        cold = [topic for topic in broker.topics.values() if isinstance(topic, ColdTopic)]
        broker.storage.save_cold([
            (topic.name, topic.store, topic.fanned_out)
            for topic in cold
            if not topic.channels and topic.leftovers is None
        ])
        self.save_catalog()
        broker.storage.close()


class Checkpoint:
    """One checkpoint: saves every topic that had changed when it began, some at a time, so that others need not wait.

    First all index records are written, then the journals. A topic counts as changed until it is saved.
    """

    def __init__(self, keeper: Keeper, work: Iterator[tuple[Callable[[Topic, int], None], Topic]]) -> None:
        self._keeper = keeper
        self._work = work

    def advance(self, most: int, *, now: int) -> bool:
        """Save up to `most` topics; return whether there may be more."""
        some = list(islice(self._work, most))
        for save, topic in some:
            save(topic, now)
        if len(some) == most:
            return True
        if self._keeper.catalog_changed:
            self._keeper.save_catalog_later()
        return False
