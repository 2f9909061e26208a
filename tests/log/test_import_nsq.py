"""The disk queues of NSQ's nsqd become logs: each channel gets the messages that its queue held."""

import json
import struct
from pathlib import Path

import pytest

from lapwing.errors import LogError
from lapwing.log.datapath import DataPath
from lapwing.log.offline import import_nsq, nsq_queues
from lapwing.log.offline.import_nsq import Imported
from lapwing.log.offline.nsq_queues import Damage, NsqMessage

NOW = 1_800_000_000_000_000_000


def record(number: int, *, attempts: int = 0) -> bytes:
    message = struct.pack(">qH16s", NOW + number, attempts, b"%016x" % number) + b"body %d" % number
    return struct.pack(">i", len(message)) + message


def write_queue(path: Path, name: str, *files: list[bytes], start: int = 0, depth: int | None = None) -> None:
    """A queue as NSQ leaves it: its segments, and its positions."""
    for number, records in enumerate(files):
        (path / f"{name}.diskqueue.{number:06}.dat").write_bytes(b"".join(records))
    count = sum(map(len, files)) if depth is None else depth
    end = len(b"".join(files[-1])) if files else 0
    (path / f"{name}.diskqueue.meta.dat").write_text(f"{count}\n0,{start}\n{max(len(files) - 1, 0)},{end}\n")


def write_catalog(path: Path, **topics: list[str]) -> None:
    entries = [
        {"name": topic, "paused": False, "channels": [{"name": name, "paused": name == "slow"} for name in channels]}
        for topic, channels in topics.items()
    ]
    (path / "nsqd.dat").write_text(json.dumps({"topics": entries, "version": "1.3.0"}))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "nsq"
    path.mkdir()
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "ours"
    path.mkdir()
    return path


def run(source: Path, target: Path) -> list[Imported]:
    place = DataPath(target)
    try:
        events = list(import_nsq.import_topics(str(source), place, node=7, now=NOW))
    finally:
        place.release()
    return [event for event in events if isinstance(event, Imported)]


def test_a_queue_is_read_from_its_position_over_all_its_files(source: Path) -> None:
    write_queue(source, "t:c", [record(1), record(2)], [record(3, attempts=4)], start=len(record(1)))

    found = list(nsq_queues.messages(str(source), "t:c"))

    assert found == [
        NsqMessage(NOW + 2, 0, b"%016x" % 2, b"body 2"),
        NsqMessage(NOW + 3, 4, b"%016x" % 3, b"body 3"),
    ]


def test_behind_damage_the_next_file_is_read(source: Path) -> None:
    write_queue(source, "t", [record(1), b"\0\0\0\5short"], [record(2)[:-1]], [record(3)])
    (source / "t.diskqueue.000001.dat").unlink()

    found = list(nsq_queues.messages(str(source), "t"))

    assert [each.body for each in found if isinstance(each, NsqMessage)] == [b"body 1", b"body 3"]
    assert [(Path(each.path).name[-10:], each.offset) for each in found if isinstance(each, Damage)] == [
        ("000000.dat", len(record(1))),
        ("000001.dat", 0),
    ]


def test_positions_that_are_none_are_an_error(source: Path) -> None:
    (source / "t.diskqueue.meta.dat").write_text("many")

    with pytest.raises(LogError, match="positions"):
        list(nsq_queues.messages(str(source), "t"))


def test_each_message_is_stored_once_and_belongs_to_the_channels_that_had_it(source: Path, target: Path) -> None:
    write_catalog(source, t=["big", "slow", "done"])
    write_queue(source, "t:big", [record(number, attempts=number == 2) for number in range(1, 6)])
    write_queue(source, "t:slow", [record(3, attempts=2), record(9), record(4)])
    write_queue(source, "t", [record(20), record(21)])

    (done,) = run(source, target)

    assert done == Imported("t", 8, {"big": 5, "done": 0, "slow": 3})
    assert not list(source.glob("*.diskqueue.*"))
    assert len(list((source / "nsq-imported").glob("*.diskqueue.*"))) == 6
    catalog = json.loads((target / "nsqd.dat").read_text())
    assert {each["name"]: each["paused"] for each in catalog["topics"][0]["channels"]} == {
        "big": False, "slow": True, "done": False,
    }  # fmt: skip


def test_a_topic_with_messages_is_left_alone(source: Path, target: Path) -> None:
    write_queue(source, "t:c", [record(1)])
    run(source, target)
    write_queue(source, "t:c", [record(2)])

    (again,) = run(source, target)

    assert "has messages" in again.skipped
    assert list(source.glob("*.diskqueue.*"))


def test_an_import_that_was_killed_begins_again(source: Path, target: Path) -> None:
    write_queue(source, "t:c", [record(1), record(2)])
    half = target / "topics" / "importing-t-t"
    half.mkdir(parents=True)
    (half / "00000000000000000000.log").write_bytes(b"torn")

    (done,) = run(source, target)

    assert done == Imported("t", 2, {"c": 2})
    assert not half.exists()


def test_ephemeral_queues_and_names_that_are_none_are_left_out(source: Path) -> None:
    for name in ("t#ephemeral", "t:c#ephemeral", "bad name", "good:c"):
        write_queue(source, name, [record(1)])

    assert import_nsq.topics_with_queues(str(source)).keys() == {"good"}
