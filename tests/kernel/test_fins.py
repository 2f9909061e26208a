"""Runs of FINs: found, carried out, and made for a run of messages."""

from types import ModuleType
from typing import Any

import pytest
from twins import BASE, DRESSES, fins

from lapwing.kernel import pure
from lapwing.wire.nsq import frames

RUN = pure.frame_bodies([b"one", b"", b"three" * 50], BASE | 41, 1)


# --- where a run ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dress", DRESSES)
def test_a_run_ends_where_another_command_begins(kernel: ModuleType, dress: Any) -> None:
    block = fins(1, 2, 3)

    assert kernel.fin_run(dress(block + b"RDY 1\n"), 0) == len(block)
    assert kernel.fin_run(dress(b"NOP\n" + block), 4) == 4 + len(block)


def test_a_torn_line_is_left_for_later(kernel: ModuleType) -> None:
    block = fins(1, 2)

    assert [kernel.fin_run(block[:size], 0) for size in (0, 20, 21, 41, 42)] == [0, 0, 21, 21, 42]


@pytest.mark.parametrize(
    "line",
    [
        b"fin 0123456789abcdef\n",
        b"FIN 0123456789abcdef\r",
        b"FIN 0123456789abcd\r\n\n",
        b"FIN 0123456789abcd x\n",
        b"FIN 012345678\n9abcde\n",
        b"FIN 0123456789abcde\r\n",
        b"FIN0123456789abcdef0\n",
    ],
)
def test_a_line_that_only_looks_like_a_fin_is_left_to_the_parser(kernel: ModuleType, line: bytes) -> None:
    assert kernel.fin_run(fins(1) + line + fins(2), 0) == 21


def test_an_id_that_is_no_hex_is_still_a_whole_line(kernel: ModuleType) -> None:
    assert kernel.fin_run(b"FIN zzzzzzzzzzzzzzzz\n", 0) == 21


def test_nothing_lies_past_the_end_nor_before_the_begin(kernel: ModuleType) -> None:
    assert kernel.fin_run(fins(1), 22) == 22
    assert kernel.fin_run(fins(1), 1 << 80) == 1 << 80
    with pytest.raises(ValueError):
        kernel.fin_run(fins(1), -21)


# --- carrying it out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dress", DRESSES)
def test_a_run_names_its_sequences_in_order(kernel: ModuleType, dress: Any) -> None:
    assert kernel.fin_sequences(dress(fins(1, 7, 2, 1)), BASE) == [1, 7, 2, 1]


@pytest.mark.parametrize("text", [b"zzzzzzzzzzzzzzzz", b"+123456789abcdef", b"01C0000000000001", b"0x1_000000000000"])
def test_what_is_no_id_names_nothing(kernel: ModuleType, text: bytes) -> None:
    assert kernel.fin_sequences(fins(3) + b"FIN " + text + b"\n" + fins(4), BASE) == [3, -1, 4]


def test_an_id_of_another_node_never_names_a_message_of_ours(kernel: ModuleType) -> None:
    smaller, larger = fins(1, base=0), fins(1, base=8 << 54)

    assert kernel.fin_sequences(smaller + larger, 7 << 54) == [-1, (1 << 54) + 1]  # beyond the last sequence


def test_the_last_node_and_the_last_sequence_have_their_id(kernel: ModuleType) -> None:
    base, last = 1023 << 54, (1 << 54) - 1

    assert kernel.fin_sequences(fins(0, last, base=base), base) == [0, last]


@pytest.mark.parametrize("base", [-1, 1 << 64])
def test_a_base_that_no_node_has_is_refused(kernel: ModuleType, base: int) -> None:
    with pytest.raises(ValueError):
        kernel.fin_sequences(b"", base)


def test_a_torn_end_of_a_block_is_not_read(kernel: ModuleType) -> None:
    assert kernel.fin_sequences(fins(1, 2)[:41], BASE) == [1]
    assert kernel.fin_sequences(b"", BASE) == []


# --- the FINs that answer a run of messages ------------------------------------------------------------------------


@pytest.mark.parametrize("dress", DRESSES)
def test_every_whole_frame_gets_its_fin_in_order(kernel: ModuleType, dress: Any) -> None:
    assert kernel.fins_of(dress(RUN), 0, len(RUN)) == (fins(41, 42, 43), 3, len(RUN))


def test_a_torn_frame_is_left_for_later(kernel: ModuleType) -> None:
    assert kernel.fins_of(RUN, 0, len(RUN) - 1) == (fins(41, 42), 2, 34 + 3 + 34)
    assert kernel.fins_of(RUN[:33], 0, 33) == (b"", 0, 0)


def test_another_kind_of_frame_ends_the_run(kernel: ModuleType) -> None:
    data = frames.OK + RUN + frames.HEARTBEAT
    start = len(frames.OK)

    assert kernel.fins_of(data, 0, len(data)) == (b"", 0, 0)
    assert kernel.fins_of(data, start, len(data)) == (fins(41, 42, 43), 3, start + len(RUN))


def test_a_stop_past_the_end_reads_no_further(kernel: ModuleType) -> None:
    assert kernel.fins_of(RUN, 0, 1 << 80) == (fins(41, 42, 43), 3, len(RUN))
    with pytest.raises(ValueError):
        kernel.fins_of(RUN, -1, len(RUN))
