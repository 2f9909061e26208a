"""What channels had finished is known after a restart."""

import errno
import json
import os
import struct
from pathlib import Path

import pytest

from lapwing.errors import LogError, WriteFailed
from lapwing.log import records
from lapwing.log.disk import Disk, OpenFiles
from lapwing.log.journal.journal import ChannelState, FailureState, HeldRun, HolderState, Journal, JournalState

from .faulty import FaultyDisk


def loaded(directory: Path) -> JournalState:
    return Journal(directory).load()


def test_a_fresh_journal_knows_nothing(tmp_path: Path) -> None:
    assert loaded(tmp_path) == JournalState(None, {})
    journal = Journal(tmp_path)
    journal.flush()
    assert not (tmp_path / "journal").exists()


def test_what_was_said_last_counts(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.fanned_out(7)
    journal.progress("c", 5, [(1, 2), (3, 5)], {3: 2})
    journal.progress("d", 1, [], {})
    journal.flush()
    journal.progress("c", 9, [(4, 5)], {4: 1})
    journal.fanned_out(9)
    journal.flush()

    assert loaded(tmp_path) == JournalState(
        9, {"c": ChannelState(9, [(4, 5)], {4: 1}, {}), "d": ChannelState(1, [], {}, {})}
    )


def test_nothing_counts_before_a_flush(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.progress("c", 5, [], {})

    assert loaded(tmp_path).channels == {}
    journal.close()
    assert loaded(tmp_path).channels["c"].cursor == 5


def test_deferrals_add_up(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.progress("c", 50, [], {20: 4})
    journal.deferred("c", [(1, 1000, 2), (2, 2000, 0)], [])
    journal.flush()
    journal.deferred("c", [(3, 3000, 1)], [1])
    journal.progress("c", 60, [], {})
    journal.flush()

    assert loaded(tmp_path).channels["c"] == ChannelState(60, [], {3: 1}, {2: 2000, 3: 3000})


def test_a_forgotten_channel_begins_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.progress("c", 50, [(1, 9)], {})
    journal.deferred("c", [(1, 1000, 2)], [])
    journal.flush()
    journal.forget("c")
    journal.progress("c", 3, [], {})
    journal.flush()

    assert loaded(tmp_path).channels == {"c": ChannelState(3, [], {}, {})}
    journal.forget("c")
    journal.flush()
    assert loaded(tmp_path).channels == {}


def test_a_torn_record_is_as_if_it_was_never_written_and_the_journal_goes_on(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.progress("c", 1, [], {})
    journal.flush()
    before = (tmp_path / "journal").read_bytes()
    journal.progress("c", 2, [(0, 1)], {0: 1})
    journal.flush()
    after = (tmp_path / "journal").read_bytes()
    for length in range(len(before), len(after)):
        (tmp_path / "journal").write_bytes(after[:length])

        torn = Journal(tmp_path)
        assert torn.load().channels["c"].cursor == 1
        torn.progress("d", 7, [], {})
        torn.flush()
        again = Journal(tmp_path)
        assert {name: channel.cursor for name, channel in again.load().channels.items()} == {"c": 1, "d": 7}
        assert again.notes == []


def test_a_flipped_bit_costs_one_record(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for name in ("a", "b", "c"):
        journal.progress(name, 5, [], {})
        journal.flush()
    whole = (tmp_path / "journal").read_bytes()
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "journal").write_bytes(damaged)

        journal = Journal(tmp_path)
        assert len(journal.load().channels) == 2
        assert sum("skipped" in note for note in journal.notes) == 1


def damage(path: Path, number: int) -> None:
    """Flip a bit of one record."""
    whole = bytearray((path / "journal").read_bytes())
    places = [at for at in range(len(whole)) if whole.startswith(b"LWR1", at)]
    whole[places[number] + 20] ^= 4
    (path / "journal").write_bytes(whole)


def test_what_may_have_begun_to_wait_in_a_damaged_record_is_unfinished(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.progress("c", 10, [(7, 9)], {})
    journal.flush()
    journal.progress("c", 13, [(8, 9), (11, 12)], {})
    journal.deferred("c", [(7, 1000, 1), (12, 1000, 1)], [])
    journal.flush()
    journal.progress("c", 20, [(8, 9), (15, 17)], {})
    journal.flush()
    journal.progress("c", 30, [(29, 30)], {})
    journal.deferred("c", [(10, 1000, 2)], [13])
    journal.flush()
    damage(tmp_path, 1)

    state = loaded(tmp_path).channels["c"]
    doubtful = {7, 11, 12, 14, 15, 16, 17, 18, 19, *range(10, 20)} - {8, 15, 16} - {10, 13}
    assert {sequence for run in state.unfinished for sequence in range(*run)} == doubtful | {29}
    assert (state.cursor, state.deferred) == (30, {10: 1000})


def test_doubts_are_had_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for cursor in (1, 2, 3):
        journal.progress("c", cursor, [], {})
        journal.flush()
    damage(tmp_path, 1)
    journal = Journal(tmp_path)
    assert journal.load().channels["c"].unfinished == [(1, 2), (2, 3)]
    assert journal.damaged
    journal.progress("c", 3, [(1, 3)], {})
    journal.flush()
    journal.compact()
    journal.progress("c", 3, [], {})
    journal.flush()

    again = Journal(tmp_path)
    assert again.load().channels["c"] == ChannelState(3)
    assert again.notes == []
    assert (tmp_path / "journal.damaged").exists()


def test_a_channel_whose_beginning_is_lost_has_everything_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for cursor in (10**9, 10**9 + 5):
        journal.progress("c", cursor, [(10**9, 10**9 + 2)], {})
        journal.flush()
    damage(tmp_path, 0)

    assert loaded(tmp_path).channels["c"].cursor == 0


VERSION_3 = json.dumps({"version": 3, "kinds": {"77": "claims"}}).encode()
VERSION_2 = VERSION_3.replace(b"3", b"2", 1)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x4d\x01cwhatever", r"entry of the unknown kind 77;"),
        (b"\x00\x00" + struct.pack("<I", len(VERSION_2)) + VERSION_2 + b"\x4d\x00", r"unknown kind 77 \(claims\)"),
        (b"\x00\x00" + struct.pack("<I", len(VERSION_3)) + VERSION_3, "the file is of version 3, up to 2 is known"),
        (b"\x02\x01c" + bytes([255] * 8), "entry of kind deferred: it ends too early"),
        (b"\x01\xffname", "entry of kind progress: it ends too early"),
        (b"\x00\x00" + struct.pack("<I", 2) + b"[]", "entry of kind version: "),
    ],
)
def test_an_entry_of_another_version_is_refused_by_name_and_nothing_is_changed(
    tmp_path: Path, payload: bytes, reason: str
) -> None:
    journal = Journal(tmp_path)
    journal.progress("c", 3, [], {})
    journal.flush()
    with (tmp_path / "journal").open("ab") as file:
        file.write(records.encode(payload))
    before = (tmp_path / "journal").read_bytes()
    journal = Journal(tmp_path)

    with pytest.raises(LogError, match=reason):
        journal.load()
    journal.progress("c", 4, [], {})
    with pytest.raises(LogError, match=reason):
        journal.flush()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("journal", before)]


def test_a_file_begins_with_its_version_and_an_old_one_gets_it(tmp_path: Path) -> None:
    old = records.encode(b"\x03\x00" + struct.pack("<q", 7))
    for name, content in (("new", b""), ("old", old)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "journal").write_bytes(content)
        journal = Journal(tmp_path / name)
        for cursor in (1, 2):
            journal.progress("c", cursor, [], {})
            journal.flush()
        written = (tmp_path / name / "journal").read_bytes()

        assert written.startswith(content)
        assert written.count(b'{"version":2,') == 1
        assert loaded(tmp_path / name).channels["c"].cursor == 2
    assert loaded(tmp_path / "old").fanned_out == 7


HELD = HolderState(5, 4, [HeldRun(1, 3, 100, 1), HeldRun(7, 8, 200, 3)])


def test_holders_are_replaced_one_by_one_and_go_with_their_channel(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.progress("c", 9, [], {})
    journal.holder("c", "ann", HolderState(1, 1, [HeldRun(0, 9, 50, 1)]))
    journal.holder("c", "bob", HELD)
    journal.holder("c", "\udcff odd", HolderState())
    journal.holder("d", "ann", HELD)
    journal.flush()
    journal.holder("c", "ann", HELD)
    journal.drop_holder("c", "bob")
    journal.forget("d")
    journal.flush()
    assert loaded(tmp_path).channels == {"c": ChannelState(9, holders={"ann": HELD, "\udcff odd": HolderState()})}
    journal.compact()

    assert loaded(tmp_path).channels == {"c": ChannelState(9, holders={"ann": HELD, "\udcff odd": HolderState()})}


def test_a_holder_that_is_dropped_and_comes_again_before_the_flush_is_there(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.holder("c", "ann", HolderState())
    journal.drop_holder("c", "ann")
    journal.holder("c", "ann", HELD)
    journal.holder("c", "bob", HELD)
    journal.drop_holder("c", "bob")
    journal.flush()

    assert loaded(tmp_path).channels["c"].holders == {"ann": HELD}


def test_failures_add_up(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.failures("c", [(1, FailureState(1, 100, 2)), (2, FailureState(4, 50, 1))], [])
    journal.flush()
    journal.failures("c", [(1, FailureState(2, 100, 3)), (3, FailureState(1, 300, 1))], [2])
    journal.flush()
    expected = {1: FailureState(2, 100, 3), 3: FailureState(1, 300, 1)}
    assert loaded(tmp_path).channels["c"].failures == expected
    journal.compact()

    assert loaded(tmp_path).channels["c"].failures == expected


def test_notes_of_a_channel_are_replaced_and_removed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.note("c", "mark", b"1")
    journal.note("c", "gone", b"\0" * 1000)
    journal.note("d", "mark", b"d")
    journal.flush(sync=True)
    journal.note("c", "mark", b"2")
    journal.note("c", "gone", b"")
    journal.forget("d")
    journal.flush()
    assert loaded(tmp_path).channels == {"c": ChannelState(notes={"mark": b"2"})}
    journal.compact()

    assert loaded(tmp_path).channels == {"c": ChannelState(notes={"mark": b"2"})}


def test_notes_from_before_a_damage_are_not_believed(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.progress("c", 1, [], {})
    journal.note("c", "mark", b"1")
    journal.flush()
    journal.note("c", "mark", b"2")
    journal.flush()
    journal.note("c", "other", b"3")
    journal.flush()
    damage(tmp_path, 1)

    assert loaded(tmp_path).channels["c"].notes == {"other": b"3"}


def test_dropped_messages_of_the_topic_are_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.emptied([(1, 2), (5, 9)])
    journal.deleted([(20, 21), (10, 12)])
    journal.deleted([(21, 23), (3, 4)])
    journal.flush()
    journal.emptied([(5, 9)])
    journal.trimmed(11)
    journal.flush()
    expected = JournalState(None, {}, [(5, 9)], [(10, 12), (20, 23)], 11)
    assert loaded(tmp_path) == expected
    journal.compact()

    assert loaded(tmp_path) == expected


def test_the_file_stays_small_with_holders_failures_and_deletions(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(600):
        held = [HeldRun(at, at + 1, 9, 1) for at in range(number, number + 90)]
        journal.holder("c", "ann", HolderState(number, 0, held))
        failures = [(at, FailureState(1, 9, 1)) for at in range(100 * number, 100 * number + 100)]
        journal.failures("c", failures, range(100 * number - 100, 100 * number))
        journal.deleted([(number, number + 1)])
        journal.flush()
        assert (tmp_path / "journal").stat().st_size < 1_100_000

    state = loaded(tmp_path)
    assert (len(state.channels["c"].failures), state.deleted) == (100, [(0, 600)])
    assert state.channels["c"].holders["ann"].seen == 599


def test_a_message_that_a_holder_has_is_not_in_doubt(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.progress("c", 1, [], {})
    journal.flush()
    journal.progress("c", 4, [], {})
    journal.flush()
    journal.progress("c", 6, [], {})
    journal.holder("c", "ann", HolderState(0, 0, [HeldRun(2, 4, 9, 1)]))
    journal.flush()
    damage(tmp_path, 1)

    assert loaded(tmp_path).channels["c"].unfinished == [(1, 2), (4, 5), (5, 6)]


def test_the_file_stays_small_however_long_it_is_used(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    waiting = [(sequence, 10**18 + sequence, 1) for sequence in range(500)]
    journal.deferred("c", waiting, [])
    for cursor in range(0, 400_000, 200):
        journal.progress("c", cursor, [(run, run + 1) for run in range(cursor, cursor + 100, 2)], {})
        journal.progress("d", cursor, [], {})
        journal.fanned_out(cursor)
        journal.flush()
        assert (tmp_path / "journal").stat().st_size < 1_100_000

    state = loaded(tmp_path)
    assert state.fanned_out == 399_800
    assert state.channels["c"].cursor == 399_800
    assert len(state.channels["c"].unfinished) == 50
    assert state.channels["c"].deferred == {sequence: due for sequence, due, _ in waiting}


def test_a_refused_write_is_said_again_at_the_next_flush(tmp_path: Path) -> None:
    disk = FaultyDisk(short=9)
    journal = Journal(tmp_path, files=OpenFiles(disk))
    journal.progress("c", 1, [], {})
    journal.flush()
    disk.arm(0, 3)
    journal.progress("c", 2, [], {})
    journal.deferred("c", [(1, 5, 1)], [])
    for _ in range(3):
        with pytest.raises(WriteFailed):
            journal.flush()
    journal.flush()

    assert loaded(tmp_path).channels["c"] == ChannelState(2, [], {1: 1}, {1: 5})


def test_a_journal_that_cannot_be_compacted_is_still_a_journal(tmp_path: Path) -> None:
    disk = FaultyDisk(only=("rename",))
    disk.arm(0, 10**9)
    journal = Journal(tmp_path, files=OpenFiles(disk))
    for cursor in range(40):
        journal.progress("c", cursor, [(run, run + 1) for run in range(4000)], {})
        journal.flush()
        journal.progress("c", cursor, [], {})
        journal.flush()

    assert loaded(tmp_path).channels["c"].cursor == 39
    assert any("could not be compacted" in note for note in journal.notes)
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]


class UnreadableDisk(Disk):
    """A disk whose reads from a place on fail while `fails` is set."""

    def __init__(self) -> None:
        self.fails = False

    def pread(self, fd: int, length: int, offset: int) -> bytes:  # type: ignore[override]
        if self.fails and offset:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(fd, length, offset)


def test_a_read_that_fails_while_the_journal_is_compacted_spoils_nothing(tmp_path: Path) -> None:
    disk = UnreadableDisk()
    journal = Journal(tmp_path, files=OpenFiles(disk))
    runs = [(2 * run, 2 * run + 1) for run in range(8000)]  # two records are more than is read at once
    for cursor in range(4):
        journal.progress("c", 20_000 + cursor, runs, {})
        journal.deferred("c", [(cursor, 5, 1)], [])
        journal.flush()
    disk.fails = True
    journal.compact()
    disk.fails = False
    journal.progress("c", 30_000, [], {})
    journal.flush()
    again = Journal(tmp_path)
    state = again.load()

    assert (again.notes, again.damaged) == ([], False)
    assert (state.channels["c"].cursor, sorted(state.channels["c"].deferred)) == (30_000, [0, 1, 2, 3])


def test_what_lies_beyond_the_end_of_the_log_is_dropped_for_good(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.progress("c", 9, [(3, 5)], {})
    journal.deferred("c", [(1, 10, 1), (7, 10, 1)], [])
    journal.failures("c", [(3, FailureState(1, 2, 3)), (6, FailureState(1, 2, 3))], [])
    journal.holder("c", "one", HolderState(runs=[HeldRun(2, 3, 1, 1), HeldRun(5, 9, 1, 1), HeldRun(9, 10, 1, 1)]))
    journal.deleted([(0, 1), (4, 8)])
    journal.trimmed(1)
    journal.flush()
    state = Journal(tmp_path).load(end=6)

    assert state == loaded(tmp_path)
    assert state.deleted == [(4, 6)]
    assert state.channels["c"].holders["one"].runs == [HeldRun(2, 3, 1, 1), HeldRun(5, 6, 1, 1)]
    assert state.channels["c"].deferred == {1: 10}
    assert state.channels["c"].failures == {3: FailureState(1, 2, 3)}


def test_a_journal_that_must_be_cut_and_cannot_is_not_loaded(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.deleted([(4, 8)])
    journal.flush()
    disk = FaultyDisk()
    disk.arm(0, times=100)

    with pytest.raises(LogError, match="knows of messages that the log has lost, and cannot be written: make room"):
        Journal(tmp_path, files=OpenFiles(disk)).load(end=6)
    assert loaded(tmp_path).deleted == [(4, 8)]


def test_the_first_flush_that_is_synced_makes_the_name_of_the_file_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    synced: list[str] = []
    monkeypatch.setattr(disk, "sync_directory", synced.append)
    journal = Journal(tmp_path, files=OpenFiles(disk))
    journal.fanned_out(1)
    journal.flush()
    for number in (2, 3):
        journal.fanned_out(number)
        journal.flush(sync=True)

    assert synced == [str(tmp_path)]
