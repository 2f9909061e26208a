"""What a sync has covered survives a power loss, whatever is left of what was written after it."""

import os
from pathlib import Path

import pytest

from lapwing.log.disk import Disk, OpenFiles
from lapwing.log.log import DiskLog, LogOptions
from lapwing.log.side.sidelog import SideLog

from .writing import NODE, bodies, publish

SEGMENT = f"{0:020d}"
KEPT = [b"first", b"second"]


def synced(directory: Path) -> tuple[DiskLog, int]:
    """A log with two messages that would survive, and the length of its frames."""
    log = DiskLog(directory, NODE)
    for body in KEPT:
        publish(log, [body])
    sync(log)
    return log, (directory / f"{SEGMENT}.log").stat().st_size


def sync(log: DiskLog) -> None:
    job = log.begin_sync()
    assert job is not None
    job()
    log.finish_sync(None)


@pytest.mark.parametrize("more", [1, 2, 5])
@pytest.mark.parametrize("left", ["nothing", "zeros", "half"])
def test_index_records_that_outran_their_frames_take_nothing_with_them(tmp_path: Path, more: int, left: str) -> None:
    log, size = synced(tmp_path / "topic")
    for number in range(more):
        publish(log, [b"unsynced %d" % number])
    path = tmp_path / "topic" / f"{SEGMENT}.log"
    whole = path.stat().st_size
    os.truncate(path, size + (whole - size) // 2 if left == "half" else size)
    if left == "zeros":
        os.truncate(path, whole)

    again = DiskLog(tmp_path / "topic", NODE)
    assert bodies(again)[:2] == KEPT
    assert all(body.startswith(b"unsynced") for body in bodies(again)[2:])
    publish(again, [b"after"])
    assert bodies(DiskLog(tmp_path / "topic", NODE))[-1] == b"after"


def test_what_comes_while_a_sync_is_under_way_has_a_checksum_of_its_own(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    publish(log, [b"first"])
    publish(log, [b"second"])
    job = log.begin_sync()
    assert job is not None
    for number in range(3):
        publish(log, [b"unsynced %d" % number])
    size = 2 * 34 + len(b"".join(KEPT))
    job()
    log.finish_sync(None)  # the two are acknowledged; of the rest, the index is on disk, and the frames are not
    os.truncate(tmp_path / "topic" / f"{SEGMENT}.log", size)

    assert bodies(DiskLog(tmp_path / "topic", NODE)) == KEPT


class Noting(Disk):
    """A disk that notes which directories were synced."""

    def __init__(self) -> None:
        self.synced: set[str] = set()

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self.synced.add(path)


def test_new_directories_are_synced_into_those_above_them(tmp_path: Path) -> None:
    disk = Noting()
    files = OpenFiles(disk)
    log = DiskLog(tmp_path / "topics" / "t-t", NODE, options=LogOptions(durability="fsync"), files=files)
    publish(log, [b"a"])
    sync(log)
    side = SideLog(tmp_path / "topics" / "t-t", "c", files=files, sync=True)
    side.put(0, b"frame")
    side.flush()
    topic = tmp_path / "topics" / "t-t"

    assert disk.synced == {str(place) for place in (tmp_path, topic.parent, topic, topic / "side")}


def test_publishes_between_two_syncs_share_a_chunk(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    for _ in range(3):
        for _ in range(10):
            publish(log, [b"small"])
        sync(log)

    assert log.segments[0].index.count == 3
