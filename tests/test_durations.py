"""Durations: the one grammar that flags, settings, options and commands share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapwing.durations import parse, show


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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("1m0s", 60), ("250ms", 0.25), ("1.5h", 5400), ("7d", 604_800), ("1d12h", 129_600), ("0", 0)],
)
def test_days_are_understood_beside_the_units_of_go(text, seconds):
    assert parse(text) == int(seconds * 1_000_000_000)


@pytest.mark.parametrize("text", ["30", "-5", "1.5", ".5", "30 ", "", "s", "soon", "1x", "1 s", "2w", "3m 20s"])
def test_what_is_no_duration_is_refused_with_the_units(text):
    with pytest.raises(ValueError, match=r"30s|ns, us, ms, s, m, h, d"):
        parse(text)


def test_a_number_without_a_unit_is_told_that_it_needs_one():
    with pytest.raises(ValueError, match='invalid duration "30": the unit is missing, write 30s for seconds'):
        parse("30")


@pytest.mark.parametrize("text", ["9" * 400 + "d", "200000d", "9999999999h"])
def test_a_duration_beyond_292_years_is_refused(text):
    with pytest.raises(ValueError, match="292 years"):
        parse(text)
