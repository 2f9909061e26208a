"""A data path looked into while nobody uses it."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lapwing.errors import NoSuchTopic
from lapwing.log.catalog import Catalog, ChannelEntry, TopicEntry
from lapwing.log.datapath import DataPath
from lapwing.log.disk import Disk
from lapwing.log.journal.journal import Journal
from lapwing.log.log import DiskLog, Extra, LogOptions
from lapwing.log.offline import offline
from lapwing.log.side.sidelog import SideLog

from .writing import NODE, bodies, publish

OPTIONS = LogOptions(segment_bytes=2000, merge_bytes=0)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[DataPath]:
    """Two topics of several segments, with journals, side logs and a catalog, cleanly closed."""
    place = DataPath(tmp_path)
    for name in ("orders", "Other"):
        log = DiskLog(place.topic_dir(name), NODE, options=OPTIONS)
        for number in range(30):
            publish(log, [b"%s %d" % (name.encode(), number)] * 4, now=number, extras=[Extra(log.next, 0, {"n": "x"})])
        log.close()
        journal = Journal(place.topic_dir(name))
        for cursor in (10, 20, 30):
            journal.progress("c", cursor, [], {})
            journal.flush()
        journal.close()
        side = SideLog(place.topic_dir(name), "c")
        side.put(3, b"frame")
        side.close()
    Catalog(tmp_path).save([TopicEntry(name, channels=[ChannelEntry("c")]) for name in ("orders", "Other")])
    yield place
    place.release()


def problems(place: DataPath, *topics: str) -> list[offline.Problem]:
    return [event for event in offline.verify(place, topics) if isinstance(event, offline.Problem)]


def repairs(place: DataPath) -> list[offline.Repair]:
    return [event for event in offline.repair(place) if isinstance(event, offline.Repair)]


def exported(place: DataPath, *topics: str) -> list[bytes]:
    events = offline.export(place, topics)
    blocks = [event for event in events if isinstance(event, offline.Block)]
    return [message["body"] for block in blocks for message in offline.messages(block)]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def snapshot(place: DataPath) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path(place.path).rglob("*") if path.is_file()}


def test_a_sound_data_path_is_said_to_be_sound_and_is_not_touched(place: DataPath) -> None:
    before = snapshot(place)
    events = list(offline.verify(place))

    summaries = [event for event in events if isinstance(event, offline.Summary)]
    assert [(one.topic, one.messages, one.first, one.next) for one in summaries] == [
        ("Other", 120, 0, 120),
        ("orders", 120, 0, 120),
    ]
    assert not any(isinstance(event, offline.Problem) for event in events)
    last = [event for event in events if isinstance(event, offline.Progress)][-1]
    assert last.done == last.total > 0
    assert repairs(place) == []
    assert snapshot(place) == before


def test_each_kind_of_damage_is_found_named_repaired_and_then_gone(place: DataPath) -> None:
    topic = Path(place.topic_dir("orders"))
    segment = sorted(topic.glob("*.log"))[1]
    flip(segment, 50)
    flip(sorted(topic.glob("*.idx"))[2], 70)
    flip(sorted(topic.glob("*.aux"))[1], 40)
    flip(topic / "journal", 20)
    flip(topic / "side" / "c-c", 20)
    last = sorted(topic.glob("*.log"))[-1]
    last.write_bytes(last.read_bytes() + b"torn")
    before = snapshot(place)

    found = problems(place)

    third = sorted(topic.glob("*.log"))[2]
    assert {Path(problem.path).name for problem in found} == {
        *(segment.name, segment.stem + ".aux", third.stem + ".idx", third.name, last.name, "journal", "c-c")
    }
    assert sum(problem.lost for problem in found) == 4
    assert snapshot(place) == before
    done = repairs(place)
    assert all(repair.done for repair in done)
    assert problems(place) == []
    assert repairs(place) == []
    kept = list((Path(place.path) / "quarantine" / "t-orders").iterdir())
    assert [path.name for path in kept] == [f"{segment.stem}-0.frames"]
    assert len(exported(place, "orders")) == 116
    log = DiskLog(topic, NODE)
    assert (len(bodies(log)), log.next) == (116, 120)


def test_a_missing_index_or_identity_is_found_and_made_again(place: DataPath) -> None:
    topic = Path(place.topic_dir("orders"))
    (topic / "identity").unlink()
    sorted(topic.glob("*.idx"))[0].unlink()

    assert len(problems(place, "orders")) >= 2
    lost = sum(problem.lost for problem in problems(place, "orders"))
    assert 0 < lost < 120
    assert len(exported(place, "orders")) == 120 - lost
    assert len(list(offline.export(place, ["orders"], unverified=True))) > len(list(offline.export(place, ["orders"])))
    assert repairs(place)
    assert problems(place) == []
    assert len(exported(place)) == 240 - lost
    assert [event.done for event in offline.repair(place, unverified=True) if isinstance(event, offline.Repair)] == [
        True
    ]
    assert len(exported(place)) == 240
    assert repairs(place) == []


def test_a_lost_end_of_a_closed_segment_is_counted_and_set_aside(place: DataPath) -> None:
    segment = sorted(Path(place.topic_dir("orders")).glob("*.log"))[0]
    size = segment.stat().st_size
    segment.write_bytes(segment.read_bytes()[: size - 10])

    found = problems(place, "orders")
    assert sum(problem.lost for problem in found) == 4  # the chunk that the missing bytes belong to
    assert repairs(place)
    assert problems(place) == []
    summary = next(event for event in offline.verify(place, ["orders"]) if isinstance(event, offline.Summary))
    assert (summary.messages, summary.quarantined) == (116, 4)


def test_a_broken_catalog_is_made_anew_from_what_is_there(place: DataPath) -> None:
    (Path(place.path) / "nsqd.dat").write_text("")

    assert len(problems(place)) == 1
    assert len(repairs(place)) == 1
    assert Catalog(place.path).load() == [
        TopicEntry("Other", channels=[ChannelEntry("c")]),
        TopicEntry("orders", channels=[ChannelEntry("c")]),
    ]
    assert (Path(place.path) / "nsqd.dat.damaged").read_text() == ""


def test_a_topic_that_the_catalog_does_not_know_is_named(place: DataPath) -> None:
    Catalog(place.path).save([TopicEntry("orders")])

    assert [(problem.topic, problem.what) for problem in problems(place)] == [
        ("Other", "the catalog does not know this topic")
    ]


def test_messages_come_out_with_all_they_have(place: DataPath) -> None:
    blocks = [
        event for event in offline.export(place, ["orders"], start=7, stop=10) if isinstance(event, offline.Block)
    ]
    found = [message for block in blocks for message in offline.messages(block)]

    assert [message["sequence"] for message in found] == [7, 8, 9]
    assert found[1] == {
        "topic": "orders",
        "sequence": 8,
        "id": f"{(NODE << 54) + 8:016x}",
        "timestamp": 2,
        "attempts": 1,
        "body": b"orders 2",
        "headers": {"n": "x"},
        "defer": 0,
    }


def test_a_topic_that_is_not_there_is_said_to_be_so(place: DataPath) -> None:
    with pytest.raises(NoSuchTopic, match=r"no topic nothing .* Other, orders"):
        list(offline.verify(place, ["nothing"]))


def test_a_directory_without_topics_is_sound_and_stays_empty(tmp_path: Path) -> None:
    place = DataPath(tmp_path)

    assert list(offline.verify(place)) == []
    assert list(offline.repair(place)) == []
    assert list(tmp_path.iterdir()) == []
    place.release()


def test_bytes_behind_the_last_message_of_a_closed_segment_are_set_aside(place: DataPath, tmp_path: Path) -> None:
    path = next(Path(place.topic_dir("orders")).glob("*.log"))
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"surplus" * 9)
    assert len(problems(place)) == 1
    assert [repair.done for repair in repairs(place) if "no message" in repair.what] == [True]

    assert problems(place) == []
    assert path.stat().st_size == size
    assert (tmp_path / "quarantine" / "t-orders" / f"{path.stem}-{size}.frames").read_bytes() == b"surplus" * 9


def first_segment(place: DataPath, topic: str) -> Path:
    return sorted(Path(place.topic_dir(topic)).glob("*.log"))[0]


class BadSector:
    """Makes reading one place of a file fail, until it is healed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, offset: int) -> None:
        self.path: str | None = os.fspath(path)
        self.offset = offset
        monkeypatch.setattr(Disk, "pread", staticmethod(self._pread))

    def _pread(self, fd: int, length: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}") == self.path and offset <= self.offset < offset + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(fd, length, offset)

    def heal(self) -> None:
        self.path = None


