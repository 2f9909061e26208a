"""Whatever a crash or a bad disk leaves: nothing acknowledged is lost, nothing corrupt is served, and it is said."""

import contextlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from example_counts import examples
from lapwing import kernel
from lapwing.errors import CorruptChunk
from lapwing.log import records
from lapwing.log.journal.journal import Journal
from lapwing.log.log import DiskLog, Extra, LogOptions
from lapwing.log.segments.index import RECORD

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
    """The files of one log after each batch, which is a chunk of its own."""
    return made(tmp_path / "made", merge_bytes=0)


@pytest.fixture
def merged(tmp_path: Path) -> list[Files]:
    """The same with one chunk that each batch was added to."""
    return made(tmp_path / "merged", merge_bytes=16384)


BOOT = 9
SAME = LogOptions(boot=BOOT)  # the machine was not started since
ANOTHER = LogOptions(boot=BOOT + 1)


def made(directory: Path, *, merge_bytes: int) -> list[Files]:
    log = DiskLog(directory, NODE, options=LogOptions(merge_bytes=merge_bytes, boot=BOOT))
    stages = []
    for number, batch in enumerate(BATCHES):
        publish(log, batch, extras=EXTRAS[number], now=100 + number)
        log.write_index()
        stages.append(Files.of(directory))
    log.close()
    return stages


def reopen(
    directory: Path, options: LogOptions = SAME, *, by_form: bool = False
) -> tuple[DiskLog, list[tuple[str, int, int, int]]]:
    corrupt: list[tuple[str, int, int, int]] = []
    log = DiskLog(
        directory, NODE, options=options, on_corrupt=lambda *told: corrupt.append(told), by_form=by_form
    )
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


@pytest.mark.parametrize("order", [("aux", "idx", "log"), ("aux", "log", "idx")])
def test_the_last_write_may_be_torn_at_every_byte(
    stages: list[Files], tmp_path: Path, order: tuple[str, ...]
) -> None:
    before, after = stages[1], stages[2]
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


def test_a_write_that_was_added_to_a_chunk_may_be_torn_at_every_byte(merged: list[Files], tmp_path: Path) -> None:
    before, after = merged[1], merged[2]
    assert len(after["idx"]) == RECORD
    for length in range(len(before["log"]), len(after["log"]) + 1):
        directory = after.lay_out(tmp_path / "torn", log=after["log"][:length])

        log, corrupt = reopen(directory)

        assert bodies(log) == (EVERYTHING if length == len(after["log"]) else EVERYTHING[:4])
        assert not corrupt
        assert log.lost == range(0)
        assert log.extras(0, 9) == [extra for extra in ALL_EXTRAS if extra.sequence < log.next]
        goes_on(log, directory)


def test_a_write_of_several_chunks_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "made", NODE)
    publish(log, [b"first"])
    before = Files.of(tmp_path / "made")
    sent = [b"%d" % number * 300_000 for number in range(8)]
    publish(log, sent)
    after = Files.of(tmp_path / "made")
    assert len(after["idx"]) > 2 * RECORD
    for length in range(len(before["log"]), len(after["log"]), 150_001):
        log, corrupt = reopen(after.lay_out(tmp_path / "torn", log=after["log"][:length]))

        assert bodies(log) == [b"first"]
        assert not corrupt
        assert log.next == 1
        log.close()


