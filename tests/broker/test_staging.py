"""Batches that are published once, whole: crashes at every point, repeats, refusals, sweeping."""

import json
import resource
import shutil
import signal
import struct
import time
from itertools import count
from pathlib import Path

import pytest

from appending import append
from lapwing.broker.broker import Broker
from lapwing.broker.keeper.storage import DiskStorage
from lapwing.broker.operations.staging import STALE, NotStaged, Staging
from lapwing.broker.settings.options import Options
from lapwing.errors import CorruptChunk, PublishRefused, WriteFailed
from lapwing.log.disk import Disk
from lapwing.log.log import LogOptions
from lapwing.log.staged import Intent, Part, StagedFiles
from overriding import overriding

SINK = "query-1"


class Died(BaseException):
    """The process is gone: nothing after this happens, not even clean-up."""


class Node:
    """A broker on a data path, without doors."""

    def __init__(self, path: Path, durability: str = "os", **log_options: int) -> None:
        self.path = path
        self.durability = durability
        self.log_options = LogOptions(durability=durability, **log_options)
        self.limits: dict[str, int] = {}
        self.clock = count(1_000_000_000_000_000_000, 1_000)
        self.open()

    def open(self) -> None:
        options = Options(data_path=str(self.path), durability=self.durability, node_id=5, **self.limits)
        now = lambda: next(self.clock)  # noqa: E731
        storage = DiskStorage(str(self.path), 5, self.log_options, now=now, report=lambda text: None)
        self.broker = Broker(options, storage)
        self.broker.restore(now=now())
        self.files = StagedFiles(str(self.path), sync=self.durability == "fsync")
        self.staging = Staging(self.broker, self.files)
        self.notes = self.staging.recover(now=now)
        self.now = now

    def crash(self) -> None:
        """Open the data path again as a process that was killed left it."""
        self.broker.storage.close()
        self.open()

    def stage(self, batch: int, key: str, number: int, topic: str, *bodies: bytes, extras=()) -> None:
        mpub = struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        part = Part(topic, 0, list(extras), mpub)
        self.staging.check(part)
        self.files.put(SINK, batch, key, number, part)

    def commit(self, batch: int, *keys: tuple[str, int]) -> bool:
        """Publish; whether it was not published before."""
        commit = self.staging.commit(SINK, batch, list(keys))
        if commit is None:
            return False
        commit.run(self.now)
        return True

    def bodies(self, topic: str) -> list[bytes]:
        log = self.broker.existing(topic).log
        return [log.frame(sequence)[34:] for sequence in range(log.first, log.end)]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


def staged_batch(node, batch=0):
    node.stage(batch, "a", 0, "orders", b"a0", b"a1")
    node.stage(batch, "a", 1, "orders", b"a2")
    node.stage(batch, "b", 0, "invoices", b"i0")
    node.stage(batch, "b", 1, "orders", b"b0", b"b1", b"b2")
    return [("a", 2), ("b", 2)]


ORDERS = [b"a0", b"a1", b"a2", b"b0", b"b1", b"b2"]


def test_what_was_staged_tells_the_machines_time_and_waits_by_the_brokers(node):
    hour = 3600 * 10**9
    node.broker.skew = 8 * hour
    before = node.now()
    channel = node.broker.topic("orders").create_channel("c", now=before)
    node.stage(0, "a", 0, "orders", b"at once", b"later", extras=[(1, hour, {})])
    node.commit(0, ("a", 1))

    stamp = node.broker.existing("orders").log.timestamp(0)
    assert 8 * hour < stamp - before < 9 * hour
    assert channel.ledger.deferred.next_due() == stamp - 8 * hour + hour


def test_nothing_is_seen_before_the_commit_and_all_of_it_after(node):
    keys = staged_batch(node)
    assert node.broker.topics == {}

    assert node.commit(0, *keys)
    assert node.bodies("orders") == ORDERS
    assert node.bodies("invoices") == [b"i0"]
    assert node.files.batches(SINK) == []


def test_a_commit_that_is_repeated_does_nothing_also_after_a_restart(node):
    keys = staged_batch(node)
    node.commit(0, *keys)
    assert not node.commit(0, *keys)

    node.crash()
    assert not node.commit(0, *keys)
    assert node.bodies("orders") == ORDERS


