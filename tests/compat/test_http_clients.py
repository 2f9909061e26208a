"""The HTTP clients of gnsq and ansq, on our daemons."""

import re
import subprocess
from collections.abc import Iterator

import ansq.http
import gnsq
import pytest

import daemons


@pytest.fixture
def client(nsqd: daemons.Daemon) -> gnsq.NsqdHTTPClient:
    return gnsq.NsqdHTTPClient("127.0.0.1", nsqd.http_port)


@pytest.fixture
def topic(client: gnsq.NsqdHTTPClient) -> Iterator[str]:
    client.create_topic("compat_http")
    yield "compat_http"
    client.delete_topic("compat_http")


def test_gnsq_administers_a_topic(client: gnsq.NsqdHTTPClient, topic: str) -> None:
    client.create_channel(topic, "c")
    client.pause_channel(topic, "c")
    client.publish(topic, b"one")
    client.multipublish(topic, [b"two", b"three"])
    client.publish(topic, b"later", defer=60_000)
    [stats] = [found for found in client.stats()["topics"] if found["topic_name"] == topic]
    [channel] = stats["channels"]

    assert client.ping() == b"OK"
    assert client.info()["version"] == "1.3.0"
    assert stats["message_count"] == 4
    assert (channel["depth"], channel["deferred_count"], channel["paused"]) == (3, 1, True)

    client.empty_channel(topic, "c")
    client.delete_channel(topic, "c")
    with pytest.raises(gnsq.errors.NSQHttpError, match="404"):
        client.delete_channel(topic, "c")


def test_gnsq_asks_nsqlookupd(lookupd: daemons.Daemon, nsqd: daemons.Daemon, topic: str) -> None:
    client = gnsq.LookupdClient("127.0.0.1", lookupd.http_port)
    [producer] = client.lookup(topic)["producers"]

    assert producer["tcp_port"] == nsqd.tcp_port
    assert topic in client.topics()["topics"]
    assert [node["http_port"] for node in client.nodes()["producers"]] == [nsqd.http_port]


def test_gnsq_takes_the_version_apart() -> None:
    pattern = re.compile(r"nsqd v(\d+)\.(\d+)\.(\d+)(?:-alpha)? \(built w/[a-z0-9.-]+\)")  # as gnsq's suite has it
    told = subprocess.run([*daemons.program("nsqd"), "--version"], capture_output=True, text=True, check=True)

    assert pattern.fullmatch(told.stdout.strip())
    assert told.stderr == ""


async def test_ansq_publishes_over_http(nsqd: daemons.Daemon, topic: str) -> None:
    writer = ansq.http.NSQDHTTPWriter("127.0.0.1", nsqd.http_port)
    await writer.pub(topic, "one")
    await writer.mpub(topic, "two", "three")
    stats = await writer.stats()
    await writer.close()

    [found] = [found for found in stats["topics"] if found["topic_name"] == topic]
    assert found["message_count"] == 3
