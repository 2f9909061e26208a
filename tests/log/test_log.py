"""What a topic gets of its log, on disk and in memory alike."""

from pathlib import Path

import pytest

from lapwing import kernel
from lapwing.errors import OutOfRange
from lapwing.log.log import DiskLog, Extra, LogOptions, TopicLog
from lapwing.log.memory import MemoryLog
from lapwing.log.segments.index import QUARANTINED, RECORD

from .writing import NODE, append, bodies, publish


def test_what_is_flushed_can_be_read_and_what_is_not_cannot(log: TopicLog) -> None:
    publish(log, [b"a", b"b"])
    append(log, [b"c"])

    assert (log.first, log.end, log.next, log.pending) == (0, 2, 3, True)
    assert bodies(log) == [b"a", b"b"]
    log.flush()
    assert (log.end, log.pending) == (3, False)
    assert bodies(log) == [b"a", b"b", b"c"]


def test_a_reader_takes_by_count_by_bytes_and_up_to_a_sequence(log: TopicLog) -> None:
    publish(log, [b"%03d" % number for number in range(100)])
    reader = log.reader(0)

    assert reader.take(100, 10, 1 << 20)[1] == 10
    assert reader.take(100, 100, 3 * 37)[1] == 3
    assert reader.take(100, 100, 1)[1] == 1
    assert reader.take(20, 100, 1 << 20)[1] == 6
    assert reader.take(20, 100, 1 << 20) == (b"", 0)
    assert reader.take(1000, 1000, 1 << 20)[1] == 80
    assert reader.sequence == 100
    reader.seek(50)
    frames, count = reader.take(51, 10, 1 << 20)
    assert (frames[34:], count) == (b"050", 1)


def test_a_reader_at_the_tail_gets_each_new_batch(log: TopicLog) -> None:
    reader = log.reader(0)
    for number in range(5):
        publish(log, [b"%d" % number])
        frames, count = reader.take(log.end, 100, 1 << 20)
        assert (frames[34:], count) == (b"%d" % number, 1)
        assert reader.take(log.end, 100, 1 << 20) == (b"", 0)


def test_a_frame_is_found_by_its_sequence(log: TopicLog) -> None:
    for number in range(50):
        publish(log, [b"%d" % number, b"x"], now=number)

    assert log.frame(98)[34:] == b"49"
    assert log.frame(0)[18:34] == b"%016x" % (NODE << 54)
    assert log.timestamp(61) == 30
    with pytest.raises(OutOfRange):
        log.frame(100)


def test_a_time_is_found_as_the_first_sequence_at_or_after_it(log: TopicLog) -> None:
    for number in range(20):
        publish(log, [b"x"] * 3, now=100 * number)

    assert log.at_time(-5) == 0
    assert log.at_time(100) == 3
    assert log.at_time(101) == 6
    assert log.at_time(1900) == 57
    assert log.at_time(1901) == 60


def test_headers_and_deferrals_are_kept_beside_the_messages(log: TopicLog) -> None:
    publish(log, [b"a"])
    extras = [Extra(1, defer=5), Extra(3, headers={"key": "ähnlich"})]
    publish(log, [b"b", b"c", b"d"], extras=extras)
    publish(log, [b"e"], extras=[Extra(4, 1, {"x": "y"})])

    assert log.extras(0, 4) == extras
    assert log.extras(2, 3) == []
    assert log.extras(3, 5) == [extras[1], Extra(4, 1, {"x": "y"})]


def test_a_reopened_log_goes_on_where_it_was(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, now=5)
    publish(log, [b"a", b"b"], extras=[Extra(1, 9)])
    log.close()

    again = DiskLog(tmp_path / "topic", NODE + 1)
    assert (again.identity, again.node, again.next, again.notes) == (log.identity, NODE, 2, [])
    publish(again, [b"c"])
    assert bodies(again) == [b"a", b"b", b"c"]
    assert again.extras(0, 3) == [Extra(1, 9)]


def test_a_log_created_anew_has_another_identity(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    publish(log, [b"a"])
    log.destroy()

    assert not (tmp_path / "topic").exists()
    assert DiskLog(tmp_path / "topic", NODE).identity != log.identity


def test_who_still_reads_a_destroyed_log_does_not_get_what_the_next_one_of_its_name_has(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    publish(log, [b"old"] * 10)
    log.shed()
    reader = log.reader(0)
    log.destroy()
    again = DiskLog(tmp_path / "topic", NODE)
    publish(again, [b"new"] * 10)

    assert log.in_file(0, 10, 1 << 20) is None
    with pytest.raises(OutOfRange):
        reader.take(10, 10, 1 << 20)
    with pytest.raises(OutOfRange):
        log.frame(3)
    assert bodies(again) == [b"new"] * 10


def in_files(log: TopicLog, start: int, stop: int, max_bytes: int) -> bytes | None:
    """The frames as their file has them, each chunk by its checksum; None when they are in none."""
    found = log.in_file(start, stop, max_bytes)
    if found is None:
        return None
    assert found.first == start
    at, frames = found.offset, b""
    with open(found.path, "rb") as file:
        for length, crc in found.chunks:
            file.seek(at)
            chunk = file.read(length)
            assert kernel.crc32c(chunk) == crc
            at += length
            frames += chunk
    assert found.count == len(kernel.scan_frames(frames, 0, len(frames))[0]) - 1
    return frames


@pytest.mark.parametrize("merge", [0, 300])
def test_whole_chunks_can_be_read_from_their_file(tmp_path: Path, merge: int) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=LogOptions(merge_bytes=merge, segment_bytes=2_000))
    begins = set()
    for number in range(60):
        begins.add(publish(log, [b"%03d" % number] * (1 + number % 4)))
    everything = b"".join(log.frame(sequence) for sequence in range(log.end))
    width = len(everything) // log.end
    found = 0
    for start in range(log.end):
        for stop, most in ((log.end, 1 << 20), (start + 7, 1 << 20), (log.end, 100), (log.end, 0)):
            frames = in_files(log, start, stop, most)
            if frames is None:
                assert merge or start not in begins or stop == start + 7
                continue
            found += 1
            assert frames == everything[start * width :][: len(frames)]
            assert start + len(frames) // width <= stop
            assert len(frames) <= max(most, 300)
    assert found > 4 * 15  # the places where chunks begin, and more
    assert log.in_file(log.end, log.end + 5, 100) is None


def test_what_is_in_memory_alone_is_in_no_file(tmp_path: Path) -> None:
    bare = MemoryLog(NODE)
    lazy = DiskLog(tmp_path / "lazy", NODE, options=LogOptions(durability="memory", mem_queue_size=10))
    for log in (bare, lazy):
        publish(log, [b"x"] * 5)
        assert log.in_file(0, 5, 1 << 20) is None

    publish(lazy, [b"y"] * 10)
    publish(lazy, [b"z"])
    frames = in_files(lazy, 0, 16, 1 << 20)
    assert frames is not None
    assert len(frames) == 15 * 35
    assert lazy.in_file(15, 16, 1 << 20) is None


def test_a_quarantined_chunk_is_said_to_be_in_no_file(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=LogOptions(merge_bytes=0))
    for _ in range(3):
        publish(log, [b"x"])
    index = log.segments[0].index
    damaged = index.chunk(1)
    damaged.flags |= QUARANTINED
    index.file.write(damaged.encode(), RECORD)

    found = [log.in_file(sequence, 3, 1 << 20) for sequence in range(3)]
    assert [place and place.count for place in found] == [1, None, 1]
