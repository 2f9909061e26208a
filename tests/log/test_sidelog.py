"""A straggler survives its segment."""

from pathlib import Path

import pytest

from lapwing.errors import CorruptChunk, OutOfRange, WriteFailed
from lapwing.log import records
from lapwing.log.disk import OpenFiles
from lapwing.log.side.sequence_map import SequenceMap
from lapwing.log.side.sidelog import SideLog, side_path

from .faulty import FaultyDisk


def test_what_is_put_can_be_read_before_and_after_a_flush_and_a_restart(tmp_path: Path) -> None:
    side = SideLog(tmp_path, "Channel")
    side.put(7, b"seven")
    assert side.frame(7) == b"seven"
    side.flush()
    side.put(9, b"nine")
    assert (side.frame(7), side.frame(9), set(side.sequences())) == (b"seven", b"nine", {7, 9})
    side.close()

    again = SideLog(tmp_path, "Channel")
    assert (again.frame(7), again.frame(9), len(again)) == (b"seven", b"nine", 2)
    assert Path(side_path(tmp_path, "Channel")) == tmp_path / "side" / "c-+channel"


def test_what_is_dropped_is_gone(tmp_path: Path) -> None:
    side = SideLog(tmp_path, "c")
    side.put(1, b"one")
    side.put(2, b"two")
    side.flush()
    side.put(3, b"three")
    side.drop([1, 3, 99])
    side.flush()

    again = SideLog(tmp_path, "c")
    assert set(side.sequences()) == set(again.sequences()) == {2}
    with pytest.raises(OutOfRange):
        again.frame(1)


def test_dropping_all_looks_up_no_frame_and_leaves_nothing_but_what_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = SideLog(tmp_path, "c")
    for sequence in range(10_000):
        side.put(sequence, b"frame")
    side.flush()
    side.put(10_001, b"unwritten")
    with monkeypatch.context() as patch:
        patch.setattr(SequenceMap, "pop", None)
        side.drop_all()
    assert (len(side), list(side.sequences())) == (0, [])
    side.put(5, b"again")
    side.close()

    again = SideLog(tmp_path, "c")
    assert (list(again.sequences()), again.frame(5)) == ([5], b"again")


def test_what_comes_back_after_it_was_dropped_stays(tmp_path: Path) -> None:
    side = SideLog(tmp_path, "c")
    side.put(1, b"one")
    side.put(2, b"two")
    side.flush()
    side.drop([1])
    side.put(1, b"uno")
    side.flush()

    assert SideLog(tmp_path, "c").frame(1) == b"uno"


def test_an_empty_side_log_is_an_empty_file_and_destroy_removes_it(tmp_path: Path) -> None:
    side = SideLog(tmp_path, "c")
    side.put(1, b"one" * 100)
    side.flush()
    side.drop([1])
    side.flush()

    path = Path(side_path(tmp_path, "c"))
    assert path.stat().st_size == 0
    side.put(2, b"two")
    side.flush()
    assert SideLog(tmp_path, "c").frame(2) == b"two"
    side.destroy()
    assert not path.exists()


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    side = SideLog(tmp_path, "c")
    frame = b"x" * 10_000
    side.put(0, b"the first")
    for sequence in range(1, 2000):
        side.put(sequence, frame)
        side.drop([sequence - 5] if sequence > 5 else [])
        side.flush()
        assert Path(side_path(tmp_path, "c")).stat().st_size < 1_200_000

    again = SideLog(tmp_path, "c")
    assert set(again.sequences()) == set(side.sequences()) == {0, *range(1995, 2000)}
    assert (side.frame(0), again.frame(1999)) == (b"the first", frame)


def test_a_torn_end_is_cut_and_a_flipped_bit_costs_one_frame(tmp_path: Path) -> None:
    side = SideLog(tmp_path, "c")
    for sequence in range(3):
        side.put(sequence, b"frame %d" % sequence)
        side.flush()
    side.close()
    path = Path(side_path(tmp_path, "c"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])

    torn = SideLog(tmp_path, "c")
    assert set(torn.sequences()) == {0, 1}
    torn.put(5, b"five")
    torn.flush()
    assert set(SideLog(tmp_path, "c").sequences()) == {0, 1, 5}

    path.write_bytes(whole)
    open_one = SideLog(tmp_path, "c")
    for place in range(len(whole) // 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        assert set(SideLog(tmp_path, "c").sequences()) == {1, 2}
        with pytest.raises(CorruptChunk):
            open_one.frame(0)


def test_a_torn_head_before_zeros_is_no_record(tmp_path: Path) -> None:
    side = SideLog(tmp_path, "c")
    side.put(1, b"one")
    side.close()
    path = Path(side_path(tmp_path, "c"))
    path.write_bytes(path.read_bytes() + b"LWR1" + bytes(40))

    again = SideLog(tmp_path, "c")
    again.put(2, b"two")
    again.close()
    assert set(SideLog(tmp_path, "c").sequences()) == {1, 2}


def test_a_long_frame_is_found_again(tmp_path: Path) -> None:
    side = SideLog(tmp_path, "c")
    side.put(1, b"a" * 3_000_000)
    side.put(2, b"b")
    side.close()

    again = SideLog(tmp_path, "c")
    assert len(again.frame(1)) == 3_000_000
    assert again.frame(2) == b"b"


def test_a_refused_write_is_made_up_for(tmp_path: Path) -> None:
    disk = FaultyDisk(short=10)
    side = SideLog(tmp_path, "c", files=OpenFiles(disk), sync=True)
    side.put(1, b"one")
    for number in range(3):
        disk.arm(number)
        with pytest.raises(WriteFailed):
            side.flush()
        assert side.frame(1) == b"one"
    disk.arm(-1)
    side.flush()

    assert SideLog(tmp_path, "c").frame(1) == b"one"


def test_a_record_of_a_kind_to_come_is_told_of_and_skipped(tmp_path: Path) -> None:
    side = SideLog(tmp_path, "c")
    side.put(3, b"three")
    side.close()
    with open(side.path, "ab") as file:
        file.write(records.encode(b"\x07unheard of") + records.encode(b"\x02odd") + records.encode(b"\x01odd"))
    side = SideLog(tmp_path, "c")

    assert set(side.sequences()) == {3}
    assert ["another version" in note for note in side.notes] == [True, True, True]
