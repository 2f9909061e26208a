"""The samples of days: how they are made of counters, kept in a topic, and shown."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import httpx
import pytest
from admin_browser import Ui
from admin_stage import start_nsqadmin
from playwright.sync_api import Page, expect

from daemons import Daemon, nsqd, until
from lapwing.admin.poller import Poller
from lapwing.admin.samples import BUSIEST, EVERY, KEPT, TOPIC, Meter, Recorder, Samples, decode, encode
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.cluster_view import ClusterView
from lapwing.client.http import DaemonHttp

CHANNEL = [52.5, 50.0, 7.0, 3.0, 1.0, 5.0, 0.5, 0.0025, 0.012, 0.04]


# ---- pure ----


def view(at: float, arrived: int, *, depth: int = 0, requeued: int = 0, topics: int = 1, p99: int = 0) -> ClusterView:
    points = [{"quantile": 0.99, "average": p99, "max": p99}] if p99 else None
    part = {
        "node": "a", "message_count": arrived, "depth": depth, "in_flight_count": 0, "deferred_count": 0,
        "requeue_count": requeued, "timeout_count": 0,
    }  # fmt: skip
    channel = {
        **part, "channel_name": "c", "nodes": [part], "e2e_processing_latency": {"percentiles": points}
    }  # fmt: skip
    topic = {"depth": 0, "nodes": [{"node": "a", "message_count": arrived}], "channels": [channel]}
    return ClusterView(at=at, topics={f"t{number}": topic for number in range(topics)} | {"_lapwing_x": topic})


def test_rates_need_a_second_look_and_leave_lapwings_own_topics_out():
    meter = Meter()
    first = meter.rows(view(1000.0, 500))
    second = meter.rows(view(1010.0, 600, depth=20, requeued=5, p99=40_000_000))

    assert first == {}
    assert second == {
        ("t0", ""): [10.0, 0, 20],
        ("t0", "c"): [10.0, 8.0, 20, 0, 0, 0.5, 0.0, None, None, 0.04],
    }


def test_a_restarted_nsqd_counts_from_zero():
    meter = Meter()
    meter.rows(view(1000.0, 500))

    assert meter.rows(view(1010.0, 30))["t0", ""][0] == 3.0


def test_a_large_cluster_is_sampled_where_it_is_busiest():
    meter = Meter()
    meter.rows(view(1000.0, 0, topics=200))

    assert len(meter.rows(view(1010.0, 10, topics=200))) == BUSIEST


def test_a_sample_survives_its_message_and_nonsense_is_none():
    rows = {("orders", ""): [1.5, 0.0, 2.0], ("orders", "billing"): [*CHANNEL[:-1], None]}

    assert decode(encode(7, rows)) == (7, rows)
    for body in (b"", b"[]", b"{}", b'{"step":1,"rows":[["a"]]}', b'{"step":1,"rows":[["a/b","",1]]}', b"\xff"):
        assert decode(body) is None, body


def test_points_are_in_order_have_gaps_and_are_forgotten():
    samples = Samples()
    for step in (12, 10, 11, 20, 11):
        samples.add(step, {("orders", ""): [float(step), 0.0, 0.0]})
    samples.add(21, {("orders", ""): [1.0]})  # another number of figures than ours

    points = samples.points(("orders", ""), "in", since=11 * EVERY)
    assert points == [(11 * EVERY, 11.0), (12 * EVERY, 12.0), (13 * EVERY, None), (20 * EVERY, 20.0)]
    samples.forget(before=21)
    assert not samples.has(("orders", ""))


# ---- with real nsqds ----


@pytest.fixture
async def http() -> AsyncIterator[DaemonHttp]:
    made = DaemonHttp()
    yield made
    await made.aclose()


async def test_samples_are_recorded_once_and_read_by_every_nsqadmin(http: DaemonHttp) -> None:
    now = [1000.0 * EVERY + 5]

    async def turn(recorder: Recorder) -> None:
        poller = recorder._poller
        poller._due.clear()
        await poller.poll()
        await recorder.turn()

    with nsqd() as node:
        await http.post(node.http, "/pub", {"topic": "orders"}, body=b"x")
        cluster = ClusterClient(http, nsqds=[node.http], clock=lambda: now[0])
        one, two = (Recorder(http, Poller(cluster), clock=lambda: now[0]) for _ in range(2))
        for recorder in (one, two):
            await turn(recorder)
        now[0] += EVERY
        for recorder in (one, two):
            await turn(recorder)
        reader = Recorder(http, Poller(cluster), records=False, clock=time.time)
        await turn(reader)
        settings = await http.get(node.http, "/topic/settings", {"topic": TOPIC})
        [stats] = (await http.get(node.http, "/stats", {"format": "json", "topic": TOPIC}))["topics"]

    assert stats["message_count"] == 1
    assert settings["settings"]["retention_age"]["value"] == f"{KEPT // 3600}h0m0s"
    assert [(each["channel_name"], each["depth"]) for each in stats["channels"]] == [("read", 0)]
    assert one.samples.has(("orders", ""))
    assert two.samples.newest == one.samples.newest == 1001


# ---- on the pages and in the API ----


@pytest.fixture(scope="module")
def newest() -> int:
    return int(time.time()) // EVERY


@pytest.fixture(scope="module")
def sampled(newest: int) -> Iterator[Daemon]:
    """An nsqadmin in front of two nsqds, the older half of an hour's samples on the first."""
    with ExitStack() as stack:
        one, two = (stack.enter_context(nsqd()) for _ in range(2))
        httpx.post(f"{one.url}/pub", params={"topic": "orders"}, content="x").raise_for_status()
        httpx.post(f"{one.url}/channel/create", params={"topic": "orders", "channel": "billing"}).raise_for_status()
        for step in range(newest - 11, newest + 1):
            body = encode(step, {("orders", ""): [40.0, 0.0, 7.0], ("orders", "billing"): list(CHANNEL)})
            node = one if step < newest - 5 else two
            httpx.post(f"{node.url}/pub", params={"topic": TOPIC}, content=body).raise_for_status()
        httpx.post(f"{one.url}/pub", params={"topic": TOPIC}, content="garbage").raise_for_status()
        admin = stack.enter_context(start_nsqadmin(*(f"--nsqd-http-address={each.http}" for each in (one, two))))
        until(lambda: len(past(admin, "orders")) >= 12, what="the samples")
        yield admin


