"""Whatever a crash or a bad disk leaves: nothing acknowledged is lost, nothing corrupt is served, and it is said."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lapwing import kernel
from lapwing.errors import CorruptChunk
from lapwing.log.index import RECORD
from lapwing.log.journal import Journal
from lapwing.log.log import DiskLog, Extra, LogOptions

from .writing import NODE, bodies, publish

SEGMENT = f"{0:020d}"
BATCHES = [[b"alpha", b"beta", b""], [b"gamma"], [b"delta", b"epsilon" * 3]]
EVERYTHING = [body for batch in BATCHES for body in batch]
EXTRAS = {0: [Extra(1, 5), Extra(2, 0, {"k": "v"})], 1: [Extra(3, 7)], 2: [Extra(4, 2), Extra(5, 0, {"a": "b"})]}
ALL_EXTRAS = [extra for extras in EXTRAS.values() for extra in extras]


@dataclass
class Files:
    """A log's files as bytes, to be laid out again with some damage."""

    directory: Path
    content: dict[str, bytes]

    @classmethod
    def of(cls, directory: Path) -> "Files":
        return cls(directory, {path.name: path.read_bytes() for path in directory.iterdir()})

    def lay_out(self, target: Path, **changed: bytes | None) -> Path:
        """Write them to `target`; files named by their ending are given other bytes, or left out."""
        target.mkdir(exist_ok=True)
        for path in target.iterdir():
            path.unlink()
        for name, data in self.content.items():
            changed_to = changed.get(name.rpartition(".")[2], data)
            if changed_to is not None:
                (target / name).write_bytes(changed_to)
        return target

    def __getitem__(self, ending: str) -> bytes:
        return self.content.get(f"{SEGMENT}.{ending}", b"")


@pytest.fixture
def stages(tmp_path: Path) -> list[Files]:
    """The files of one log after each batch."""
    log = DiskLog(tmp_path / "made", NODE, options=LogOptions(merge_bytes=0))
    stages = []
    for number, batch in enumerate(BATCHES):
        publish(log, batch, extras=EXTRAS[number], now=100 + number)
        stages.append(Files.of(tmp_path / "made"))
    log.close()
    return stages


def reopen(directory: Path) -> tuple[DiskLog, list[tuple[str, int, int, int]]]:
    corrupt: list[tuple[str, int, int, int]] = []
    log = DiskLog(directory, NODE, on_corrupt=lambda *told: corrupt.append(told))
    return log, corrupt


def goes_on(log: DiskLog, directory: Path) -> None:
    """The log takes and keeps a new message that has nothing of what was there before."""
    before = bodies(log)
    sequence = publish(log, [b"new"], now=999)
    log.close()
    again = DiskLog(directory, NODE)
    assert bodies(again) == [*before, b"new"]
    assert again.extras(sequence, sequence + 1) == []
    assert again.frame(sequence)[34:] == b"new"
    assert again.identity == log.identity
    again.close()


def test_the_last_write_may_be_torn_at_every_byte(stages: list[Files], tmp_path: Path) -> None:
    before, after = stages[1], stages[2]
    order = ("aux", "log", "idx")
    for torn in order:
        for length in range(len(before[torn]), len(after[torn]) + 1):
            done = order.index(torn)
            changed = {ending: (after if order.index(ending) < done else before)[ending] for ending in order}
            changed[torn] = after[torn][:length]
            directory = after.lay_out(tmp_path / "torn", **changed)

            log, corrupt = reopen(directory)

            found = bodies(log)
            assert found == EVERYTHING[: len(found)]
            assert len(found) >= 4
            assert not corrupt
            if changed["log"] == after["log"]:
                assert found == EVERYTHING
            assert log.extras(0, 9) == [extra for extra in ALL_EXTRAS if extra.sequence < log.next]
            goes_on(log, directory)


@pytest.mark.parametrize("ending", ["log", "idx", "aux"])
def test_any_file_may_be_short_by_any_number_of_bytes(stages: list[Files], tmp_path: Path, ending: str) -> None:
    whole = stages[-1]
    for length in range(len(whole[ending])):
        directory = whole.lay_out(tmp_path / "short", **{ending: whole[ending][:length]})

        log, corrupt = reopen(directory)

        found = bodies(log)
        assert found == (EVERYTHING[: len(found)] if ending == "log" else EVERYTHING)
        assert not corrupt
        assert all(extra in ALL_EXTRAS for extra in log.extras(0, 9))
        goes_on(log, directory)


def test_a_flipped_bit_anywhere_in_the_frames_costs_one_chunk_and_is_told_with_its_place(
    stages: list[Files], tmp_path: Path
) -> None:
    whole = stages[-1]
    ends = [len(stage["log"]) for stage in stages]
    for place in range(len(whole["log"])):
        damaged = bytearray(whole["log"])
        damaged[place] ^= 1 << place % 8
        directory = whole.lay_out(tmp_path / "flipped", log=bytes(damaged))
        hit = next(number for number, end in enumerate(ends) if place < end)
        first = sum(map(len, BATCHES[:hit]))

        log, corrupt = reopen(directory)

        assert bodies(log) == [body for number, batch in enumerate(BATCHES) if number != hit for body in batch]
        begin = ends[hit - 1] if hit else 0
        assert corrupt == [(str(directory / f"{SEGMENT}.log"), begin, first, len(BATCHES[hit]))]
        with pytest.raises(CorruptChunk, match=f"offset {begin}") as caught:
            log.frame(first)
        assert caught.value.path.endswith(".log")
        assert log.next == len(EVERYTHING)
        goes_on(log, directory)


