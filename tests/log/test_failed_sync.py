"""After a failed fsync everything is written again: the next one would succeed without the pages that were lost."""

from pathlib import Path

import pytest

from lapwing.errors import WriteFailed
from lapwing.log.disk import OpenFiles
from lapwing.log.journal.journal import Journal
from lapwing.log.log import DiskLog, LogOptions
from lapwing.log.segments.attributes import Extra
from lapwing.log.side.sidelog import SideLog
from lapwing.log.staged import Intent, StagedFiles

from .forgetful import ForgetfulDisk, files_in
from .writing import NODE, bodies, publish

PARTS = [b"%05d" % number + bytes(995) for number in range(40)]  # ten pages


def sync(log: DiskLog) -> bool:
    """Sync a log; whether that worked."""
    job = log.begin_sync()
    assert job is not None
    try:
        job()
    except OSError as error:
        log.finish_sync(error)
        return False
    log.finish_sync(None)
    return True


@pytest.mark.parametrize("failures", [1, 3], ids=["one fsync", "three fsyncs"])
@pytest.mark.parametrize("before", [0, 10], ids=["first sync", "later sync"])
def test_messages_whose_sync_failed_are_on_the_disk_after_the_next_one(
    tmp_path: Path, failures: int, before: int
) -> None:
    disk = ForgetfulDisk()
    options = LogOptions(durability="fsync", segment_bytes=20_000, boot=1)
    log = DiskLog(tmp_path / "topic", NODE, files=OpenFiles(disk), options=options)
    for number, body in enumerate(PARTS[:before]):
        publish(log, [body], extras=[Extra(number, headers={"a": "b" * 300})])
    if before:
        assert sync(log)
    for number, body in enumerate(PARTS[before:], before):
        publish(log, [body], extras=[Extra(number, headers={"a": "b" * 300})])
    disk.failing = failures
    while not sync(log):
        publish(log, [b"more"])
    count = log.end
    disk.lose_power(tmp_path)

    again = DiskLog(tmp_path / "topic", NODE, options=LogOptions(boot=2))
    assert bodies(again)[: len(PARTS)] == PARTS
    assert len(bodies(again)) == count
    assert len(again.extras(0, count)) == len(PARTS)


def test_a_page_that_the_system_has_lost_is_set_aside_and_its_neighbours_are_not(tmp_path: Path) -> None:
    disk = ForgetfulDisk()
    options = LogOptions(merge_bytes=0, boot=1, tail_bytes=0)
    log = DiskLog(tmp_path / "topic", NODE, files=OpenFiles(disk), options=options)
    for body in PARTS:
        publish(log, [body])
    disk.failing = 1
    assert not sync(log)
    (frames,) = [path for path in files_in(tmp_path) if path.suffix == ".log"]
    with frames.open("r+b") as file:  # as btrfs does
        file.seek(4096)
        file.write(bytes(4096))

    assert sync(log)
    found = bodies(log)
    assert 30 < len(found) < len(PARTS)
    assert set(found) < set(PARTS)


def test_a_journal_whose_sync_failed_is_written_again(tmp_path: Path) -> None:
    disk = ForgetfulDisk()
    journal = Journal(tmp_path, files=OpenFiles(disk), sync=True)
    for number in range(500):
        journal.deferred("c", [(number, 10**18, 1)], [])
        journal.flush()
    journal.progress("c", 700, [], {})
    disk.failing = 1
    with pytest.raises(WriteFailed):
        journal.flush(sync=True)
    journal.flush(sync=True)
    disk.lose_power(tmp_path)

    state = Journal(tmp_path).load()
    assert len(state.channels["c"].deferred) == 500
    assert state.channels["c"].cursor == 700


def test_a_side_log_whose_sync_failed_is_written_again(tmp_path: Path) -> None:
    disk = ForgetfulDisk()
    side = SideLog(tmp_path, "c", files=OpenFiles(disk), sync=True)
    for number, body in enumerate(PARTS):
        side.put(number, body)
    disk.failing = 1
    with pytest.raises(WriteFailed):
        side.flush()
    side.put(40, b"more")
    side.flush()
    disk.lose_power(tmp_path)

    again = SideLog(tmp_path, "c")
    assert [again.frame(number) for number in range(41)] == [*PARTS, b"more"]


def test_a_side_log_that_could_not_be_emptied_takes_more(tmp_path: Path) -> None:
    disk = ForgetfulDisk()
    side = SideLog(tmp_path, "c", files=OpenFiles(disk), sync=True)
    side.put(1, b"one")
    side.flush()
    side.drop([1])
    disk.failing = 1
    with pytest.raises(WriteFailed):
        side.flush()
    side.put(2, b"two")
    side.flush()

    again = SideLog(tmp_path, "c")
    assert (set(again.sequences()), again.frame(2), again.notes) == ({2}, b"two", [])


def test_a_side_log_is_usable_when_only_its_name_could_not_be_synced(tmp_path: Path) -> None:
    disk = ForgetfulDisk()
    side = SideLog(tmp_path, "c", files=OpenFiles(disk), sync=True)
    for number, body in enumerate(PARTS):
        side.put(number, body)
    side.flush()
    side.drop(range(10))
    side.flush()
    synced = 0
    original = disk.sync_directory

    def fail_once(path: str) -> None:
        nonlocal synced
        synced += 1
        if synced == 1:
            raise OSError(5, "Input/output error")
        original(path)

    disk.sync_directory = fail_once  # type: ignore[method-assign]
    side.compact()
    side.put(40, b"more")
    side.flush()

    assert synced == 2  # the next append synced the name
    for seen in (side, SideLog(tmp_path, "c")):
        assert [seen.frame(number) for number in range(10, 41)] == [*PARTS[10:], b"more"]


def test_an_intent_whose_sync_failed_is_written_again(tmp_path: Path) -> None:
    disk = ForgetfulDisk()
    staged = StagedFiles(str(tmp_path), sync=True, disk=disk)
    staged.write_intent("s", Intent(1, [(f"k{number}", 0) for number in range(100)]))
    facts = {"topic": "t" * 60, "log_id": "0" * 16, "next": 0, "now": 0}
    calls = [staged.note("s", number, facts) for number in range(99)]
    disk.failing = 1
    assert calls[-1] is not None
    with pytest.raises(OSError, match="Input/output error"):
        calls[-1]()
    last = staged.note("s", 99, facts)
    if last is not None:
        last()
    disk.lose_power(tmp_path)

    intent = StagedFiles(str(tmp_path), sync=True).intent("s")
    assert intent is not None
    assert sorted(intent.begun) == list(range(100))