def test_a_batch_that_was_published_is_not_staged_again(node):
    node.commit(0, *staged_batch(node))

    assert node.staging.settled(SINK, 0)
    assert not node.staging.settled(SINK, 1)


def test_a_batch_whose_commit_has_begun_counts_as_published(node):
    node.stage(0, "a", 0, "orders", b"x")
    assert node.staging.begun(SINK) == -1

    commit = node.staging.commit(SINK, 0, [("a", 1)])
    assert (node.staging.begun(SINK), node.staging.published(SINK)) == (0, -1)
    commit.run(node.now)
    assert (node.staging.begun(SINK), node.staging.published(SINK)) == (0, 0)


def test_messages_keep_their_headers_and_delays(node):
    node.stage(0, "a", 0, "orders", b"x", b"y", extras=[(1, 5_000_000, {"k": "v"})])
    node.broker.topic("orders")
    node.commit(0, ("a", 1))

    extras = node.broker.existing("orders").log.extras(0, 2)
    assert [(extra.sequence, extra.defer, extra.headers) for extra in extras] == [(1, 5_000_000, {"k": "v"})]


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("after", range(14))
def test_a_process_killed_at_any_step_publishes_every_message_once(tmp_path, monkeypatch, durability, after):
    """Counts the calls that change the disk, and dies instead of the one after `after`."""
    node = Node(tmp_path, durability)
    keys = staged_batch(node)
    append(node.broker.topic("orders"), b"before", _Silent(), now=node.now())
    node.broker.commit(node.now())
    calls = count()

    def mortal(function):
        def call(*arguments, **named):
            if next(calls) == after:
                raise Died
            return function(*arguments, **named)

        return call

    from lapwing.broker.topic.topic import Topic

    with monkeypatch.context() as patch:
        for name in ("write_intent", "note", "finish"):
            patch.setattr(node.files, name, mortal(getattr(node.files, name)))
        patch.setattr(Topic, "append", mortal(Topic.append))
        patch.setattr(Disk, "unlink", staticmethod(mortal(Disk.unlink)))
        try:
            node.commit(0, *keys)
        except Died:
            node.crash()
    node.commit(0, *keys)  # what the sink does: it has had no answer

    assert node.bodies("orders") == [b"before", *ORDERS]
    assert node.bodies("invoices") == [b"i0"]
    node.crash()
    assert not node.commit(0, *keys)
    assert node.bodies("orders") == [b"before", *ORDERS]


def test_a_part_that_arrived_half_is_completed(node):
    """A power loss may leave the first chunks of a large write."""
    keys = staged_batch(node)
    commit = node.staging.commit(SINK, 0, keys)
    now = node.now()
    for _ in range(3):
        commit.prepare(now=now + _)
        commit.publish()
    commit.prepare(now=now + 10)
    topic = node.broker.existing("orders")
    append(topic, [b"b0"], _Silent(), now=now + 10)
    node.broker.commit(now + 10)
    node.crash()

    assert node.bodies("orders") == ORDERS
    assert "carried on" in node.notes[0]


def test_a_part_that_was_consumed_and_trimmed_before_a_kill_is_not_published_again(tmp_path):
    """Consumers that keep up may have finished the first parts of a large batch before the last are in the log."""
    node = Node(tmp_path, segment_bytes=100)
    keys = staged_batch(node)
    channel = node.broker.topic("orders").create_channel("c", now=node.now())
    commit = node.staging.commit(SINK, 0, keys)
    for _ in range(2):
        commit.prepare(now=node.now())
        commit.publish()
    append(node.broker.existing("orders"), [b"other" * 50] * 3, _Silent(), now=node.now())
    node.broker.commit(node.now())
    channel.seek(node.broker.existing("orders").log.end)
    node.broker.checkpoint(now=node.now())
    node.broker.trim(now=node.now())
    node.crash()

    assert node.bodies("orders") == [b"a0", b"a1", b"a2", *[b"other" * 50] * 3, b"b0", b"b1", b"b2"]
    node.broker.existing("orders").channels["c"].seek(9)
    node.broker.checkpoint(now=node.now())
    node.broker.trim(now=node.now())
    assert node.broker.existing("orders").log.first > 0  # a published batch keeps no segments


