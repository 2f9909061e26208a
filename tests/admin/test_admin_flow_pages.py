"""The past on the pages and in the API: windows published by hand into the logs of real nsqds."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from admin_browser import Ui
from admin_stage import start_nsqadmin
from playwright.sync_api import Page, expect
from test_admin_flow import iso

from daemons import Daemon, nsqd, until

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def publish(node: Daemon, topic: str, *bodies: str) -> None:
    for body in bodies:
        httpx.post(f"{node.url}/pub", params={"topic": topic}, content=body).raise_for_status()


def rows(start: int, **more: object) -> list[str]:
    """A topic and its channel in one window, as the pipeline publishes them."""
    about = {"window_start": iso(start), "window_end": iso(start + 10), "topic": "orders", "node": 1} | more
    topic = {"messages": 400, "bytes": 80_000, "depth": 0}
    channel = {"channel": "billing", "delivered": 500, "requeued": 50, "timed_out": 5, "depth": 7, "in_flight": 3}
    latency = {"p50_ms": 2.5, "p95_ms": 12.0, "p99_ms": 40.0}
    return [json.dumps(about | topic), json.dumps(about | channel | latency)]


@pytest.fixture(scope="module")
def began() -> int:
    """When the first window begins: so that the last ones end a while after now, however slow the machine is."""
    return int(time.time()) // 10 * 10 - 300


@pytest.fixture(scope="module")
def brokers(began: int) -> Iterator[list[Daemon]]:
    """Two nsqds with windows of ten minutes, the later ones on the second; one window twice, garbage in between."""
    with ExitStack() as stack:
        one, two = (stack.enter_context(nsqd()) for _ in range(2))
        publish(one, "orders", "x")
        httpx.post(f"{one.url}/channel/create", params={"topic": "orders", "channel": "billing"}).raise_for_status()
        for number in range(60):
            publish((one, two)[number // 30], "_lapwing_flow", *rows(began + 10 * number))
        publish(one, "_lapwing_flow", "garbage")
        publish(two, "_lapwing_flow", *rows(began), *rows(began, node=2))
        yield [one, two]


@pytest.fixture(scope="module")
def with_flow(brokers: list[Daemon]) -> Iterator[Daemon]:
    with start_nsqadmin(*(f"--nsqd-http-address={each.http}" for each in brokers)) as admin:
        yield admin


@pytest.fixture(scope="module")
def without_flow() -> Iterator[tuple[Daemon, Daemon]]:
    with nsqd() as node:
        publish(node, "orders", "x")
        with start_nsqadmin(f"--nsqd-http-address={node.http}") as admin:
            yield node, admin


def chart(page: Page, title: str, *values: str):
    """The chart that is seen, with what it says to a screen reader."""
    return page.get_by_role("group", name=f"{title}: {', '.join(values)}").filter(visible=True)


def test_the_api_tells_the_past_of_a_topic_and_of_a_channel(with_flow, began):
    answer = httpx.get(f"{with_flow.url}/api/flow/orders/billing", params={"range": "24h"}).json()
    topic = httpx.get(f"{with_flow.url}/api/flow/orders").json()
    points = {point["at"]: point for point in answer["points"]}

    assert (answer["topic"], answer["channel"], answer["range"], answer["step"]) == ("orders", "billing", "24h", 10)
    assert (answer["sampled"], answer["message"]) == (False, "")
    assert len(points) == 60
    assert points[began]["in"] == 80  # two nodes; the window that came again counts once
    assert points[began + 10] == {
        "at": began + 10, "in": 40.0, "out": 50.0, "bytes_in": 8000.0, "size": 200.0, "waiting": 0.0, "depth": 7.0,
        "in_flight": 3.0, "deferred": 0.0, "requeued": 0.1, "timed_out": 0.01, "p50": 0.0025, "p95": 0.012, "p99": 0.04,
    }  # fmt: skip
    assert (topic["range"], len(topic["points"])) == ("6h", 60)


def test_the_api_says_what_it_cannot_tell(with_flow, without_flow):
    node, admin = without_flow
    wrong = httpx.get(f"{with_flow.url}/api/flow/orders", params={"range": "1y"})
    unknown = httpx.get(f"{with_flow.url}/api/flow/nowhere").json()
    none = httpx.get(f"{admin.url}/api/flow/orders").json()

    assert (wrong.status_code, wrong.json()) == (400, {"message": "INVALID_ARG_RANGE"})
    assert {point["in"] for point in unknown["points"]} == {0}
    assert none["points"] == []
    assert none["message"].endswith(f"lapwing pipeline run flow --nsqd {node.http}")


def test_a_long_range_shows_rates_sizes_latency_and_failures(with_flow, page):
    ui = Ui(page, with_flow.url)
    ui.open("/topics/orders/billing")
    expect(chart(page, "Delivery latency")).to_have_count(0)
    for span in ("6 h", "7 d"):
        ui.press(span)
        expect(chart(page, "Messages a second")).to_have_count(1)
        expect(chart(page, "Delivery latency", "p50 2.5ms", "p95 12ms", "p99 40ms")).to_be_visible()
        expect(chart(page, "Failures", "requeued 10 %", "timed out 1 %")).to_be_visible()
        expect(chart(page, "Message size", "on average 200 B")).to_be_visible()
        expect(page.get_by_text("pipeline run flow")).to_have_count(0)
    ui.press("30 min")

    expect(chart(page, "Delivery latency")).to_have_count(0)
    expect(chart(page, "Messages a second", "arrived")).to_have_count(1)


def test_the_page_of_a_topic_opens_at_a_long_range(with_flow, page):
    Ui(page, with_flow.url).open("/topics/orders?span=21600")

    expect(page.get_by_role("button", name="6 h")).to_have_attribute("aria-pressed", "true")
    expect(chart(page, "Messages a second", "published 40/s", "delivered by all channels 50/s")).to_be_visible()
    expect(chart(page, "Bytes a second", "published 7.8 KiB/s")).to_be_visible()


def test_new_windows_come_to_an_open_page(brokers, with_flow, began, page):
    publish(brokers[1], "late", "x")
    Ui(page, with_flow.url).open("/topics/late?span=86400")
    expect(chart(page, "Message size")).to_be_visible()
    expect(chart(page, "Message size", "on average 200 B")).to_have_count(0)
    publish(brokers[0], "_lapwing_flow", *rows(began + 590, topic="late"))

    expect(chart(page, "Message size", "on average 200 B")).to_be_visible(timeout=40_000)


def test_without_a_flow_pipeline_the_page_says_how_to_start_one_and_shows_what_it_has_seen(without_flow, page):
    node, admin = without_flow
    ui = Ui(page, admin.url)
    ui.open("/topics/orders?span=300")
    expect(page.get_by_text("lapwing pipeline run flow")).to_have_count(0)
    ui.press("7 d")

    expect(page.get_by_role("note").filter(has_text="No flow pipeline runs")).to_be_visible()
    expect(page.get_by_text(f"lapwing pipeline run flow --nsqd {node.http}")).to_be_visible()
    expect(chart(page, "Messages a second")).to_be_visible()


def test_lapwings_own_topics_are_listed_only_when_asked_for(with_flow, page):
    ui = Ui(page, with_flow.url)
    ui.open("/topics")
    rows = page.get_by_role("table").get_by_role("rowheader")
    expect(rows.filter(has_text="orders")).to_be_visible()
    expect(rows.filter(has_text="_lapwing_flow")).to_have_count(0)
    ui.press("lapwing's own")
    expect(rows.filter(has_text="_lapwing_flow")).to_be_visible()
    ui.open("/topics/_lapwing_flow")

    expect(page.locator("h1")).to_have_text("_lapwing_flow")
    assert "_lapwing_flow" in httpx.get(f"{with_flow.url}/api/topics").json()["topics"]


def test_nobody_has_to_consume_lapwings_own_topics(with_flow):
    def alarms() -> set[str]:
        return {alarm["about"] for alarm in httpx.get(f"{with_flow.url}/api/alarms").json()["alarms"]}

    # it comes when nsqadmin has watched the channel for 30 s
    until(lambda: "orders/billing" in alarms(), seconds=60, what="the alarm of a channel without consumers")

    assert not [about for about in alarms() if about.startswith("_lapwing")]
