"""What the tests of nsqadmin share: a fake cluster, and the real daemon in front of it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that the stage is found under any way of running

from admin_fakes import FakeLookupd, FakeNsqd
from admin_stage import Cluster, fill, start_nsqadmin

from daemons import Daemon


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    a, b = FakeNsqd("node-a", lapwing=True), FakeNsqd("node-b", version="1.2.1")
    cluster = Cluster(a, b, FakeLookupd(a, b))
    yield cluster
    cluster.down()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    fill(shared_cluster)
    return shared_cluster


@pytest.fixture(scope="session")
def nsqadmin(shared_cluster: Cluster) -> Iterator[Daemon]:
    """One in lookup mode for all tests."""
    fill(shared_cluster)
    with start_nsqadmin(f"--lookupd-http-address={shared_cluster.lookupd.address}") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def starting() -> Iterator[Callable[..., Daemon]]:
    """Starts more of them; all are ended with the module."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(start_nsqadmin(*flags))
