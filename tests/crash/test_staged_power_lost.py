"""A power loss at any point of staging and committing a batch: what was answered holds, and a retry completes it."""

import os
import shutil
import struct
import sys
from itertools import count
from pathlib import Path

import pytest
from disk_trace import Trace, no_fsync, restore

sys.path.insert(0, str(Path(__file__).parent.parent / "broker"))

from lapwing.broker.broker import Broker
from lapwing.broker.keeper.storage import DiskStorage
from lapwing.broker.operations.staging import NotStaged, Staging
from lapwing.broker.settings.options import Options
from lapwing.log.log import LogOptions
from lapwing.log.staged import Part, StagedFiles

SINK = "query"
PARTS = [
    ("orders", [b"o1", b"o2", b"o3"]), ("invoices", [b"i1" * 3000]), ("orders", [b"o4"]), ("orders", [b"o5", b"o4"]),
]  # fmt: skip
KEYS = [("k", len(PARTS))]
EXPECTED = {"orders": [b"o10", b"o2", b"o3", b"o4", b"o42", b"o53"], "invoices": [b"i1" * 5 + b"1"]}


class Node:
    """A broker with durability fsync on a data path."""

    def __init__(self, path: Path, boot: str | None = None) -> None:
        """`boot` names the run of the machine, another one each time if it is not given."""
        clock = count(1_000_000_000_000_000_000, 1_000)
        self.now = lambda: next(clock)
        log_options = LogOptions(durability="fsync", segment_bytes=4000)
        boot = os.urandom(8).hex() if boot is None else boot
        storage = DiskStorage(str(path), 5, log_options, now=self.now, report=lambda text: None, boot_id=boot)
        self.broker = Broker(Options(data_path=str(path), durability="fsync", node_id=5), storage)
        self.broker.restore(now=self.now())
        self.files = StagedFiles(str(path), sync=True)
        self.staging = Staging(self.broker, self.files)
        self.notes = self.staging.recover(now=self.now)

    def stage(self) -> None:
        for number, (topic, bodies) in enumerate(PARTS):
            mpub = struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)
            part = Part(topic, 0, [(0, 0, {"part": str(number)})], mpub)
            self.staging.check(part)
            self.files.put(SINK, 0, "k", number, part)

    def commit(self) -> None:
        """Publish the batch, as `/stage/commit` does."""
        commit = self.staging.commit(SINK, 0, KEYS)
        if commit is not None:
            commit.run(self.now)

    def bodies(self, topic: str) -> list[bytes]:
        """The bodies of a topic that can be read, with their headers, in no order."""
        if topic not in self.broker.topics:
            return []
        log = self.broker.existing(topic).log
        headers = {extra.sequence: extra.headers["part"].encode() for extra in log.extras(log.first, log.end)}
        blocks = log.blocks(log.first, log.end, 1)
        return sorted(log.frame(at)[34:44] + headers.get(at, b"") for at, _, frames in blocks if frames)

    def close(self) -> None:
        self.broker.storage.close()


def all_bodies(node: Node) -> dict[str, list[bytes]]:
    return {topic: node.bodies(topic) for topic in EXPECTED}


def _check_every_point(trace: Trace, tmp_path: Path, *, staged: int, committed: int) -> None:
    """Cut the power after every step; `staged` and `committed` are the steps from which each was answered."""
    problems = []
    seen = set()
    for upto in range(len(trace.steps) + 1):
        for model, left in trace.models(upto):
            case = (frozenset(left.items()), upto >= staged, upto >= committed)
            if case in seen:
                continue
            seen.add(case)
            place = tmp_path / "again"
            restore(left, tmp_path / "data", place)
            found = _outcome(place, staged=upto >= staged, committed=upto >= committed)
            if found:
                problems.append(f"{upto} ({trace.steps[upto - 1][0] if upto else 'begin'}), {model}: {found}")
            shutil.rmtree(place)
    assert not problems, f"{len(problems)} problems\n" + "\n".join(problems[:20])


def test_a_batch_is_published_whole_and_once_wherever_the_power_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    no_fsync(monkeypatch)
    with monkeypatch.context() as patch:
        trace = Trace(data, patch)
        node = Node(data)
        node.stage()
        staged = trace.mark("staged")
        node.commit()
        committed = trace.mark("committed")
        node.close()

    _check_every_point(trace, tmp_path, staged=staged, committed=committed)


@pytest.mark.parametrize("parts", [1, 3, 4])
def test_a_batch_that_a_killed_process_had_begun_is_synced_before_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    no_fsync(monkeypatch)
    node = Node(data)
    node.stage()
    node.close()
    with monkeypatch.context() as patch:
        trace = Trace(data, patch)
        node = Node(data, "first")
        commit = node.staging.commit(SINK, 0, KEYS)
        assert commit is not None
        for _ in range(parts):
            sync = commit.prepare(now=node.now())
            if sync is not None:
                sync()
            commit.publish()
        trace.mark("killed")
        node.close()
        Node(data, "first").close()
        committed = trace.mark("carried on")

    _check_every_point(trace, tmp_path, staged=0, committed=committed)


def _outcome(place: Path, *, staged: bool, committed: bool) -> str:
    """What is wrong after a restart, and after the retry of a sink that has had no answer."""
    node = Node(place)
    if committed and (node.staging.published(SINK) != 0 or all_bodies(node) != EXPECTED):
        return f"answered as published, and is not: {all_bodies(node)}"
    if node.staging.published(SINK) == 0 and all_bodies(node) != EXPECTED:
        return f"counts as published: {all_bodies(node)}"
    node.close()
    node = Node(place)
    try:
        node.commit()
    except NotStaged:
        if staged:
            return "what was staged is gone"
        node.stage()
        node.commit()
    if all_bodies(node) != EXPECTED:
        return f"after the retry: {all_bodies(node)}"
    node.close()
    return ""
