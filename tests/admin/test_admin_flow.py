"""Windows of the flow pipeline: merged, thinned out, and read from logs in pages."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from lapwing.admin.alarms import AlarmLimits
from lapwing.admin.flow_history import PAGE, FlowHistory, FlowPast, hint
from lapwing.admin.flow_windows import RANGES, FlowRange, FlowWindow, FlowWindows, parse
from lapwing.client.cluster import Node
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.cluster_view import ClusterView, NodeState
from lapwing.client.http import CallFailed, DaemonHttp

NOW = 1_800_000_000  # a whole number of all the steps
MINUTES = FlowRange("100m", 6000, 120, finer=())
SECOND = 1_000_000_000
NODE = Node("a", "10.0.0.1", 4150, 4151, "1.3.0")


def iso(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def body(start: float, topic: str = "orders", channel: str = "", *, node: int = 1, seconds: int = 10, **numbers) -> str:
    """A row as the pipeline publishes it: what is null is left out."""
    told = {"window_start": iso(start), "window_end": iso(start + seconds), "topic": topic, "node": node, **numbers}
    return json.dumps(told | ({"channel": channel} if channel else {}))


def window(start: float, *, published: float = 0.0, **told) -> FlowWindow:
    found = parse(body(start, **told).encode(), published or start + 18)
    assert found is not None
    return found


def points(
    *windows: FlowWindow, topic: str = "orders", channel: str = "", scale: FlowRange = MINUTES, now: float = NOW
):
    kept = FlowWindows(scale)
    for each in windows:
        kept.add(each)
    return {point.at: point for point in kept.points(topic, channel, now=now)}


# ---- what a window is ----


def test_a_row_of_the_pipeline_is_understood_with_any_time_zone():
    zulu = parse(body(NOW, channel="c", delivered=5).encode(), NOW + 18)
    moved = parse(body(NOW, channel="c", delivered=5).replace("Z", "+00:00").encode(), NOW + 18)

    assert zulu == moved
    assert (zulu.start, zulu.end, zulu.topic, zulu.channel, zulu.node) == (NOW, NOW + 10, "orders", "c", 1)


@pytest.mark.parametrize(
    "stranger",
    [
        "\udcff",
        "",
        "hello",
        "[]",
        "7",
        "{}",
        '{"topic": "orders"}',
        "[" * 100_000,
        body(NOW).replace("orders", "no topic"),
        body(NOW).replace(iso(NOW), "yesterday"),
        body(NOW).replace(f'"{iso(NOW)}"', "12"),
        body(NOW, seconds=0),
        body(NOW, seconds=10_000_000),
        body(NOW + 86_400),
        json.dumps({**json.loads(body(NOW)), "channel": 5}),
        json.dumps({**json.loads(body(NOW)), "node": "x"}),
    ],
)
def test_anything_else_in_that_topic_is_passed_over(stranger):
    assert parse(stranger.encode("utf-8", "surrogateescape"), NOW + 18) is None


def test_numbers_that_cannot_be_are_taken_as_none():
    found = parse(body(NOW, messages=-3, bytes="7", depth=float("nan"), delivered=True).encode(), NOW + 18)

    assert list(found.numbers)[:2] == [0.0, 0.0]
    assert found.numbers[5] == 0.0


# ---- merging ----


def test_a_window_that_is_published_again_replaces_the_one_before_in_whatever_order_they_come():
    first = window(NOW - 120, published=NOW - 100, messages=100)
    again = window(NOW - 120, published=NOW - 40, messages=240)

    assert points(first, again)[NOW - 120].into == points(again, first)[NOW - 120].into == 24


def test_nodes_are_added_up():
    rows = [
        window(NOW - 240 + 10 * number, node=node, messages=100, bytes=5000 * node, depth=7)
        for number in range(12)
        for node in (1, 2)
    ]
    found = points(*rows)[NOW - 240]

    assert (found.into, found.bytes_in, found.size, found.waiting) == (20, 1500, 75, 14)


def test_a_topic_has_what_its_channels_did_and_a_channel_what_came_into_the_topic():
    rows = [
        window(NOW - 120, messages=1000, bytes=200_000, depth=3),
        window(NOW - 120, channel="a", delivered=1000, requeued=20, timed_out=5, depth=10, in_flight=4, deferred=2),
        window(NOW - 120, channel="b", delivered=600, depth=1),
        window(NOW - 120, topic="other", messages=9),
    ]
    topic, channel = points(*rows)[NOW - 120], points(*rows, channel="a")[NOW - 120]

    assert (topic.into, topic.out, topic.size, topic.waiting, topic.depth) == (100, 160, 200, 3, 11)
    assert (topic.requeued, topic.timed_out) == (20 / 1600, 5 / 1600)
    assert (channel.into, channel.out, channel.depth, channel.in_flight, channel.deferred) == (100, 100, 10, 4, 2)
    assert (channel.requeued, channel.timed_out) == (0.02, 0.005)


def test_latencies_are_in_seconds_and_the_slowest_stands_for_all():
    rows = [
        window(NOW - 120, channel="a", node=1, delivered=300, p50_ms=10, p95_ms=40, p99_ms=90),
        window(NOW - 120, channel="a", node=2, delivered=100, p50_ms=30, p95_ms=20, p99_ms=200),
        window(NOW - 110, channel="a", node=2, delivered=50),
    ]
    found = points(*rows, channel="a")[NOW - 120]

    assert (found.p50, found.p95, found.p99) == (0.015, 0.04, 0.2)
    assert points(rows[2], channel="a")[NOW - 120].p50 is None


# ---- thinning out ----


def test_a_step_has_the_mean_rate_and_the_highest_level_of_its_windows():
    rows = [window(NOW - 360 + 10 * number, messages=number, depth=number) for number in range(24)]
    found = points(*rows)

    assert [found[at].into for at in (NOW - 360, NOW - 240)] == [sum(range(12)) / 120, sum(range(12, 24)) / 120]
    assert [found[at].waiting for at in (NOW - 360, NOW - 240)] == [11, 23]


def test_seconds_in_which_nothing_moved_have_no_window_and_still_count():
    rows = [window(NOW - 480, messages=10), window(NOW - 240, messages=120), window(NOW - 120, messages=10)]

    assert points(*rows)[NOW - 240].into == 1


def test_the_first_and_the_last_step_count_from_the_first_and_to_the_last_window():
    rows = [window(at, messages=50) for at in (NOW - 150, NOW - 140, NOW - 130, NOW, NOW + 10)]
    found = points(*rows, now=NOW + 40)

    assert (found[NOW - 240].into, found[NOW].into) == (5, 5)


def test_a_step_without_any_window_is_a_gap_and_one_with_windows_of_others_is_silence():
    rows = [
        window(NOW - 480, messages=10),
        window(NOW - 360, topic="other", messages=10),
        window(NOW - 120, messages=10),
    ]
    found = points(*rows)

    assert [found[at].into for at in sorted(found)] == [1 / 12, 0, None, 1]
    assert (found[NOW - 360].size, found[NOW - 360].requeued, found[NOW - 360].waiting) == (None, None, 0)


def test_a_pipeline_that_stopped_leaves_a_gap_up_to_now_but_not_while_its_windows_may_still_come():
    stopped = points(window(NOW - 360, messages=10))
    late = points(window(NOW - 240, messages=10), now=NOW + 60)

    assert sorted(stopped) == [NOW - 360, NOW - 240]
    assert stopped[NOW - 240].into is None
    assert sorted(late) == [NOW - 240]


def test_windows_that_are_longer_than_a_step_have_their_own_rate():
    rows = [window(at, seconds=600, messages=6000) for at in (NOW - 1200, NOW - 600)]

    assert points(*rows)[NOW - 600].into == 10


def test_little_past_is_shown_in_fine_steps_that_grow_with_it():
    kept = FlowWindows(RANGES[2])
    steps = {}
    for start in range(NOW - 86_400, NOW, 10):
        kept.add(window(start, messages=20))
        if (start + 10 - NOW) % 1200 == 0:
            steps[start + 10 - NOW + 86_400] = kept.step
    found = kept.points("orders", now=NOW)

    assert [steps[at] for at in (1200, 3600, 7200, 43_200, 86_400)] == [10, 20, 60, 300, 600]
    assert len(found) == 144
    assert {point.into for point in found} == {2}


@pytest.mark.parametrize("scale", RANGES)
def test_no_range_has_more_points_than_a_chart_can_show(scale):
    found = points(*(window(NOW - at, messages=1) for at in range(0, scale.span, scale.step // 3)), scale=scale)

    assert 150 < len(found) <= 181


def test_what_is_older_than_the_range_or_too_much_is_let_go():
    kept = FlowWindows(MINUTES)
    for at in range(NOW - 1200, NOW, 10):
        kept.add(window(at, messages=1))
    kept.forget(before=NOW - 600, most=1000)
    after_time = (kept.count, min(kept.seen))
    kept.forget(before=NOW - 600, most=20)

    assert after_time == (60, NOW - 600)
    assert (kept.count, min(kept.seen)) == (12, NOW - 120)
    kept.forget(before=NOW + 600, most=20)
    assert (kept.count, kept.topics, kept.points("orders", now=NOW)) == (0, {}, [])


# ---- reading ----


class Logs(DaemonHttp):
    """Brokers that answer `/log/read` out of lists of (publish time, body)."""

    def __init__(self, **brokers: list[tuple[float, str]]) -> None:
        self.brokers = brokers
        self.first = dict.fromkeys(brokers, 0)
        self.log_id = "one"
        self.reads = 0
        self.rows = 0

    async def get(self, address, path, params=(), *, timeout=None):
        self.reads += 1
        if address not in self.brokers:
            raise CallFailed("no such topic", status=404)
        log = self.brokers[address]
        if params.get("log_id", self.log_id) != self.log_id:
            raise CallFailed("another log", status=409)
        begin = int(params.get("from", self.first[address]))
        if not self.first[address] <= begin <= len(log):
            raise CallFailed("out of range", status=416)
        since = int(params.get("time_from", 0)) / SECOND
        begin = max(begin, next((index for index, (at, _) in enumerate(log) if at >= since), len(log)))
        end = min(begin + int(params["limit"]), len(log))
        self.rows += end - begin
        messages = [
            {"sequence": n, "timestamp": int(log[n][0] * SECOND), "body": log[n][1], "id": "0", "attempts": 1}
            for n in range(begin, end)
        ]
        return {"log_id": self.log_id, "first": 0, "next": len(log), "resume": end, "messages": messages}


def day(topics: int, *, seconds: int = 86_400, until: float = NOW) -> list[tuple[float, str]]:
    """What a pipeline has published: per window a row a topic, 8 s after its end."""
    return [
        (start + 18, body(start, f"t{number}", messages=10 * (number + 1)))
        for start in range(int(until) - seconds, int(until) - 18, 10)
        for number in range(topics)
    ]


async def read(logs: Logs, scale: FlowRange = RANGES[1], *, past: FlowPast | None = None, now: float = NOW) -> FlowPast:
    past = past or FlowPast(FlowWindows(scale))
    nodes = [replace(NODE, configured=contact) for contact in (*logs.brokers, "plain")]
    await FlowHistory(logs, lambda: nodes, clock=lambda: now).read(past)
    return past


async def test_a_small_past_is_read_whole():
    logs = Logs(a=day(2, seconds=7200))
    past = await read(logs)
    found = past.windows.points("t1", now=NOW)

    assert past.windows.count == len(logs.brokers["a"])
    assert not past.windows.sampled
    assert {round(point.into, 6) for point in found} == {2}


async def test_a_large_past_is_sampled_over_its_whole_range_with_the_right_rates():
    logs = Logs(a=day(30, until=NOW + 80))
    past = await read(logs, now=NOW + 80)
    found = past.windows.points("t4", now=NOW + 80)

    assert past.windows.sampled
    assert len(logs.brokers["a"]) > 250_000 > 62_000 > logs.rows
    assert logs.reads < 250
    assert len(found) >= 180
    assert {round(point.into, 6) for point in found} == {5}


async def test_a_window_with_more_rows_than_a_page_is_not_cut_through():
    topics = PAGE + 50
    past = await read(Logs(a=day(topics, seconds=3600)), RANGES[0])

    for topic in ("t0", f"t{topics - 1}"):
        found = past.windows.points(topic, now=NOW)
        assert {round(point.into, 6) for point in found} == {int(topic[1:]) + 1}


async def test_only_what_is_new_is_read_again():
    logs = Logs(a=day(2, seconds=7200))
    past = await read(logs)
    logs.rows = 0
    logs.brokers["a"] += [(NOW + 8, body(NOW - 10, "t1", messages=20))]
    await read(logs, past=past, now=NOW + 10)

    assert logs.rows == 1
    assert past.windows.newest == NOW


async def test_a_window_that_comes_hours_late_still_finds_its_place():
    logs = Logs(a=day(1, seconds=7200))
    logs.brokers["a"].append((NOW, body(NOW - 7000, "slow", messages=480)))
    past = await read(logs)

    found = [point for point in past.windows.points("slow", now=NOW) if point.into]
    assert [(NOW - 7000 - point.at) // past.windows.step for point in found] == [0]
    assert found[0].into * past.windows.step == pytest.approx(480)


async def test_windows_on_several_brokers_make_one_past():
    rows = day(2, seconds=7200)
    past = await read(Logs(a=rows[: len(rows) // 2], b=rows[len(rows) // 2 :]))

    assert past.windows.count == len(rows)
    assert {round(point.into, 6) for point in past.windows.points("t0", now=NOW)} == {1}


async def test_a_log_that_was_made_anew_or_shortened_is_read_from_its_beginning():
    logs = Logs(a=day(2, seconds=7200))
    past = await read(logs)
    logs.log_id, logs.brokers["a"] = "two", [(NOW + 8, body(NOW - 10, "t0", messages=77))]
    await read(logs, past=past, now=NOW + 10)
    shortened = Logs(a=day(2, seconds=7200))
    later = await read(shortened)
    shortened.brokers["a"] += day(2, seconds=3600, until=NOW + 3600)
    shortened.first["a"] = len(shortened.brokers["a"]) - 4
    await read(shortened, past=later, now=NOW + 3600)

    assert past.windows.topics["t0"][""][NOW - 10, 1][1][0] == 77
    assert later.windows.newest >= NOW + 3500


async def test_plain_nsq_and_brokers_without_the_topic_add_nothing():
    past = await read(Logs())

    assert (past.windows.seen, past.positions) == ({}, {})


async def test_whatever_stands_in_the_topic_does_not_end_the_reading():
    logs = Logs(a=[(NOW - 100, "nonsense"), *day(1, seconds=600)])

    assert (await read(logs)).windows.count == len(logs.brokers["a"]) - 1


# ---- in words ----


def cluster_view(*, lapwing: bool = True, pipelines=()) -> ClusterView:
    node = Node("host", "127.0.0.1", 4150, 4151, "1.3.0")
    return ClusterView(at=NOW, nodes=(NodeState(node, lapwing=lapwing),), pipelines=tuple(pipelines))


def said(past: FlowPast, shown: ClusterView, **cluster_client) -> tuple[str, str]:
    found = hint(past, shown, AlarmLimits(), ClusterClient(Logs(), **(cluster_client or {"nsqds": ["127.0.0.1:4151"]})))
    return found.text, found.command


def test_a_hint_says_what_is_missing_and_how_to_get_it():
    past = FlowPast(FlowWindows(MINUTES), version=1)
    flow = {"name": "flow", "kind": "flow", "state": "running", "updated_ms": NOW * 1000}
    old = FlowPast(FlowWindows(MINUTES), version=2)
    old.windows.add(window(NOW - 3610, messages=1))

    assert "No flow pipeline runs" in said(past, cluster_view())[0]
    assert said(past, cluster_view())[1] == "lapwing pipeline run flow --nsqd 127.0.0.1:4151"
    assert said(past, cluster_view(), lookupds=["l:4161"])[1] == "lapwing pipeline run flow --lookupd l:4161"
    assert "keep no log" in said(past, cluster_view(lapwing=False))[0]
    assert "within a minute" in said(past, cluster_view(pipelines=[flow]))[0]
    assert "its last window ended 1h ago" in said(old, cluster_view())[0]
    assert said(old, cluster_view(pipelines=[flow])) == ("", "")
    assert "Reading" in said(FlowPast(FlowWindows(MINUTES)), cluster_view())[0]
