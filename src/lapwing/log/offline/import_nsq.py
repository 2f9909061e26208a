"""Bring the disk queues of NSQ's own nsqd into a data path of ours.

NSQ has a queue per channel, each with copies of its messages; we have one log per topic, and a channel is a cursor with
what is unfinished below it. So each message of a topic is appended once, and every channel gets what its queue held:
the channel with most messages by its cursor, the others as unfinished messages. The messages that still waited in the
topic come last, for all channels.

A topic is built in a folder of its own and renamed when it is whole. Until then a crash leaves NSQ's files as they are.
"""

import os
from collections.abc import Generator, Iterable, Iterator
from dataclasses import field
from typing import Final

from lapwing import kernel, names
from lapwing.log.catalog import Catalog, ChannelEntry, TopicEntry
from lapwing.log.datapath import TOPICS, DataPath
from lapwing.log.disk import DISK
from lapwing.log.journal.journal import Journal
from lapwing.log.journal.state import joined_runs
from lapwing.log.log import DiskLog
from lapwing.log.offline import nsq_queues
from lapwing.log.offline.nsq_queues import Damage, NsqMessage, NsqQueue
from lapwing.records import dataclass

IMPORTED: Final = "nsq-imported"  # folder of NSQ's data path for the files of queues that were imported
_BUILDING: Final = "importing-"
_BATCH: Final = 1000  # messages between two writes
_ID_BASE: Final = 54  # bits of a sequence in an id


@dataclass(slots=True)
class Imported:
    """The result for one topic."""

    topic: str
    messages: int = 0
    channels: dict[str, int] = field(default_factory=dict)  # messages that wait in each
    damage: list[Damage] = field(default_factory=list)
    skipped: str = ""  # why nothing was done


@dataclass(frozen=True, slots=True)
class ImportProgress:
    """The progress of the import of a topic."""

    topic: str
    done: int  # messages read
    total: int


Event = Imported | ImportProgress


def topics_with_queues(source: str) -> dict[str, list[NsqQueue]]:
    """Return the queues with messages in NSQ's data path, by topic; ephemeral ones are left out."""
    found: dict[str, list[NsqQueue]] = {}
    for queue in nsq_queues.undrained(source):
        topic, _, channel = queue.name.partition(":")
        if names.valid(topic) and not names.ephemeral(topic) and not names.ephemeral(channel):
            found.setdefault(topic, []).append(queue)
    return found


def import_topics(
    source: str, place: DataPath, *, node: int, now: int, chosen: Iterable[str] = ()
) -> Iterator[Event]:
    """Import the queues of every topic in `source`, or of the `chosen` ones, into `place`. Raises `LogError`.

    A topic that `place` has already is skipped. The files of an imported queue are moved to the folder `nsq-imported`.
    """
    wanted = set(chosen)
    before = {entry.name: entry for entry in Catalog(source).load()}
    catalog = Catalog(place.path)
    entries = {entry.name: entry for entry in catalog.load()}
    for topic, queues in topics_with_queues(source).items():
        if wanted and topic not in wanted:
            continue
        if _has_messages(place.topic_dir(topic)):
            yield Imported(topic, skipped="the data path has messages of this topic: import into an empty data path")
            continue
        known = before.get(topic, TopicEntry(topic))
        done = yield from _Import(source, place, topic, queues, known).run(node=node, now=now)
        channels = {channel.name: channel for channel in known.channels}
        for name in done.channels:
            channels.setdefault(name, ChannelEntry(name))
        entries[topic] = TopicEntry(topic, known.paused, list(channels.values()), known.settings)
        catalog.save(list(entries.values()), catalog.policies)
        _move_files(source, [queue.name for queue in queues])
        yield done


