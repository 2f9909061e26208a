"""The order of writes that decision 0014 promises."""

import os
from pathlib import Path
from typing import Any

import pytest

from lapwing import kernel
from lapwing.errors import WriteFailed
from lapwing.log.disk import Disk, OpenFiles
from lapwing.log.log import DiskLog, Extra, LogOptions
from lapwing.log.segments.index import RECORD

from .writing import NODE, append, bodies, publish


class Recording(Disk):
    """Notes the endings of the files that are written to and synced, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def _note(self, call: str, fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path.endswith((".log", ".idx", ".aux")):
            self.calls.append(call + path[-4:])

    def pwrite(self, fd: int, data: Any, offset: int) -> int:  # type: ignore[override]
        self._note("", fd)
        return os.pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._note("sync ", fd)

    def taken(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def disk() -> Recording:
    return Recording()


def log_on(disk: Recording, path: Path, **options: Any) -> DiskLog:
    return DiskLog(path / "topic", NODE, files=OpenFiles(disk), options=LogOptions(**({"boot": 7} | options)))


def test_a_publish_is_one_write(tmp_path: Path, disk: Recording) -> None:
    log = log_on(disk, tmp_path)
    publish(log, [b"first"])
    assert disk.taken() == [".idx", ".log"]  # names the run of the machine for all that follow
    for number in range(100):
        publish(log, [b"%d" % number * 100])
        assert disk.taken() == [".log"]

    append(log, [b"several"])
    append(log, [b"publishes"])
    log.flush()
    assert disk.taken() == [".log"]


def test_records_are_written_with_a_checkpoint_a_roll_and_at_the_end(tmp_path: Path, disk: Recording) -> None:
    log = log_on(disk, tmp_path, segment_bytes=5000)
    publish(log, [b"first"])
    publish(log, [b"second"])
    disk.taken()
    log.write_index()
    assert disk.taken() == [".idx"]
    log.write_index()
    assert disk.taken() == []
    publish(log, [b"third"])
    publish(log, [b"x" * 5000])
    assert disk.taken() == [".log", ".idx", ".idx", ".log"]
    publish(log, [b"fourth"])
    publish(log, [b"fifth"])
    disk.taken()
    log.close()

    assert disk.taken() == [".idx"]


def test_attributes_are_written_before_the_frames_they_belong_to(tmp_path: Path, disk: Recording) -> None:
    log = log_on(disk, tmp_path)
    publish(log, [b"first"])
    disk.taken()
    publish(log, [b"deferred"], extras=[Extra(1, 5)])

    assert disk.taken() == [".aux", ".log"]


@pytest.mark.parametrize("merge_bytes", [1 << 20, 300])  # it joins the last chunk, or is its own
def test_a_publish_of_several_messages_that_could_be_torn_is_announced(
    tmp_path: Path, disk: Recording, merge_bytes: int
) -> None:
    log = log_on(disk, tmp_path, merge_bytes=merge_bytes)
    publish(log, [b"first"])
    disk.taken()
    publish(log, [b"small", b"batch"])
    assert disk.taken() == [".log"]  # within one page
    publish(log, [b"x" * 3000, b"y" * 3000])
    assert disk.taken() == [".idx", ".log"]
    publish(log, [b"x" * 6000])
    assert disk.taken() == [".log"]  # one message is there whole, or is cut off


def test_everything_is_written_before_it_is_synced_and_records_are_synced_last(tmp_path: Path, disk: Recording) -> None:
    log = log_on(disk, tmp_path, durability="fsync")
    publish(log, [b"first"])
    disk.taken()
    publish(log, [b"second"], extras=[Extra(1, 5)])
    job = log.begin_sync()
    assert job is not None
    job()
    log.finish_sync(None)

    assert disk.taken() == [".aux", ".log", ".idx", "sync .aux", "sync .log", "sync .idx"]


def test_where_the_run_of_the_machine_is_not_known_every_record_is_written_first(
    tmp_path: Path, disk: Recording
) -> None:
    log = log_on(disk, tmp_path, boot=0)
    for number in range(3):
        publish(log, [b"%d" % number])
        assert disk.taken() == [".idx", ".log"]


def test_each_process_announces_its_first_write(tmp_path: Path, disk: Recording) -> None:
    log = log_on(disk, tmp_path)
    publish(log, [b"first"])
    log = log_on(disk, tmp_path, boot=8)
    disk.taken()
    publish(log, [b"second"])
    assert disk.taken() == [".idx", ".log"]
    publish(log, [b"third"])

    assert bodies(log_on(disk, tmp_path, boot=8)) == [b"first", b"second", b"third"]
    assert bodies(log_on(disk, tmp_path, boot=9)) == [b"first", b"second"]


def test_messages_whose_records_are_in_memory_alone_can_be_read(tmp_path: Path, disk: Recording) -> None:
    log = log_on(disk, tmp_path, tail_bytes=0, merge_bytes=300)
    sent = [b"%d" % number * 60 for number in range(50)]
    for body in sent:
        publish(log, [body])

    assert (tmp_path / "topic" / f"{0:020d}.idx").stat().st_size == RECORD
    assert bodies(log) == sent
    assert [log.frame(sequence)[34:] for sequence in range(50)] == sent
    found = log.in_file(0, 50, 1 << 20)
    assert found is not None
    assert found.count == 50


class NoIndex(Recording):
    """Refuses writes to index files while `full`."""

    full = False

    def pwrite(self, fd: int, data: Any, offset: int) -> int:  # type: ignore[override]
        if self.full and os.readlink(f"/proc/self/fd/{fd}").endswith(".idx"):
            raise OSError(28, "No space left on device")
        return super().pwrite(fd, data, offset)


def test_records_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    disk = NoIndex()
    log = log_on(disk, tmp_path, tail_bytes=0)
    publish(log, [b"first"])
    disk.full = True
    publish(log, [b"second"])
    with pytest.raises(WriteFailed):
        log.write_index()
    job = log.begin_sync()
    assert job is not None
    with pytest.raises(OSError, match="No space left"):
        job()
    log.finish_sync(OSError(28, "No space left on device"))
    assert bodies(log) == [b"first", b"second"]
    disk.full = False
    log.write_index()

    assert bodies(log_on(disk, tmp_path, boot=99)) == [b"first", b"second"]


def test_frames_of_many_writes_make_chunks_and_one_write_of_records(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=LogOptions(boot=7))
    publish(log, [b"first"])
    for number in range(1, 200):
        frames = kernel.frame_bodies([b"%d" % number * 300], (NODE << 54) + log.next, number)
        log.append(frames, 1, now=number)
        assert log.write()  # with no more care
    wanted = [b"first", *[b"%d" % number * 300 for number in range(1, 200)]]

    killed = DiskLog(tmp_path / "topic", NODE, options=LogOptions(boot=7))
    assert bodies(killed) == wanted

    log.write_index()
    assert 5 < (tmp_path / "topic" / f"{0:020d}.idx").stat().st_size // RECORD < 20
    moved = DiskLog(tmp_path / "topic", NODE, options=LogOptions(boot=8))  # trusts checksums alone
    assert bodies(moved) == wanted
    assert (moved.timestamp(199), moved.at_time(100), moved.notes) == (199, 100, [])
