"""`/metrics`."""

import json
import re
from pathlib import Path

from doors import Node, settle

from lapwing.broker.channel.ledger import Holder
from lapwing.broker.channel.subscription import Window
from lapwing.net.server.prometheus import CONTENT_TYPE, escape, line
from lapwing.nsqd.stats.metrics import HOLDER_GAUGES, FsyncTimes

SAMPLE = re.compile(r'([a-z0-9_]+)(\{[a-z_]+="(?:[^"\\\n]|\\.)*"(?:,[a-z_]+="(?:[^"\\\n]|\\.)*")*\})? (\S+)')


def parsed(text: str) -> dict[str, float]:
    """Every sample by name and labels; complains of what Prometheus would complain of."""
    found: dict[str, float] = {}
    described: list[str] = []
    for row in text.splitlines():
        if row.startswith("# HELP "):
            described.append(row.split()[2])
            continue
        if row.startswith("# TYPE "):
            assert row.split()[2] == described[-1]
            assert row.split()[3] in ("gauge", "counter", "histogram")
            continue
        match = SAMPLE.fullmatch(row)
        assert match, row
        assert re.sub("_(bucket|sum|count)$", "", match[1]) == described[-1] or match[1] == described[-1]
        assert match[1] + (match[2] or "") not in found
        found[match[1] + (match[2] or "")] = float(match[3])
    assert len(described) == len(set(described))
    return found


# of the panels and alert rules of Grafana's mixin for NSQ
MIXIN = (
    *("nsq_topic_message_count", "nsq_topic_depth", "nsq_topic_backend_depth", "nsq_topic_channel_clients"),
    *("nsq_topic_channel_message_count", "nsq_topic_channel_depth", "nsq_topic_channel_backend_depth"),
    *("nsq_topic_channel_in_flight_count", "nsq_topic_channel_requeue_count", "nsq_topic_channel_timeout_count"),
    *("nsq_topic_channel_deferred_count", "nsq_mem_heap_in_use_bytes", "nsq_mem_heap_idle_bytes"),
    *("nsq_mem_heap_released_bytes", "nsq_mem_heap_objects", "nsq_mem_next_gc_bytes"),
    *("nsq_mem_gc_pause_usec_100", "nsq_mem_gc_pause_usec_99", "nsq_mem_gc_pause_usec_95"),
)


async def test_the_names_of_nsq_are_there_on_demand() -> None:
    node = Node()
    await node.ask("POST", "/mpub?topic=t", b"aa\nbbb")
    await node.ask("POST", "/channel/create?topic=t&channel=c")
    found = parsed((await node.ask("GET", "/metrics?names=nsq"))[1])

    assert {name.partition("{")[0] for name in found} >= set(MIXIN)
    assert found['nsq_topic_message_count{topic="t"}'] == 2
    assert found['nsq_topic_channel_depth{topic="t",channel="c"}'] == 2
    assert not any(name.startswith("lapwing") for name in found)
    assert (await node.ask("GET", "/metrics?names=go"))[0] == 400


async def test_topics_and_channels_are_counted() -> None:
    node = Node()
    await node.ask("POST", "/mpub?topic=t", b"aa\nbbb")
    await node.ask("POST", "/channel/create?topic=t&channel=c")
    await node.ask("POST", "/pub?topic=t&defer=60000", b"later")
    await node.ask("POST", "/topic/create?topic=empty")
    node.wall.ns += 2_500_000_000
    answer = await settle(node.request("GET", "/metrics"))
    found = parsed((await node.ask("GET", "/metrics"))[1])

    here = '{topic="t",channel="c"}'
    assert answer.content_type == CONTENT_TYPE
    assert found['lapwing_topic_messages_total{topic="t"}'] == 3
    assert found['lapwing_topic_bytes_total{topic="t"}'] == 10
    assert found['lapwing_topic_log_next{topic="t"}'] == 3
    assert found[f"lapwing_channel_depth{here}"] == 2
    assert found[f"lapwing_channel_deferred{here}"] == 1
    assert found[f"lapwing_channel_in_flight{here}"] == 0
    assert found[f"lapwing_channel_clients{here}"] == 0
    assert found[f"lapwing_channel_oldest_message_age_seconds{here}"] == 2.5
    assert found["lapwing_topics"] == 2
    assert found["lapwing_channels"] == 1
    assert found["lapwing_healthy"] == 1
    assert found["lapwing_disk_free_bytes"] > 0
    assert found["process_cpu_seconds_total"] > 0
    assert found["process_resident_memory_bytes"] > 1e6


async def test_schedules_are_counted_where_there_are_some() -> None:
    node = Node()
    assert "lapwing_schedule" not in (await node.ask("GET", "/metrics"))[1]
    await node.ask("PUT", "/schedules/s", b'{"topic": "t", "body": "b", "every": "1s"}')
    node.wall.ns += 60_000_000_000
    node.broker.schedules.step(now=node.clock.now())
    node.broker.commit(node.clock.now())
    found = parsed((await node.ask("GET", "/metrics"))[1])

    assert found['lapwing_schedule_published_total{schedule="s"}'] == 1
    assert found['lapwing_schedule_missed_total{schedule="s"}'] == 50
    assert found['lapwing_schedule_failing{schedule="s"}'] == 0
    await node.api.schedules.stop()


