"""Random histories of a broker with `fsync`, and a power loss after every step that they did to the disk.

A history publishes, consumes, fails, redrives, deletes and commits staged batches through the NSQ and the Redis door.
Its trace of writes and syncs (`disk_trace`) is replayed up to every point, in each model of what a disk may keep; then
the broker is started on what is left, gets new messages, is killed, and everything in it is counted.
"""

import os
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from disk_trace import Trace, no_fsync, restore

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "sessions"))

from redis_stage import RedisClient, RedisError, RedisStage

from failing import reject
from lapwing import kernel
from lapwing.broker.failures import dead_filter
from lapwing.broker.operations.staging import Staging
from lapwing.broker.topic.receipt import Receipt
from lapwing.broker.topic.topic import Topic
from lapwing.log.staged import Part, StagedFiles
from lapwing.wire.nsq.commands import Pub
from play import MINUTE, Client

HOUR = 60 * MINUTE
DEAD = "t.c.dead"
STREAMS = ("s", "lone")  # with a group, and without a channel
SINK = "query"
AFTER = [b"after-%d" % number for number in range(3)]


class DurableStage(RedisStage):
    """A broker with durability fsync, and with staged batches."""

    def __init__(self, path: Path, boot_id: str, **options: Any) -> None:
        self._boot_id = boot_id
        super().__init__(path, durability="fsync", max_req_timeout=HOUR, **options)

    def open(self) -> None:
        """Begin, with whatever is on the disk."""
        self.boot_id = self._boot_id
        super().open()
        assert self.path is not None
        self.staging = Staging(self.broker, StagedFiles(str(self.path), sync=True))
        self.staging.recover(now=lambda: self.now)

    def sync(self) -> None:
        """Sync what was written, and answer those who wait for it, until nothing waits."""
        work = self.broker.work
        while work.unsynced:
            waiting: dict[Topic, list[tuple[Receipt, int]]] = {}
            for topic, receipts in work.take_unsynced():
                waiting.setdefault(topic, []).extend(receipts)
            for topic, receipts in waiting.items():
                job = topic.store.begin_sync()
                if job is not None:
                    job()
                    topic.store.finish_sync(None)
                for receipt, sequence in receipts:
                    receipt.settle(sequence, None)
            self.commit()

    def redrive(self) -> None:
        """Return all dead letters to their channels."""
        topic = self.broker.find(DEAD)
        if topic is None or "dead" not in topic.channels:
            return
        if DEAD not in self.broker.redrives.active:
            self.broker.redrives.start(topic, to="channel", wanted=dead_filter.parse({}), now=self.now)
        for _ in range(20):
            if self.broker.redrives.step(now=self.now) is None:
                return
            self.commit()
            self.sync()

    def bodies(self, topic: str) -> list[bytes]:
        """The bodies that the log of a topic can serve."""
        if topic not in self.broker.topics:
            return []
        log = self.broker.existing(topic).log
        blocks = log.blocks(log.first, log.end, 1 << 20)
        return [body for _, _, frames in blocks for *_, body in kernel.decode_messages(frames, 0, len(frames))[0]]

    def drain(self, channel: str, topic: str) -> list[bytes]:
        """Finish all messages of a channel, waiting for those that are deferred; return their bodies."""
        if topic not in self.broker.topics or channel not in self.broker.existing(topic).channels:
            return []
        found: list[bytes] = []
        consumer = self.consumer(channel, topic=topic)
        for _ in range(3):
            while messages := consumer.take()[0]:
                found += [body for _, _, body in messages]
                consumer.finish(*[sequence for sequence, _, _ in messages])
            self.pass_time(2 * HOUR)
        consumer.leave()
        return found

    def drain_group(self) -> list[bytes]:
        """Take all entries of the group of stream `s`, whoever holds them; return their bodies."""
        client = self.redis()
        try:
            _, held, _ = client.ask("XAUTOCLAIM s g last 0 0 COUNT 100000")
            fresh = client.ask("XREADGROUP GROUP g last COUNT 100000 STREAMS s >") or []
        except RedisError:
            return []  # the stream or the group is not there
        entries = [*held, *(entry for _, some in fresh for entry in some)]
        return [entry[1][1] for entry in entries if entry and entry[1]]

    def entries(self, stream: str) -> list[bytes]:
        """The bodies of all entries of a stream."""
        found = self.redis().ask(f"XRANGE {stream} - +")
        return [pairs[1] for _, pairs in found]


