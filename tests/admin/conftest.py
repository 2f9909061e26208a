"""What the tests of nsqadmin share: a fake cluster, and the real daemon in front of it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # so that the fakes are found under any way of running

from fakes import Channel, FakeLookupd, FakeNsqd, Topic, client

from daemons import Daemon, program


@dataclass
class Cluster:
    """Two nsqds that share a topic, and one nsqlookupd; see `fill`."""

    a: FakeNsqd
    b: FakeNsqd
    lookupd: FakeLookupd

    def down(self) -> None:
        for fake in (self.a, self.b, self.lookupd):
            fake.down()


def fill(cluster: Cluster) -> None:
    """The same state as at the start, whatever a test did."""
    slow = [(0.99, 40_000_000), (0.5, 4_000_000)]
    quick = [(0.99, 20_000_000), (0.5, 2_000_000)]
    cluster.a.topics = {
        "orders": Topic(
            messages=1000,
            channels={
                "billing": Channel(
                    depth=120,
                    backend_depth=20,
                    in_flight=3,
                    deferred=1,
                    requeued=7,
                    timed_out=2,
                    messages=1000,
                    clients=[client(1), client(2, tls=True, tls_version="TLS1.3")],
                    percentiles=slow,
                ),
                "audit#ephemeral": Channel(messages=10),
            },
        ),
        "lonely": Topic(depth=12430, backend_depth=12000, messages=12430),
    }
    cluster.b.topics = {
        "orders": Topic(
            messages=500,
            channels={
                "billing": Channel(depth=30, in_flight=1, messages=500, clients=[client(3)], percentiles=quick),
            },
        ),
    }
    for node in (cluster.a, cluster.b):
        node.health = "OK"
        node.calls.clear()
        node.tombstoned.clear()
        node.published.clear()
        node.pipelines.clear()
    cluster.lookupd.registered = {"idle": {"later"}, "bare": set()}
    cluster.lookupd.calls.clear()


@pytest.fixture(scope="module")
def shared_cluster() -> Iterator[Cluster]:
    a, b = FakeNsqd("node-a", lapwing=True), FakeNsqd("node-b", version="1.2.1")
    cluster = Cluster(a, b, FakeLookupd(a, b))
    yield cluster
    cluster.down()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    fill(shared_cluster)
    return shared_cluster


def start_nsqadmin(*flags: str) -> Daemon:
    """The real nsqadmin, listening."""
    return Daemon([*program("nsqadmin"), "--http-address=127.0.0.1:0", *flags], doors=("HTTP",))


@pytest.fixture(scope="module")
def nsqadmin(shared_cluster: Cluster) -> Iterator[Daemon]:
    """One in lookup mode for the whole module."""
    fill(shared_cluster)
    with start_nsqadmin(f"--lookupd-http-address={shared_cluster.lookupd.address}") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def starting() -> Iterator[Callable[..., Daemon]]:
    """Starts more of them; all are ended with the module."""
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(start_nsqadmin(*flags))
