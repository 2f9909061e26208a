"""A log that is packed takes little memory, and is afterwards as if it never had been."""

import errno
import os
import random
from pathlib import Path

import pytest

from lapwing.log import cold
from lapwing.log.disk import Disk, OpenFiles
from lapwing.log.journal.journal import Journal
from lapwing.log.log import DiskLog, LogOptions, RetentionLimits
from lapwing.log.segments.attributes import Extra

from .writing import NODE, append, bodies, publish

OPTIONS = LogOptions(segment_bytes=3_000, merge_bytes=1_000, boot=7)


class Unreadable(Disk):
    """A disk that returns nothing once it is broken."""

    broken = False

    def pread(self, fd: int, length: int, offset: int) -> bytes:  # type: ignore[override]
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        return os.pread(fd, length, offset)


class Noting(Disk):
    """A disk that notes what is synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self.synced.append(os.readlink(f"/proc/self/fd/{fd}"))


def sync(log: DiskLog) -> None:
    job = log.begin_sync()
    if job is not None:
        job()
        log.finish_sync(None)


def again(log: DiskLog) -> DiskLog | None:
    """Return a log that was packed and unpacked; None when it cannot be packed."""
    packed = log.pack()
    return None if packed is None else DiskLog.unpack(packed, log.directory, OPTIONS, log.files)


def history(directory: Path, seed: int, *, packs: bool) -> tuple[list[bytes], dict[str, bytes], int]:
    """Publish, read, delete, close and open at random, packed between all that or never; return what is left."""
    chance = random.Random(seed)
    log = DiskLog(directory, NODE, options=OPTIONS)
    reader, read, packed = log.reader(0), [], 0
    for step in range(60):
        match chance.randrange(8):
            case 0:
                sync(log)
            case 1:
                log.write_index()
            case 2:
                while found := reader.take(log.end, 20, 1 << 20)[0]:
                    read.append(bytes(found))
            case 3 if log.end:
                read.append(bytes(log.frame(chance.randrange(log.first, log.end))))
                read.append(bytes(log.rows(log.first, log.end)))
            case 4:
                log.release(min(reader.sequence, log.end), now=step, limits=RetentionLimits(0, 0, 0, 0))
            case 5 if chance.random() < 0.3:
                log.close()
                log = DiskLog(directory, NODE, options=OPTIONS)
                reader = log.reader(log.end)
            case _:
                some = [b"%d" % step * chance.randrange(1, 200) for _ in range(chance.randrange(1, 4))]
                extras = [Extra(log.next, headers={"a": str(step)})] if chance.random() < 0.2 else []
                publish(log, some, now=step, extras=extras)
        log.write_index()
        if step % 3:
            sync(log)
        if packs:
            unpacked = again(log)
            assert unpacked is not None
            log, packed = unpacked, packed + 1
            reader = log.reader(reader.sequence)
    read += bodies(log)
    sizes = (log.bytes, log.first, log.end, log.unsynced)
    log.close()
    files = {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "identity"}
    return [b"".join(read), repr(sizes).encode()], files, packed


@pytest.mark.parametrize("seed", range(12))
def test_a_log_that_is_packed_between_all_calls_does_what_another_does(tmp_path: Path, seed: int) -> None:
    plain = history(tmp_path / "plain", seed, packs=False)
    packed = history(tmp_path / "packed", seed, packs=True)

    assert packed[2] == 60
    assert packed[:2] == plain[:2]


def test_a_packed_log_knows_its_numbers_and_keeps_its_identity(tmp_path: Path) -> None:
    files = OpenFiles()
    log = DiskLog(tmp_path, NODE, options=OPTIONS, files=files)
    publish(log, [b"a", b"b"])
    log.write_index()
    sync(log)
    packed = log.pack()
    assert packed is not None

    assert (packed.bytes, packed.first, packed.next, packed.end) == (log.bytes, log.first, log.next, log.end)
    assert (packed.identity, packed.has_one_segment, packed.unsynced, len(files)) == (log.identity, True, False, 0)


def test_a_log_with_sequences_beyond_32_bits_is_packed(tmp_path: Path) -> None:
    log = DiskLog(tmp_path, NODE, options=OPTIONS)
    publish(log, [b"a"])
    log.write_index()
    packed = cold.pack(log.identity, log._segments, log._sync)
    for segment in log._segments:
        segment.synced_extras = 1 << 32
    large = cold.pack(log.identity, log._segments, log._sync)
    assert packed is not None
    assert large is not None

    assert len(packed) < len(large)
    for state, expected in ((packed, 0), (large, 1 << 32)):
        identity, segments, sync = cold.unpack(state, str(tmp_path), log.files, OPTIONS)
        assert (identity, sync.needed) == (log.identity, True)
        assert cold.ColdLog(0, 0, 1, 0, state).bytes == log.bytes
        assert [(each.first, each.end, each.synced_extras, each.last) for each in segments] == [
            (0, 1, expected, log._segments[0].last)
        ]


def test_a_log_is_not_packed_with_something_to_write_or_while_it_is_synced(tmp_path: Path) -> None:
    log = DiskLog(tmp_path, NODE, options=OPTIONS)
    append(log, [b"a"])
    assert log.pack() is None
    log.flush()
    log.write_index()
    log = again(log) or log
    publish(log, [b"b"])
    assert log.pack() is None
    job = log.begin_sync()
    assert log.pack() is None
    assert job is not None
    job()
    assert log.pack() is None
    log.finish_sync(None)

    unpacked = again(log)
    assert unpacked is not None
    assert bodies(unpacked) == [b"a", b"b"]


def test_a_log_that_is_packed_before_it_is_synced_is_synced_later(tmp_path: Path) -> None:
    disk = Noting()
    log = DiskLog(tmp_path, NODE, options=OPTIONS, files=OpenFiles(disk))
    publish(log, [b"a"])
    log.write_index()
    unpacked = again(log)
    assert unpacked is not None
    assert unpacked.unsynced
    sync(unpacked)

    assert {".log", ".idx"} <= {path[-4:] for path in disk.synced}
    assert str(tmp_path) in disk.synced
    assert (unpacked.unsynced, unpacked.synced) == (False, 1)


def test_a_log_is_not_packed_after_a_sync_that_failed(tmp_path: Path) -> None:
    log = DiskLog(tmp_path, NODE, options=OPTIONS)
    publish(log, [b"a"])
    job = log.begin_sync()
    assert job is not None
    job()
    log.finish_sync(OSError(5, "Input/output error"))

    assert log.pack() is None


def test_with_durability_memory_a_log_is_never_packed(tmp_path: Path) -> None:
    log = DiskLog(tmp_path, NODE, options=LogOptions(durability="memory", boot=7))
    publish(log, [b"a"])

    assert log.pack() is None


def test_a_journal_goes_on_where_it_was_without_reading_the_file(tmp_path: Path) -> None:
    disk = Unreadable()
    files = OpenFiles(disk)
    journal = Journal(tmp_path, files=files)
    journal.load()
    journal.progress("c", 5, [(1, 2)], {1: 3})
    journal.fanned_out(7)
    assert journal.pack() is None
    journal.flush()
    packed = journal.pack()
    assert packed is not None
    journal = Journal(tmp_path, files=files, packed=packed)
    disk.broken = True
    journal.fanned_out(8)
    journal.flush()

    state = Journal(tmp_path).load()
    assert (state.fanned_out, state.channels["c"].cursor) == (8, 5)


def test_a_journal_is_not_packed_while_a_sync_of_it_may_fail(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.fanned_out(7)
    journal.flush()
    journal.want_sync()
    assert journal.pack() is None
    job = journal.begin_sync()
    assert job is not None

    assert journal.pack() is None
    job()
    journal.finish_sync(None)
    assert journal.pack() is not None
