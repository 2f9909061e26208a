"""What channels had finished is known after a restart."""

from pathlib import Path

import pytest

from lapwing.errors import WriteFailed
from lapwing.log import records
from lapwing.log.disk import OpenFiles
from lapwing.log.journal import ChannelState, Journal, JournalState

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


def test_an_entry_of_a_kind_to_come_is_told_of_and_a_copy_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.progress("c", 3, [], {})
    journal.flush()
    with (tmp_path / "journal").open("ab") as file:
        file.write(records.encode(b"\x09\x01cwhatever") + records.encode(b"\x02\x01c" + bytes([255] * 8)))
    journal = Journal(tmp_path)

    assert journal.load().channels == {"c": ChannelState(3)}
    assert sum("another version" in note for note in journal.notes) == 2
    assert (tmp_path / "journal.damaged").exists()


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
