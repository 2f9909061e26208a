"""A disk that refuses: the publisher is told, nothing acknowledged is lost, and it heals by itself."""

import errno
import os
from pathlib import Path

import pytest

from lapwing.errors import ReadFailed, WriteFailed
from lapwing.log.disk import Disk, OpenFiles
from lapwing.log.log import DiskLog, Extra, LogOptions, RetentionLimits

from .faulty import FaultyDisk, ShortDisk
from .writing import NODE, append, bodies, publish


def workload(log: DiskLog, acknowledged: list[bytes], extras: list[Extra]) -> int:
    """Twelve publishes over several segments, some with extras; how many were refused."""
    refusals: list[WriteFailed] = []
    for number in range(12):
        batch = [b"%d" % number * 9, b"%d." % number]
        carried = [Extra(log.next + 1, number, {"n": str(number)})] if number % 3 == 0 else []
        try:
            publish(log, batch, extras=carried, now=number)
        except WriteFailed as error:
            refusals.append(error)
            assert not log.pending
            assert log.next == log.end
        else:
            acknowledged += batch
            extras += carried
        assert bodies(log) == acknowledged
    assert all(refusal.errno in (errno.ENOSPC, errno.EIO) for refusal in refusals)
    assert all(str(refusal).startswith(log.directory) and "offset" in str(refusal) for refusal in refusals)
    return len(refusals)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(("short", "times"), [(0, 1), (7, 1), (60, 1), (7, 2), (7, 5), (0, 9)])
@pytest.mark.parametrize(
    "options",
    [
        LogOptions(segment_bytes=300, tail_bytes=0),  # what is read comes from the files
        LogOptions(tail_bytes=0, boot=1),  # one segment, whose last chunk grows
        LogOptions(tail_bytes=0, boot=1, merge_bytes=0),  # one segment, a chunk for each publish
    ],
    ids=["segments", "growing", "chunks"],
)
def test_whichever_call_fails_only_what_was_refused_is_missing(
    tmp_path: Path, error: int, short: int, times: int, options: LogOptions
) -> None:
    fault = 0
    hit = True
    while hit:
        disk = FaultyDisk(error=error, short=short)
        directory = tmp_path / str(fault)
        log = DiskLog(directory, NODE, files=OpenFiles(disk), options=options)
        acknowledged: list[bytes] = []
        extras: list[Extra] = []
        disk.arm(fault, times)
        refused = workload(log, acknowledged, extras)
        hit = len(disk.calls) > fault
        assert refused > 0 or not hit or disk.calls[fault] in ("truncate", "unlink")
        disk.arm(-1)
        refused_when_healed = workload(log, acknowledged, extras)
        assert refused_when_healed == 0
        assert log.extras(0, log.end) == extras
        log.close()

        again = DiskLog(directory, NODE, options=options)
        assert bodies(again) == acknowledged
        assert again.extras(0, again.end) == extras
        again.close()
        fault += 1
    assert fault > 15


def test_a_crash_while_the_disk_is_full_loses_nothing_acknowledged(tmp_path: Path) -> None:
    for fault in range(40):
        disk = FaultyDisk(short=50)
        directory = tmp_path / str(fault)
        log = DiskLog(directory, NODE, files=OpenFiles(disk), options=LogOptions(segment_bytes=300))
        acknowledged: list[bytes] = []
        disk.arm(fault, 1000)  # from here on nothing works any more
        workload(log, acknowledged, [])

        again = DiskLog(directory, NODE)  # as after kill -9: nothing was closed

        assert bodies(again)[: len(acknowledged)] == acknowledged
        again.close()


def test_short_writes_are_completed(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, files=OpenFiles(ShortDisk(5)))
    publish(log, [b"hello", b"world" * 10], extras=[Extra(0, 1)])
    log.close()

    again = DiskLog(tmp_path / "topic", NODE)
    assert bodies(again) == [b"hello", b"world" * 10]
    assert again.notes == []


