"""The broker's data on disk: open its topics, save them at each checkpoint, and delete what is not needed."""

from __future__ import annotations

import sys
from collections.abc import Collection
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Final

from lapwing.broker import checkpoint as checkpoints
from lapwing.broker import trimming
from lapwing.broker.channel import Channel
from lapwing.broker.deleted import DeletedRuns
from lapwing.broker.holds import Hold
from lapwing.broker.times import show
from lapwing.broker.topic import Topic
from lapwing.errors import LogError, ReadFailed, WriteFailed
from lapwing.log.catalog import ChannelEntry, TopicEntry
from lapwing.log.journal import ChannelState
from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.log.journal import JournalState

PROBING: Final = 1_000_000_000  # ns between two attempts to write to a disk that has refused
RETRY: Final = 10_000_000_000  # ns before a topic that could not be opened is tried again; each time twice as long
MOST_RETRY: Final = 600_000_000_000
REST: Final = 2_000_000_000  # ns without use after which a topic is made to take little memory
SOON: Final = 250_000_000  # the same of a topic that has never rested, where there are very many such
_MANY_NEW: Final = 500
_MOST_NEW: Final = 1000  # topics that have never rested; beyond it each new one has others rest
_REST_AT_ONCE: Final = 25  # topics: a millisecond or two


@dataclass(slots=True)
class Unopened:
    """A topic that exists, and whose files could not be opened."""

    entry: TopicEntry
    reason: str
    again: int  # time of the next attempt, ns
    wait: int = RETRY


# --- opening -----------------------------------------------------------------------------------------------------


def catalog_entries(broker: Broker) -> list[TopicEntry]:
    """Return what the catalog keeps: every topic and channel that is not ephemeral."""
    unopened = [topic.entry for topic in broker.unopened.values()]
    return unopened + [catalog_entry(topic) for topic in broker.topics.values() if not topic.ephemeral]


def catalog_entry(topic: Topic) -> TopicEntry:
    """Return what the catalog keeps of a topic."""
    channels = [
        ChannelEntry(channel.name, channel.paused, channel.settings)
        for channel in topic.channels.values()
        if not channel.ephemeral
    ]
    return TopicEntry(topic.name, topic.paused, channels, topic.settings)


def open_all(broker: Broker, *, now: int) -> None:
    """Open every topic; one that cannot be opened is reported, and tried again later."""
    entries = {entry.name: entry for entry in broker.storage.catalog.open()}
    for warning in broker.storage.catalog.warnings:
        broker.report(warning)
    for note in broker.settings.policies.restore(broker.storage.catalog.policies):
        broker.report(note)
    for name in broker.storage.names_on_disk():
        entries.setdefault(name, TopicEntry(name, False, [], {}))
    _open_resting(broker, entries, now)
    for entry in entries.values():
        if entry.name in broker.topics:
            continue
        try:
            _open(broker, entry, now)
        except LogError as error:
            broker.unopened[entry.name] = Unopened(entry, str(error), now + RETRY)
            broker.report(
                f"{error}. Nothing of it was changed, and the other topics are served. It is opened by itself when "
                "the disk can be read again; to start with an empty one, stop nsqd and move its folder elsewhere"
            )
    _recover(broker, broker.topics.keys(), now)
    broker.changes.clear()


def _open_resting(broker: Broker, entries: dict[str, TopicEntry], now: int) -> None:
    """Take over the topics that the last process saved at rest, without opening their files."""
    for saved, store in broker.storage.resting():
        entry = entries.get(saved.name)
        if entry is None or entry.channels or "emptied" in entry.settings or saved.name in broker.topics:
            continue
        topic = Topic(saved.name, broker, store)  # the log has the same object
        topic.paused = entry.paused
        if entry.settings:
            topic.settings = dict(entry.settings)
        topic.fanned_out = saved.fanned_out
        topic.has_extras = True
        broker.topics[saved.name] = topic
        broker.settings.apply_topic(topic, now=now)
        if topic.log.unsynced:
            broker.unsynced_resting[topic] = None


