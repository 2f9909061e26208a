"""All topics of one node: create, pause and delete them; and the turn, which ends all commands of a moment."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from lapwing import names
from lapwing.broker.agenda import Agenda
from lapwing.broker.channel.channel import Channel
from lapwing.broker.channel.holds import Hold
from lapwing.broker.channel.ledger import Reason
from lapwing.broker.channel.subscription import Subscription
from lapwing.broker.failures.dead_letter_mover import DeadLetterMover
from lapwing.broker.growth import Growth
from lapwing.broker.keeper.keeper import Keeper
from lapwing.broker.keeper.opening import Opening
from lapwing.broker.keeper.storage import Storage
from lapwing.broker.operations.drain import Drain
from lapwing.broker.operations.redrive import Redrives
from lapwing.broker.read_stalls import ReadStalls
from lapwing.broker.schedules.schedules import Schedules
from lapwing.broker.settings.options import Options
from lapwing.broker.settings.store import SettingsStore
from lapwing.broker.topic.cold import ColdTopic
from lapwing.broker.topic.receipt import Receipt
from lapwing.broker.topic.topic import Topic
from lapwing.broker.turn_work import TurnWork
from lapwing.errors import Exiting, LimitReached, LogError, NoSuchChannel, NoSuchTopic, NotReplicated, OutOfMemory

if TYPE_CHECKING:
    from lapwing.broker.client_stats import Client
    from lapwing.broker.keeper.keeper import Checkpoint
    from lapwing.broker.keeper.opening import Unopened
    from lapwing.kernel._road import Round

Change = tuple[str, str, str | None, bool]  # "topic" or "channel", topic, channel, created (else deleted)


class Broker:
    """All topics of one node.

    Commands change topics and channels at once but send nothing: `commit` ends the turn with one write per log, and
    messages and answers are sent after that.
    """

    def __init__(
        self, options: Options, storage: Storage, *, report: Callable[[str], None] = lambda text: None
    ) -> None:
        self.options = options
        self.storage = storage
        self.report = report
        self.topics: dict[str, Topic | ColdTopic] = {}  # to list and to count; `find` returns one for use
        self.keeper = Keeper(self)
        self.opening = Opening(self)
        self.settings = SettingsStore(options, self, self.keeper.save_catalog)
        self.clients: dict[Client, None] = {}
        self.agenda = Agenda()
        self.changes: list[Change] = []
        self.growth = Growth()
        self.round: Round | None = None  # what intakes take, where there are some
        self.memory_problem: str | None = None  # why no messages are taken for want of memory
        self.remote_problem: str | None = None  # why no messages are taken, as the remote log takes nothing
        self.exiting = False
        self.now = 0  # ns; as of the last turn or checkpoint
        self.mover = DeadLetterMover(self)
        self.redrives = Redrives(self)
        self.schedules = Schedules(self, storage.schedule_files)
        self.drain: Drain | None = None
        self.skew = 0  # ns from the time that the broker is given, which never jumps, to that of the machine's clock
        self.work = TurnWork(self)
        self.read_stalls: ReadStalls[Channel | Topic] = ReadStalls(report, storage.try_reading)
        self.staged_from: dict[str, dict[str, int]] = {}  # by topic and who asks for it: what the log has to keep
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
        topic = self.find(name)
        if topic is None:
            if self.exiting:
                raise Exiting
            if name in self.unopened:
                raise LogError(self.unopened[name].reason)
            if 0 < self.options.max_topics <= len(self.topics):
                raise LimitReached("topics", self.options.max_topics, where="this node", flag="--max-topics")
            if self.memory_problem is not None:
                raise OutOfMemory(self.memory_problem)
            if self.remote_problem is not None:
                raise NotReplicated(self.remote_problem)
            topic = Topic(name, self, self.storage.open(name))
            self.settings.apply_topic(topic, now=self.now)  # a policy may hold for it
            self.topics[name] = topic
            self.keeper.note_new(topic)
            self.changed("topic", name, None, created=True)
            self.on_new_topic(topic)
        return topic

    def find(self, name: str) -> Topic | None:
        """Return the topic of that name, ready for use; None if there is none."""
        topic = self.topics.get(name)
        if isinstance(topic, ColdTopic):
            cold = topic
            topic = Topic(name, self, self.storage.unpack(name, cold.store))
            topic.unpack(cold)
            self.topics[name] = topic
            self.settings.apply_topic(topic, now=self.now)
            self.keeper.note_unpacked(topic)
        return topic

    def existing(self, name: str) -> Topic:
        """Return the topic of that name. Raises `NoSuchTopic`."""
        topic = self.find(name)
        if topic is None:
            raise NoSuchTopic(name)
        return topic

    def topics_in_use(self) -> list[Topic]:
        """Return the topics that are not cold."""
        return [topic for topic in self.topics.values() if isinstance(topic, Topic)]

    def existing_channel(self, topic: str, channel: str) -> Channel:
        """Return the channel of that name. Raises `NoSuchTopic` or `NoSuchChannel`."""
        found = self.existing(topic).channels.get(channel)
        if found is None:
            raise NoSuchChannel(channel)
        return found

    def delete_topic(self, name: str) -> None:
        """Drop a topic with its channels and files. Raises `NoSuchTopic`, or `LogError` when the disk refuses."""
        topic = self.existing(name)
        topic.store.destroy()  # first: should the disk refuse, nothing has changed
        topic.close()
        del self.topics[name]
        self.keeper.drop(topic)
        self.agenda.drop_deleted()
        for channel in list(topic.channels):
            self.changed("channel", name, channel, created=False)
        self.changed("topic", name, None, created=False)
        topic.drop_channels()
        for client in self.clients:
            client.drop_topic(name)

    def delete_channel(self, topic_name: str, name: str) -> None:
        """Drop a channel; the last one of an ephemeral topic takes the topic with it."""
        channel = self.existing_channel(topic_name, name)
        topic = channel.topic
        topic.delete_channel(name)
        self.agenda.drop_deleted()
        if topic.ephemeral and not topic.channels:
            self.delete_topic(topic_name)

    def pause_topic(self, name: str, paused: bool, *, now: int) -> None:
        """Stop or resume handing a topic's messages to its channels."""
        self.existing(name).pause(paused, now=now)
        self.catalog_changed()

    def pause_channel(self, topic: str, name: str, paused: bool) -> None:
        """Stop or resume delivering a channel's messages; both end a pause that has an end.

        To resume also ends a wait that a damaged journal has caused, but not what the drain of the node has ended.
        """
        channel = self.existing_channel(topic, name)
        self.settings.end_pause(channel)
        if paused:
            channel.hold(Hold.PAUSED)
        else:
            channel.lift(Hold.PAUSED)
            channel.lift(Hold.DOUBTFUL)
        self.mark_ready(channel)
        self.catalog_changed()

    def begin_drain(self, *, now: int, deadline: int = 0) -> None:
        """Take no new messages from now on; `deadline` (ns, 0: none) is when deliveries end too."""
        if self.drain is not None:
            self.end_drain()
        self.drain = Drain(self, now=now, deadline=deadline)
        for topic in self.topics_in_use():
            topic.set_admission()

    def end_drain(self) -> None:
        """Take messages again."""
        drain, self.drain = self.drain, None
        if drain is not None:
            drain.end()

    def empty_channel(self, topic: str, name: str, *, now: int) -> Topic:
        """Finish every message of a channel, and save that; return its topic."""
        channel = self.existing_channel(topic, name)
        channel.empty()
        self.checkpoint_topic(channel.topic, now=now)
        return channel.topic

    def leave(
        self, channel: Channel, subscription: Subscription, *, now: int, reason: Reason = Reason.DISCONNECTED
    ) -> None:
        """End a subscription; an ephemeral channel is deleted with its last one."""
        reason = Reason.CLOSED if self.exiting else reason
        channel.unsubscribe(
            subscription, now=now, reason=reason, keep_in_flight=not self.options.requeue_on_disconnect
        )
        mine = channel.topic.channels.get(channel.name) is channel
        used = channel.subscriptions or channel.ledger.named
        if channel.ephemeral and mine and not (channel.exiting or used):
            self.delete_channel(channel.topic.name, channel.name)

    def changed(self, kind: str, topic: str, channel: str | None, *, created: bool) -> None:
        """Note that a topic or channel was created or deleted, for nsqlookupd and others."""
        self.changes.append((kind, topic, channel, created))
        self.growth.note(topic)
        if not names.ephemeral(topic) and not (channel and names.ephemeral(channel)):
            self.keeper.note_catalog(at_once=False)

    def catalog_changed(self) -> None:
        """Have the catalog written at the end of this turn."""
        self.keeper.note_catalog(at_once=True)

    @property
    def draining(self) -> bool:
        """Whether the broker takes no new messages."""
        return self.drain is not None

    @property
    def drained(self) -> bool:
        """Whether the deadline of a drain has passed, so that no channel delivers."""
        return self.drain is not None and self.drain.expired

    # --- the turn ----------------------------------------------------------------------------------------------

    def mark_ready(self, channel: Channel) -> None:
        """Have the channel deliver at the end of this turn."""
        self.work.deliver(channel)

    @property
    def has_work(self) -> bool:
        """Whether `commit` has something to do."""
        return bool(self.work) or self.keeper.catalog_due or bool(self.growth.grown)

    def commit(self, now: int) -> None:
        """End the turn: write each log, hand messages to channels, and deliver; the rest is left to the next turn."""
        self.now = now
        self.work.run(now)
        if self.keeper.catalog_due:
            self.keeper.save_catalog()

    @property
    def health(self) -> str | None:
        """The reasons why the broker is unhealthy, or None: memory, the remote log, a failed write or read, topics."""
        problems = (self.memory_problem, self.remote_problem, self.keeper.problem)
        reasons = [reason for reason in problems if reason is not None]
        reasons += self.read_stalls.reasons()
        reasons += self.mover.problems()
        reasons += [topic.reason for topic in self.unopened.values()]
        more = [f"and {len(reasons) - 3} more"] if len(reasons) > 3 else []
        return "; ".join([*reasons[:3], *more]) or None

    def fail(self, error: Exception) -> None:
        """Note that a write failed; health is bad until one succeeds."""
        self.keeper.fail(error)

    def set_memory_problem(self, problem: str | None) -> None:
        """Refuse publishes and new topics for this reason; with None, take them again."""
        if problem != self.memory_problem:
            changed = (problem is None) != (self.memory_problem is None)
            self.memory_problem = problem
            for topic in self.topics_in_use() if changed else ():
                topic.set_admission()

    def set_remote_problem(self, problem: str | None) -> None:
        """Refuse publishes and new topics for this reason; with None, take them again."""
        changed = (problem is None) != (self.remote_problem is None)
        self.remote_problem = problem
        for topic in self.topics_in_use() if changed else ():
            topic.set_admission()

    def scan(self, now: int) -> bool:
        """Look at channels with a deadline that has come, a selection at a time; return whether more are due."""
        return self.agenda.scan(now, most=self.options.queue_scan_selection_count)

    # --- what survives a crash ---------------------------------------------------------------------------------

    def checkpoint_topic(self, topic: Topic, *, now: int | None = None, sync: bool = False) -> LogError | None:
        """Save the state of a topic now, or with a later checkpoint; return why not now. See `Keeper`."""
        return self.keeper.checkpoint_topic(topic, now=now, sync=sync)

    def save_topic(self, topic: Topic, receipt: Receipt) -> None:
        """Save the state of a topic now; settle `receipt` when it survives a crash, with `fsync` a power loss too."""
        self.keeper.save_topic(topic, receipt)

    def begin_checkpoint(self, *, now: int) -> Checkpoint:
        """Retry what the disk has refused; return the work of saving what has changed since the last time."""
        self.now = now
        if self.unopened:
            self.opening.open_again(now=now)
        if self.drain is not None:
            self.drain.look(now)
        return self.keeper.begin_checkpoint(now)

    def checkpoint(self, *, now: int) -> None:
        """Save what has changed since the last time, and retry what the disk has refused."""
        self.begin_checkpoint(now=now).advance(sys.maxsize, now=now)
        self.keeper.pack_idle(now)

    def trim(self, *, now: int, everywhere: bool = False) -> bool:
        """Delete segments that no channel needs, of all or of changed topics; return whether no call is wanted soon."""
        return self.keeper.trim(now=now, everywhere=everywhere)

    @property
    def unopened(self) -> dict[str, Unopened]:
        """The topics that exist and could not be opened, by name."""
        return self.opening.unopened

    def restore(self, *, now: int) -> None:
        """Open all topics and channels as they were, from the catalog, the logs and the journals."""
        self.opening.open_all(now=now)
        self.schedules.restore(now=now)

    def close(self, *, now: int) -> None:
        """Save everything, and release the data path."""
        self.exiting = True
        self.commit(now)
        self.schedules.save_progress()
        self.keeper.close()