def test_a_part_whose_topic_is_deleted_on_the_way_goes_to_the_new_topic_once(node):
    keys = staged_batch(node)
    commit = node.staging.commit(SINK, 0, keys)
    commit.prepare(now=node.now())
    node.broker.delete_topic("orders")
    commit.publish()
    commit.prepare(now=node.now())
    commit.publish()
    node.crash()

    assert node.bodies("orders") == ORDERS


def test_a_disk_that_refuses_leaves_the_commit_to_be_carried_on(node, monkeypatch):
    keys = staged_batch(node)
    log = node.broker.topic("orders").log
    calls = count()
    flush = log.flush

    def failing():
        if next(calls) == 1:
            log.forget()
            raise WriteFailed("x", 0, OSError(28, "No space left on device"))
        flush()

    monkeypatch.setattr(log, "__class__", overriding(log, flush=failing))
    with pytest.raises(WriteFailed):
        node.commit(0, *keys)
    append(node.broker.existing("orders"), b"other", _Silent(), now=node.now())
    node.broker.commit(node.now())

    assert node.staging.settled(SINK, 0)
    assert node.commit(0, ("other", 1))  # another attempt's keys: those that were begun with are published
    assert node.bodies("orders") == [b"a0", b"a1", b"other", b"a2", b"b0", b"b1", b"b2"]
    assert not node.commit(0, *keys)


def test_a_torn_line_of_an_intent_counts_as_not_written(node):
    keys = staged_batch(node)
    node.staging.commit(SINK, 0, keys).prepare(now=node.now())
    intent = node.path / "staging" / "s-query-1" / "intent"
    intent.write_bytes(intent.read_bytes() + b'{"part": 3, "to')
    node.crash()

    assert node.bodies("orders") == ORDERS


GOOD = b'{"batch": 3, "parts": [["k", 0]]}\n'
BAD_LEDGERS = [b"", b"\x00" * 14, b"[]", b'{"batch": null}']
BAD_INTENTS = [b"\xff\n", b"{}\n", b"\n", GOOD + b'{"part": 0}\n', GOOD + b"]\n" + GOOD]


@pytest.mark.parametrize(
    ("ledger", "intent"), [(bad, GOOD) for bad in BAD_LEDGERS] + [(b'{"batch": 2}', bad) for bad in BAD_INTENTS]
)
def test_damage_is_told_of_stops_nobody_else_and_nothing_is_published_twice(tmp_path, ledger, intent):
    folder = tmp_path / "staging" / f"s-{SINK}"
    folder.mkdir(parents=True)
    (folder / "ledger").write_bytes(ledger)
    (folder / "intent").write_bytes(intent)
    node = Node(tmp_path)
    node.stage(3, "k", 0, "t", b"a")

    assert len(node.notes) == 1
    assert str(folder) in node.notes[0]
    for _ in range(2):
        with pytest.raises(CorruptChunk):
            node.commit(3, ("k", 1))
    assert node.staging.sweep(now=time.time_ns() + 2 * STALE) != []
    assert "t" not in node.broker.topics
    shutil.rmtree(folder)
    node.stage(3, "k", 0, "t", b"a")
    assert node.commit(3, ("k", 1))


@pytest.mark.parametrize("ledger", BAD_LEDGERS)
def test_a_damaged_ledger_is_told_of_at_the_start(tmp_path, ledger):
    folder = tmp_path / "staging" / f"s-{SINK}"
    folder.mkdir(parents=True)
    (folder / "ledger").write_bytes(ledger)

    [note] = Node(tmp_path).notes

    assert note.startswith(f"sink {SINK}: its batches are refused: ")
    assert str(folder / "ledger") in note
    assert "to begin again, remove the folder of the sink" in note


