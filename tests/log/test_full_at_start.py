"""A disk that is full, or refuses, while a log is opened after a crash: nothing acknowledged is lost by that either."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lapwing import kernel
from lapwing.errors import LogError
from lapwing.log.disk import Disk, OpenFiles
from lapwing.log.log import DiskLog, Extra, LogOptions

from .faulty import FaultyDisk
from .writing import NODE, bodies, publish

ACKNOWLEDGED = [b"a" * 50, b"b" * 50, b"c" * 50]
EXTRAS = [Extra(1, 7, {"k": "v"})]


class Full(Disk):
    """Nothing can grow and nothing be made; what is there can be written over, shortened and removed."""

    def pwrite(self, fd: int, data: Any, offset: int) -> int:  # type: ignore[override]
        if offset + len(data) > os.fstat(fd).st_size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, offset)

    @staticmethod
    def open(path: str, flags: int, mode: int = 0o600) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.open(path, flags, mode)


def written(directory: Path, **options: Any) -> DiskLog:
    log = DiskLog(directory, NODE, options=LogOptions(**options))
    publish(log, ACKNOWLEDGED[:2], extras=EXTRAS)
    publish(log, ACKNOWLEDGED[2:])
    return log


def torn(directory: Path, ending: str, cut: int) -> None:
    path = directory / f"{0:020d}.{ending}"
    path.write_bytes(path.read_bytes()[:-cut])


def killed_in_the_frames(directory: Path) -> None:
    publish(written(directory), [b"x" * 100] * 3, extras=[Extra(4, 1)])
    torn(directory, "log", 120)


def killed_in_a_chunk_of_its_own(directory: Path) -> None:
    publish(written(directory, merge_bytes=0), [b"x" * 100] * 3, extras=[Extra(4, 1)])
    torn(directory, "log", 120)


def killed_in_the_extras(directory: Path) -> None:
    written(directory)
    with open(directory / f"{0:020d}.aux", "ab") as file:
        file.write(b"LWR1\x50\0\0\0")


def killed_with_messages_in_memory(directory: Path) -> None:
    log = DiskLog(directory, NODE, options=LogOptions(durability="memory", mem_queue_size=2))
    publish(log, ACKNOWLEDGED, extras=EXTRAS)
    publish(log, [b"lost"])


def without_an_index(directory: Path) -> None:
    written(directory).close()
    (directory / f"{0:020d}.idx").unlink()


def killed_before_the_index_was_written(directory: Path) -> None:
    written(directory, boot=9)
    assert (directory / f"{0:020d}.idx").stat().st_size == 64
    with open(directory / f"{0:020d}.log", "ab") as file:
        file.write(kernel.frame_one(b"torn", (NODE << 54) + 3, 1)[:-1])


def killed_before_the_record_of_a_new_chunk_was_written(directory: Path) -> None:
    written(directory, boot=9, merge_bytes=0)
    assert (directory / f"{0:020d}.idx").stat().st_size == 64


CRASHES = [
    killed_in_the_frames, killed_in_a_chunk_of_its_own, killed_in_the_extras, killed_with_messages_in_memory,
    without_an_index, killed_before_the_index_was_written, killed_before_the_record_of_a_new_chunk_was_written,
]


@pytest.mark.parametrize("short", [0, 5])
@pytest.mark.parametrize("crash", CRASHES)
def test_whichever_call_of_opening_fails_a_later_one_finds_everything(
    tmp_path: Path, crash: Callable[[Path], None], short: int
) -> None:
    crash(tmp_path / "made")
    options, by_form = LogOptions(boot=9), crash is without_an_index
    for fault in range(30):
        directory = tmp_path / str(fault)
        shutil.copytree(tmp_path / "made", directory)
        disk = FaultyDisk(short=short)
        disk.arm(fault, 1000)
        refused = ""
        try:
            DiskLog(directory, NODE, files=OpenFiles(disk), options=options, by_form=by_form)
        except LogError as error:
            refused = str(error)

        log = DiskLog(directory, NODE, options=options, by_form=by_form)

        assert not refused or str(directory) in refused
        assert bodies(log) == ACKNOWLEDGED
        assert log.extras(0, 3) == EXTRAS
        publish(log, [b"new"])
        assert bodies(log) == [*ACKNOWLEDGED, b"new"]
        assert log.extras(3, log.end) == []
        log.close()
        if not refused and len(disk.calls) <= fault:
            break
    else:
        pytest.fail("it never succeeds")


@pytest.mark.parametrize("crash", [killed_in_the_frames, killed_in_a_chunk_of_its_own, killed_in_the_extras])
def test_a_torn_write_is_undone_on_a_disk_without_room(tmp_path: Path, crash: Callable[[Path], None]) -> None:
    crash(tmp_path / "topic")

    log = DiskLog(tmp_path / "topic", NODE, files=OpenFiles(Full()))

    assert bodies(log) == ACKNOWLEDGED
    assert log.extras(0, 9) == EXTRAS
