"""lapwing bench, as a process on a real nsqd."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from commanding import lapwing, lapwing_json, process

from daemons import Daemon, nsqd
from measuring import shortest


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with nsqd() as running:
        yield running


def where(daemon: Daemon) -> tuple[str, ...]:
    return ("--nsqd-tcp-address", daemon.tcp, "--nsqd-http-address", daemon.http)


@pytest.mark.parametrize(
    ("load", "messages"),
    [
        (("pub", "--count", "20000"), 20_000),
        (("pub", "--count", "500", "--batch", "1", "--window", "1", "--connections", "4"), 500),
        (("sub", "--count", "20000"), 20_000),
        (("pubsub", "--count", "20000"), 20_000),
        (("fanout", "--count", "5000", "--channels", "3"), 15_000),
        (("latency", "--rate", "1000", "--seconds", "0.5"), 500),
        (("http", "--count", "500", "--connections", "4"), 500),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_each_load_measures_the_server(daemon: Daemon, load: tuple[str, ...], messages: int) -> None:
    told = lapwing_json("bench", *load, *where(daemon))

    assert told["messages"] == messages
    assert told["messages_per_second"] > 0
    assert told["server_pid"] == daemon.pid
    assert told["server_cpu_us_per_message"] is not None
    assert told["durability"] == "os"
    if load[0] in ("pub", "latency", "http"):
        assert 0 < told["latency"]["p50"] <= told["latency"]["p99"] <= told["latency"]["p999"] <= told["latency"]["max"]


def test_the_generator_is_not_the_bottleneck(daemon: Daemon) -> None:
    def own_cpu() -> float:
        told = json.loads(process("bench", "pub", "--count", "1000000", "--json", *where(daemon)).stdout)
        return float(told["own_cpu_us_per_message"])

    assert shortest(own_cpu, limit=1e6 / 1_500_000) < 1e6 / 1_500_000


def test_the_loads_leave_no_topic_behind(daemon: Daemon) -> None:
    lapwing("bench", "pub", "--count", "200", *where(daemon))
    assert [topic["topic"] for topic in lapwing_json("topics", daemon=daemon)] == []

    lapwing("bench", "pub", "--count", "200", "--topic", "kept", *where(daemon))
    assert {"topic": "kept", "messages": 200}.items() <= lapwing_json("topics", daemon=daemon)[0].items()


def test_the_result_reads_well(daemon: Daemon) -> None:
    said = process("bench", "pub", "--seconds", "0.2", *where(daemon)).stdout

    for word in ("messages/s", "MB/s", "p99.9", "server CPU", "our own CPU", "durability     os"):
        assert word in said


def test_a_picture_is_drawn(daemon: Daemon, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    lapwing("bench", "pub", "--count", "2000", "--plot", str(tmp_path / "pub.svg"), *where(daemon))

    assert "<svg" in (tmp_path / "pub.svg").read_text()
    assert ".svg or .png" in lapwing("bench", "pub", "--plot", "pub.gif", code=2).stderr


def test_what_cannot_be_measured_says_why(daemon: Daemon) -> None:
    assert "no nsqd at 127.0.0.1:1" in lapwing("bench", "pub", "--nsqd-tcp-address", "127.0.0.1:1", code=1).stderr
    http = ("--nsqd-tcp-address", daemon.http, "--nsqd-http-address", daemon.http)
    assert daemon.http in lapwing("bench", "pub", *http, code=1).stderr
    assert "port" in lapwing("bench", "pub", "--nsqd-tcp-address", "nowhere", code=2).stderr
