"""Every topic by name; create, pause, delete, close. And the turn: what all commands of a moment have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop
from typing import TYPE_CHECKING, Final

from lapwing import names
from lapwing.broker.channel import Channel
from lapwing.broker.dead_letter_mover import DeadLetterMover
from lapwing.broker.drain import Drain
from lapwing.broker.options import Options
from lapwing.broker.pending import Reason
from lapwing.broker.read_stalls import ReadStalls
from lapwing.broker.redrive import Redrives
from lapwing.broker.settings_store import SettingsStore
from lapwing.broker.storage import Storage
from lapwing.broker.subscription import Subscription
from lapwing.broker.topic import Receipt, Topic
from lapwing.errors import Exiting, LimitReached, LogError, NoSuchChannel, NoSuchTopic, OutOfMemory, ReadFailed
from lapwing.log.catalog import ChannelEntry, TopicEntry
from lapwing.log.journal import ChannelState

if TYPE_CHECKING:
    from lapwing.broker.client_stats import Client

PROBING: Final = 1_000_000_000  # ns between two looks at whether a disk that has refused takes anything again

RETRY: Final = 10_000_000_000  # ns before a topic that could not be opened is tried again; each time twice as long
MOST_RETRY: Final = 600_000_000_000

Change = tuple[str, str, str | None, bool]  # "topic" or "channel", topic, channel, created (else deleted)


@dataclass(slots=True)
class Unopened:
    """A topic that is there, and that the disk does not let us have."""

    entry: TopicEntry
    reason: str
    again: int  # when to try again, ns
    wait: int = RETRY


class Broker:
    """All topics of one node.

    Commands change topics and channels at once but send nothing: `commit` ends the turn with one write per log, and
    only then do messages and answers leave.
    """

    def __init__(
        self, options: Options, storage: Storage, *, report: Callable[[str], None] = lambda text: None
    ) -> None:
        self.options = options
        self.storage = storage
        self.report = report
        self.topics: dict[str, Topic] = {}
        self.settings = SettingsStore(options, self.topics, self.save_catalog)
        self.unopened: dict[str, Unopened] = {}
        self.clients: dict[Client, None] = {}
        self.dirty_topics: list[Topic] = []
        self.unsynced: list[tuple[Topic, list[tuple[Receipt, int]]]] = []
        self.agenda: list[tuple[int, int, Channel]] = []
        self.changes: list[Change] = []
        self.grown: dict[str, None] | None = None  # topics with news, while somebody asks for them
        self.problem: str | None = None  # why the last write failed, until one succeeds
        self.memory_problem: str | None = None  # why no messages are taken for want of memory
        self.exiting = False
        self.now = 0  # ns; as of the last turn or checkpoint
        self.mover = DeadLetterMover(self)
        self.redrives = Redrives(self)
        self.drain: Drain | None = None
        self.skew = 0  # ns from the time that the broker is given, which never jumps, to that of the machine's clock
        self._ready: dict[Channel, None] = {}
        self._stale: dict[Topic, None] = {}  # topics whose journal is behind
        self._read_stalls: ReadStalls[Channel | Topic] = ReadStalls(report, storage.try_reading)
        self._trimmable: dict[Topic, None] = {}
        self._unindexed: dict[Topic, None] = {}  # topics whose logs were written to since the last checkpoint
        self._catalog_dirty = True
        self._catalog_due = False
        self._probe_at = 0
        self.on_new_topic: Callable[[Topic], None] = lambda topic: None

    @property
    def node_name(self) -> str:
        """The name of this node as dead letters carry it."""
        return f"{self.options.broadcast_address}:{self.options.broadcast_tcp_port}"

    # --- topics and channels -----------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Return the topic of that name, created if there is none.

        Raises `Exiting`, `LimitReached`, `OutOfMemory`, or `LogError` when the disk refuses.
        """
        topic = self.topics.get(name)
        if topic is None:
            if self.exiting:
                raise Exiting
            if name in self.unopened:
                raise LogError(self.unopened[name].reason)
            if 0 < self.options.max_topics <= len(self.topics):
                raise LimitReached("topics", self.options.max_topics, where="this node", flag="--max-topics")
            if self.memory_problem is not None:
                raise OutOfMemory(self.memory_problem)
            topic = Topic(name, self, self.storage.open(name))
            topic.effective = self.settings.of_topic(topic)  # a policy may hold for it
            topic.set_admission()
            self.topics[name] = topic
            self.changed("topic", name, None, created=True)
            self.on_new_topic(topic)
        return topic

    def existing(self, name: str) -> Topic:
        """The topic of that name. Raises `NoSuchTopic`."""
        topic = self.topics.get(name)
        if topic is None:
            raise NoSuchTopic(name)
        return topic

    def existing_channel(self, topic: str, channel: str) -> Channel:
        """That channel. Raises `NoSuchTopic` or `NoSuchChannel`."""
        found = self.existing(topic).channels.get(channel)
        if found is None:
            raise NoSuchChannel(channel)
        return found

    def create_channel(self, topic: Topic, name: str, *, now: int, cursor: int | None = None) -> Channel:
        """Return the channel of that name, created if there is none, at `cursor` or where the topic stands."""
        if name not in topic.channels and 0 < self.options.max_channels <= len(topic.channels):
            limit = self.options.max_channels
            raise LimitReached("channels", limit, where=f"topic {topic.name}", flag="--max-channels")
        return topic.create_channel(name, now=now, cursor=cursor)

    def delete_topic(self, name: str) -> None:
        """Drop a topic with its channels and files. Raises `NoSuchTopic`, or `LogError` when the disk refuses."""
        topic = self.existing(name)
        topic.store.destroy()  # first: should the disk refuse, nothing has changed
        topic.close()
        del self.topics[name]
        self._forget_exiting()
        for channel in list(topic.channels):
            self.changed("channel", name, channel, created=False)
        self.changed("topic", name, None, created=False)
        topic.channels.clear()  # which have the topic
        for client in self.clients:
            client.drop_topic(name)

    def delete_channel(self, topic_name: str, name: str) -> None:
        """Drop a channel; the last one of an ephemeral topic takes the topic with it."""
        channel = self.existing_channel(topic_name, name)
        topic = channel.topic
        topic.delete_channel(name)
        self._forget_exiting()
        if topic.ephemeral and not topic.channels:
            self.delete_topic(topic_name)

    def _forget_exiting(self) -> None:
        """Let the agenda go of channels that are no more: a deadline may be an hour off, and keeps all they had."""
        self.agenda = [entry for entry in self.agenda if not entry[2].exiting]
        heapify(self.agenda)

    def pause_topic(self, name: str, paused: bool, *, now: int) -> None:
        """Stop, or go on, handing a topic's messages to its channels."""
        self.existing(name).pause(paused, now=now)
        self.catalog_changed()

    def pause_channel(self, topic: str, name: str, paused: bool) -> None:
        """Stop or resume delivering a channel's messages; both end a pause that has an end."""
        channel = self.existing_channel(topic, name)
        channel.paused = paused
        self.settings.end_pause(channel)
        self.mark_ready(channel)
        self.catalog_changed()

    def begin_drain(self, *, now: int, deadline: int = 0) -> None:
        """Take no new messages from now on; `deadline` (ns, 0: none) is when deliveries end too."""
        if self.drain is not None:
            self.end_drain(now=now)
        self.drain = Drain(self, now=now, deadline=deadline)
        for topic in self.topics.values():
            topic.set_admission()

    def end_drain(self, *, now: int) -> None:
        """Take messages again."""
        drain, self.drain = self.drain, None
        if drain is not None:
            drain.end(now)

    def empty_channel(self, topic: str, name: str, *, now: int) -> None:
        """Drop all that a channel has, for good: written down before anybody hears of it."""
        channel = self.existing_channel(topic, name)
        channel.empty()
        self.checkpoint_topic(channel.topic, now=now)

    def leave(
        self, channel: Channel, subscription: Subscription, *, now: int, reason: Reason = Reason.DISCONNECTED
    ) -> None:
        """End a subscription; an ephemeral channel is deleted with its last one."""
        reason = Reason.CLOSED if self.exiting else reason
        channel.unsubscribe(
            subscription, now=now, reason=reason, keep_in_flight=not self.options.requeue_on_disconnect
        )
        mine = channel.topic.channels.get(channel.name) is channel
        if channel.ephemeral and mine and not (channel.exiting or channel.subscriptions or channel.pending.named):
            self.delete_channel(channel.topic.name, channel.name)

    def changed(self, kind: str, topic: str, channel: str | None, *, created: bool) -> None:
        """Note that a topic or channel came or went, for those who tell others."""
        self.changes.append((kind, topic, channel, created))
        if self.grown is not None:
            self.grown[topic] = None
        if not names.ephemeral(topic) and not (channel and names.ephemeral(channel)):
            self._catalog_dirty = True

    def catalog_changed(self) -> None:
        """Have the catalog written at the end of this turn."""
        self._catalog_dirty = self._catalog_due = True

    def journal_later(self, topic: Topic) -> None:
        """Have the topic's state written to its journal with the next checkpoint."""
        self._stale[topic] = None

    # --- the turn ----------------------------------------------------------------------------------------------

    def mark_ready(self, channel: Channel) -> None:
        """Have the channel deliver at the end of this turn."""
        self._ready[channel] = None

    @property
    def has_work(self) -> bool:
        """Whether `commit` has something to do."""
        if self.dirty_topics or self._ready or self._catalog_due or self.grown:
            return True
        return self.mover.has_work

    def commit(self, now: int) -> None:
        """End the turn: write each log, hand messages to channels, and deliver, until nothing is left to do.

        A message that is published while others are delivered, such as a dead letter, is written, and delivered, in the
        same turn.
        """
        self.now = now
        while self.dirty_topics or self._ready or self.mover.has_work:
            if self.dirty_topics:
                self._write_topics(now)
            elif self._ready:
                self._deliver(now)
            else:
                self.mover.publish(now)
        if self._catalog_due:
            self.save_catalog()

    def _write_topics(self, now: int) -> None:
        topics, self.dirty_topics = self.dirty_topics, []
        for topic in topics:
            try:
                topic.commit(now)
                if not topic.ephemeral:
                    self.problem = None
                    self._unindexed[topic] = None
            except LogError as error:
                self.fail(error)

    def _deliver(self, now: int) -> None:
        ready, self._ready = self._ready, {}
        for channel in ready:
            if self._read_stalls and self._read_stalls.waits(channel, now):
                continue
            try:
                channel.deliver(now)
            except LogError as error:  # the disk cannot be read now: retried with a later checkpoint
                self._read_stalls.add(channel, error, now=now)
            else:
                if self._read_stalls:
                    self._read_stalls.succeeded(channel, now=now)
            self._stale[channel.topic] = None

    @property
    def health(self) -> str | None:
        """The reasons why the broker is unhealthy, or None: memory, a failed write or read, unopened topics."""
        reasons = [reason for reason in (self.memory_problem, self.problem) if reason is not None]
        reasons += self._read_stalls.reasons()
        reasons += self.mover.problems()
        reasons += [topic.reason for topic in self.unopened.values()]
        more = [f"and {len(reasons) - 3} more"] if len(reasons) > 3 else []
        return "; ".join([*reasons[:3], *more]) or None

    def fail(self, error: Exception) -> None:
        """Note that the disk refused; health is bad until a write succeeds."""
        if self.problem is None:
            self.report(f"the disk refuses: {error}")
        self.problem = str(error)

    def set_memory_problem(self, problem: str | None) -> None:
        """Refuse publishes and new topics for this reason; with None, take them again."""
        if problem != self.memory_problem:
            changed = (problem is None) != (self.memory_problem is None)
            self.memory_problem = problem
            for topic in self.topics.values() if changed else ():
                topic.set_admission()

    def read_failed(self, topic: Topic, error: ReadFailed, *, now: int) -> None:
        """Note that a topic could not be read; it is retried, and health is bad until it can be."""
        self._read_stalls.add(topic, error, now=now)

    def _look_for_health(self, now: int) -> None:
        """Try the disk again: publishers may stay away for as long as health is bad."""
        if now < self._probe_at:
            return
        self._probe_at = now + PROBING
        try:
            self.storage.try_writing()
        except OSError as error:
            self.problem = str(error)
        else:
            self.problem = None
            self.report("the disk takes writes again")

    def scan(self, now: int) -> bool:
        """Look at channels whose time has come, a selection at a time; whether it should go on at once."""
        looked = 0
        while self.agenda and self.agenda[0][0] <= now and looked < self.options.queue_scan_selection_count:
            due, _, channel = heappop(self.agenda)
            if channel.scheduled != due or channel.exiting:
                continue
            looked += 1
            channel.scan(now)
        return bool(looked) and bool(self.agenda) and self.agenda[0][0] <= now

    def next_due(self) -> int | None:
        """When `scan` has something to do."""
        agenda = self.agenda
        while agenda and (agenda[0][2].scheduled != agenda[0][0] or agenda[0][2].exiting):
            heappop(agenda)
        return agenda[0][0] if agenda else None

    # --- what survives a crash ---------------------------------------------------------------------------------

    def checkpoint_topic(self, topic: Topic, *, now: int | None = None) -> None:
        """Write down how far a topic has come now, or, when the disk refuses, with a later checkpoint.

        Given the time, without those of its channels that cost so much that they are told of more seldom.
        """
        try:
            if not topic.checkpoint(now=now):
                self._stale[topic] = None
        except LogError as error:
            self._stale[topic] = None
            self.fail(error)

    def checkpoint(self, *, now: int) -> None:
        """Write down what channels have finished since the last time, and which topics and channels there are."""
        self.now = now
        if self.problem is not None:
            self._look_for_health(now)
        if self.unopened:
            self._open_again(now)
        if self.drain is not None:
            self.drain.look(now)
        if self._read_stalls:
            self._retry_reads(now)
        self._write_indexes()
        stale, self._stale = self._stale, {}
        for topic in stale:
            if topic.exiting:
                continue
            try:
                if topic.ephemeral:
                    topic.trim(now=now)  # what is in memory only should not stay there for long
                else:
                    self._trimmable[topic] = None
                    if not topic.checkpoint(now=now):
                        self._stale[topic] = None
            except LogError as error:
                self._stale[topic] = None
                self.fail(error)
        if self._catalog_dirty:
            self.save_catalog()

    def _write_indexes(self) -> None:
        """Have the logs that were written to write their index records."""
        topics, self._unindexed = self._unindexed, {}
        for topic in topics:
            if not topic.exiting:
                try:
                    topic.log.write_index()
                except LogError as error:
                    self._unindexed[topic] = None
                    self.fail(error)

    def _retry_reads(self, now: int) -> None:
        """Retry what waits for the disk: deliveries at the end of this turn, what concerns a whole topic at once."""
        for owner in self._read_stalls.due(now):
            if owner.exiting:
                self._read_stalls.drop(owner)
            elif isinstance(owner, Channel):
                self.mark_ready(owner)
            else:
                try:
                    owner.try_fan_out(now)
                    owner.trim(now=now)
                except ReadFailed as error:
                    self._read_stalls.add(owner, error, now=now)
                except LogError as error:
                    self.fail(error)
                else:
                    self._read_stalls.succeeded(owner, now=now)

    def trim(self, *, now: int, everywhere: bool = False) -> None:
        """Let logs go of what nobody needs: where something moved since the last time, or everywhere."""
        moved, self._trimmable = self._trimmable, {}
        for topic in list(self.topics.values()) if everywhere else moved:
            if not topic.exiting:
                self._report_news(topic)
                try:
                    topic.trim(now=now)
                except ReadFailed as error:
                    self._read_stalls.add(topic, error, now=now)
                except (LogError, OSError) as error:
                    self.fail(error)

    def _report_news(self, topic: Topic) -> None:
        for note in topic.store.news():
            self.report(note)

    def save_catalog(self) -> bool:
        """Write which topics, channels and policies there are, with their settings; return whether that worked."""
        self._catalog_due = False
        try:
            self.storage.catalog.save(self.entries(), self.settings.policies.documents())
        except (LogError, OSError) as error:
            self.fail(error)
            return False
        self._catalog_dirty = False
        return True

    def entries(self) -> list[TopicEntry]:
        """What the catalog should say: all but the ephemeral."""
        unopened = [topic.entry for topic in self.unopened.values()]
        return unopened + [
            TopicEntry(
                topic.name,
                topic.paused,
                [
                    ChannelEntry(channel.name, channel.paused, channel.settings)
                    for channel in topic.channels.values()
                    if not channel.ephemeral
                ],
                topic.settings,
            )
            for topic in self.topics.values()
            if not topic.ephemeral
        ]

    def restore(self, *, now: int) -> None:
        """Bring back all topics and channels as they were, from the catalog, the logs and the journals."""
        entries = {entry.name: entry for entry in self.storage.catalog.load()}
        for note in self.settings.policies.restore(self.storage.catalog.policies):
            self.report(note)
        for name in self.storage.names_on_disk():
            entries.setdefault(name, TopicEntry(name, False, [], {}))
        for entry in entries.values():
            try:
                self._bring_back(entry, now)
            except LogError as error:
                self.unopened[entry.name] = Unopened(entry, str(error), now + RETRY)
                self.report(
                    f"{error}. Nothing of it was changed, and the other topics are served. It is opened by itself when "
                    "the disk can be read again; to begin it anew, stop nsqd and move its folder elsewhere"
                )
        for topic in list(self.topics.values()):
            for channel in topic.channels.values():
                self.mover.recognise(channel, now=now)
        self.redrives.recover(now=now)
        self.changes.clear()

    def _bring_back(self, entry: TopicEntry, now: int) -> None:
        """Open one topic as it was. Raises `LogError`; then there is no such topic, and its files are as they were."""
        topic: Topic | None = None
        try:
            topic = Topic(entry.name, self, self.storage.open(entry.name))
            topic.paused = entry.paused
            topic.settings = dict(entry.settings)
            topic.restore(now=now)
        except (LogError, OSError) as error:
            if topic is not None:
                topic.close()
            raise LogError(f"topic {entry.name} is not served: {error}") from error
        self._report_news(topic)
        self._unindexed[topic] = None  # of messages that were found without a record
        self.topics[entry.name] = topic
        for line in entry.channels:
            channel = topic.channels.get(line.name)
            if channel is None:  # the journal has lost it: deliver again what may be finished, rather than nothing
                channel = topic.bring_back(line.name, ChannelState(), now=now)
            channel.paused = line.paused
            channel.settings = line.settings
        self.settings.apply_topic(topic, now=now)
        topic.fan_out(now)

    def _open_again(self, now: int) -> None:
        """Try the topics that could not be opened, ever more seldom: a disk that dies takes its time to say so."""
        for name, topic in list(self.unopened.items()):
            if topic.again > now:
                continue
            try:
                self._bring_back(topic.entry, now)
            except LogError as error:
                topic.reason = str(error)
                topic.wait = min(2 * topic.wait, MOST_RETRY)
                topic.again = now + topic.wait
                continue
            del self.unopened[name]
            self.report(f"topic {name} could be opened again and is served")
            self.changed("topic", name, None, created=True)
            for channel in self.topics[name].channels:
                self.changed("channel", name, channel, created=True)

    def close(self, *, now: int) -> None:
        """Write down everything and let go of the disk."""
        self.exiting = True
        self.commit(now)
        for topic in self.topics.values():
            for channel in topic.channels.values():
                channel.dirty = True
            self.checkpoint_topic(topic)
            topic.close()
            try:
                topic.store.close()
            except (LogError, OSError) as error:
                self.report(f"topic {topic.name}: not all of it is written down: {error}")
        self.save_catalog()
        self.storage.close()
