"""The one poller: asks for what is looked at, and sees who comes and goes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from admin_fakes import FakeNsqd, Topic
from admin_stage import Cluster

from lapwing.admin.poller import EVERYWHERE, Poller, Watcher
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.http import DaemonHttp


@pytest.fixture
async def poller(cluster: Cluster) -> AsyncIterator[Poller]:
    http = DaemonHttp()
    made = Poller(ClusterClient(http, lookupds=[cluster.lookupd.address]))
    yield made
    await http.aclose()


async def look(poller: Poller) -> None:
    """Poll, and ask also for what is asked for only from time to time."""
    poller._due.clear()
    await poller.poll()


async def test_a_picture_has_nodes_topics_and_what_only_discovery_knows(poller, cluster):
    await look(poller)
    cluster_view = poller.cluster_view

    assert [(state.node.hostname, state.lapwing, state.clients) for state in cluster_view.nodes] == [
        ("node-a", True, 2),
        ("node-b", False, 1),
    ]
    assert list(cluster_view.topics) == ["lonely", "orders"]
    assert cluster_view.idle_topics == ("bare", "idle")
    assert cluster_view.trouble == []


async def test_clients_are_asked_for_only_while_somebody_looks(poller, cluster):
    def shown():
        return [channel["clients"] is not None for channel in poller.cluster_view.channels()]

    await look(poller)
    before = shown()
    watcher = Watcher(lambda: None, clients=EVERYWHERE)
    poller.watch(watcher)
    await look(poller)
    during = shown()
    poller.unwatch(watcher)
    await look(poller)

    assert (any(before), all(during), any(shown())) == (False, True, False)


async def test_a_watched_channel_comes_with_its_clients_and_nothing_else_does(poller, cluster):
    poller.watch(Watcher(lambda: None, channel=("orders", "billing")))
    await look(poller)

    assert len(poller.channels["orders", "billing"]["clients"]) == 3
    assert all(channel["clients"] is None for channel in poller.cluster_view.channels())


async def test_a_dead_node_is_trouble_and_its_numbers_are_missing(poller, cluster):
    await look(poller)
    cluster.b.down()
    try:
        await look(poller)
    finally:
        cluster.b.up()

    view = poller.cluster_view
    assert view.trouble == [f"nsqd {cluster.b.name} does not answer: connection refused"]
    assert view.topics["orders"]["message_count"] == 1000
    lost = view.node(cluster.b.name)
    assert lost is not None
    assert (lost.reachable, lost.messages, lost.depth, lost.lost_since) == (False, 500, 30, view.at)
    assert [part["message_count"] for part in view.lost_parts("orders")] == [500]
    assert any(alarm.about == cluster.b.name and alarm.severity == "error" for alarm in poller.alarms)


async def test_a_node_that_died_and_left_discovery_keeps_the_cause_and_the_time(poller, cluster):
    await look(poller)
    cluster.b.down()
    try:
        await look(poller)
        died = poller.cluster_view.at
        cluster.lookupd.nsqds.remove(cluster.b)
        await look(poller)
        gone = poller.cluster_view.node(cluster.b.name)
        texts = [alarm.text for alarm in poller.alarms if alarm.about == cluster.b.name]
    finally:
        cluster.b.up()
        cluster.lookupd.nsqds.append(cluster.b)
    await look(poller)

    assert gone is not None
    assert (gone.error, gone.lost_since) == ("connection refused", died)
    assert texts[0].endswith("; before that it did not answer: connection refused")
    assert poller.cluster_view.lost_topics == {}


async def test_a_node_that_left_discovery_is_remembered_until_it_is_back(poller, cluster):
    await look(poller)
    cluster.lookupd.nsqds.remove(cluster.b)
    try:
        await look(poller)
        gone = poller.cluster_view.trouble
    finally:
        cluster.lookupd.nsqds.append(cluster.b)
    await look(poller)

    assert gone == [f"nsqd {cluster.b.name} has left nsqlookupd"]
    assert poller.cluster_view.trouble == []


async def test_no_nsqlookupd_answering_keeps_what_was_known(poller, cluster):
    await look(poller)
    cluster.lookupd.down()
    try:
        await look(poller)
    finally:
        cluster.lookupd.up()

    assert list(poller.cluster_view.topics) == ["lonely", "orders"]
    assert poller.cluster_view.trouble == [f"nsqlookupd {cluster.lookupd.address} does not answer: connection refused"]


async def test_a_pipeline_that_was_forgotten_by_its_node_is_still_named(poller, cluster):
    cluster.a.pipelines.append(
        {
            "name": "lake",
            "topics": ["orders"],
            "channel": "billing",
            "state": "running",
            "updated_ms": int(time.time() * 1000) - 120_000,
        }
    )
    await look(poller)
    cluster.a.pipelines.clear()
    await look(poller)

    assert [pipeline["name"] for pipeline in poller.cluster_view.pipelines or ()] == ["lake"]
    assert any("Pipeline lake has not reported" in alarm.text for alarm in poller.alarms)


async def test_plain_nsq_has_no_pipelines_at_all():
    node = FakeNsqd()
    node.topics["t"] = Topic(messages=1)
    http = DaemonHttp()
    poller = Poller(ClusterClient(http, nsqds=[node.address]))
    await look(poller)
    await http.aclose()
    node.down()

    assert poller.cluster_view.pipelines is None
    assert not poller.cluster_view.lapwing
    assert poller.cluster_view.nodes[0].node.topics == (("t", False),)


async def test_a_direct_node_that_never_answered_is_shown_all_the_same():
    http = DaemonHttp()
    poller = Poller(ClusterClient(http, nsqds=["127.0.0.1:1"]))
    await look(poller)
    await http.aclose()

    assert [(state.node.name, state.reachable) for state in poller.cluster_view.nodes] == [("127.0.0.1:1", False)]


@pytest.mark.parametrize(
    "answer", [{"topics": [{"nonsense": 1}], "start_time": 1}, {"topics": {"a": 1}}, {"topics": [7]}, [], 7]
)
async def test_nonsense_from_one_nsqd_is_trouble_of_that_node_alone(poller, cluster, monkeypatch, answer):
    await look(poller)
    monkeypatch.setattr(cluster.a, "_stats", lambda query: answer)
    await look(poller)
    states = {state.node.hostname: state for state in poller.cluster_view.nodes}

    assert "could not be understood" in states["node-a"].error
    assert states["node-b"].reachable
    assert poller.cluster_view.failure == ""
    assert "orders" in poller.cluster_view.topics


async def test_nonsense_from_a_daemon_does_not_end_the_watch(poller, cluster, monkeypatch):
    monkeypatch.setattr(cluster.a, "_stats", lambda query: {"topics": [], "start_time": "nonsense"})
    told = asyncio.Event()
    poller.watch(Watcher(told.set))
    running = asyncio.create_task(poller.run())
    await asyncio.wait_for(told.wait(), 60)
    failure = poller.cluster_view.failure
    monkeypatch.undo()
    told.clear()
    await asyncio.wait_for(told.wait(), 60)
    alive = not running.done()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running

    assert "could not be understood" in failure
    assert alive
    assert poller.cluster_view.failure == ""


async def test_a_page_that_cannot_be_drawn_does_not_keep_others_from_it(poller):
    drawn = []

    def broken() -> None:
        raise RuntimeError("broken")

    poller.watch(Watcher(broken))
    poller.watch(Watcher(lambda: drawn.append(1)))
    await look(poller)
    poller._refresh_pages()

    assert drawn == [1]


@pytest.mark.parametrize("turns", range(4))
async def test_a_stop_ends_a_poller_that_is_woken_at_that_moment(turns, poller, cluster):
    running = asyncio.create_task(poller.run())
    await poller.fresh(age=0.0)
    await asyncio.sleep(0)  # it pauses
    poller.soon()
    for _ in range(turns):  # of the event loop, until the stop
        await asyncio.sleep(0)

    running.cancel()
    await asyncio.wait({running}, timeout=10)
    assert running.cancelled()