class _Import:
    """The import of one topic."""

    def __init__(self, source: str, place: DataPath, topic: str, queues: list[NsqQueue], known: TopicEntry) -> None:
        self._source = source
        self._target = place.topic_dir(topic)
        self._building = os.path.join(place.path, TOPICS, _BUILDING + os.path.basename(self._target))
        self._total = sum(queue.depth for queue in queues)
        waiting = {queue.name.partition(":")[2]: queue for queue in queues}
        self._own = waiting.pop("", None)  # messages that waited in the topic itself
        self._queues = sorted(waiting.items(), key=lambda item: item[1].depth)  # the largest last
        self._channels = {channel.name for channel in known.channels} | waiting.keys()
        self._read = 0
        self.result = Imported(topic)

    def run(self, *, node: int, now: int) -> Generator[Event, None, Imported]:
        """Append every message once, then save where each channel stands."""
        if os.path.isdir(self._building):
            DISK.remove_tree(self._building)  # of an import that did not end
        DISK.make_directory(os.path.dirname(self._building), sync=False)
        log = DiskLog(self._building, node, now=now)
        try:
            yield from self._fill(log, now)
            log.flush()
            job = log.begin_sync()
            if job is not None:
                job()
                log.finish_sync(None)
        finally:
            log.close()
        if os.path.isdir(self._target):
            DISK.remove_tree(self._target)  # without messages
        DISK.rename(self._building, self._target)
        DISK.sync_directory(os.path.dirname(self._target))
        return self.result

    def _fill(self, log: DiskLog, now: int) -> Iterator[Event]:
        largest = self._queues[-1] if self._queues else None
        held = {each.id for each in self._messages(largest[1])} if largest is not None else set()
        self.result.damage.clear()  # they are met again
        self._read = 0
        places: dict[bytes, int] = {}  # of messages that more than one queue may hold, or that the others hold alone
        unfinished: dict[str, dict[int, int]] = {}  # by channel: sequences, and their attempts
        shared: dict[str, dict[bytes, int]] = {}  # by channel: messages of the largest one, and their attempts
        for name, queue in self._queues[:-1]:
            mine, later = unfinished.setdefault(name, {}), shared.setdefault(name, {})
            for each in self._messages(queue):
                if each.id in held:
                    later[each.id] = each.attempts
                else:
                    if each.id not in places:
                        places[each.id] = self._append(log, each, now)
                    mine[places[each.id]] = each.attempts
                if self._read % _BATCH == 0:
                    yield ImportProgress(self.result.topic, self._read, self._total)
        start = log.next
        tried: dict[int, int] = {}
        wanted = set().union(*shared.values())
        for each in self._messages(largest[1]) if largest is not None else ():
            sequence = self._append(log, each, now)
            if each.attempts:
                tried[sequence] = each.attempts
            if each.id in wanted:
                for name, later in shared.items():
                    if each.id in later:
                        unfinished[name][sequence] = later[each.id]
            if self._read % _BATCH == 0:
                yield ImportProgress(self.result.topic, self._read, self._total)
        end = log.next
        for each in self._messages(self._own) if self._own is not None else ():
            self._append(log, each, now)
        self.result.messages = log.next
        log.flush()
        if largest is not None:
            self._save(largest[0], start, end, tried, unfinished)
        else:
            self._save("", end, end, {}, {})

    def _save(
        self, largest: str, start: int, end: int, tried: dict[int, int], unfinished: dict[str, dict[int, int]]
    ) -> None:
        """Save each channel's place. Messages that were tried before are unfinished, the others wait at the cursor."""
        journal = Journal(self._building, sync=True)
        begin = max(tried) + 1 if tried else start  # the cursor stands behind everything that was ever delivered
        for name in sorted(self._channels):
            if name == largest:
                mine = {sequence: tried.get(sequence, 0) for sequence in range(start, begin)}
                journal.progress(name, begin, joined_runs((each, each + 1) for each in mine), mine)
                self.result.channels[name] = end - start
            else:
                mine = unfinished.get(name, {})
                journal.progress(name, end, joined_runs((each, each + 1) for each in mine), mine)
                self.result.channels[name] = len(mine)
        journal.fanned_out(end)
        journal.flush(sync=True)
        journal.close()

    def _append(self, log: DiskLog, message: NsqMessage, now: int) -> int:
        sequence = log.next
        frame = kernel.frame_one(message.body, (log.node << _ID_BASE) | sequence, message.timestamp)
        log.append(frame, 1, now=now)
        if sequence % _BATCH == _BATCH - 1:
            log.flush()
        return sequence

    def _messages(self, queue: NsqQueue) -> Iterator[NsqMessage]:
        for each in nsq_queues.messages(self._source, queue.name):
            if isinstance(each, Damage):
                self.result.damage.append(each)
            else:
                self._read += 1
                yield each


def _has_messages(directory: str) -> bool:
    """Return whether there is a log with messages, present or past; nsqd makes an empty one for each topic it knows."""
    if not os.path.isdir(directory):
        return False
    log = DiskLog(directory, 0)
    try:
        return log.next > 0
    finally:
        log.close()


def _move_files(source: str, queues: Iterable[str]) -> None:
    folder = os.path.join(source, IMPORTED)
    DISK.make_directory(folder, sync=False)
    for queue in queues:
        for name in nsq_queues.files(source, queue):
            DISK.rename(os.path.join(source, name), os.path.join(folder, name))
    DISK.sync_directory(source)
    DISK.sync_directory(folder)
