"""Records as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapwing.errors import RemoteDamaged
from lapwing.log import records
from lapwing.log.remote.record import (
    CheckpointMade,
    FileWritten,
    JournalEntries,
    LogBegun,
    Messages,
    Record,
    SideRecords,
    Stored,
    decode,
    encode,
)

TEXT = st.text(max_size=8)
NUMBER = st.integers(0, 1 << 62)
BLOB = st.binary(max_size=20)
PARTS = st.one_of(
    st.builds(LogBegun, TEXT, TEXT, NUMBER, NUMBER),
    st.builds(Messages, TEXT, TEXT, NUMBER, NUMBER, BLOB, BLOB),
    st.builds(Stored, TEXT, TEXT, NUMBER, NUMBER, TEXT, NUMBER),
    st.builds(JournalEntries, TEXT, TEXT, BLOB),
    st.builds(SideRecords, TEXT, TEXT, TEXT, BLOB),
    st.builds(FileWritten, TEXT, BLOB),
    st.builds(CheckpointMade, TEXT),
)
RECORDS = st.builds(
    Record, st.sampled_from(["claim", "data", "release", "slice", "checkpoint"]), NUMBER, NUMBER, NUMBER, TEXT, TEXT,
    NUMBER, TEXT, st.lists(PARTS, max_size=4).map(tuple),
)  # fmt: skip


@given(RECORDS)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert decode(b"".join(encode(record)), "x") == record


@given(RECORDS, st.data())
def test_a_record_that_was_cut_or_changed_anywhere_is_not_taken(record: Record, data: st.DataObject) -> None:
    whole = b"".join(encode(record))
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[place] ^= data.draw(st.integers(1, 255))

    for damaged in (bytes(changed), whole[:place], whole + b"x", b""):
        with pytest.raises(RemoteDamaged, match=r"^x: "):
            decode(damaged, "x")


@given(st.binary(max_size=200))
def test_whatever_has_a_sound_checksum_and_is_no_record_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteDamaged):
        decode(records.encode(payload), "x")


def test_a_record_of_a_later_version_is_refused_in_a_sentence() -> None:
    head = b'{"format":2}'
    data = records.encode(len(head).to_bytes(4, "little") + head)

    with pytest.raises(RemoteDamaged, match="of format 2, which a later version of lapwing reads"):
        decode(data, "records/1")
