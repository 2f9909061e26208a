"""Publish staged batches: each is published once and whole, however often it is committed, through crashes too.

A sink stages the parts of a batch, then commits it. From then on the batch will be published:

    1. the intent is saved: which parts, in which order
    2. for each part: where it is about to go (log, sequence, timestamp) is saved, then it is appended; until 4, the log
       keeps it even when it is finished in every channel
    3. with durability fsync, every log that got a part is synced
    4. the ledger is written: the batch is published; intent and parts are removed

After a crash the intent is carried on. Every part that was begun may be there whole, in part or not at all, as a power
loss takes what was not synced. The messages of a part share one timestamp, so those that arrived are found by it and by
their bodies from the saved sequence on. The missing ones are appended, and the logs are synced before 4, even where an
earlier process wrote them. A batch that is published, or about to be, is not staged again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from lapwing import kernel
from lapwing.broker.topic.batch import Batch, rows_of
from lapwing.broker.topic.receipt import NO_RECEIPT
from lapwing.errors import LapwingError, LogError
from lapwing.log.segments.attributes import Extra
from lapwing.log.staged import Intent, Part

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.topic.topic import Topic
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
        self._unknown: set[str] = set()  # sinks whose intent could not be read

    def published(self, sink: str) -> int:
        """Return the last batch of the sink that was published, -1 if none was. Raises `LogError` or `OSError`."""
        if sink in self._unknown:
            self._adopt(sink, self.files.intent(sink))
            self._unknown.discard(sink)
        return self._known(sink)

    def _known(self, sink: str) -> int:
        if sink not in self._published:
            self._published[sink] = self.files.published(sink)
        return self._published[sink]

    def _adopt(self, sink: str, intent: Intent | None) -> Commit | None:
        """Return the commit that an intent asks for; None when there is none or its batch is published."""
        if intent is None:
            return None
        if intent.batch <= self._known(sink):
            self.finish(sink, self._known(sink))
            return None
        commit = self._commits[sink] = Commit(self, self._broker, sink, intent)
        return commit

    def begun(self, sink: str) -> int:
        """Return the last batch of the sink that is published or about to be, -1 if none is. Raises as `published`."""
        published = self.published(sink)
        commit = self._commits.get(sink)
        return published if commit is None else max(published, commit.batch)

    def settled(self, sink: str, batch: int) -> bool:
        """Return whether the batch is published or about to be, so that nothing more can be staged for it."""
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
        """Note that the batch is in the logs: from now on it is published."""
        self.files.finish(sink, batch)
        self._published[sink] = batch
        self._commits.pop(sink, None)

    def abort(self, sink: str, batch: int, keys: list[str]) -> int:
        """Drop what was staged and shall not be published; how many parts that were."""
        return 0 if self.settled(sink, batch) else self.files.drop(sink, batch, keys)

    def recover(self, *, now: Callable[[], int]) -> list[str]:
        """Carry on with what a crash has interrupted, before anybody else can publish; what was done, in words.

        A sink whose ledger cannot be read is named too: everything that it stages will be refused.
        """
        notes = []
        for sink in self.files.sinks():
            try:
                self._known(sink)
            except (LogError, OSError) as error:
                self._unknown.add(sink)  # its intent can be carried on with when the ledger can be read again
                notes.append(f"sink {sink}: its batches are refused: {error}")
                continue
            try:
                batch = self._recover(sink, now)
                if batch is not None:
                    notes.append(f"sink {sink}: publishing batch {batch} was interrupted, carried on")
            except (LapwingError, OSError) as error:  # one sink that fails holds up nobody else
                notes.append(f"sink {sink}: publishing was interrupted, and cannot be carried on: {error}")
        return notes

    def _recover(self, sink: str, now: Callable[[], int]) -> int | None:
        try:
            commit = self._adopt(sink, self.files.intent(sink))
        except (LogError, OSError):
            self._unknown.add(sink)
            raise
        if commit is None:
            return None
        commit.run(now)
        return commit.batch

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
        self._at = 0
        self._part: Part | None = None
        self._missing: Sequence[int] = ()  # messages of the part that are not in their log
        self.sink = sink
        self.batch = intent.batch
        self.published = 0
        self.topics: dict[str, Topic] = {}  # whose logs were written to
        for facts in intent.begun.values():
            self._keep_from(facts)

    @property
    def done(self) -> bool:
        """Whether every part is in its log."""
        return self._at >= len(self._intent.parts)

    def prepare(self, *, now: int) -> Callable[[], None] | None:
        """Get the next part ready; return a call that must return before `publish`, where power losses count."""
        key, number = self._intent.parts[self._at]
        self._part = part = self._files.get(self.sink, self.batch, key, number)
        topic = self._broker.topic(part.topic)
        begun = self._intent.begun.get(self._at)
        if begun is not None and begun["log_id"] == topic.log.identity:
            self._missing = _missing(topic, part, begun)
            if len(self._missing) < part.count:
                topic.log.sync_again(begun["next"])  # an earlier process may have written it and not synced it
                return None
        self._missing = range(part.count)
        stamp = now + topic.skew  # messages carry the machine's time
        facts = {"topic": part.topic, "log_id": topic.log.identity, "next": topic.log.next, "now": stamp}
        self._intent.begun[self._at] = facts
        self._keep_from(facts)
        return self._files.note(self.sink, self._at, facts)

    def publish(self) -> None:
        """Append the messages of the part that its log lacks. Raises `LogError`; then `prepare` comes again.

        It comes again too, without an error, when the topic was deleted since.
        """
        part, begun = self._part, self._intent.begun[self._at]
        assert part is not None
        topic = self._broker.topic(part.topic)
        if topic.log.identity != begun["log_id"]:
            return  # a start would look for the part in a log that is gone, and append it again
        if self._missing:
            _append(topic, part, self._missing, stamp=begun["now"])
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
                try:
                    job()
                except OSError as error:
                    topic.log.finish_sync(error)
                    raise
                topic.log.finish_sync(None)
        self.finish()

    def finish(self) -> None:
        """Note that every part is in its log, and synced where that is asked for."""
        self._staging.finish(self.sink, self.batch)
        for name, places in list(self._broker.staged_from.items()):
            topic = self._broker.find(name) if places.pop(self.sink, None) is not None else None
            if topic is not None:
                self._broker.keeper.note_trimmable(topic)
            if not places:
                del self._broker.staged_from[name]

    def _keep_from(self, facts: dict[str, Any]) -> None:
        """Have the log keep a part until the batch is published: a start could not find it otherwise."""
        places = self._broker.staged_from.setdefault(facts["topic"], {})
        places[self.sink] = min(facts["next"], places.get(self.sink, facts["next"]))


def _missing(topic: Topic, part: Part, begun: dict[str, Any]) -> list[int]:
    """Return which messages of a part are not in the log, from `next` on, with the part's timestamp."""
    log = topic.store.whole_log  # a message that nobody sees yet is not missing
    extras = {index: (defer, headers) for index, defer, headers in part.extras}
    wanted: dict[bytes, list[int]] = {}  # by body and attributes, the last index first
    for index, body in reversed(list(enumerate(_bodies(part.batch)))):
        wanted.setdefault(_key(body, *extras.get(index, (0, {}))), []).append(index)
    left = part.count
    for first, count, frames in log.blocks(max(begun["next"], log.first), log.end, _BLOCK):
        if not left:
            break
        carried = {extra.sequence: extra for extra in log.extras(first, first + count)} if extras else {}
        decoded, _ = kernel.decode_messages(frames, 0, len(frames))
        for sequence, (timestamp, _, _, body) in enumerate(decoded, first):
            if timestamp == begun["now"]:
                extra = carried.get(sequence, Extra(sequence))
                indexes = wanted.get(_key(body, extra.defer, extra.headers))
                if indexes:
                    indexes.pop()
                    left -= 1
    return sorted(index for indexes in wanted.values() for index in indexes)


