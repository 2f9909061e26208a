"""statsd."""

import asyncio
import socket

import pytest
from doors import Node, options, quiet

from lapwing.broker import stats
from lapwing.nsqd.stats.statsd import Datagrams, Differences, Statsd, memory_samples, prefix, topic_samples


def test_the_prefix_names_host_and_port_and_ends_in_a_dot() -> None:
    assert prefix(options()) == "nsq.node_example_4151."
    assert prefix(options(statsd_prefix="x.%s.y.")) == "x.node_example_4151.y."
    assert prefix(options(statsd_prefix="plain")) == "plain."
    assert prefix(options(statsd_prefix="")) == ""


def test_counters_are_told_as_what_was_added() -> None:
    since = Differences()
    first = since.since("k", 5)
    since.turn()
    second = since.since("k", 8)
    since.turn()
    anew = since.since("k", 2)

    assert (first, second, anew) == (5, 3, 2)


async def test_every_key_of_a_topic_is_there() -> None:
    node = Node(e2e_processing_latency_percentiles=(1.0, 0.95))
    await node.ask("POST", "/mpub?topic=t", b"a\nbb")
    await node.ask("POST", "/channel/create?topic=t&channel=c")
    (topic,) = stats.topic_stats(node.broker, now=node.clock.now(), topic="t") or ()

    assert list(topic_samples(topic, Differences())) == [
        ("topic.t.message_count", 2, "c"),
        ("topic.t.message_bytes", 3, "c"),
        ("topic.t.depth", 0, "g"),
        ("topic.t.backend_depth", 0, "g"),
        ("topic.t.e2e_processing_latency_100", 0, "g"),
        ("topic.t.e2e_processing_latency_95", 0, "g"),
        ("topic.t.channel.c.message_count", 2, "c"),
        ("topic.t.channel.c.depth", 2, "g"),
        ("topic.t.channel.c.backend_depth", 0, "g"),
        ("topic.t.channel.c.in_flight_count", 0, "g"),
        ("topic.t.channel.c.deferred_count", 0, "g"),
        ("topic.t.channel.c.requeue_count", 0, "c"),
        ("topic.t.channel.c.timeout_count", 0, "c"),
        ("topic.t.channel.c.clients", 0, "g"),
        ("topic.t.channel.c.e2e_processing_latency_100", 0, "g"),
        ("topic.t.channel.c.e2e_processing_latency_95", 0, "g"),
    ]


async def test_ephemeral_ones_may_be_left_out() -> None:
    node = Node()
    for target in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c%23ephemeral"):
        await node.ask("POST", target)
    await node.ask("POST", "/topic/create?topic=e%23ephemeral")
    topics = stats.topic_stats(node.broker, now=node.clock.now()) or ()

    keys = [key for topic in topics for key, _, _ in topic_samples(topic, Differences(), exclude_ephemeral=True)]
    assert keys
    assert not any("#ephemeral" in key for key in keys)


def test_collections_are_a_counter_and_other_memory_figures_gauges() -> None:
    figures = {"heap_objects": 3, "gc_total_runs": 7}

    assert list(memory_samples(figures, Differences())) == [("mem.heap_objects", 3, "g"), ("mem.gc_runs", 7, "c")]


def test_datagrams_hold_as_many_whole_lines_as_fit() -> None:
    packets = Datagrams(12)
    packets.add([b"aaaa\n", b"bbbb\n", b"cc\n", b"d" * 20 + b"\n"])
    packets.add([b"e\n"])

    assert packets.all() == [b"aaaa\nbbbb\n", b"cc\n", b"d" * 20 + b"\n", b"e\n"]
    assert Datagrams(12).all() == []


async def test_lines_arrive_at_the_server_interval_after_interval() -> None:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.setblocking(False)
    receiver.bind(("127.0.0.1", 0))
    node = Node(
        statsd_address=f"127.0.0.1:{receiver.getsockname()[1]}", statsd_interval=20_000_000, statsd_udp_packet_size=100
    )
    await node.ask("POST", "/pub?topic=t", b"hello")
    statsd = Statsd(node.broker, node.options, node.clock.now, quiet())
    await statsd.start()
    received: list[bytes] = []
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while b"".join(received).count(b"mem.gc_runs") < 2:
            received.append(await loop.sock_recv(receiver, 2000))
    await statsd.stop()
    receiver.close()

    lines = b"".join(received).decode().splitlines()
    assert all(len(datagram) <= 100 for datagram in received)
    assert lines.count("nsq.node_example_4151.topic.t.message_count:1|c") == 1
    assert lines.count("nsq.node_example_4151.topic.t.message_count:0|c") >= 1
    assert "nsq.node_example_4151.topic.t.message_bytes:5|c" in lines


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no..name:8125", "no port"])
async def test_a_server_that_is_not_there_stops_nothing(address: str) -> None:
    node = Node(statsd_address=address, statsd_interval=5_000_000)
    statsd = Statsd(node.broker, node.options, node.clock.now, quiet())
    await statsd.start()
    await asyncio.sleep(0.1)
    task = statsd._task
    running = task is not None and not task.done()
    await statsd.stop()

    assert running
