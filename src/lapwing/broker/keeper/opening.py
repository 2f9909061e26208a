"""Open the broker's topics as they were, from the catalog, the logs and the journals."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from lapwing.broker.channel.channel import Channel
from lapwing.broker.channel.holds import Hold
from lapwing.broker.keeper import checkpoint as checkpoints
from lapwing.broker.settings.times import show
from lapwing.broker.topic.cold import NO_CHANNELS, NO_SETTINGS, ColdTopic
from lapwing.broker.topic.topic import Topic
from lapwing.errors import LogError
from lapwing.log.catalog import TopicEntry
from lapwing.log.journal.journal import ChannelState
from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.log.journal.journal import JournalState

RETRY: Final = 10_000_000_000  # ns before a topic that could not be opened is tried again; each time twice as long
MOST_RETRY: Final = 600_000_000_000


@dataclass(slots=True)
class Unopened:
    """A topic that exists, and whose files could not be opened."""

    entry: TopicEntry
    reason: str
    again: int  # time of the next attempt, ns
    wait: int = RETRY

    def failed_again(self, error: LogError, now: int) -> None:
        """Wait twice as long before the next attempt."""
        self.reason = str(error)
        self.wait = min(2 * self.wait, MOST_RETRY)
        self.again = now + self.wait


class Opening:
    """Opens topics, at the start or as soon as the disk can be read again."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.unopened: dict[str, Unopened] = {}  # topics that exist and could not be opened, by name

    def open_all(self, *, now: int) -> None:
        """Open every topic; one that cannot be opened is reported, and tried again later."""
        broker = self._broker
        entries = {entry.name: entry for entry in broker.storage.catalog.open()}
        for warning in broker.storage.catalog.warnings:
            broker.report(warning)
        for note in broker.settings.policies.restore(broker.storage.catalog.policies):
            broker.report(note)
        for name in broker.storage.names_on_disk():
            entries.setdefault(name, TopicEntry(name, False, [], {}))
        self._take_cold(entries)
        for entry in entries.values():
            if entry.name in broker.topics:
                continue
            try:
                self._open(entry, now)
            except LogError as error:
                self.unopened[entry.name] = Unopened(entry, str(error), now + RETRY)
                broker.report(
                    f"{error}. Nothing of it was changed, and the other topics are served. It is opened by itself when "
                    "the disk can be read again; to start with an empty one, stop nsqd and move its folder elsewhere"
                )
        self._recover(broker.topics.keys(), now)
        broker.changes.clear()

    def _take_cold(self, entries: dict[str, TopicEntry]) -> None:
        """Take over the cold topics that the last process saved, without opening their files."""
        broker = self._broker
        for name, store, fanned_out in broker.storage.load_cold():
            entry = entries.get(name)
            if entry is None or entry.channels or "emptied" in entry.settings or name in broker.topics:
                continue
            cold = ColdTopic(
                name,
                store,
                fanned_out=fanned_out,
                paused=entry.paused,
                settings=entry.settings or NO_SETTINGS,
                channels=NO_CHANNELS,
            )
            broker.topics[name] = cold
            broker.keeper.note_cold(cold)

    def open_again(self, *, now: int) -> None:
        """Try the topics that could not be opened, at growing intervals: a failing disk answers slowly."""
        broker = self._broker
        opened: set[str] = set()
        for name, unopened in list(self.unopened.items()):
            if unopened.again > now:
                continue
            try:
                self._open(unopened.entry, now)
            except LogError as error:
                unopened.failed_again(error, now)
                continue
            del self.unopened[name]
            opened.add(name)
            broker.report(f"topic {name} could be opened again and is served")
            broker.changed("topic", name, None, created=True)
            for channel in broker.topics[name].channels:
                broker.changed("channel", name, channel, created=True)
        if opened:
            self._recover(opened, now)

    def _recover(self, opened: Collection[str], now: int) -> None:
        """Complete the moves and redrives of dead letters that a crash has interrupted, where a topic is open now."""
        broker = self._broker
        for topic in broker.topics_in_use():  # a channel that has a mark is never cold
            for channel in topic.channels.values():
                mark = channel.dead.mark if channel.dead is not None else None
                if topic.name in opened or (mark is not None and mark.topic in opened):
                    broker.mover.recognise(channel, now=now)
        broker.redrives.recover(now=now)

    def _open(self, entry: TopicEntry, now: int) -> None:
        """Open one topic. Raises `LogError`; then there is no such topic, and its files are as they were."""
        broker = self._broker
        topic: Topic | None = None
        longest = broker.settings.longest_wait(entry)
        try:
            topic = Topic(entry.name, broker, broker.storage.open(entry.name))
            topic.take_over(entry)
            journal = topic.store.journal
            if journal is not None:
                state = journal.load(end=topic.log.end)
                _restore_topic(topic, state, longest, now)
                if _is_cut(topic, state) or journal.damaged:
                    # what comes next must not be mistaken for what a crash took, nor what waits now be in doubt again
                    topic.save_place()
                    broker.checkpoint_topic(topic)
                    journal.compact()
        except (LogError, OSError) as error:
            if topic is not None:
                topic.close()
            raise LogError(f"topic {entry.name} is not served: {error}") from error
        broker.keeper.report_news(topic)
        broker.topics[entry.name] = topic
        for line in entry.channels:
            channel = topic.channels.get(line.name)
            if channel is None:  # the journal has lost it: deliver again what may be finished, rather than nothing
                channel = _restore_channel(topic, line.name, ChannelState(), longest, now)
            if line.paused:
                channel.hold(Hold.PAUSED)
            channel.settings = line.settings
        broker.settings.apply_topic(topic, now=now)
        topic.fan_out(now)
        broker.keeper.note_opened(topic)


def _restore_topic(topic: Topic, state: JournalState, longest: int, now: int) -> None:
    topic.restore(state)
    for name, entry in state.channels.items():
        channel = _restore_channel(topic, name, entry, longest, now)
        if entry.doubtful or entry.all_doubtful:
            _wait_in_doubt(channel, entry, min(state.written - topic.skew, now) + longest, now)


def _wait_in_doubt(channel: Channel, state: ChannelState, until: int, now: int) -> None:
    """Deliver no message before `until` whose deferral a damaged journal may have lost."""
    if until <= now:
        return
    if state.all_doubtful:
        waiting = "the channel is paused, unless somebody unpauses it,"
        channel.hold(Hold.DOUBTFUL, until=until)
    else:
        waiting = f"{checkpoints.wait_in_doubt(channel, state.doubtful, until=until)} messages wait"
    end = show(until + channel.topic.skew)
    channel.topic.report(f"{channel}: its journal is damaged: {waiting} until {end}, as some may have been deferred")


def _is_cut(topic: Topic, state: JournalState) -> bool:
    """Return whether the journal knows of messages that the log does not have any more."""
    cursors = [channel.cursor for channel in state.channels.values()]
    return bool(topic.log.lost) or max([state.fanned_out or 0, *cursors]) > topic.log.end


def _restore_channel(topic: Topic, name: str, state: ChannelState, longest: int, now: int) -> Channel:
    channel = topic.new_channel(name, cursor=topic.log.first)
    topic.add_channel(channel)
    checkpoints.restore(channel, state, now=now, longest=longest)
    return channel
