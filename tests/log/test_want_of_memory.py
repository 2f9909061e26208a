"""A write for which memory is wanting, at any of its steps, counts wholly or not at all."""

import sys
from pathlib import Path
from typing import Any

import pytest

from lapwing import kernel
from lapwing.log.log import DiskLog
from lapwing.log.options import LogOptions
from lapwing.log.segments.window import Window

_testcapi: Any = pytest.importorskip("_testcapi", reason="this Python cannot make allocations fail")
CRASHES = sys.version_info >= (3, 12)  # in its own calls of functions, with the pure kernel too

PLAIN = LogOptions(merge_bytes=400, boot=7)
ROLLING = LogOptions(merge_bytes=400, boot=7, segment_bytes=300)
LAZY = LogOptions(merge_bytes=400, boot=7, durability="memory", mem_queue_size=3)


def messages(log: Any) -> list[tuple[int, bytes]]:
    frames = b"".join(bytes(block) for _, _, block in log.blocks(log.first, log.end, 1 << 20)) if log.end else b""
    return [(int(identity, 16), body) for _, _, identity, body in kernel.decode_messages(frames, 0, len(frames))[0]]


@pytest.mark.skipif(CRASHES, reason="CPython 3.12 and later crash by themselves where an allocation fails")
@pytest.mark.parametrize("rows", [b"", b"[%d,5,{}]"])
@pytest.mark.parametrize("options", [PLAIN, ROLLING, LAZY], ids=["plain", "rolling", "memory"])
def test_no_sequence_is_given_out_twice(options: LogOptions, rows: bytes, tmp_path: Path) -> None:
    log = DiskLog(str(tmp_path / "log"), 0, options=options)
    for sequence in range(2):
        log.append(kernel.frame_one(b"x" * 40, sequence, 5), 1, now=5, rows=rows and rows % sequence)
        log.flush()
    failed = 0
    for number in range(1, 200):
        first, before = log.end, messages(log)
        text = rows and rows % first
        log.append(kernel.frame_one(b"%d" % number * 20, first, 5), 1, now=5, rows=text)
        error: BaseException | None = None
        _testcapi.set_nomemory(number, number + 1)
        try:
            log.flush()
        except Exception as raised:
            error = raised
        finally:
            _testcapi.remove_mem_hooks()
        if error is not None:
            failed += 1
            log.take_back()
        assert log.next == log.end
        assert not log.pending
        assert log.end in ((first + 1,) if error is None else (first, first + 1))
        assert messages(log)[: len(before)] == before
        assert [identity for identity, _ in messages(log)] == list(range(log.end))
        assert [extra.sequence for extra in log.extras(0, log.end)] == (list(range(log.end)) if rows else [])
        if number > 30 and error is None:
            break
    kept = messages(log)
    log.close()

    again = DiskLog(str(tmp_path / "log"), 0, options=options)
    assert failed > 5
    assert messages(again) == kept
    again.close()


class Full(Window):
    """A window for which there is no memory."""

    __slots__ = ()

    def add(self, count: int, frames: bytes) -> None:
        raise MemoryError


def test_what_the_file_has_counts_although_the_write_raised(tmp_path: Path) -> None:
    log: Any = DiskLog(str(tmp_path / "log"), 0, options=PLAIN)
    log.append(kernel.frame_one(b"first", 0, 5), 1, now=5)
    window, log._window = log._window, Full(0)
    with pytest.raises(MemoryError):
        log.flush()
    log._window = window
    log.take_back()

    following = log.next
    log.append(kernel.frame_one(b"second", following, 5), 1, now=5)
    log.flush()
    log.close()
    again = DiskLog(str(tmp_path / "log"), 0, options=PLAIN)
    found = messages(again)
    assert [sequence for sequence, _ in found] == list(range(again.end))
    assert found[-1] == (following, b"second")
    again.close()
