"""A stage for nsqadmin: a fake cluster with a known state, and the real daemon in front of it."""

from dataclasses import dataclass

import httpx
from admin_fakes import Channel, FakeLookupd, FakeNsqd, Topic, client

from daemons import Daemon, until
from daemons import start_nsqadmin as start_nsqadmin


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


def warm_up(daemon: Daemon, base: str = "") -> Daemon:
    """Have the daemon load what its pages need."""
    httpx.get(f"{daemon.url}{base}/counter", timeout=60.0).raise_for_status()
    return daemon


def shown_soon(admin: Daemon, topic: str) -> None:
    """Wait until nsqadmin has seen the topic."""
    until(lambda: topic in httpx.get(f"{admin.url}/api/topics").json()["topics"], what=topic)
    httpx.get(f"{admin.url}/api/alarms")
