"""One Spark session and one broker for all tests; a test that needs a broker of its own starts one."""

import json
import os
import struct
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from postgresql import POSTGRESQL_JAR, SQLITE_JAR

from daemons import Daemon, start_nsqd
from lapwing.spark.session import local_session

# no test runs for so long that the second compiler's work pays: it is a third of all the time that they take. The
# collector that works beside the program is a tenth
_SQLITE = "-Dorg.sqlite.lib.path=/usr/lib/x86_64-linux-gnu/jni"  # where Debian has the library of its driver
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {_SQLITE}")


@pytest.fixture(scope="session")
def spark():
    """The session; it starts in a few seconds."""
    conf = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "1"}
    if jars := [str(jar) for jar in (POSTGRESQL_JAR, SQLITE_JAR) if jar.exists()]:
        conf["spark.jars"] = ",".join(jars)
    session = local_session("tests", cores=2, conf=conf)
    yield session
    session.stop()


class Broker:
    """A running nsqd, and what tests ask of it."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.secret = ""  # for a broker with an auth server

    @property
    def address(self) -> str:
        return self.daemon.http

    def ask(self, path: str, body: bytes | None = None) -> object:
        """The JSON of an answer; with a body (or b"") it is a POST."""
        headers = {"Authorization": f"Bearer {self.secret}"} if self.secret else {}
        request = urllib.request.Request(f"{self.daemon.url}{path}", data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text and text != b"OK" else None

    def publish(self, topic: str, *bodies: bytes) -> None:
        batch = struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        self.ask(f"/mpub?topic={topic}&binary=true", batch)

    def facts(self, topic: str) -> dict:
        """What /log/offsets says of a topic."""
        return self.ask(f"/log/offsets?topic={topic}")["topics"][0]

    def bodies(self, topic: str) -> list[str]:
        """The bodies of all messages in the log, in order."""
        return [message["body"] for message in self.messages(topic)]

    def messages(self, topic: str) -> list[dict]:
        found: list[dict] = []
        while True:
            page = self.ask(f"/log/read?topic={topic}&from={len(found)}&limit=10000")["messages"]
            if not page:
                return found
            found += page

    def depth(self, topic: str, channel: str) -> int | None:
        """How far a channel is behind; None when there is no such channel."""
        stats = self.ask(f"/stats?format=json&topic={topic}&channel={channel}")
        return next((found["depth"] for entry in stats["topics"] or () for found in entry["channels"]), None)

    def clear(self) -> None:
        """Delete every topic and forget every pipeline; start it again first if the test has killed it."""
        if self.daemon.process.poll() is not None:
            self.daemon.restart()
        for topic in self.ask("/stats?format=json")["topics"] or ():
            self.ask(f"/topic/delete?topic={urllib.parse.quote(topic['topic_name'])}", b"")
        for pipeline in self.ask("/pipelines")["pipelines"]:
            request = urllib.request.Request(f"{self.daemon.url}/pipelines/{pipeline['name']}", method="DELETE")
            urllib.request.urlopen(request, timeout=30).close()


@pytest.fixture
def start_broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Broker]]:
    """Starts brokers, each on a data path of its own and with a number of its own; ends them after the test."""
    started: list[Broker] = []
    first = 2 if "shared_broker" in request.fixturenames else 1  # the broker of all tests is node 1

    def start(*flags: str, data_path: Path | None = None) -> Broker:
        path = data_path or tmp_path / f"broker{len(started)}"
        path.mkdir(exist_ok=True)
        broker = Broker(start_nsqd(path, f"--node-id={len(started) + first}", *flags))
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.daemon.kill()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker of all tests: to start one for each would take longer than most of them do."""
    broker = Broker(start_nsqd(tmp_path_factory.mktemp("broker"), "--node-id=1"))
    yield broker
    broker.daemon.kill()


@pytest.fixture
def broker(shared_broker: Broker) -> Iterator[Broker]:
    """One broker, without any topics."""
    yield shared_broker
    shared_broker.clear()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A fresh directory for a query's checkpoint."""
    return str(tmp_path / "checkpoint")