def test_an_intent_is_carried_on_with_once_the_ledger_can_be_read(node):
    node.stage(1, "k", 0, "t", b"a")
    node.files.write_intent(SINK, Intent(1, [("k", 0)]))
    ledger = node.path / "staging" / f"s-{SINK}" / "ledger"
    ledger.write_bytes(b"")
    node.crash()
    assert "t" not in node.broker.topics
    ledger.unlink()

    assert node.commit(1, ("k", 1))
    assert node.bodies("t") == [b"a"]


def test_what_is_no_sink_stops_nobody(tmp_path):
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging" / "s-file").write_bytes(b"no folder")
    node = Node(tmp_path)
    node.stage(1, "k", 0, "t", b"a")

    assert node.commit(1, ("k", 1))
    assert ["s-file" in note for note in node.notes] == [True]


def test_an_interrupted_batch_whose_topic_may_not_be_made_waits(node):
    node.stage(1, "k", 0, "new", b"a")
    node.files.write_intent(SINK, Intent(1, [("k", 0)]))
    node.broker.topic("other")
    node.broker.keeper.save_catalog()
    node.limits = {"max_topics": 1}
    node.crash()
    assert "this node has 1 topics" in node.notes[0]
    node.limits = {}
    node.crash()

    assert node.broker.existing("new").log.next == 1


def test_half_a_line_that_a_full_disk_left_is_taken_back(node):
    node.stage(1, "k", 0, "t", b"a")
    node.files.write_intent(SINK, Intent(1, [("k", 0)]))
    path = node.path / "staging" / f"s-{SINK}" / "intent"
    limit = path.stat().st_size + 10
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            node.files.note(SINK, 0, {"topic": "t", "log_id": "x", "next": 0, "now": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert path.stat().st_size == limit - 10
    assert node.files.intent(SINK) == Intent(1, [("k", 0)])


def test_a_commit_of_what_is_not_staged_is_refused_and_leaves_nothing_behind(node):
    node.stage(0, "a", 0, "orders", b"x")

    with pytest.raises(NotStaged, match=r"a\.1"):
        node.commit(0, ("a", 2))
    assert node.commit(0, ("a", 1))


def test_what_could_not_be_published_is_refused_when_it_is_staged(node):
    with pytest.raises(PublishRefused):
        node.stage(0, "a", 0, "orders", b"x" * 1_048_577)
    with pytest.raises(PublishRefused):
        node.stage(0, "a", 0, "orders", b"")


def test_a_staged_file_that_was_damaged_is_never_published(node):
    node.stage(0, "a", 0, "orders", b"hello")
    path = node.path / "staging" / "s-query-1" / f"{0:020}" / "a.0"
    path.write_bytes(path.read_bytes()[:-1] + b"X")

    with pytest.raises(CorruptChunk):
        node.commit(0, ("a", 1))


def test_an_aborted_batch_is_gone(node):
    staged_batch(node)

    assert node.staging.abort(SINK, 0, ["a", "b"]) == 4
    assert node.files.batches(SINK) == []


def test_what_was_never_committed_is_swept_after_a_day(node):
    staged_batch(node, batch=3)
    changed = node.files.batches(SINK)[0][1]
    assert node.staging.sweep(now=changed + STALE) == []
    assert node.files.batches(SINK) != []

    notes = node.staging.sweep(now=changed + STALE + 1)
    assert notes == ["sink query-1: 4 parts of batch 3 were never committed, dropped"]
    assert node.files.batches(SINK) == []


def test_a_batch_takes_the_leftovers_of_earlier_attempts_with_it(node):
    node.stage(4, "dead-attempt", 0, "orders", b"x")
    node.stage(5, "a", 0, "orders", b"y")
    node.commit(5, ("a", 1))

    assert node.files.batches(SINK) == []
    assert node.bodies("orders") == [b"y"]


def test_the_ledger_outlives_sweeping_but_for_sinks_that_write_once(node):
    node.commit(0, *staged_batch(node))
    node.files.finish("job-1", 0)
    ledger = node.path / "staging" / "s-job-1" / "ledger"

    node.staging.sweep(now=ledger.stat().st_mtime_ns + STALE + 1)

    assert node.files.sinks() == [SINK]
    assert json.loads((node.path / "staging" / "s-query-1" / "ledger").read_text())["batch"] == 0


class _Silent:
    def settle(self, sequence, error):
        assert error is None