@dataclass
class Facts:
    """What holds after a step: bodies by what has happened to them, each with the step from which that is so."""

    published: dict[bytes, tuple[int, str]] = field(default_factory=dict)  # and the topic
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    finished: dict[tuple[str, bytes], int] = field(default_factory=dict)  # by channel: asked for, answered or not
    deleted: dict[bytes, int] = field(default_factory=dict)
    late_channel: int | None = None  # from when on the channel `late` exists
    batches: list[tuple[int, int, list[bytes]]] = field(default_factory=list)  # asked for, answered, its bodies


class History:
    """One random life of a broker, traced."""

    def __init__(self, data: Path, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.chance = Random(seed)
        self.facts = Facts()
        size = self.chance.choice([600, 3000, 100_000])
        self.stage = DurableStage(data, "first", max_bytes_per_file=size)
        self.consumer: Client = self.stage.consumer()
        self.redis: RedisClient = self.stage.redis()
        for command in ("XGROUP CREATE s g 0 MKSTREAM", "XADD lone * data first"):
            self.redis.send(command)
        self.stage.sync()
        self.stage.checkpoint()
        self.stage.broker.keeper.save_catalog()
        self.redis.replies()
        for body in self.stage.entries("lone"):
            self.facts.published[body], self.facts.acknowledged[body] = (0, "lone"), 0
        self.trace = Trace(data, patch)
        self._unanswered: list[bytes] = []
        self._held: dict[int, bytes] = {}
        self._count = 0

    @property
    def step(self) -> int:
        return len(self.trace.steps)

    def live(self, actions: int) -> None:
        """Do some things, and begin with those that others need."""
        some: list[Callable[[], None]] = [
            self.publish, self.publish, self.add, self.sync, self.sync, self.consume, self.consume, self.read_group,
            self.delete, self.checkpoint, self.trim, self.redrive, self.new_channel, self.commit_batch,
        ]  # fmt: skip
        for action in [self.publish, self.add, *(self.chance.choice(some) for _ in range(actions))]:
            action()
        self.stage.broker.storage.close()

    def _body(self, topic: str) -> bytes:
        self._count += 1
        body = b"%b-%d-" % (topic.encode(), self._count) + b"x" * self.chance.choice([0, 10, 300, 900])
        self.facts.published[body] = self.step, topic
        return body

    # --- what happens ----------------------------------------------------------------------------------------------

    def publish(self) -> None:
        bodies = [self._body("t") for _ in range(self.chance.randrange(1, 4))]
        delay = self.chance.choice([0, 0, 0, MINUTE])
        self.stage.client().publish(*bodies, delay=delay)
        self._unanswered += bodies

    def add(self) -> None:
        for stream in STREAMS:
            bodies = [self._body(stream) for _ in range(self.chance.randrange(1, 4))]
            self.redis.send(*[[b"XADD", stream.encode(), b"*", b"data", body] for body in bodies])
            self._unanswered += bodies

    def sync(self) -> None:
        self.stage.sync()
        step = self.trace.mark("synced")
        self.facts.acknowledged.update(dict.fromkeys(self._unanswered, step))
        self._unanswered = []

    def consume(self) -> None:
        for sequence, _, body in self.consumer.take()[0]:
            kind = self.chance.random()
            if kind < 0.35:
                self.facts.finished["c", body] = self.step
                self.consumer.finish(sequence)
            elif kind < 0.6:
                self.consumer.requeue(sequence, delay=self.chance.choice([0, MINUTE]))
            else:
                reject(self.consumer, sequence, "unwanted")

    def read_group(self) -> None:
        self.redis.raw()
        reply = self.stage.redis().ask("XREADGROUP GROUP g one COUNT 3 STREAMS s >")
        for entry, pairs in (reply or [[b"", []]])[0][1]:
            if self.chance.random() < 0.5:
                self.facts.finished["g", pairs[1]] = self.step
                self.stage.redis().ask([b"XACK", b"s", b"g", entry])

    def delete(self) -> None:
        stream = self.chance.choice(STREAMS)
        entries = self.stage.redis().ask(f"XRANGE {stream} - +")
        if self.chance.random() < 0.2:
            keep = max(len(entries) - 2, 0)
            for _, pairs in entries:
                self.facts.deleted.setdefault(pairs[1], self.step)
            self.stage.redis().ask(f"XTRIM {stream} MAXLEN {keep} KEEPREF")
            left = set(self.stage.entries(stream))
            for _, pairs in entries:
                if pairs[1] in left:
                    del self.facts.deleted[pairs[1]]
        for entry, pairs in self.chance.sample(entries, min(len(entries), 2)):
            self.facts.deleted.setdefault(pairs[1], self.step)
            self.stage.redis().ask([b"XDEL", stream.encode(), entry])

    def checkpoint(self) -> None:
        self.stage.checkpoint()
        self.stage.pass_time(self.chance.choice([1, 2 * MINUTE]))

    def trim(self) -> None:
        self.stage.checkpoint(trim=True)

    def redrive(self) -> None:
        self.sync()
        self.stage.redrive()

    def new_channel(self) -> None:
        if self.facts.late_channel is None:
            self.stage.consumer("late", ready=0).leave()
            self.facts.late_channel = self.trace.mark("subscribed to late")

    def commit_batch(self) -> None:
        number, staging = len(self.facts.batches), self.stage.staging
        bodies = [b"batch-%d-%d" % (number, each) + b"y" * self.chance.choice([0, 400]) for each in range(4)]
        for index, (topic, some) in enumerate((("t", bodies[:2]), ("b", bodies[2:]))):
            packed = struct.pack(">i", len(some)) + b"".join(struct.pack(">i", len(each)) + each for each in some)
            part = Part(topic, 0, [], packed)
            staging.check(part)
            staging.files.put(SINK, number, "k", index, part)
        begun = self.step
        for body in bodies:
            self.facts.published[body] = begun, "t" if body in bodies[:2] else "b"
        commit = staging.commit(SINK, number, [("k", 2)])
        assert commit is not None
        commit.run(lambda: self.stage.now)
        self.stage.commit()
        step = self.trace.mark(f"committed batch {number}")
        self.facts.batches.append((begun, step, bodies))
        self.facts.acknowledged.update(dict.fromkeys(bodies, step))


# --- after the power loss ------------------------------------------------------------------------------------------


def problems_at(facts: Facts, place: Path, upto: int) -> Iterator[str]:
    """Start a broker on what is left, use it a little, and yield which promises it has broken."""
    stage = DurableStage(place, os.urandom(8).hex())
    yield from stage.broker.unopened
    yield from _batch_problems(facts, stage, upto)
    for topic in ("t", *STREAMS):  # these take the sequences of messages that are lost, and must not share their fate
        stage.client().say(*[Pub(topic, topic.encode() + body) for body in AFTER])
    stage.sync()
    stage.kill()
    stage.redrive()
    found = {"c": stage.drain("c", "t"), "g": stage.drain_group(), "late": stage.drain("late", "t")}
    lone, dead = stage.entries("lone"), stage.bodies(DEAD)
    stage.broker.storage.close()

    acknowledged = {body for body, step in facts.acknowledged.items() if step <= upto}
    deleted = {body for body, step in facts.deleted.items() if step <= upto}
    by_topic = {topic: {body for body in acknowledged if facts.published[body][1] == topic} for topic in "tsb"}
    since = sys.maxsize if facts.late_channel is None else facts.late_channel
    late = {body for body in by_topic["t"] if facts.published[body][0] >= since}
    for channel, topic, wanted in (("c", "t", by_topic["t"]), ("g", "s", by_topic["s"]), ("late", "t", late)):
        finished = {body for (name, body), step in facts.finished.items() if name == channel and step <= upto}
        expected = wanted - finished - deleted | {topic.encode() + body for body in AFTER}
        if channel == "late" and not (facts.late_channel is not None and facts.late_channel <= upto):
            expected = set()
        if lost := expected - set(found[channel]):
            yield f"lost in {channel}: {_short(lost)}"
        if doubled := [body for body, count in Counter(found[channel]).items() if count > 1]:
            yield f"twice in {channel}: {_short(doubled)}"
    alone = {body for body in acknowledged if facts.published[body][1] == "lone"}
    if lost := (alone - deleted | {b"lone" + body for body in AFTER}) - set(lone):
        yield f"lost in lone: {_short(lost)}"
    known = {*facts.published, *(topic.encode() + body for topic in ("t", *STREAMS) for body in AFTER)}
    served = {*lone, *dead, *(body for some in found.values() for body in some)}
    if invented := served - known:
        yield f"never published: {_short(invented)}"


def _batch_problems(facts: Facts, stage: DurableStage, upto: int) -> Iterator[str]:
    for number, (begun, answered, bodies) in enumerate(facts.batches):
        counted = Counter(stage.bodies("t")) + Counter(stage.bodies("b"))
        there = [counted[body] for body in bodies]
        trimmed = "t" in stage.broker.topics and stage.broker.existing("t").log.first > 0
        published = stage.staging.published(SINK) >= number
        if answered <= upto and not published:
            yield f"batch {number} was answered, and does not count as published"
        if max(there) > 1 or (published and not trimmed and min(there) != 1):
            yield f"batch {number}, published {published}: its messages are there {there} times"
        if begun > upto and any(there):
            yield f"batch {number} is there before it was committed"


def _short(bodies: Any) -> str:
    return ", ".join(sorted(body[:16].decode() for body in bodies))


def check_history(folder: Path, seed: int, *, actions: int = 12, most: int | None = None) -> tuple[int, list[str]]:
    """Live one history, and cut its power at every point, or at `most` of them; return how many cases there were, and
    what was broken.
    """
    data = folder / "data"
    data.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        no_fsync(patch)
        with pytest.MonkeyPatch.context() as traced:
            history = History(data, seed, traced)
            history.live(actions)
        problems: list[str] = []
        cases = 0
        seen = set()
        for upto, model, left in history.trace.points(most and Random(seed), most):
            case = (frozenset(left.items()), _truths(history.facts, upto))
            if case in seen:
                continue
            seen.add(case)
            cases += 1
            place = folder / "again"
            restore(left, data, place)
            step = history.trace.steps[upto - 1][0].replace(str(data), "") if upto else "begin"
            try:
                found = list(problems_at(history.facts, place, upto))
            except Exception as error:
                found = [f"{type(error).__name__}: {error}"]
            problems += [f"seed {seed}, step {upto} ({step}), {model}: {text}" for text in found]
            shutil.rmtree(place)
    shutil.rmtree(folder)
    return cases, problems


def _truths(facts: Facts, upto: int) -> tuple[int, ...]:
    """Return numbers that change whenever a promise begins to hold."""
    counted = (facts.acknowledged, facts.finished, facts.deleted)
    late = facts.late_channel is not None and facts.late_channel <= upto
    batches = sum((begun <= upto) + (answered <= upto) for begun, answered, _ in facts.batches)
    return (*(sum(step <= upto for step in some.values()) for some in counted), late, batches)