def test_a_failed_fsync_is_tried_again_and_only_success_counts(tmp_path: Path) -> None:
    disk = FaultyDisk(error=errno.EIO, only=("fsync",))
    log = DiskLog(tmp_path / "topic", NODE, files=OpenFiles(disk), options=LogOptions(durability="fsync"))
    publish(log, [b"a"])
    assert (log.unsynced, log.synced) == (True, 0)
    disk.arm(0)

    sync = log.begin_sync()
    assert sync is not None
    with pytest.raises(OSError) as caught:
        sync()
    log.finish_sync(caught.value)

    assert str(caught.value.filename).endswith(".log")
    assert (log.unsynced, log.synced) == (True, 0)
    publish(log, [b"b"])
    sync = log.begin_sync()
    assert sync is not None
    publish(log, [b"c"])  # while it runs
    assert log.begin_sync() is None
    sync()
    log.finish_sync(None)
    assert (log.unsynced, log.synced) == (True, 2)
    sync = log.begin_sync()
    assert sync is not None
    sync()
    log.finish_sync(None)
    assert (log.unsynced, log.synced) == (False, 3)


def test_a_sync_reaches_every_file_written_and_the_names_of_new_ones(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = DiskLog(tmp_path / "topic", NODE, files=OpenFiles(disk), options=LogOptions(segment_bytes=60))
    for number in range(3):
        publish(log, [b"x" * 20], extras=[Extra(number, 1)])
    disk.arm(-1)

    sync = log.begin_sync()
    assert sync is not None
    log.release(2, now=0, limits=RetentionLimits())  # the files may even be gone before it runs
    sync()
    log.finish_sync(None)

    assert disk.calls.count("fsync") == 3 * 3 + 2
    assert log.begin_sync() is None


def test_appends_are_refused_before_the_disk_is_full(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = DiskLog(tmp_path / "topic", NODE, files=OpenFiles(disk), options=LogOptions(min_free_bytes=10_000))
    disk.free_bytes = 9_000

    with pytest.raises(WriteFailed) as caught:
        publish(log, [b"a"])
    assert caught.value.errno == errno.ENOSPC
    assert "9000 bytes free" in str(caught.value)
    disk.free_bytes = 1 << 30
    publish(log, [b"b"])
    assert bodies(log) == [b"b"]


def test_in_memory_mode_a_full_disk_refuses_new_messages_and_keeps_the_old(tmp_path: Path) -> None:
    disk = FaultyDisk()
    options = LogOptions(durability="memory", mem_queue_size=4)
    log = DiskLog(tmp_path / "topic", NODE, files=OpenFiles(disk), options=options)
    publish(log, [b"a", b"b"], extras=[Extra(1, 3)])
    disk.arm(0, 1000)
    publish(log, [b"c", b"d"])
    append(log, [b"e"])

    with pytest.raises(WriteFailed):
        log.flush()
    assert bodies(log) == [b"a", b"b", b"c", b"d"]
    disk.arm(-1)
    publish(log, [b"f"])
    assert bodies(log) == [b"a", b"b", b"c", b"d", b"f"]
    assert bodies(DiskLog(tmp_path / "topic", NODE)) == bodies(log)


def test_a_sector_that_cannot_be_read_is_not_taken_for_damage(tmp_path: Path) -> None:
    class BadSector(Disk):
        bad: int | None = None
        frames = 0
        error = errno.EIO

        def pread(self, fd: int, length: int, offset: int) -> bytes:  # type: ignore[override]
            if self.bad is not None and offset <= self.bad < offset + length and self.frames == os.fstat(fd).st_ino:
                raise OSError(self.error, os.strerror(self.error))
            return os.pread(fd, length, offset)

    disk = BadSector()
    told: list[tuple[int, int]] = []
    log = DiskLog(
        tmp_path / "topic",
        NODE,
        files=OpenFiles(disk),
        options=LogOptions(tail_bytes=0, merge_bytes=0),
        on_corrupt=lambda path, offset, first, count: told.append((first, count)),
    )
    for number in range(10):
        publish(log, [b"%d" % number * 100] * 2)
    everything = bodies(log)
    disk.bad, disk.frames = 600, os.stat(log.segments[0].frames.path).st_ino

    for disk.error in (errno.EMFILE, errno.EIO):
        with pytest.raises(ReadFailed, match="cannot be read"):
            bodies(log)
        with pytest.raises(ReadFailed):
            log.frame(4)
        assert bodies(log, 0, 4) == everything[:4]
        assert bodies(log, 6) == everything[6:]
    disk.bad = None

    assert bodies(log) == everything
    assert told == []