def open_again(broker: Broker, *, now: int) -> None:
    """Try the topics that could not be opened, at growing intervals: a failing disk answers slowly."""
    opened: set[str] = set()
    for name, unopened in list(broker.unopened.items()):
        if unopened.again > now:
            continue
        try:
            _open(broker, unopened.entry, now)
        except LogError as error:
            unopened.reason = str(error)
            unopened.wait = min(2 * unopened.wait, MOST_RETRY)
            unopened.again = now + unopened.wait
            continue
        del broker.unopened[name]
        opened.add(name)
        broker.report(f"topic {name} could be opened again and is served")
        broker.changed("topic", name, None, created=True)
        for channel in broker.topics[name].channels:
            broker.changed("channel", name, channel, created=True)
    if opened:
        _recover(broker, opened, now)


def _recover(broker: Broker, opened: Collection[str], now: int) -> None:
    """Complete the moves and redrives of dead letters that a crash has interrupted, where a topic is open now."""
    for topic in list(broker.topics.values()):
        for channel in topic.channels.values():
            mark = channel.dead.mark if channel.dead is not None else None
            if topic.name in opened or (mark is not None and mark.topic in opened):
                broker.mover.recognise(channel, now=now)
    broker.redrives.recover(now=now)


def _open(broker: Broker, entry: TopicEntry, now: int) -> None:
    """Open one topic. Raises `LogError`; then there is no such topic, and its files are as they were."""
    topic: Topic | None = None
    longest = broker.settings.longest_wait(entry)
    try:
        topic = Topic(entry.name, broker, broker.storage.open(entry.name))
        topic.paused = entry.paused
        if entry.settings:
            topic.settings = dict(entry.settings)
        journal = topic.store.journal
        if journal is not None:
            state = journal.load(end=topic.log.end)
            _restore_topic(topic, state, longest, now)
            if _is_cut(topic, state) or journal.damaged:
                # what comes next must not be mistaken for what a crash took, nor what waits now be in doubt again
                topic.moved = True
                broker.checkpoint_topic(topic)
                journal.compact()
    except (LogError, OSError) as error:
        if topic is not None:
            topic.close()
        raise LogError(f"topic {entry.name} is not served: {error}") from error
    _report_news(broker, topic)
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
    if not topic.rest():
        broker.unindexed[topic] = None  # messages may have been found without a record
    elif topic.log.unsynced:
        broker.unsynced_resting[topic] = None


def _restore_topic(topic: Topic, state: JournalState, longest: int, now: int) -> None:
    log = topic.log
    known = state.fanned_out if state.fanned_out is not None else log.first
    cursors = [channel.cursor for channel in state.channels.values()]
    topic.fanned_out = min(max([known, log.first, *cursors]), log.end)
    _restore_emptied(topic, state.emptied)
    topic.deleted = DeletedRuns([*state.deleted, (0, state.trimmed)])
    topic.deleted.forget_below(log.first)
    topic.deleted.forget_from(log.end)
    topic.door_state = checkpoints.read_note(state.notes.get(checkpoints.DOOR, b""))
    topic.saved_state = dict(topic.door_state)
    _leave_out(topic, log.lost)
    for name, entry in state.channels.items():
        channel = _restore_channel(topic, name, entry, longest, now)
        if entry.doubtful or entry.all_doubtful:
            _wait_in_doubt(channel, entry, min(state.written - topic.skew, now) + longest, now)
    topic.has_extras = True


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


def _restore_emptied(topic: Topic, saved: list[tuple[int, int]] | None) -> None:
    """Take over the emptied runs; an old data path has them among the settings in the catalog."""
    before, old = topic.settings, topic.settings.get("emptied")
    if old is not None:
        topic.settings = {name: value for name, value in before.items() if name != "emptied"}
    if saved is not None:
        topic.emptied.runs = saved
    elif isinstance(old, list):
        topic.emptied.replace([(run[0], run[1]) for run in old if isinstance(run, list) and _is_run(run)])
        try:
            topic.checkpoint()  # before the catalog is written without them
        except WriteFailed:
            topic.settings = before
    topic.emptied.cut(topic.log.end)  # a power loss has cut the log there: other messages are to come


def _is_run(run: list[object]) -> bool:
    return [*map(type, run)] == [int, int]