def test_a_flipped_bit_anywhere_in_the_index_costs_nothing(stages: list[Files], tmp_path: Path) -> None:
    whole = stages[-1]
    for place in range(len(whole["idx"])):
        damaged = bytearray(whole["idx"])
        damaged[place] ^= 1 << place % 8
        directory = whole.lay_out(tmp_path / "flipped", idx=bytes(damaged))

        log, corrupt = reopen(directory)

        assert bodies(log) == EVERYTHING
        assert not corrupt
        assert [log.frame(sequence)[34:] for sequence in range(6)] == EVERYTHING
        assert any(f"{SEGMENT}.idx: offset" in note for note in log.notes)
        goes_on(log, directory)


def test_a_flipped_bit_in_the_extras_costs_no_message(stages: list[Files], tmp_path: Path) -> None:
    whole = stages[-1]
    for place in range(len(whole["aux"])):
        damaged = bytearray(whole["aux"])
        damaged[place] ^= 1 << place % 8
        directory = whole.lay_out(tmp_path / "flipped", aux=bytes(damaged))

        log, _ = reopen(directory)

        assert bodies(log) == EVERYTHING
        assert len([extra for extra in log.extras(0, 9) if extra in ALL_EXTRAS]) >= 2
        goes_on(log, directory)


def test_a_missing_index_is_made_again_from_the_frames(stages: list[Files], tmp_path: Path) -> None:
    directory = stages[-1].lay_out(tmp_path / "damaged", idx=None)

    log, corrupt = reopen(directory)

    assert bodies(log) == EVERYTHING
    assert not corrupt
    assert any("made the index anew" in note for note in log.notes)
    log.close()
    assert reopen(directory)[0].notes == []


def test_a_stale_index_is_brought_up_to_date(stages: list[Files], tmp_path: Path) -> None:
    directory = stages[-1].lay_out(tmp_path / "damaged", idx=stages[0]["idx"])

    log, corrupt = reopen(directory)

    assert bodies(log) == EVERYTHING
    assert not corrupt
    assert any("found 3 whole messages" in note for note in log.notes)


def test_an_index_of_another_segment_is_not_believed(stages: list[Files], tmp_path: Path) -> None:
    other = DiskLog(tmp_path / "other", NODE)
    publish(other, [b"x" * 50] * 9)
    publish(other, [b"y"])
    other.close()
    stranger = (tmp_path / "other" / f"{SEGMENT}.idx").read_bytes()
    for idx in (stranger, stranger[RECORD:], b"\0" * 88, b"\xff" * 44):
        directory = stages[-1].lay_out(tmp_path / "damaged", idx=idx)

        log, _ = reopen(directory)

        found = bodies(log)
        assert all(body in EVERYTHING for body in found)
        assert found == EVERYTHING or any(".log: offset" in note for note in log.notes)


def test_without_an_index_a_damaged_frame_costs_none_of_those_behind_it(stages: list[Files], tmp_path: Path) -> None:
    whole = stages[-1]
    positions, _ = kernel.scan_frames(whole["log"], 0, len(whole["log"]))
    for number in range(5):
        for inside in (0, 2, 3, 5, 18, 33):  # size, type, id
            damaged = bytearray(whole["log"])
            damaged[positions[number] + inside] ^= 0x04
            empty_or_missing = b"" if inside % 2 else None
            directory = whole.lay_out(tmp_path / "damaged", log=bytes(damaged), idx=empty_or_missing)

            log, corrupt = reopen(directory)

            found = bodies(log)
            assert [body for body in EVERYTHING if body not in found] == [EVERYTHING[number]]
            assert log.next == 6
            assert corrupt
            assert corrupt[0][1:] == (positions[number], number, 1)
            goes_on(log, directory)


def test_zeros_behind_the_last_write_are_cut_off(stages: list[Files], tmp_path: Path) -> None:
    directory = stages[-1].lay_out(tmp_path / "damaged", log=stages[-1]["log"] + b"\0" * 5000)

    log, corrupt = reopen(directory)

    assert bodies(log) == EVERYTHING
    assert not corrupt
    assert any("torn tail of 5000 bytes" in note for note in log.notes)
    goes_on(log, directory)


