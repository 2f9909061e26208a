"""Batches that are published once, whole, however often they are asked for and whatever dies in between.

A sink stages the parts of a batch, then says "commit". From then on the batch will be published:

    1. the intent is written down: which parts, in which order
    2. for each part: where it is about to go (log, sequence, timestamp) is written down, then it is appended
    3. the ledger says that the batch is published; intent and parts are deleted

After a crash an intent is carried on. Only the last part that was begun is in doubt, and the log itself answers: the
messages of a part share one timestamp that no others have, so those that arrived are found from the noted sequence on.
A batch that the ledger knows, or that is being published, is not staged again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lapwing import kernel
from lapwing.errors import CorruptChunk, LapwingError, LogError
from lapwing.log.attributes import Extra
from lapwing.log.staged import Intent, Part
from lapwing.wire.nsq.commands import bodies

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.topic import Topic
    from lapwing.log.staged import StagedFiles

STALE: Final = 24 * 3600 * 1_000_000_000  # ns after which what is staged and was never committed is swept away
ONCE: Final = "job-"  # sinks called so publish one batch in their life; the ledger need not know them for ever

_BLOCK: Final = 1 << 20
_ANY: Final = 2**31 - 1


class NotStaged(LapwingError):
    """A commit that names parts which are not there."""


class Staging:
    """All sinks of one broker. What touches the disk raises `OSError` or `LogError`, and can be done again."""

    def __init__(self, broker: Broker, files: StagedFiles) -> None:
        self._broker = broker
        self.files = files
        self._published: dict[str, int] = {}
        self._commits: dict[str, Commit] = {}
        self._damaged: set[str] = set()  # sinks of which nobody knows what they were about to publish

    def published(self, sink: str) -> int:
        """The last batch of the sink that was published, -1 if none was. Raises `LogError` when nobody knows."""
        if sink in self._damaged:
            self.files.intent(sink)
            self._damaged.discard(sink)  # somebody has mended it
        if sink not in self._published:
            self._published[sink] = self.files.published(sink)
        return self._published[sink]

    def settled(self, sink: str, batch: int) -> bool:
        """Whether the batch is published or about to be, so that nothing more can be staged for it."""
        commit = self._commits.get(sink)
        return batch <= self.published(sink) or (commit is not None and commit.batch == batch)

    def check(self, part: Part) -> None:
        """Refuse what could not be published later: raises `PublishRefused`."""
        options = self._broker.options
        _, part.count = kernel.frame_mpub(part.batch, 0, 0, options.max_batch_count, options.max_msg_size)

    def commit(self, sink: str, batch: int, keys: list[tuple[str, int]]) -> Commit | None:
        """Begin, or carry on with, publishing a batch: `keys` are (key, how many parts). None: it is published.

        Raises `NotStaged`.
        """
        if batch <= self.published(sink):
            return None
        commit = self._commits.get(sink)
        if commit is not None and commit.batch == batch:
            return commit
        if commit is not None:
            raise NotStaged(f"sink {sink} is still publishing batch {commit.batch}")
        parts = [(key, number) for key, count in keys for number in range(count)]
        missing = [f"{key}.{number}" for key, number in parts if not self.files.has(sink, batch, key, number)]
        if missing:
            raise NotStaged(f"sink {sink}, batch {batch}: {', '.join(missing[:5])} not staged")
        intent = Intent(batch, parts)
        self.files.write_intent(sink, intent)
        commit = self._commits[sink] = Commit(self, self._broker, sink, intent)
        return commit

    def finish(self, sink: str, batch: int) -> None:
        """The batch is in the logs: from now on it is published."""
        self.files.finish(sink, batch)
        self._published[sink] = batch
        self._commits.pop(sink, None)

    def abort(self, sink: str, batch: int, keys: list[str]) -> int:
        """Drop what was staged and shall not be published; how many parts that were."""
        return 0 if self.settled(sink, batch) else self.files.drop(sink, batch, keys)

    def recover(self, *, now: Callable[[], int]) -> list[str]:
        """Carry on with what a crash has interrupted, before anybody else can publish; what was done, in words."""
        notes = []
        for sink in self.files.sinks():
            try:
                batch = self._recover(sink, now)
                if batch is not None:
                    notes.append(f"sink {sink}: publishing batch {batch} was interrupted, carried on")
            except (LapwingError, OSError) as error:  # one sink that cannot go on holds up nobody else
                notes.append(f"sink {sink}: publishing was interrupted, and cannot be carried on: {error}")
        return notes

    def _recover(self, sink: str, now: Callable[[], int]) -> int | None:
        try:
            intent = self.files.intent(sink)
        except CorruptChunk:
            self._damaged.add(sink)
            raise
        if intent is None:
            return None
        if intent.batch <= self.published(sink):
            self.finish(sink, self.published(sink))
            return None
        commit = self._commits[sink] = Commit(self, self._broker, sink, intent)
        commit.run(now)
        return intent.batch

    @property
    def interrupted(self) -> list[Commit]:
        """Batches that are not in the logs in full; each can be carried on with."""
        return list(self._commits.values())

    def sweep(self, *, now: int) -> list[str]:
        """Drop what was staged long ago and never committed; what was dropped, in words."""
        notes = []
        for sink in self.files.sinks():
            try:
                notes += self._sweep(sink, now)
            except (LogError, OSError) as error:
                notes.append(f"sink {sink}: {error}")
        return notes

    def _sweep(self, sink: str, now: int) -> list[str]:
        notes = []
        for batch, changed in self.files.batches(sink):
            if now - changed > STALE and not self.settled(sink, batch):
                count = self.files.drop(sink, batch)
                notes.append(f"sink {sink}: {count} parts of batch {batch} were never committed, dropped")
        if sink.startswith(ONCE) and self.files.age(sink, now) > STALE and sink not in self._commits:
            self.files.forget(sink)
            self._published.pop(sink, None)
        return notes


class Commit:
    """A batch on its way into the logs, part by part, so that nobody else has to wait for all of it."""

    def __init__(self, staging: Staging, broker: Broker, sink: str, intent: Intent) -> None:
        self._staging = staging
        self._files = staging.files
        self._broker = broker
        self._intent = intent
        self._at = max(intent.begun, default=0)  # all before the last one begun are done
        self._part: Part | None = None
        self.sink = sink
        self.batch = intent.batch
        self.published = 0
        self.topics: dict[str, Topic] = {}  # whose logs were written to

    @property
    def done(self) -> bool:
        """Whether every part is in its log."""
        return self._at >= len(self._intent.parts)

    def prepare(self, *, now: int) -> Callable[[], None] | None:
        """Get the next part ready; a call that must return before `publish`, where power losses count."""
        key, number = self._intent.parts[self._at]
        self._part = part = self._files.get(self.sink, self.batch, key, number)
        topic = self._broker.topic(part.topic)
        begun = self._intent.begun.get(self._at)
        if begun is not None and begun["log_id"] == topic.log.identity and self._arrived(topic, begun):
            return None  # all or some of it is there: `publish` goes on from that
        stamp = now + topic.skew  # messages tell the machine's time
        facts = {"topic": part.topic, "log_id": topic.log.identity, "next": topic.log.next, "now": stamp}
        self._intent.begun[self._at] = facts
        return self._files.note(self.sink, self._at, facts)

    def publish(self) -> None:
        """Append the part to its log, as far as it is not there already; raises `LogError` and can be called again."""
        part, begun = self._part, self._intent.begun[self._at]
        assert part is not None
        topic = self._broker.topic(part.topic)
        arrived = self._arrived(topic, begun)
        if arrived < part.count:
            _append(topic, part, arrived, stamp=begun["now"])
        self.topics[part.topic] = topic
        self.published += part.count
        self._part = None
        self._at += 1

    def run(self, now: Callable[[], int]) -> None:
        """Do all that is left, at once."""
        while not self.done:
            sync = self.prepare(now=now())
            if sync is not None:
                sync()
            self.publish()
        for topic in self.topics.values():
            job = topic.log.begin_sync() if self._broker.options.durability == "fsync" else None
            if job is not None:
                job()
                topic.log.finish_sync(None)
        self.finish()

    def finish(self) -> None:
        """Every part is in its log, and synced where that is asked for."""
        self._staging.finish(self.sink, self.batch)

    def _arrived(self, topic: Topic, begun: dict[str, Any]) -> int:
        """How many messages of the part are in the log: they are all that has its timestamp, from `next` on."""
        count = 0
        log = topic.log
        if begun["log_id"] != log.identity:
            return 0
        for _, _, frames in log.blocks(max(begun["next"], log.first), log.end, _BLOCK):
            decoded, _ = kernel.decode_messages(frames, 0, len(frames))
            count += sum(timestamp == begun["now"] for timestamp, *_ in decoded)
        return count


def _append(topic: Topic, part: Part, skipped: int, *, stamp: int) -> None:
    """Put a part into its log, but for the first messages that are there already."""
    now = stamp - topic.skew
    topic.write_pending(now=now)  # so that the sequences are known
    first = topic.log.next
    if skipped:
        frames = kernel.frame_bodies(bodies(part.batch)[skipped:], topic.id_base + first, stamp)
    else:
        frames, _ = kernel.frame_mpub(part.batch, topic.id_base + first, stamp, _ANY, _ANY)  # its limits were checked
    count = part.count - skipped
    size = len(frames) - kernel.HEAD * count
    extras = [Extra(first + at - skipped, defer, headers) for at, defer, headers in part.extras if at >= skipped]
    topic.publish_frames(frames, count, size, extras, now=now)
