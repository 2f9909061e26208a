"""Every request that was recorded with NSQ's nsqlookupd gets the same answer from ours."""

from collections.abc import Iterator

import pytest

import daemons
import httpvectors

CASES = httpvectors.cases("nsqlookupd")


@pytest.fixture(scope="module")
def nsqlookupd() -> Iterator[daemons.Daemon]:
    with daemons.start_nsqlookupd() as daemon:
        yield daemon


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_nsqlookupd_answers_over_http_as_nsq_does(nsqlookupd: daemons.Daemon, case: httpvectors.Case) -> None:
    httpvectors.replay(case, nsqlookupd.http)
