"""Every request that was recorded with NSQ's nsqd gets the same answer from ours."""

from collections.abc import Iterator

import pytest

import daemons
import httpvectors

CASES = httpvectors.cases("nsqd")


@pytest.fixture(scope="module")
def nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd() as daemon:
        yield daemon


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_nsqd_answers_over_http_as_nsq_does(nsqd: daemons.Daemon, case: httpvectors.Case) -> None:
    httpvectors.replay(case, nsqd.http)
