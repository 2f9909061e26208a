"""A cluster for the commands that change one."""

from collections.abc import Iterator

import pytest
from pairing import Pair

from daemons import nsqd, start_nsqlookupd, until


@pytest.fixture(scope="package")
def pair() -> Iterator[Pair]:
    with start_nsqlookupd() as lookupd:
        flags = (f"--lookupd-tcp-address={lookupd.tcp}", "--broadcast-address=127.0.0.1")
        with nsqd(*flags) as one, nsqd(*flags) as two:
            made = Pair(lookupd, (one, two))
            until(lambda: len(made.json("drain", "status")) == 2, what="both nodes in discovery")
            yield made