def past(admin: Daemon, path: str) -> list[dict[str, float]]:
    answer = httpx.get(f"{admin.url}/api/history/{path}", params={"range": "24h"}).json()
    points: list[dict[str, float]] = answer["points"]
    return points


def chart(page: Page, title: str, *values: str):
    """The chart that is seen, with what it says to a screen reader."""
    return page.get_by_role("group", name=f"{title}: {', '.join(values)}").filter(visible=True)


def test_the_api_has_the_past_of_a_topic_and_of_a_channel(sampled: Daemon, newest: int) -> None:
    points = {point["at"]: point for point in past(sampled, "orders/billing")}

    assert points[(newest - 11) * EVERY] == {
        "at": (newest - 11) * EVERY, "in": 52.5, "out": 50.0, "depth": 7.0, "in_flight": 3.0, "deferred": 1.0,
        "requeued": 5.0, "timed_out": 0.5, "p50": 0.0025, "p95": 0.012, "p99": 0.04,
    }  # fmt: skip
    assert past(sampled, "nowhere") == []
    assert httpx.get(f"{sampled.url}/api/history/orders", params={"range": "1y"}).json() == {
        "message": "INVALID_ARG_RANGE"
    }


@pytest.mark.browser
def test_a_long_span_shows_rates_latency_and_failures(sampled: Daemon, page: Page) -> None:
    ui = Ui(page, sampled.url)
    ui.open("/topics/orders/billing")
    expect(chart(page, "Delivery latency")).to_have_count(0)
    for span in ("6 h", "7 d"):
        ui.press(span)
        expect(chart(page, "Messages a second")).to_have_count(1)
        expect(chart(page, "Delivery latency")).to_be_visible()
        expect(chart(page, "Failures a second")).to_be_visible()
    ui.press("30 min")

    expect(chart(page, "Delivery latency")).to_have_count(0)
    expect(chart(page, "Messages a second", "arrived")).to_have_count(1)


@pytest.mark.browser
def test_without_a_sample_a_long_span_shows_what_nsqadmin_has_seen(sampled: Daemon, page: Page) -> None:
    ui = Ui(page, sampled.url)
    ui.open(f"/topics/{TOPIC}?span=21600")

    expect(page.get_by_role("button", name="6 h")).to_have_attribute("aria-pressed", "true")
    expect(chart(page, "Messages a second")).to_be_visible()


@pytest.mark.browser
def test_lapwings_own_topics_are_listed_only_when_asked_for(sampled: Daemon, page: Page) -> None:
    ui = Ui(page, sampled.url)
    ui.open("/topics")
    rows = page.get_by_role("table").get_by_role("rowheader")
    expect(rows.filter(has_text="orders")).to_be_visible()
    expect(rows.filter(has_text=TOPIC)).to_have_count(0)
    ui.press("lapwing's own")
    expect(rows.filter(has_text=TOPIC)).to_be_visible()

    assert TOPIC in httpx.get(f"{sampled.url}/api/topics").json()["topics"]


def test_nobody_has_to_consume_lapwings_own_topics(sampled: Daemon) -> None:
    def alarms() -> set[str]:
        return {alarm["about"] for alarm in httpx.get(f"{sampled.url}/api/alarms").json()["alarms"]}

    # it comes when nsqadmin has watched the channel for 30 s
    until(lambda: "orders/billing" in alarms(), seconds=60, what="the alarm of a channel without consumers")

    assert not [about for about in alarms() if about.startswith("_lapwing")]