def _leave_out(topic: Topic, lost: range) -> None:
    """Have no channel wait for messages that a crash took."""
    if lost and topic.fanned_out >= lost.start:
        topic.fanned_out = max(topic.fanned_out, lost.stop)
        topic.emptied.cut(lost.start)
        topic.emptied.add(lost.start, lost.stop, passed=0)
    else:
        topic.lost = lost


def _restore_channel(topic: Topic, name: str, state: ChannelState, longest: int, now: int) -> Channel:
    channel = topic.new_channel(name, cursor=topic.log.first)
    topic.add_channel(channel)
    checkpoints.restore(channel, state, now=now, longest=longest)
    return channel


# --- checkpoints -----------------------------------------------------------------------------------------------------


def checkpoint(broker: Broker, *, now: int) -> None:
    """Save what has changed since the last time, and retry what the disk has refused."""
    begin_checkpoint(broker, now=now).advance(sys.maxsize, now=now)
    let_idle_rest(broker, now)


class Checkpoint:
    """One checkpoint: saves every topic that had changed when it began, some at a time, so that others need not wait.

    First all index records are written, then the journals. A topic counts as changed until it is saved.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        indexes = [(_write_index, topic) for topic in broker.unindexed]
        self._work = iter(indexes + [(_save, topic) for topic in broker.stale])

    def advance(self, most: int, *, now: int) -> bool:
        """Save up to `most` topics; return whether there may be more."""
        some = list(islice(self._work, most))
        for save, topic in some:
            save(self._broker, topic, now)
        if len(some) == most:
            return True
        if self._broker.catalog_dirty:
            self._broker.save_catalog_later()
        return False


def begin_checkpoint(broker: Broker, *, now: int) -> Checkpoint:
    """Retry what the disk has refused; return the work of saving what has changed since the last time."""
    broker.now = now
    if broker.problem is not None:
        _probe(broker, now)
    if broker.unopened:
        open_again(broker, now=now)
    if broker.drain is not None:
        broker.drain.look(now)
    if broker.read_stalls:
        _retry_reads(broker, now)
    return Checkpoint(broker)


def _write_index(broker: Broker, topic: Topic, now: int) -> None:
    """Have the log of a topic that was written to write its index records."""
    if topic not in broker.unindexed:
        return  # it was saved meanwhile
    _note_used(broker, topic, now)
    del broker.unindexed[topic]
    if not topic.exiting and not topic.log.rests:
        try:
            topic.log.write_index()
        except LogError as error:
            broker.unindexed[topic] = None
            broker.fail(error)


def _save(broker: Broker, topic: Topic, now: int) -> None:
    """Save the state of a topic that has changed to its journal."""
    if topic not in broker.stale:
        return  # it was saved meanwhile
    _note_used(broker, topic, now)
    del broker.stale[topic]
    if topic.exiting:
        return
    try:
        if topic.ephemeral:
            if not trimming.trim(topic, broker.options, now=now):  # at once, as it takes memory
                broker.stale[topic] = None
        else:
            broker.trimmable[topic] = None
            if not topic.checkpoint(now=now):
                broker.stale[topic] = None
    except LogError as error:
        broker.stale[topic] = None
        broker.fail(error)


def close_all(broker: Broker) -> None:
    """Save every topic and the catalog, and release the data path."""
    idle = []
    for topic in broker.topics.values():
        if not topic.channels and topic.rest():
            if topic.is_plain:
                idle.append((topic.name, topic.store, topic.fanned_out))
            topic.close()
            continue
        for channel in topic.channels.values():
            channel.dirty = True
        broker.checkpoint_topic(topic)
        topic.close()
        try:
            topic.store.close()
        except (LogError, OSError) as error:
            broker.report(f"topic {topic.name}: could not be saved in full: {error}")
    broker.storage.save_resting(idle)
    broker.save_catalog()
    broker.storage.close()


def _probe(broker: Broker, now: int) -> None:
    """Try to write to the disk again: publishers may stay away for as long as health is bad."""
    if now < broker.probe_at:
        return
    broker.probe_at = now + PROBING
    try:
        broker.storage.try_writing()
    except OSError as error:
        broker.problem = str(error)
    else:
        broker.problem = None
        broker.report("writes succeed again; publishes are taken")


def _note_used(broker: Broker, topic: Topic, now: int) -> None:
    """Note that a topic was used, behind all that were used before."""
    known = broker.new if topic in broker.new else broker.awake
    known.pop(topic, None)
    if not topic.exiting and not topic.ephemeral:
        known[topic] = now


def note_new(broker: Broker, topic: Topic) -> None:
    """Note that a topic was created, which may rest sooner than others.

    Where topics are created faster than idle ones are made to rest, each new one has the two oldest rest: the memory
    that very many topics in use have taken once is not returned to the system.
    """
    if topic.ephemeral:
        return
    broker.new[topic] = broker.now
    if len(broker.new) > _MOST_NEW:
        for oldest in list(islice(broker.new, 2)):
            if not oldest.waiting:
                _write_index(broker, oldest, broker.now)
                _save(broker, oldest, broker.now)
            broker.new.pop(oldest, None)
            if not oldest.exiting:
                let_rest(broker, oldest, now=broker.now)


def let_idle_rest(broker: Broker, now: int) -> bool:
    """Have some topics take little memory that were not used for a while; return whether there are more.

    A topic in use takes ten times the memory of one that rests. Where very many are created they rest sooner, or most
    would be awake at the same time.
    """
    soon = SOON if len(broker.new) > _MANY_NEW else REST
    idle = [(broker.new, topic) for topic in _unused(broker, broker.new, now - soon)]
    idle += [(broker.awake, topic) for topic in _unused(broker, broker.awake, now - REST)]
    for known, topic in idle[:_REST_AT_ONCE]:
        del known[topic]
        if not topic.exiting:
            let_rest(broker, topic, now=now)
    return len(idle) > _REST_AT_ONCE


def _unused(broker: Broker, known: dict[Topic, int], since: int) -> list[Topic]:
    """Return topics that were not used since then, a few more than can rest at once."""
    old = islice(takewhile(lambda each: each[1] <= since, known.items()), _REST_AT_ONCE + 1)
    return [topic for topic, _ in old if topic not in broker.unindexed and topic not in broker.stale]


def let_rest(broker: Broker, topic: Topic, *, now: int) -> None:
    """Have a topic take little memory; one that cannot is tried again later."""
    if not topic.rest():
        broker.awake[topic] = now
    elif topic.log.unsynced:
        broker.unsynced_resting[topic] = None


def _retry_reads(broker: Broker, now: int) -> None:
    """Retry what waits for the disk: deliveries at the end of this turn, what concerns a whole topic at once."""
    stalls = broker.read_stalls
    for owner in stalls.due(now):
        if owner.exiting:
            stalls.drop(owner)
        elif isinstance(owner, Channel):
            broker.mark_ready(owner)
        else:
            try:
                owner.try_fan_out(now)
                trimming.trim(owner, broker.options, now=now)
            except ReadFailed as error:
                stalls.add(owner, error, now=now)
            except LogError as error:
                broker.fail(error)
            else:
                stalls.succeeded(owner, now=now)


def trim(broker: Broker, *, now: int, everywhere: bool) -> bool:
    """Delete segments that no channel needs: of topics that have changed since the last time, or of all.

    Return whether that is done; else another call is wanted soon.
    """
    done = True
    changed, broker.trimmable = broker.trimmable, {}
    for topic in list(broker.topics.values()) if everywhere else changed:
        if not topic.exiting:
            if topic.log.rests and topic.log.has_one_segment:
                continue
            if not topic.ephemeral and topic not in broker.new:
                broker.awake.setdefault(topic, now)
            _report_news(broker, topic)
            try:
                if not trimming.trim(topic, broker.options, now=now):
                    broker.trimmable[topic] = None
                    done = False
            except ReadFailed as error:
                broker.read_stalls.add(topic, error, now=now)
            except (LogError, OSError) as error:
                broker.fail(error)
    return done


def _report_news(broker: Broker, topic: Topic) -> None:
    """Report damage and repairs of a topic's files."""
    for note in topic.store.news():
        broker.report(note)
