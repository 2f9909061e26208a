"""Durations as Go writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapwing.net.durations import parse, show


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1500, "1.5µs"),
        (754201163, "754.201163ms"),
        (1_000_000_000, "1s"),
        (89_940_847_675, "1m29.940847675s"),
        (7_205_100_000_000, "2h0m5.1s"),
        (900_000_000_000, "15m0s"),
        (-1_500_000, "-1.5ms"),
    ],
)
def test_how_durations_look(nanoseconds, text):
    assert show(nanoseconds) == text


@given(st.integers(-(2**62), 2**62))
def test_what_is_shown_can_be_read_back(nanoseconds):
    assert parse(show(nanoseconds)) == nanoseconds
