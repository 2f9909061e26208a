"""Frames found, counted and taken apart: no length is believed before it is checked."""

import struct
from array import array
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from twins import BASE, DRESSES, columns_of, contents, room

from lapwing.kernel import pure
from lapwing.wire.nsq import frames

BODIES = [b"one", b"", b"three" * 50, b"4"]
RUN = pure.frame_bodies(BODIES, BASE | 41, 5)
PLACES = [0, 37, 71, 355, 390]


def lying(size: int, *, kind: int = 2) -> bytes:
    """A head that promises `size`, with 300 bytes behind it."""
    return struct.pack(">II", size & 0xFFFFFFFF, kind) + bytes(300)


@pytest.mark.parametrize("dress", DRESSES)
def test_every_frame_is_found(kernel: ModuleType, dress: Any) -> None:
    positions, end = kernel.scan_frames(dress(RUN), 0, len(RUN))

    assert positions == array("i", PLACES)
    assert end == len(RUN)


def test_scanning_stops_before_the_torn_frame_at_every_cut(kernel: ModuleType) -> None:
    for cut in range(len(RUN) + 1):
        whole = [place for place in PLACES if place <= cut]

        assert kernel.scan_frames(RUN[:cut], 0, 1 << 40) == (array("i", whole), whole[-1])
        assert kernel.scan_frames(RUN, 0, cut) == (array("i", whole), whole[-1])


@pytest.mark.parametrize("bad", [*map(lying, (0, 29, 4000, 2**31 - 1, 2**31, -1)), lying(30, kind=1), bytes(40)])
def test_what_is_no_frame_ends_the_scan(kernel: ModuleType, bad: bytes) -> None:
    data = RUN + bad + RUN

    assert kernel.scan_frames(data, 0, len(data)) == (array("i", PLACES), len(RUN))
    assert kernel.take_frames(data, 0, len(data), 100, 1 << 40) == (4, len(RUN))
    assert kernel.decode_messages(data, 0, len(data))[1] == len(RUN)
    assert columns_of(kernel, data, 0, len(data))[:2] == (4, len(RUN))


def test_a_start_past_the_data_finds_nothing(kernel: ModuleType) -> None:
    for start in (len(RUN), len(RUN) + 1, 2**31 - 1):
        assert kernel.scan_frames(RUN, start, 1 << 80) == (array("i", [start]), start)
    for start in (2**31, 1 << 80):
        assert kernel.scan_frames(RUN, start, 1 << 80) == (array("i", [0]), start)
        assert kernel.take_frames(RUN, start, 1 << 80, 5, 5) == (0, start)
        assert kernel.decode_messages(RUN, start, 1 << 80) == ([], start)


@pytest.mark.parametrize("start", [-1, -(1 << 80)])
def test_a_negative_start_is_refused(kernel: ModuleType, start: int) -> None:
    for call in (kernel.scan_frames, partial(columns_of, kernel), kernel.decode_messages, kernel.fins_of):
        with pytest.raises(ValueError):
            call(RUN, start, len(RUN))
    with pytest.raises(ValueError):
        kernel.take_frames(RUN, start, len(RUN), 1, 1)


@pytest.mark.parametrize("stop", [0, -1, -(1 << 80)])
def test_a_stop_before_the_start_finds_nothing(kernel: ModuleType, stop: int) -> None:
    assert kernel.scan_frames(RUN, 0, stop) == (array("i", [0]), 0)
    assert kernel.take_frames(RUN, 37, stop, 9, 9) == (0, 37)
    assert columns_of(kernel, RUN, 0, stop)[:2] == (0, 0)


# --- taking a slice ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dress", DRESSES)
def test_a_slice_holds_no_more_messages_than_asked_for(kernel: ModuleType, dress: Any) -> None:
    data = dress(RUN)

    assert [kernel.take_frames(data, 0, len(RUN), most, 1 << 40) for most in (-1, 0, 1, 3, 4, 1 << 80)] == [
        (0, 0), (0, 0), (1, 37), (3, 355), (4, 390), (4, 390),
    ]  # fmt: skip


def test_a_slice_holds_no_more_bytes_than_asked_for_but_always_a_message(kernel: ModuleType) -> None:
    def taken(start: int, room: int) -> tuple[int, int]:
        answer: tuple[int, int] = kernel.take_frames(RUN, start, len(RUN), 100, room)
        return answer

    assert [taken(0, room) for room in (-(1 << 80), -1, 0, 36, 70, 71, 354, 355, 1 << 80)] == [
        (1, 37), (1, 37), (1, 37), (1, 37), (1, 37), (2, 71), (2, 71), (3, 355), (4, 390),
    ]  # fmt: skip
    assert taken(71, 1) == (1, 355)
    assert taken(37, 2**63 - 1) == (3, 390)