def test_a_frame_inside_a_torn_body_is_not_taken_for_a_message(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    publish(log, [b"first"])
    inner = kernel.frame_one(b"inner", (NODE << 54) + 2, 1)
    frame = kernel.frame_one(inner * 3, (NODE << 54) + 1, 1)
    path = tmp_path / "topic" / f"{SEGMENT}.log"
    log.close()
    path.write_bytes(path.read_bytes() + frame[:-5])

    again = DiskLog(tmp_path / "topic", NODE)

    assert bodies(again) == [b"first"]
    assert again.next == 1


def test_a_lost_identity_is_a_new_one_and_the_node_is_read_off_the_messages(
    stages: list[Files], tmp_path: Path
) -> None:
    old = DiskLog(stages[-1].lay_out(tmp_path / "whole"), NODE).identity
    for identity in (None, b"", b"{}", b"[1"):
        directory = stages[-1].lay_out(tmp_path / "damaged", identity=identity)

        log = DiskLog(directory, NODE + 5)

        assert log.identity != old
        assert log.node == NODE
        assert bodies(log) == EVERYTHING


def test_a_missing_segment_is_a_hole_and_its_neighbours_are_served(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=LogOptions(segment_bytes=100))
    for number in range(5):
        publish(log, [b"%d" % number * 10] * 2)
    log.close()
    (tmp_path / "topic" / f"{4:020d}.log").unlink()

    again, corrupt = reopen(tmp_path / "topic")

    assert bodies(again) == [b"%d" % number * 10 for number in (0, 0, 1, 1, 3, 3, 4, 4)]
    assert [told[2:] for told in corrupt] == [(4, 2)]
    assert not (tmp_path / "topic" / f"{4:020d}.idx").exists()


def test_a_closed_segment_that_lost_its_end_is_quarantined_up_to_the_next(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=LogOptions(segment_bytes=100))
    for number in range(3):
        publish(log, [b"%d" % number * 10] * 4)
    log.close()
    path = tmp_path / "topic" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:100])

    again, corrupt = reopen(tmp_path / "topic")

    assert bodies(again) == [b"0" * 10] * 2 + [b"1" * 10] * 4 + [b"2" * 10] * 4
    assert [told[1:] for told in corrupt] == [(88, 2, 2)]


def test_a_reader_skips_a_quarantined_range_and_says_how_long_it_was(stages: list[Files], tmp_path: Path) -> None:
    whole = stages[-1]
    damaged = bytearray(whole["log"])
    damaged[len(stages[0]["log"]) + 36] ^= 1
    log, corrupt = reopen(whole.lay_out(tmp_path / "damaged", log=bytes(damaged)))
    reader = log.reader(0)

    assert reader.take(6, 100, 1 << 20)[1] == 3
    assert reader.take(6, 100, 1 << 20) == (b"", 1)
    assert reader.take(6, 100, 1 << 20)[1] == 2
    assert len(corrupt) == 1
    assert [count for _, count, _ in log.blocks(0, 6, 1 << 20)] == [3, 1, 2]
    assert len(corrupt) == 1  # told once


def test_a_log_whose_index_was_made_anew_while_in_use_is_written_on_without_harm(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=LogOptions(tail_bytes=0, merge_bytes=100))
    sent = [b"%d" % number * 20 for number in range(9)]
    for body in sent:
        publish(log, [body])
    index = tmp_path / "topic" / f"{SEGMENT}.idx"
    damaged = bytearray(index.read_bytes())
    for record in range(1, len(damaged) // RECORD):
        damaged[record * RECORD + 5] ^= 1
    index.write_bytes(damaged)

    assert bodies(log) == sent
    for body in (b"more", b"and more"):
        publish(log, [body])
    assert bodies(log) == [*sent, b"more", b"and more"]
    log.close()
    again, corrupt = reopen(tmp_path / "topic")
    assert bodies(again) == [*sent, b"more", b"and more"]
    assert (corrupt, again.notes) == ([], [])


GARBAGE = st.one_of(
    st.binary(max_size=300),
    st.lists(st.sampled_from([b"\0\0\0\x02", b"LWR1", b"\0\0\0\x22", b"01c0000000000000", b"\xff" * 4])).map(b"".join),
)


@settings(max_examples=200, deadline=None)
@given(GARBAGE, GARBAGE, GARBAGE, GARBAGE, st.integers(0, 3), st.booleans())
def test_any_bytes_at_all_can_be_opened_and_only_messages_are_served(
    frames: bytes, index: bytes, extras: bytes, journal: bytes, sound: int, keep_index: bool
) -> None:
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "topic"
        log = DiskLog(directory, NODE, options=LogOptions(merge_bytes=0))
        for number in range(sound):
            publish(log, [b"sound %d" % number], extras=[Extra(number, 1)])
        log.close()
        for ending, garbage in (("log", frames), ("idx", index if keep_index else b""), ("aux", extras)):
            path = directory / f"{SEGMENT}.{ending}"
            path.write_bytes((path.read_bytes() if path.exists() else b"") + garbage)
        (directory / "journal").write_bytes(journal)

        log, _ = reopen(directory)
        served = bodies(log)
        assert served[:sound] == [b"sound %d" % number for number in range(sound)]
        assert log.extras(0, sound) == [Extra(number, 1) for number in range(sound)]
        Journal(directory).load()
        publish(log, [b"next"])
        log.close()
        again, _ = reopen(directory)
        assert bodies(again) == [*served, b"next"]
        again.close()
