"""Both twins of a log's end do the same, and leave the same files and facts."""

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapwing import kernel
from lapwing.kernel import pure, tail
from lapwing.log.disk import Disk, OpenFiles
from lapwing.log.options import LogOptions
from lapwing.log.segments.attributes import RecentRows, Rows
from lapwing.log.segments.index import Chunk
from lapwing.log.segments.segment import Segment
from lapwing.log.segments.sync import Sync
from lapwing.log.segments.window import Window

TWINS = [tail.Tail, kernel.Tail] if kernel.COMPILED else [tail.Tail]


Step = tuple[list[tuple[int, int, bool]], str]  # batches of messages: count, bytes, several; then what is done


class Refusing(Disk):
    """A disk that can be full: then it takes some of the bytes, and no more."""

    full = False

    def pwrite(self, fd: int, data: Any, offset: int) -> int:  # type: ignore[override]
        if self.full:
            os.pwrite(fd, bytes(data)[:7], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return os.pwrite(fd, data, offset)


def log_with(twin: type[Any], path: Path, disk: Disk) -> Any:
    """Return a log of one chunk around a twin, without what needs more care."""

    class Log(twin):  # type: ignore[misc]
        def keep_rows(self) -> None:
            self.kept += len(self._pending_rows)
            self._pending_rows = []

        def shrink_window(self) -> None:
            self.shrunk += 1
            self._noted_bytes = self._window.bytes

    path.mkdir(exist_ok=True)
    log = Log()
    files = OpenFiles(disk)
    segment = Segment(str(path), 0, files, 3000, 7)
    first = pure.frame_one(b"first", 0, 50)
    segment.frames.write(first, 0)
    segment.last = Chunk(0, 0, 50, 1, len(first), pure.crc32c(first), boot=7)
    segment.index.recent, segment.index.count = [segment.last], 1
    segment.extras.size = segment.extras.write([Rows(0, 0, b"[0,5,{}]")])
    segment.size, segment.end, segment.newest, segment.recorded_boot, segment.reserved = len(first), 1, 50, True, 20_000
    log._segments, log._sync, log._window = [segment], Sync(str(path), files, 0), Window(1)
    log._pending_rows, log._recent_rows, log._noted_bytes, log._lazy, log.shrunk = [], RecentRows(0), 0, False, 0
    log.kept = 0
    log.options = LogOptions(segment_bytes=30_000, tail_bytes=4000)
    log.next = log.end = log.written = 1
    log.forget()
    return log


def facts(log: Any) -> object:
    segment = log._segments[0]
    state = SimpleNamespace(**{name: getattr(segment, name) for name in ("size", "end", "newest", "torn")})
    numbers = log.next, log.end, log.written, log.fresh_bytes, log.several, log.since_check, list(log.fresh)
    index = segment.index.count, segment.index.recent, len(log._sync.dirty), segment.extras.size, log.kept
    window = list(log._window.blocks), list(log._window.firsts)
    return state, numbers, index, window, log.shrunk, Path(segment.frames.path).read_bytes()


batches = st.lists(st.tuples(st.integers(1, 4), st.sampled_from([1, 40, 900, 5000]), st.booleans()), max_size=4)
steps = st.lists(st.tuples(batches, st.sampled_from(["write", "forget", "full", "rows", "nothing"])), max_size=12)


@given(steps=steps)
def test_twins_agree(steps: list[Step], tmp_path_factory: pytest.TempPathFactory) -> None:
    found = []
    for number, twin in enumerate(TWINS):
        disk = Refusing()
        log = log_with(twin, tmp_path_factory.mktemp(f"log{number}"), disk)
        seen: list[object] = []
        for appended, step in steps:
            for count, size, several in appended:
                frames = pure.frame_bodies([b"x" * size] * count, log.next, 100 + log.next)
                log.add(frames, count, several)
            disk.full = step == "full"
            log._pending_rows = [Rows(log.end, log.end, b"[%d,5,{}]" % log.end)] if step == "rows" else []
            try:
                seen.append(log.forget() if step == "forget" else step != "nothing" and log.write())
            except Exception as error:
                seen.append(type(error).__name__)
            disk.full = False
            seen.append(facts(log))
        found.append(seen)

    assert all(seen == found[0] for seen in found)


@pytest.mark.parametrize("twin", TWINS)
def test_a_write_that_fails_leaves_the_log_as_it_was(twin: type[Any], tmp_path: Path) -> None:
    disk = Refusing()
    log = log_with(twin, tmp_path / "log", disk)
    before = facts(log)
    log.add(pure.frame_one(b"lost", 1, 100), 1, False)
    disk.full = True
    with pytest.raises(Exception, match="No space left"):
        log.write()
    disk.full = False

    segment = log._segments[0]
    assert segment.torn  # nothing is written before that is mended
    segment.mend()
    assert facts(log) == before
    log.add(pure.frame_one(b"kept", 1, 100), 1, False)
    assert log.write()
    assert (log.next, log.end) == (2, 2)
