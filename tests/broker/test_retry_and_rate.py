"""Delays after failures, and token buckets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapwing.broker.channel.delivery_limits import TokenBucket
from lapwing.broker.failures.retry import delay_after
from lapwing.broker.settings import definitions as settings
from lapwing.broker.settings.definitions import ChannelSettings, Rate
from play import MINUTE, MS, SECOND


def middle() -> float:
    return 0.5


def test_delays_grow_by_the_factor_up_to_the_longest():
    own = ChannelSettings(retry_first=SECOND, retry_factor=3.0, retry_max=20 * SECOND)

    assert [delay_after(n, own, middle) // MS for n in (1, 2, 3, 4, 10**9)] == [1000, 3000, 9000, 20000, 20000]


def test_without_a_first_delay_there_is_none():
    assert delay_after(7, ChannelSettings(), middle) == 0


def test_jitter_varies_the_delay_both_ways():
    own = ChannelSettings(retry_first=SECOND, retry_jitter=0.1)

    assert delay_after(1, own, lambda: 0.0) == 900 * MS
    assert delay_after(1, own, lambda: 0.999999) == pytest.approx(1100 * MS, rel=1e-4)


@given(
    st.integers(1, 10**6), st.floats(1, 1000), st.integers(0, 10**18), st.integers(0, 10**18), st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)  # fmt: skip
def test_no_settings_make_a_delay_that_is_none(failures, factor, first, longest, jitter, random):
    own = ChannelSettings(retry_first=first, retry_factor=factor, retry_max=longest, retry_jitter=jitter)

    assert 0 <= delay_after(failures, own, lambda: random) <= 2 * longest + 1


def test_a_bucket_allows_its_burst_then_its_rate():
    bucket = TokenBucket(Rate(10, SECOND), 3, now=0)
    assert bucket.available(0) == 3
    bucket.take(3)
    assert bucket.available(0) == 0
    assert bucket.next_due() == 100 * MS
    assert bucket.available(99 * MS) == 0
    assert bucket.available(100 * MS) == 1
    bucket.take(1)

    assert bucket.available(10 * SECOND) == 3


@pytest.mark.parametrize(("rate", "burst"), [("100/s", 100), ("5/m", 1), ("7200/h", 2), ("1/h", 1)])
def test_a_burst_that_is_not_given_is_one_second_s_worth(rate, burst):
    own = settings.resolve(ChannelSettings, [("channel", {"rate": rate})])

    assert TokenBucket(own.rate, own.burst, now=0).available(0) == burst


def test_a_clock_that_stands_still_or_goes_back_brings_nothing():
    bucket = TokenBucket(Rate(1, MINUTE), 1, now=MINUTE)
    bucket.take(1)

    assert bucket.available(MINUTE) == 0
    assert bucket.available(0) == 0
    assert bucket.available(2 * MINUTE) == 1


@given(st.integers(1, 10**6), st.sampled_from([SECOND, MINUTE]), st.integers(1, 100), st.lists(st.integers(0, 10**9)))
def test_never_more_than_the_burst_and_the_rate_allow(count, per, burst, steps):
    bucket, now, taken = TokenBucket(Rate(count, per), burst, now=0), 0, 0
    for step in steps:
        now += step
        allowed = bucket.available(now)
        bucket.take(allowed)
        taken += allowed

        assert taken <= burst + now * count // per
        assert now < bucket.next_due() <= now + per // count + 1