async def test_what_nobody_gets_is_counted_by_its_reason() -> None:
    node = Node(mem_queue_size=3)
    await node.ask("POST", "/mpub?topic=t%23ephemeral", b"1\n2\n3\n4\n5")
    await node.ask("POST", "/topic/create?topic=t")
    await node.ask("POST", "/channel/create?topic=t&channel=c%23ephemeral")
    await node.ask("POST", "/channel/create?topic=t&channel=sampled")
    await node.ask("POST", "/mpub?topic=t", b"1\n2\n3\n4")
    node.broker.existing("t").channels["sampled"].discarded_count += 7

    found = parsed((await node.ask("GET", "/metrics"))[1])
    assert found['lapwing_topic_dropped_total{topic="t#ephemeral"}'] == 2
    assert found['lapwing_topic_dropped_total{topic="t"}'] == 0
    assert found['lapwing_channel_dropped_total{topic="t",channel="c#ephemeral"}'] == 1
    assert found['lapwing_channel_discarded_total{topic="t",channel="c#ephemeral"}'] == 0
    assert found['lapwing_channel_dropped_total{topic="t",channel="sampled"}'] == 0
    assert found['lapwing_channel_discarded_total{topic="t",channel="sampled"}'] == 7
    assert "dropped" not in (await node.ask("GET", "/stats?format=json"))[1]  # NSQ's keys, and no other


async def test_percentiles_are_there_when_they_are_asked_for() -> None:
    node = Node(e2e_processing_latency_percentiles=(0.99, 0.5))
    await node.ask("POST", "/topic/create?topic=t")
    await node.ask("POST", "/channel/create?topic=t&channel=c")

    found = parsed((await node.ask("GET", "/metrics"))[1])
    assert found['lapwing_channel_e2e_latency_seconds{topic="t",channel="c",quantile="0.99"}'] == 0


async def test_a_broken_disk_shows() -> None:
    node = Node()
    node.broker.keeper.problem = "no space"

    assert parsed((await node.ask("GET", "/metrics"))[1])["lapwing_healthy"] == 0


async def test_many_topics_make_one_text() -> None:
    node = Node()
    for number in range(250):
        node.broker.topic(f"t{number}")

    found = parsed((await node.ask("GET", "/metrics"))[1])
    assert sum(1 for name in found if name.startswith("lapwing_topic_depth{")) == 250


def test_sync_times_add_up_from_bucket_to_bucket() -> None:
    times = FsyncTimes()
    for seconds in (0.0001, 0.0002, 0.004, 30.0):
        times.observe(seconds)

    rows = {(suffix, labels.get("le")): number for suffix, labels, number in times.samples()}
    assert rows["_bucket", "0.0001"] == 1
    assert rows["_bucket", "0.00025"] == 2
    assert rows["_bucket", "5.0"] == 3
    assert rows["_bucket", "+Inf"] == rows["_count", None] == 4
    assert rows["_sum", None] == 30.0043


def test_labels_are_escaped() -> None:
    assert escape('a"b\\c\nd') == 'a\\"b\\\\c\\nd'
    assert line("m", {"topic": 't"'}, 1) == 'm{topic="t\\""} 1\n'


def consume_alone(node: Node) -> None:
    """Have a consumer of t/c that is the active one."""
    channel = node.broker.existing_channel("t", "c")
    node.broker.settings.change_channel(channel, {"active": "single", "max_in_flight_per_key": 9}, now=node.clock.now())
    window = Window(Holder("nsq:me:1"), lambda frames: None, lambda: None, timeout=None)
    window.size = 1
    channel.subscribe(window)
    node.turn.end()


async def test_the_active_consumer_is_named() -> None:
    node = Node()
    await node.ask("POST", "/topic/create?topic=t")
    await node.ask("POST", "/channel/create?topic=t&channel=c")
    metric = 'lapwing_channel_active_consumer{topic="t",channel="c",consumer="nsq:me:1"}'
    assert metric not in parsed((await node.ask("GET", "/metrics"))[1])
    consume_alone(node)

    assert parsed((await node.ask("GET", "/metrics"))[1])[metric] == 1


async def test_every_metric_is_documented_and_no_other() -> None:
    node = Node(e2e_processing_latency_percentiles=(0.99,))
    await node.ask("POST", "/topic/create?topic=t")
    await node.ask("POST", "/channel/create?topic=t&channel=c")
    consume_alone(node)
    counts = dict.fromkeys(("rows_in", "rows_out", "rejected", "late", "lag", "input_rate", "batch_ms"), 1)
    await node.ask("POST", "/pipelines/p", json.dumps({**counts, "batch_at_ms": 1}).encode())
    await node.ask("PUT", "/schedules/s", b'{"topic": "t", "body": "b", "every": "1d"}')
    await node.api.schedules.stop()
    status = {"rows_in": 1, "rows_out": 1, "rejected": 0, "late": 0, "lag": 0, "input_rate": 1.0, "batch_ms": 5}
    await node.ask("POST", "/pipelines/p", json.dumps(status | {"batch_at_ms": 1, "state": "running"}).encode())
    keys = ("epoch", "index", "lag_ms", "requests", "bytes", "checkpoints")
    node.remote = {**dict.fromkeys(keys, 1), "problem": None, "fenced": None}
    text = (await node.ask("GET", "/metrics"))[1]
    documented = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text().partition("### nsqadmin")[0]
    table = "\n".join(row for row in documented.splitlines() if row.startswith("| `"))

    names = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    names += [f"lapwing_consumer_{name}" for name, _, _ in HOLDER_GAUGES]  # shown while a named consumer holds
    assert sorted(names) == sorted(re.findall(r"`((?:lapwing|process)_[a-z0-9_]+)`", table))
