"""One Spark session for all tests that need one, and brokers of their own for each."""

import json
import os
import struct
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from daemons import Daemon, start_nsqd
from lapwing.spark.session import local_session

# these tests share two processors with Java: how long an example takes says nothing
settings.register_profile("spark", deadline=None)
settings.load_profile("spark")

# no test runs for so long that the second compiler's work pays: it is a third of all the time that they take
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="session")
def spark():
    """The session; it starts in 3 s where `python -m lapwing.spark.warm` has been run, else in 10."""
    os.environ["LAPWING_SPARK_WARM"] = "0"
    session = local_session("tests", cores=2, conf={"spark.sql.session.timeZone": "UTC"})
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


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Starts brokers, each on a data path of its own and with a number of its own; ends them after the test."""
    started: list[Broker] = []

    def start(*flags: str, data_path: Path | None = None) -> Broker:
        path = data_path or tmp_path / f"broker{len(started)}"
        path.mkdir(exist_ok=True)
        broker = Broker(start_nsqd(path, f"--node-id={len(started) + 1}", *flags))
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.daemon.kill()


@pytest.fixture
def broker(start_broker: Callable[..., Broker]) -> Broker:
    """One broker."""
    return start_broker()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A fresh directory for a query's checkpoint."""
    return str(tmp_path / "checkpoint")