def test_a_chunk_that_the_disk_does_not_return_is_reported_and_left_as_it_is(
    place: DataPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = exported(place, "orders")
    segment = first_segment(place, "orders")
    index = segment.with_suffix(".idx").read_bytes()
    sector = BadSector(monkeypatch, segment, 10)

    assert ["cannot be read" in problem.what for problem in problems(place, "orders")] == [True]
    assert exported(place, "orders") == everything[4:]
    assert [(repair.done, "--unreadable" in repair.what) for repair in repairs(place)] == [(False, True)]
    assert segment.with_suffix(".idx").read_bytes() == index
    sector.heal()
    assert exported(place, "orders") == everything


def test_a_chunk_that_the_disk_never_returns_can_be_given_up(
    place: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = exported(place, "orders")
    BadSector(monkeypatch, first_segment(place, "orders"), 10)
    done = [event.done for event in offline.repair(place, unreadable=True) if isinstance(event, offline.Repair)]

    assert done == [True]
    assert bodies(DiskLog(place.topic_dir("orders"), NODE)) == everything[4:]
    assert problems(place, "orders") == []


def test_an_index_that_cannot_be_read_stops_verifying_its_segment_alone(
    place: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = first_segment(place, "orders").with_suffix(".idx")
    BadSector(monkeypatch, segment, 0)

    assert [problem.path for problem in problems(place, "orders")] == [os.fspath(segment)]
    assert [repair.done for repair in repairs(place)] == [False]
