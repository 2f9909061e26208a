"""Rolling, retention, and how little stays open or in memory."""

import errno
import os
import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import pytest

from lapwing import kernel
from lapwing.errors import OutOfRange
from lapwing.log.disk import OpenFiles
from lapwing.log.log import DiskLog, Extra, LogOptions, RetentionLimits
from lapwing.log.segments.index import RECORD
from lapwing.log.segments.retention import expendable

from .faulty import FaultyDisk
from .writing import NODE, append, bodies, publish

SMALL = LogOptions(segment_bytes=1000)


def filled(directory: Path, options: LogOptions = SMALL, batches: int = 20, files: OpenFiles | None = None) -> DiskLog:
    """A log of small batches over several segments; batch n is published at time n."""
    log = DiskLog(directory, NODE, options=options, files=files)
    for number in range(batches):
        publish(log, [b"%03d" % number * 20] * 3, now=number)
    return log


def segments(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("*.log"))


def test_a_write_that_would_pass_the_segment_size_starts_a_new_segment(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic")

    names = segments(tmp_path / "topic")
    assert names == [f"{first:020d}.log" for first in range(0, 60, 9)]
    assert all((tmp_path / "topic" / name).stat().st_size <= 1000 for name in names)
    assert log.bytes == sum((tmp_path / "topic" / name).stat().st_size for name in names)
    assert len(bodies(log)) == 60


def test_a_batch_longer_than_a_segment_gets_a_segment_to_itself(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=SMALL)
    publish(log, [b"small"])
    publish(log, [b"large" * 1000])
    publish(log, [b"small"])

    assert segments(tmp_path / "topic") == [f"{first:020d}.log" for first in range(3)]
    assert bodies(DiskLog(tmp_path / "topic", NODE)) == [b"small", b"large" * 1000, b"small"]


def test_the_segment_size_may_change_between_runs(tmp_path: Path) -> None:
    expected: list[bytes] = []
    for size in (1000, 50, 100_000, 300):
        log = DiskLog(tmp_path / "topic", NODE, options=LogOptions(segment_bytes=size))
        for number in range(10):
            expected += [b"%d" % size, b"%d" % number * 30]
            publish(log, expected[-2:])
        assert log.notes == []
        log.close()

    assert bodies(DiskLog(tmp_path / "topic", NODE)) == expected


def test_a_flush_of_many_megabytes_is_cut_into_chunks(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=LogOptions(merge_bytes=0))
    sent = [bytes([number % 256]) * 10_000 for number in range(400)] + [b"x" * 3_000_000, b"tail"]
    append(log, [b"before"])
    append(log, sent)
    append(log, [b"after"])
    log.flush()
    log.close()

    again = DiskLog(tmp_path / "topic", NODE)
    assert bodies(again) == [b"before", *sent, b"after"]
    assert (tmp_path / "topic" / f"{0:020d}.idx").stat().st_size == 8 * RECORD
    assert again.frame(402)[34:] == b"tail"


def test_what_nobody_needs_goes_by_whole_segments(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic")

    assert log.release(8, now=0, limits=RetentionLimits()) == []
    assert log.release(28, now=0, limits=RetentionLimits()) == [f"{first:020d}" for first in (0, 9, 18)]
    assert log.first == 27
    assert bodies(log)[0] == b"009" * 20
    with pytest.raises(OutOfRange):
        log.frame(26)
    with pytest.raises(OutOfRange):
        log.reader(26).take(60, 10, 1000)
    assert log.release(10**9, now=0, limits=RetentionLimits())[-1] == f"{45:020d}"
    assert (log.first, log.next) == (54, 60)
    log.close()
    again = DiskLog(tmp_path / "topic", NODE)
    assert (again.first, again.next) == (54, 60)
    assert sorted(os.listdir(tmp_path / "topic")) == [f"{54:020d}.idx", f"{54:020d}.log", "identity"]


def test_what_retention_wants_stays(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic")

    assert log.release(60, now=20, limits=RetentionLimits(age=12)) == [f"{first:020d}" for first in (0, 9)]
    assert log.release(60, now=20, limits=RetentionLimits(bytes=3000)) == [f"{first:020d}" for first in (18, 27)]


def test_a_full_disk_takes_what_retention_wanted_but_never_what_is_needed(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = filled(tmp_path / "topic", files=OpenFiles(disk))
    disk.free_bytes = 5000
    forever = RetentionLimits(age=10**18, min_free_bytes=6500)

    assert log.release(60, now=20, limits=forever) == [f"{first:020d}" for first in (0, 9)]
    disk.free_bytes = 0
    assert log.release(30, now=20, limits=forever) == [f"{18:020d}"]
    assert log.first == 27


def test_the_decision_needs_no_disk() -> None:
    closed = [SimpleNamespace(end=10 * number, size=100, newest=number) for number in range(1, 6)]

    def gone(needed: int = 50, free: int | None = None, **limits: int) -> int:
        return expendable(
            closed, active_bytes=50, needed=needed, now=10, limits=RetentionLimits(**limits), free=free
        )

    assert gone() == 5
    assert gone(needed=29) == 2
    assert gone(bytes=350) == 2
    assert gone(bytes=349) == 3
    assert gone(age=7) == 2
    assert gone(age=7, bytes=150) == 4
    assert gone(age=5, bytes=10**6) == 4
    assert gone(age=100, min_free_bytes=250, free=100) == 2
    assert gone(needed=10, age=100, min_free_bytes=250, free=0) == 1


def test_an_old_position_is_read_from_disk_and_a_new_one_from_memory(tmp_path: Path) -> None:
    class Counting(FaultyDisk):
        reads = 0

        def pread(self, fd: int, length: int, offset: int) -> bytes:  # type: ignore[override]
            self.reads += 1
            return os.pread(fd, length, offset)

    disk = Counting()
    log = DiskLog(tmp_path / "topic", NODE, files=OpenFiles(disk), options=LogOptions(tail_bytes=10_000))
    for number in range(100):
        publish(log, [b"%04d" % number * 25] * 5)
    disk.reads = 0

    assert log.reader(495).take(500, 100, 1 << 20)[1] == 5
    assert log.reader(440).take(500, 100, 1 << 20)[1] == 60
    assert log.frame(490)
    assert disk.reads == 0
    assert log.reader(0).take(500, 100, 1 << 20)[1] == 100
    assert disk.reads > 0


def test_any_slice_is_what_was_published(tmp_path: Path) -> None:
    log = filled(tmp_path / "topic")
    everything = bodies(log)
    log.close()
    log = DiskLog(tmp_path / "topic", NODE, options=SMALL)
    for start in range(60):
        for stop in range(start, 61, 7):
            assert bodies(log, start, stop) == everything[start:stop]
        assert log.frame(start)[34:] == everything[start]
        assert log.timestamp(start) == start // 3
        assert log.at_time(start // 3) == start // 3 * 3


def test_a_clock_that_was_set_back_does_not_confuse_the_search_by_time(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    for now in (10, 20, 5, 6, 30, 31):
        publish(log, [b"x"], now=now)

    assert [log.at_time(time) for time in (1, 10, 11, 20, 21, 30, 31, 32)] == [0, 0, 1, 1, 4, 4, 5, 6]


def test_many_logs_hold_few_descriptors(tmp_path: Path) -> None:
    files = OpenFiles(limit=10)
    logs = [filled(tmp_path / str(number), files=files, batches=8) for number in range(20)]

    assert len(files) <= 10
    for log in logs:
        publish(log, [b"more"], extras=[Extra(log.next, 1)])
        assert len(bodies(log)) == 25
        sync = log.begin_sync()
        assert sync is not None
        sync()
        log.finish_sync(None)
    assert len(files) <= 10
    for log in logs:
        log.close()
    assert len(files) == 0


def test_many_logs_keep_few_bytes_in_memory(tmp_path: Path) -> None:
    files = OpenFiles(cache_bytes=50_000)
    logs = [DiskLog(tmp_path / str(number), NODE, files=files) for number in range(20)]
    readers = []
    for _ in range(3):
        for log in logs:
            publish(log, [b"x" * 1000] * 10)
            reader = log.reader(0)
            assert reader.take(1, 1, 1)[1] == 1
            readers.append(reader)

    kept = sum(log._window.bytes for log in logs)
    assert kept <= 50_000
    for reader in readers:
        assert reader.take(3, 10, 1 << 20)[1] == 2  # whatever was shed is read again


def test_many_logs_keep_few_old_rows_in_memory(tmp_path: Path) -> None:
    files = OpenFiles(cache_bytes=50_000)
    headers = {"trace": "x" * 100}
    for number in range(20):
        log = DiskLog(tmp_path / str(number), NODE, files=files)
        publish(log, [b"x"] * 100, extras=[Extra(sequence, headers=headers) for sequence in range(100)])
        log.close()
    logs = [DiskLog(tmp_path / str(number), NODE, files=files) for number in range(20)]
    for log in logs:
        assert len(log.extras(0, log.end)) == 100

    assert sum(len(rows.text) for log in logs for _, _, rows in log._cold_rows) <= 50_000
    assert [extra.headers for extra in logs[0].extras(7, 8)] == [headers]  # whatever was shed is read again


def test_memory_does_not_grow_with_the_backlog(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=LogOptions(segment_bytes=1 << 20))
    batch = [b"x" * 200] * 200
    grown = []
    tracemalloc.start()
    for _ in range(5):
        for number in range(100):
            publish(log, batch, now=number)
        for _ in log.blocks(0, log.end, 1 << 18):
            pass
        grown.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()

    assert grown[-1] - grown[0] < 300_000  # another 19 MB cost next to nothing: what is kept is the newest blocks


def test_with_durability_memory_nothing_is_written_while_few_messages_wait(tmp_path: Path) -> None:
    options = LogOptions(durability="memory", mem_queue_size=10)
    log = DiskLog(tmp_path / "topic", NODE, options=options)
    for number in range(10):
        publish(log, [b"%d" % number], now=number, extras=[Extra(number, 1)] if number == 4 else [])

    assert segments(tmp_path / "topic") == []
    assert bodies(log) == [b"%d" % number for number in range(10)]
    assert log.extras(0, 10) == [Extra(4, 1)]
    assert log.at_time(7) == 7
    publish(log, [b"10"], now=10)
    assert len(segments(tmp_path / "topic")) == 1
    publish(log, [b"11"], now=11)
    log.close()

    again = DiskLog(tmp_path / "topic", NODE, options=options)
    assert bodies(again) == [b"%d" % number for number in range(12)]
    assert again.extras(0, 12) == [Extra(4, 1)]


def test_a_long_history_of_extras_is_searched_not_loaded(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    for number in range(300):
        first = log.next
        publish(log, [b"x"] * 10, extras=[Extra(first + 3, number), Extra(first + 5, 0, {"pad": "y" * 500})])
    publish(log, [b"y"], extras=[Extra(3000, 0, {"long": "z" * 400_000})])  # longer than what is read at once
    log.close()
    log = DiskLog(tmp_path / "topic", NODE)

    assert [extra.sequence for extra in log.extras(0, 10**9)][:4] == [3, 5, 13, 15]
    assert len(log.extras(0, 10**9)) == 601
    for start in (0, 1234, 2990):
        assert [extra.sequence for extra in log.extras(start, start + 10)] == [
            sequence for sequence in range(start, start + 10) if sequence % 10 in (3, 5)
        ]
    assert len(log.extras(3000, 3001)[0].headers["long"]) == 400_000


@pytest.mark.parametrize("step", [1, 7, 100, 5000])
def test_rows_of_a_long_history_come_in_any_portions(tmp_path: Path, step: int) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    expected: list[bytes] = []
    for number in range(40):
        batch = 1 if number % 2 else 97
        rows = [b'[%d,0,{"n":"%d%b"}]' % (log.next + each, number, b"]" * (each % 90)) for each in range(batch)]
        expected += rows
        frames = kernel.frame_bodies([b"x"] * batch, (NODE << 54) + log.next, number)
        log.append(frames, batch, now=number, rows=b",".join(rows))
        log.flush()
    publish(log, [b"none"] * 5)
    log.shed()

    for start in range(0, log.end, step):
        assert log.rows(start, start + step) == b",".join(expected[start : start + step])
    assert log.rows(0, log.end) == b",".join(expected)


def test_rows_come_once_after_fewer_of_the_same_batch_were_read(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    publish(log, [b"x"] * 5, extras=[Extra(sequence, headers={"n": str(sequence)}) for sequence in range(5)])
    log.shed()

    assert [extra.sequence for extra in log.extras(2, 3)] == [2]
    assert [extra.sequence for extra in log.extras(2, 5)] == [2, 3, 4]


def test_the_ids_of_a_log_are_those_of_its_node(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", 1023)
    publish(log, [b"a"])

    assert kernel.decode_messages(log.frame(0), 0, 100)[0][0][2] == b"%016x" % (1023 << 54)


def test_small_batches_share_a_record_and_survive_like_large_ones(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    sent = [b"%d" % number * 30 for number in range(2000)]
    for number, one in enumerate(sent):
        publish(log, [one], now=number)
    index = tmp_path / "topic" / f"{0:020d}.idx"

    assert index.stat().st_size < 20 * RECORD
    crashed = DiskLog(tmp_path / "topic", NODE)  # nothing was closed
    assert crashed.notes == []
    assert bodies(crashed) == sent
    assert crashed.at_time(1234) == 1234
    publish(crashed, [b"more"], now=3000)
    assert crashed.at_time(2500) == 2000
    crashed.close()
    assert bodies(DiskLog(tmp_path / "topic", NODE)) == [*sent, b"more"]
    assert index.stat().st_size < 20 * RECORD


def test_age_counts_from_the_newest_message_of_a_chunk_that_grew_slowly(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=SMALL)
    for now in (0, 1000, 2000):
        publish(log, [b"x" * 200], now=now)
    publish(log, [b"y" * 900], now=2001)
    log.close()

    again = DiskLog(tmp_path / "topic", NODE, options=SMALL)
    assert again.release(3, now=2100, limits=RetentionLimits(age=200)) == []
    assert again.release(3, now=2300, limits=RetentionLimits(age=200)) == [f"{0:020d}"]


def test_room_that_was_reserved_is_given_back(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    for _ in range(60):
        publish(log, [b"x" * 50_000])
    path = tmp_path / "topic" / f"{0:020d}.log"
    size = path.stat().st_size

    crashed = DiskLog(tmp_path / "topic", NODE)  # as after a kill
    assert path.stat().st_blocks * 512 < size + 100_000
    assert crashed.notes == []
    publish(log, [b"x" * 50_000])
    log.close()
    assert path.stat().st_blocks * 512 < size + 200_000
    assert path.stat().st_size == log.bytes


def test_a_disk_that_cannot_reserve_room_is_written_to_all_the_same(tmp_path: Path) -> None:
    class Plain(FaultyDisk):
        asked = 0

        def reserve(self, fd: int, offset: int, length: int) -> bool:  # type: ignore[override]
            self.asked += 1
            return False

    disk = Plain()
    log = DiskLog(tmp_path / "topic", NODE, files=OpenFiles(disk))
    for _ in range(60):
        publish(log, [b"x" * 50_000])
    log.close()

    assert disk.asked == 1
    assert len(bodies(DiskLog(tmp_path / "topic", NODE))) == 60


def test_with_durability_memory_what_is_consumed_in_time_is_never_written(tmp_path: Path) -> None:
    options = LogOptions(durability="memory", mem_queue_size=10)
    log = DiskLog(tmp_path / "topic", NODE, options=options)
    for number in range(100):
        publish(log, [b"%d" % number] * 2, extras=[Extra(2 * number, 1)])
        log.release(log.end - 1, now=0, limits=RetentionLimits())

    assert sum(path.stat().st_size for path in (tmp_path / "topic").glob("*.log")) == 0
    assert len(segments(tmp_path / "topic")) == 1
    assert log.first > 180
    assert bodies(log)[-1] == b"99"
    assert log.extras(0, 1000)[-1] == Extra(198, 1)
    first, held = log.first, bodies(log)
    log.close()
    again = DiskLog(tmp_path / "topic", NODE, options=options)
    assert (again.first, again.next, again.notes) == (first, 200, [])
    assert bodies(again) == held


def test_with_durability_memory_what_retention_wants_is_written(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=LogOptions(durability="memory", mem_queue_size=10))
    for number in range(50):
        publish(log, [b"%d" % number] * 2, now=number)
        log.release(log.end, now=number, limits=RetentionLimits(age=1000))

    assert len(bodies(log)) == 100
    log.close()
    assert len(bodies(DiskLog(tmp_path / "topic", NODE))) == 100


def test_without_free_descriptors_the_table_makes_do_with_fewer(tmp_path: Path) -> None:
    class Crowded(FaultyDisk):
        room = 3

        def open(self, path: str, flags: int, mode: int = 0o600) -> int:  # type: ignore[override]
            if len(files) >= self.room:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return os.open(path, flags, mode)

    files = OpenFiles()
    files.disk = Crowded()
    logs = [filled(tmp_path / str(number), files=files, batches=4) for number in range(4)]

    assert [len(bodies(log)) for log in logs] == [12] * 4


def test_no_row_comes_twice_where_one_message_was_asked_for_before(tmp_path: Path) -> None:
    log = DiskLog(tmp_path, NODE)
    for each in range(3):
        log.append(kernel.frame_one(b"x", each, 1), 1, now=1, rows=b'[%d,0,{"a":"b"}]' % each)
        log.flush()
    log.shed()
    log.rows(0, 1)

    assert log.rows(0, 3) == b'[0,0,{"a":"b"}],[1,0,{"a":"b"}],[2,0,{"a":"b"}]'
    log.close()