@pytest.mark.parametrize("how", ["stages", "merged"])
def test_files_cut_short_with_a_flipped_bit_serve_nothing_that_was_not_published(
    request: pytest.FixtureRequest, tmp_path: Path, how: str
) -> None:
    whole = request.getfixturevalue(how)[-1]
    for length in range(1, len(whole["log"])):
        for place in {length - 1, length // 2, length * 2 // 3}:
            damaged = bytearray(whole["log"][:length])
            damaged[place] ^= 1 << place % 8
            directory = whole.lay_out(tmp_path / "damaged", log=bytes(damaged))

            log, _ = reopen(directory)

            for sequence in range(log.first, min(log.next, len(EVERYTHING))):
                with contextlib.suppress(CorruptChunk):
                    assert log.frame(sequence)[34:] == EVERYTHING[sequence]
            goes_on(log, directory)


def test_what_was_there_before_the_last_write_to_a_chunk_is_served_though_the_rest_is_damaged(
    merged: list[Files], tmp_path: Path
) -> None:
    whole, before = merged[2], len(merged[1]["log"])
    zeros = whole["log"][:before] + bytes(len(whole["log"]) - before)  # as a power loss may leave it
    directory = whole.lay_out(tmp_path / "damaged", log=zeros)

    log, corrupt = reopen(directory)

    assert bodies(log) == EVERYTHING[:4]
    assert [told[1:] for told in corrupt] == [(before, 4, 2)]
    assert log.next == 6
    goes_on(log, directory)


def test_messages_that_are_missing_keep_their_sequences(stages: list[Files], tmp_path: Path) -> None:
    whole = stages[-1]
    directory = whole.lay_out(tmp_path / "short", log=whole["log"][: len(stages[0]["log"]) + 10])

    log, corrupt = reopen(directory)

    assert (log.next, log.lost) == (6, range(3, 6))
    assert bodies(log) == EVERYTHING[:3]
    assert [told[2:] for told in corrupt] == [(3, 3)]
    assert any("3 to 5" in note and "begin at 6" in note for note in log.notes)
    goes_on(log, directory)


@pytest.mark.parametrize("ending", ["log", "idx", "aux"])
def test_any_file_may_be_short_by_any_number_of_bytes(stages: list[Files], tmp_path: Path, ending: str) -> None:
    whole = stages[-1]
    for length in range(len(whole[ending])):
        directory = whole.lay_out(tmp_path / "short", **{ending: whole[ending][:length]})

        log, corrupt = reopen(directory)

        if ending == "idx" and length < RECORD:  # no record is left that tells when the frames were written
            assert bodies(log) == []
            directory = whole.lay_out(tmp_path / "short", idx=whole["idx"][:length])
            log, corrupt = reopen(directory, by_form=True)
        found = bodies(log)
        assert found == (EVERYTHING[: len(found)] if ending == "log" else EVERYTHING)
        assert len(found) in (0, 3, 4, 6)  # whole chunks, as only those have a checksum
        assert not corrupt or length < len(stages[1]["log"])
        assert log.next == 6 or length >= len(stages[1]["log"])
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


@pytest.mark.parametrize("options", [SAME, ANOTHER])
def test_a_flipped_bit_anywhere_in_the_index_costs_nothing(
    stages: list[Files], tmp_path: Path, options: LogOptions
) -> None:
    whole = stages[-1]
    for place in range(len(whole["idx"])):
        damaged = bytearray(whole["idx"])
        damaged[place] ^= 1 << place % 8
        directory = whole.lay_out(tmp_path / "flipped", idx=bytes(damaged))

        log, corrupt = reopen(directory, options)

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


@pytest.mark.parametrize("payload", [b"x", bytes(8) + b"\xff", bytes(8) + b"[1]", b"\xff" * 8 + b"no JSON"])
def test_extras_that_are_not_understood_cost_no_message(stages: list[Files], tmp_path: Path, payload: bytes) -> None:
    whole = stages[-1]
    directory = whole.lay_out(tmp_path / "odd", aux=records.encode(payload) + whole["aux"])

    log, _ = reopen(directory)

    assert bodies(log) == EVERYTHING
    assert log.extras(0, 9) in (ALL_EXTRAS, [])
    goes_on(log, directory)


def test_without_an_index_nothing_is_served_until_somebody_asks_for_it(stages: list[Files], tmp_path: Path) -> None:
    directory = stages[-1].lay_out(tmp_path / "damaged", idx=None)
    log, corrupt = reopen(directory)
    assert bodies(log) == []
    assert [told[1:] for told in corrupt] == [(0, 0, 6)]
    assert any("repair --unverified" in note for note in log.notes)
    goes_on(log, directory)
    directory = stages[-1].lay_out(tmp_path / "damaged", idx=None)

    log, corrupt = reopen(directory, by_form=True)

    assert bodies(log) == EVERYTHING
    assert not corrupt
    assert any("rebuilt the index" in note for note in log.notes)
    log.close()
    assert reopen(directory)[0].notes == []


@pytest.mark.parametrize("kept", [1, 2])
def test_frames_without_a_record_are_served_unless_the_machine_was_started_since(
    stages: list[Files], tmp_path: Path, kept: int
) -> None:
    count = len([body for batch in BATCHES[:kept] for body in batch])
    whole = stages[-1]
    log, corrupt = reopen(whole.lay_out(tmp_path / "killed", idx=whole["idx"][: kept * RECORD]), SAME)
    assert bodies(log) == EVERYTHING
    assert not corrupt
    for options in (ANOTHER, LogOptions(boot=0)):
        directory = whole.lay_out(tmp_path / "lost", idx=whole["idx"][: kept * RECORD])

        log, corrupt = reopen(directory, options)

        assert bodies(log) == EVERYTHING[:count]
        assert [told[2:] for told in corrupt] == [(count, 6 - count)]
        assert log.next == 6
        assert log.extras(0, 9) == ALL_EXTRAS  # for whoever brings them back
        assert any("before the machine was last started" in note for note in log.notes)
        goes_on(log, directory)


def test_holes_in_frames_without_a_record_are_not_served_and_the_rest_is_set_aside(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=SAME)
    publish(log, [b"first"])
    for number in range(9):
        publish(log, [b"%d" % number * 1000])
    frames = tmp_path / "topic" / f"{SEGMENT}.log"
    data = bytearray(frames.read_bytes())
    data[3000:5000] = bytes(2000)
    frames.write_bytes(data)

    again, corrupt = reopen(tmp_path / "topic", ANOTHER)

    assert bodies(again) == [b"first"]
    assert again.next == 10
    assert sum(told[3] for told in corrupt) == 9
    goes_on(again, tmp_path / "topic")


def test_a_publish_of_several_messages_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    log = DiskLog(tmp_path / "topic", NODE, options=SAME)
    publish(log, [b"first"])
    before = Files.of(tmp_path / "topic")
    publish(log, [b"x" * 400] * 30)
    after = Files.of(tmp_path / "topic")
    ends = [len(before["log"]) + 434 * number for number in range(30)]
    for length in {*range(len(before["log"]), len(after["log"]), 97), *ends}:
        again, corrupt = reopen(after.lay_out(tmp_path / "torn", log=after["log"][:length]))

        assert bodies(again) == [b"first"]
        assert not corrupt
        again.close()


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

            log, corrupt = reopen(directory, by_form=True)

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
    odd = (b'{"id":"x","node":1e999}', b'{"id":"x","node":1024}', b'{"id":"x","node":-1}', b'{"id":7,"node":7}')
    for identity in (None, b"", b"{}", b"[1", b"[" * 100_000, *odd):
        directory = stages[-1].lay_out(tmp_path / "damaged", identity=identity)

        log = DiskLog(directory, NODE + 5)

        assert log.identity != old
        assert log.node == NODE
        assert bodies(log) == EVERYTHING


def test_an_altered_identity_is_a_lost_one_and_one_without_a_checksum_is_believed(
    stages: list[Files], tmp_path: Path
) -> None:
    directory = stages[-1].lay_out(tmp_path / "whole")
    old = DiskLog(directory, NODE).identity
    known = (directory / "identity").read_bytes()
    for place in range(len(known) - 2):
        damaged = bytearray(known)
        damaged[place] ^= 1
        log = DiskLog(stages[-1].lay_out(tmp_path / "damaged", identity=bytes(damaged)), NODE)
        assert log.node == NODE
        assert bodies(log) == EVERYTHING
    plain = json.dumps({"id": old, "node": NODE, "created": 1}).encode()

    assert DiskLog(stages[-1].lay_out(tmp_path / "old", identity=plain), NODE).identity == old


@pytest.mark.parametrize("first", [1 << 33, 1 << 54, 10**20 - 1])
def test_a_file_whose_name_is_far_away_hinders_nothing(tmp_path: Path, first: int) -> None:
    log = DiskLog(tmp_path / "topic", NODE)
    publish(log, [b"one"])
    log.close()
    (tmp_path / "topic" / f"{first:020d}.log").touch()
    for _ in range(2):
        log = DiskLog(tmp_path / "topic", NODE)
        assert bodies(log) == [b"one"]
        log.close()
    publish(log, [b"two"])
    assert bodies(log)[1:] == [b"two"]


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

    assert bodies(again) == [b"1" * 10] * 4 + [b"2" * 10] * 4
    assert [told[1:] for told in corrupt] == [(0, 0, 4)]


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


@settings(max_examples=examples(200))
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
