"""Sequences that were given out and never written: none of them is given out again."""

from pathlib import Path

import pytest

from lapwing.errors import CorruptChunk, WriteFailed
from lapwing.log.disk import OpenFiles
from lapwing.log.log import DiskLog, LogOptions, RetentionLimits

from .faulty import FaultyDisk
from .writing import NODE, bodies, publish

OPTIONS = LogOptions(durability="memory", mem_queue_size=4)


def in_memory(path: Path, **options: object) -> DiskLog:
    """A log that keeps up to four messages in memory alone."""
    return DiskLog(path / "topic", NODE, options=OPTIONS, **options)  # type: ignore[arg-type]


def test_after_a_kill_no_sequence_is_given_out_again(tmp_path: Path) -> None:
    log = in_memory(tmp_path)
    publish(log, [b"a"] * 5)  # one too many: all are written
    publish(log, [b"lost"] * 4)

    again = in_memory(tmp_path)  # nothing was closed

    assert again.identity == log.identity
    assert again.next >= log.next
    assert (again.first, again.next, again.lost) == (0, 9, range(5, 9))
    assert any("5 to 8" in note and "begin at 9" in note for note in again.notes)
    assert publish(again, [b"new"]) == 9
    assert bodies(again) == [b"a"] * 5 + [b"new"]


def test_what_is_lost_reads_as_a_quarantined_range_in_every_life_after(tmp_path: Path) -> None:
    log = in_memory(tmp_path)
    publish(log, [b"a"] * 5, now=3)
    publish(log, [b"lost"])
    log = in_memory(tmp_path)
    publish(log, [b"b"] * 5, now=7)
    log.close()

    for _ in range(2):
        told: list[tuple[int, int]] = []
        log = in_memory(tmp_path, on_corrupt=lambda path, offset, first, count, told=told: told.append((first, count)))
        assert log.notes == []
        assert log.lost == range(0)
        found = [(first, count, bool(frames)) for first, count, frames in log.blocks(0, log.end, 1 << 20)]
        assert found == [(0, 5, True), (5, 4, False), (9, 5, True)]
        assert told == [(5, 4)]
        with pytest.raises(CorruptChunk):
            log.frame(6)
        assert (log.timestamp(6), log.at_time(4)) == (3, 9)
        log.close()


def test_it_is_found_again_without_the_index(tmp_path: Path) -> None:
    log = in_memory(tmp_path)
    publish(log, [b"a"] * 5)
    publish(log, [b"lost"])
    log = in_memory(tmp_path)
    publish(log, [b"b"] * 5)
    log.close()
    for path in (tmp_path / "topic").glob("*.idx"):
        path.unlink()

    again = in_memory(tmp_path, by_form=True)

    assert (again.first, again.next) == (0, 14)
    assert bodies(again) == [b"a"] * 5 + [b"b"] * 5


def test_a_log_of_which_nothing_was_written_begins_behind_what_it_gave_out(tmp_path: Path) -> None:
    publish(in_memory(tmp_path), [b"lost"] * 3)
    assert [in_memory(tmp_path).next for _ in range(2)] == [4, 4]
    publish(in_memory(tmp_path), [b"lost"])

    again = in_memory(tmp_path)

    assert (again.first, again.next) == (8, 8)
    assert len(again.segments) == 1


def test_one_kill_after_the_other_leaves_one_gap(tmp_path: Path) -> None:
    log = in_memory(tmp_path)
    publish(log, [b"a"] * 5)
    for _ in range(3):
        publish(log, [b"lost"])
        log = in_memory(tmp_path)
    publish(log, [b"b"] * 5)
    log.close()

    again = in_memory(tmp_path)

    assert again.notes == []
    assert bodies(again) == [b"a"] * 5 + [b"b"] * 5
    assert (again.first, again.next, len(again.segments)) == (0, 22, 2)


def test_what_was_consumed_and_never_written_keeps_its_sequences(tmp_path: Path) -> None:
    log = in_memory(tmp_path)
    for _ in range(10):
        publish(log, [b"x"] * 2)
        log.release(log.end, now=0, limits=RetentionLimits())

    assert in_memory(tmp_path).next >= log.next


def test_a_clean_stop_leaves_no_gap(tmp_path: Path) -> None:
    for number in range(3):
        log = in_memory(tmp_path)
        assert publish(log, [b"x"]) == number
        log.close()
    assert sorted(path.name for path in (tmp_path / "topic").iterdir() if path.suffix not in (".log", ".idx")) == [
        "identity"
    ]


def test_a_kill_in_any_step_of_leaving_out_gives_nothing_out_twice(tmp_path: Path) -> None:
    for fault in range(12):
        directory = tmp_path / str(fault)
        log = in_memory(directory)
        publish(log, [b"a"] * 5)
        publish(log, [b"lost"] * 4)
        disk = FaultyDisk()
        disk.arm(fault, 1000)
        try:
            in_memory(directory, files=OpenFiles(disk))
            finished = True
        except Exception:
            finished = False

        again = in_memory(directory)

        assert again.next >= 9
        assert publish(again, [b"b"]) == again.end - 1
        assert bodies(again) == [b"a"] * 5 + [b"b"]
        if finished:
            break
    assert finished
    assert fault > 2


@pytest.mark.parametrize("content", [b"\0\0", b"", b"[]", b'{"ahead":1e999}', b'{"ahead":-1}', b"[" * 100_000])
def test_a_promise_that_cannot_be_read_is_taken_for_a_large_one(tmp_path: Path, content: bytes) -> None:
    log = in_memory(tmp_path)
    publish(log, [b"a"] * 5)
    (tmp_path / "topic" / "ahead").write_bytes(content)

    assert in_memory(tmp_path).next > 1_000_000


def test_a_promise_that_cannot_be_written_refuses_the_first_publish(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = in_memory(tmp_path, files=OpenFiles(disk))
    disk.arm(0, 1000)
    with pytest.raises(WriteFailed, match="ahead"):
        publish(log, [b"a"])
    assert (log.next, log.pending) == (0, False)
    disk.arm(-1)

    assert publish(log, [b"b"]) == 0


def test_what_is_written_before_it_is_acknowledged_needs_no_promise(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    publish(log, [b"a"])
    assert not (tmp_path / "topic" / "ahead").exists()

    assert DiskLog(tmp_path / "topic", NODE).next == 1
