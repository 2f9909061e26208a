"""Keep the broker's data: save what has changed, delete what is not needed, and have idle topics take little memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from lapwing.broker.channel.channel import Channel
from lapwing.broker.keeper import trimming
from lapwing.errors import LogError, ReadFailed
from lapwing.log.catalog import ChannelEntry, TopicEntry

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.topic.receipt import Receipt
    from lapwing.broker.topic.topic import Topic

PROBING: Final = 1_000_000_000  # ns between two attempts to write to a disk that has refused
REST: Final = 2_000_000_000  # ns without use after which a topic is made to take little memory
SOON: Final = 250_000_000  # the same of a topic that has never rested, where there are very many such
_MANY_NEW: Final = 500
_MOST_NEW: Final = 1000  # topics that have never rested; beyond it each new one has others rest
_REST_AT_ONCE: Final = 25  # topics: a millisecond or two


def catalog_entry(topic: Topic) -> TopicEntry:
    """Return what the catalog keeps of a topic."""
    channels = [
        ChannelEntry(channel.name, channel.paused, channel.settings)
        for channel in topic.channels.values()
        if not channel.ephemeral
    ]
    return TopicEntry(topic.name, topic.paused, channels, topic.settings)


class Keeper:
    """The topics that have to be saved, indexed, trimmed or made to rest, and whether the disk takes writes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.problem: str | None = None  # why the last write failed, until one succeeds
        self._probe_at = 0  # when to try a disk again that has refused a write, ns
        self._stale: dict[Topic, None] = {}  # changed since they were saved
        self.unindexed: dict[Topic, None] = {}  # logs that were written to since the last checkpoint; for reading only
        self._trimmable: dict[Topic, None] = {}  # changed since they were trimmed
        self._awake: dict[Topic, int] = {}  # topics that may be made to rest, and when they were used, ns
        self._new: dict[Topic, int] = {}  # the same of topics that have never rested
        self._unsynced_resting: dict[Topic, None] = {}  # topics at rest whose logs have something to sync
        self.catalog_changed = True  # since it was last saved
        self.catalog_saves = 0  # that were begun
        self._catalog_due = False  # save it at the end of this turn
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

    def note_opened(self, topic: Topic, *, at_rest: bool) -> None:
        """Note that a topic was opened at the start, or later."""
        if not at_rest:
            self.unindexed[topic] = None  # messages may have been found without a record
        elif topic.log.unsynced:
            self._unsynced_resting[topic] = None

    def note_new(self, topic: Topic) -> None:
        """Note that a topic was created, which may rest sooner than others.

        Where topics are created faster than idle ones are made to rest, each new one has the two oldest rest: the
        memory that very many topics in use have taken once is not returned to the system.
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
                if not oldest.exiting:
                    self.let_rest(oldest, now=now)

    def drop(self, topic: Topic) -> None:
        """Drop a topic that is deleted."""
        for known in (self._awake, self._new, self._unsynced_resting):
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
        """Save the state of a topic now; settle `receipt` when it survives a crash, with `fsync` a power loss too."""
        error = self.checkpoint_topic(topic)
        journal = topic.store.journal
        if error is not None or journal is None or self._broker.options.durability != "fsync":
            receipt.settle(0, error)
        else:
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
        if not topic.exiting and not topic.log.rests:
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

    @property
    def catalog_due(self) -> bool:
        """Whether the catalog is to be saved at the end of this turn."""
        return self._catalog_due

    def note_catalog(self, *, at_once: bool) -> None:
        """Have the catalog saved at the end of this turn, or with the next checkpoint."""
        self.catalog_changed = True
        self._catalog_due |= at_once

    def save_catalog(self) -> bool:
        """Write which topics, channels and policies there are, with their settings; return whether that worked."""
        broker = self._broker
        self._catalog_due = False
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

    # --- topics at rest ----------------------------------------------------------------------------------------

    def _note_used(self, topic: Topic, now: int) -> None:
        """Note that a topic was used, behind all that were used before."""
        known = self._new if topic in self._new else self._awake
        known.pop(topic, None)
        if not topic.exiting and not topic.ephemeral:
            known[topic] = now

    def let_idle_rest(self, now: int) -> bool:
        """Have some topics take little memory that were not used for a while; return whether there are more.

        A topic in use takes ten times the memory of one that rests. Where very many are created they rest sooner, or
        most would be awake at the same time.
        """
        soon = SOON if len(self._new) > _MANY_NEW else REST
        idle = [(self._new, topic) for topic in self._unused(self._new, now - soon)]
        idle += [(self._awake, topic) for topic in self._unused(self._awake, now - REST)]
        for known, topic in idle[:_REST_AT_ONCE]:
            del known[topic]
            if not topic.exiting:
                self.let_rest(topic, now=now)
        return len(idle) > _REST_AT_ONCE

    def _unused(self, known: dict[Topic, int], since: int) -> list[Topic]:
        """Return topics that were not used since then, a few more than can rest at once."""
        old = islice(takewhile(lambda each: each[1] <= since, known.items()), _REST_AT_ONCE + 1)
        return [topic for topic, _ in old if topic not in self.unindexed and topic not in self._stale]

    def let_rest(self, topic: Topic, *, now: int) -> None:
        """Have a topic take little memory; one that cannot is tried again later."""
        if not topic.rest():
            self._awake[topic] = now
        elif topic.log.unsynced:
            self._unsynced_resting[topic] = None

    def unsynced(self) -> Iterator[Topic]:
        """Yield the topics whose logs have something to sync; the caller syncs each before it takes the next."""
        for topic in [*self._new, *self._awake, *self.unindexed]:  # others have nothing to sync
            if not topic.ephemeral and not topic.exiting and topic.log.unsynced:
                yield topic
        for topic in list(self._unsynced_resting):
            self._unsynced_resting.pop(topic, None)
            if not topic.exiting:
                yield topic

    # --- trimming ----------------------------------------------------------------------------------------------

    def trim(self, *, now: int, everywhere: bool) -> bool:
        """Delete segments that no channel needs: of topics that have changed since the last time, or of all.

        Return whether that is done; else another call is wanted soon.
        """
        broker, done = self._broker, True
        changed, self._trimmable = self._trimmable, {}
        for topic in list(broker.topics.values()) if everywhere else changed:
            if topic.exiting or (topic.log.rests and topic.log.has_one_segment):
                continue
            if not topic.ephemeral and topic not in self._new:
                self._awake.setdefault(topic, now)
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
        idle = []
        for topic in broker.topics.values():
            if not topic.channels and topic.rest():
                if topic.is_plain:
                    idle.append((topic.name, topic.store, topic.fanned_out))
                topic.close()
                continue
            for channel in topic.channels.values():
                channel.dirty = True
            self.checkpoint_topic(topic)
            topic.close()
            try:
                topic.store.close()
            except (LogError, OSError) as error:
                broker.report(f"topic {topic.name}: could not be saved in full: {error}")
        broker.storage.save_resting(idle)
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