def _key(body: bytes, defer: int, headers: dict[str, str]) -> bytes:
    return repr((defer, sorted(headers.items()))).encode("utf-8", "surrogatepass") + body if defer or headers else body


def _bodies(batch: bytes) -> list[bytes]:
    """Return the bodies of a batch that was checked."""
    frames, _ = kernel.frame_mpub(batch, 0, 0, _ANY, _ANY)
    messages, _ = kernel.decode_messages(frames, 0, len(frames))
    return [body for *_, body in messages]


def _append(topic: Topic, part: Part, missing: Sequence[int], *, stamp: int) -> None:
    """Append those messages of a part to its log."""
    now = stamp - topic.skew
    topic.write_pending(now=now)  # so that the sequences are known
    first = topic.log.next
    if len(missing) < part.count:
        bodies = _bodies(part.batch)
        frames = kernel.frame_bodies([bodies[index] for index in missing], topic.id_base + first, stamp)
    else:
        frames, _ = kernel.frame_mpub(part.batch, topic.id_base + first, stamp, _ANY, _ANY)  # its limits were checked
    places = {index: first + place for place, index in enumerate(missing)} if part.extras else {}
    extras = [Extra(places[index], defer, headers) for index, defer, headers in part.extras if index in places]
    size = len(frames) - kernel.HEAD * len(missing)
    deferred = any(extra.defer for extra in extras)
    batch = Batch(frames, len(missing), size, rows_of(extras), deferred=deferred, own=True)
    topic.append(batch, NO_RECEIPT, now=now)
    topic.write_pending(now=now)
