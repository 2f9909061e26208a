"""Figures in the formats that other programs read: statsd_exporter's mapping, and telegraf's input for NSQ."""

import json
import re
import socket
import urllib.request
from collections.abc import Iterator

import pytest
import yaml

from daemons import Daemon, nsqd
from documents import block

MAPPED = {
    "nsq_topic_message_count", "nsq_topic_depth", "nsq_topic_backend_depth", "nsq_topic_channel_depth",
    "nsq_topic_channel_message_count", "nsq_topic_channel_in_flight_count", "nsq_topic_channel_requeue_count",
    "nsq_topic_channel_timeout_count", "nsq_topic_channel_deferred_count", "nsq_topic_channel_clients",
    "nsq_mem_heap_in_use_bytes", "nsq_mem_gc_pause_usec_99",
}  # fmt: skip
# telegraf's inputs.nsq: what it reads of /stats?format=json
SERVER = {"version": str, "health": str, "start_time": int, "topics": list}
TOPIC = {"topic_name": str, "depth": int, "backend_depth": int, "message_count": int, "paused": bool, "channels": list}
CHANNEL = {
    "channel_name": str, "depth": int, "backend_depth": int, "in_flight_count": int, "deferred_count": int,
    "message_count": int, "requeue_count": int, "timeout_count": int, "paused": bool, "clients": list,
}  # fmt: skip
CLIENT = {
    "client_id": str, "hostname": str, "version": str, "remote_address": str, "state": int, "ready_count": int,
    "in_flight_count": int, "message_count": int, "finish_count": int, "requeue_count": int, "connect_ts": int,
    "sample_rate": int, "deflate": bool, "snappy": bool, "user_agent": str, "tls": bool, "tls_cipher_suite": str,
    "tls_version": str, "tls_negotiated_protocol": str, "tls_negotiated_protocol_is_mutual": bool,
}  # fmt: skip


@pytest.fixture(scope="module")
def statsd() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.settimeout(30)
        yield listener


@pytest.fixture(scope="module")
def daemon(statsd: socket.socket) -> Iterator[Daemon]:
    port = statsd.getsockname()[1]
    with nsqd(f"--statsd-address=127.0.0.1:{port}", "--statsd-interval=1s") as running:
        for path in ("/topic/create?topic=orders.eu", "/channel/create?topic=orders.eu&channel=c.1"):
            urllib.request.urlopen(running.url + path, data=b"", timeout=60).close()
        yield running


def test_the_mapping_for_statsd_exporter_gives_the_names_of_metrics(daemon: Daemon, statsd: socket.socket) -> None:
    mappings = yaml.safe_load(block("docs/reference/metrics.md", "mappings:").text)["mappings"]
    found: dict[str, dict[str, str]] = {}
    while not found.keys() >= MAPPED:
        for line in statsd.recv(65536).decode().splitlines():
            key, _, rest = line.partition(":")
            assert re.fullmatch(r"-?\d+\|[cg]", rest), line
            match, rule = next(
                (match, rule) for rule in mappings if (match := re.fullmatch(rule["match"], key)) is not None
            )
            name = match.expand(rule["name"].replace("$", "\\"))
            labels = rule.get("labels", {})
            found[name] = {label: match.expand(text.replace("$", "\\")) for label, text in labels.items()}

    assert found["nsq_topic_depth"] == {"topic": "orders.eu"}
    assert found["nsq_topic_channel_depth"] == {"topic": "orders.eu", "channel": "c.1"}


def test_telegraf_finds_its_figures_in_the_stats(daemon: Daemon) -> None:
    host, _, port = daemon.tcp.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as consumer:
        consumer.sendall(b"  V2SUB orders.eu c.1\n")
        assert consumer.recv(100).endswith(b"OK")
        with urllib.request.urlopen(f"{daemon.url}/stats?format=json", timeout=60) as answer:
            stats = json.load(answer)
    (topic,) = stats["topics"]
    (channel,) = topic["channels"]
    (client,) = channel["clients"]

    for document, expected in ((stats, SERVER), (topic, TOPIC), (channel, CHANNEL), (client, CLIENT)):
        assert {key: type(document[key]) for key in expected} == expected