# --- taking frames apart -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dress", DRESSES)
def test_messages_come_apart_as_they_were_framed(kernel: ModuleType, dress: Any) -> None:
    data = kernel.with_attempts(RUN[:37], 3) + RUN[37:]
    ids = [b"%016x" % (BASE + sequence) for sequence in (41, 42, 43, 44)]

    messages, end = kernel.decode_messages(dress(data), 0, len(data))

    assert messages == list(zip([5] * 4, [3, 1, 1, 1], ids, BODIES, strict=True))
    assert end == len(data)


@pytest.mark.parametrize("dress", DRESSES)
def test_columns_are_what_arrow_wants(kernel: ModuleType, dress: Any) -> None:
    data = kernel.frame_bodies(BODIES, BASE + 41, 5999)

    count, end, ids, times, offsets, bodies = columns_of(kernel, dress(data), 0, len(data))

    assert (count, end) == (4, len(data))
    assert ids == b"".join(b"%016x" % (BASE + sequence) for sequence in (41, 42, 43, 44))
    assert times == array("q", [5] * 4)
    assert offsets == array("i", [0, 3, 3, 253, 254])
    assert bodies == b"".join(BODIES)


def test_columns_and_messages_may_begin_in_the_middle(kernel: ModuleType) -> None:
    data = frames.OK + RUN + frames.HEARTBEAT
    start = len(frames.OK) + 37

    assert [body for *_, body in kernel.decode_messages(data, start, len(data))[0]] == BODIES[1:]
    assert columns_of(kernel, data, start, len(data))[5] == b"".join(BODIES[1:])


@pytest.mark.parametrize("length", range(1, len(RUN)))
def test_columns_are_filled_piece_by_piece(kernel: ModuleType, length: int) -> None:
    columns = room(4, 254)
    row = at = 0

    for end in (*range(length, len(RUN), length), len(RUN)):
        row, at = kernel.decode_columns(RUN, at, end, row, *columns)

    assert (row, at) == (4, len(RUN))
    assert contents(columns, row)[3] == b"".join(BODIES)


@pytest.mark.parametrize(("rows", "size", "fit"), [(0, 254, 0), (2, 254, 2), (4, 253, 3), (4, 2, 0), (4, 3, 2)])
def test_columns_that_are_full_take_no_more(kernel: ModuleType, rows: int, size: int, fit: int) -> None:
    columns = room(rows, size)

    assert kernel.decode_columns(RUN, 0, len(RUN), 0, *columns) == (fit, PLACES[fit])
    assert contents(columns, fit)[3] == b"".join(BODIES[:fit])


def test_a_row_outside_of_the_columns_is_refused(kernel: ModuleType) -> None:
    for row in (5, 1 << 80, -1):
        with pytest.raises(ValueError):
            kernel.decode_columns(RUN, 0, len(RUN), row, *room(4, 254))
    with pytest.raises(ValueError):
        kernel.decode_columns(RUN, 0, len(RUN), 0, *room(4, 254)[:2], bytearray(3), bytearray(254))


@pytest.mark.parametrize("offset", [-1, 255, 2**31 - 1])
def test_an_offset_that_lies_outside_writes_nothing(kernel: ModuleType, offset: int) -> None:
    columns = room(4, 254)
    columns[2][:4] = array("i", [offset]).tobytes()

    if offset < 0:
        with pytest.raises(ValueError):
            kernel.decode_columns(RUN, 0, len(RUN), 0, *columns)
    else:
        assert kernel.decode_columns(RUN, 0, len(RUN), 0, *columns) == (0, 0)
    assert columns[3] == bytes(254)


def test_times_before_1970_and_the_highest_attempts_come_back(kernel: ModuleType) -> None:
    data = kernel.with_attempts(kernel.frame_one(b"old", BASE, -5999), 65535)

    assert kernel.decode_messages(data, 0, len(data))[0] == [(-5999, 65535, b"%016x" % BASE, b"old")]
    assert columns_of(kernel, data, 0, len(data))[3] == array("q", [-5])


def test_thousands_of_frames_are_found_in_one_go(kernel: ModuleType) -> None:
    data = kernel.frame_bodies([b"%d" % number for number in range(5000)], BASE, 1)

    positions, end = kernel.scan_frames(data, 0, len(data))

    assert len(positions) == 5001
    assert end == len(data)
    assert columns_of(kernel, data, 0, len(data))[0] == len(kernel.decode_messages(data, 0, len(data))[0]) == 5000
