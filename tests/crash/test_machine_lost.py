"""A machine that is lost again and again under load: nsqd is killed, its data path is gone, and another one takes over.

`LAPWING_MACHINES` is how many are lost, `LAPWING_ENGINES` names the engines to do it on, and `LAPWING_REPORT` a file to
which a row is added for each.
"""

import contextlib
import itertools
import json
import os
import random
import shutil
import struct
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from talking import LOST, Talk

import daemons
from clusters import S3, Cluster, cluster, s3
from misbehaving import Proxy

__all__ = ["cluster", "s3"]

MACHINES = int(os.environ.get("LAPWING_MACHINES", "3"))
ENGINES = os.environ.get("LAPWING_ENGINES", "folder s3 postgresql proxy").split()

REPORT = os.environ.get("LAPWING_REPORT", "")
HEAD = (
    "| remote log | machines lost | acknowledged | lost | ids of two messages | dead letters twice |\n"
    + "|---" * 6
    + "|\n"
)

_numbers = itertools.count()


class Load:
    """Producers that write down what was acknowledged, and consumers that write down what came, and under which id."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()  # nothing more is published
        self._done = threading.Event()  # nothing more is consumed
        self.acknowledged: set[bytes] = set()
        self.tried: set[bytes] = set()
        self.received: dict[bytes, int] = {}
        self.bodies: dict[bytes, bytes] = {}  # by id, as anybody saw it
        self.reused: list[bytes] = []
        tasks = [(self._publish, b"single"), (self._publish_batches, b"batch"), (self._consume,), (self._consume,)]
        self._threads = [threading.Thread(target=self._insist, args=task, daemon=True) for task in tasks]
        for thread in self._threads:
            thread.start()

    def _insist(self, work, *args) -> None:
        """Do it on one connection after the other."""
        while not self._done.is_set() and not (args and self._over.is_set()):
            try:
                talk = Talk(self._port)
            except OSError:
                time.sleep(0.01)  # it is being started
                continue
            try:
                work(talk, *args)
            except LOST:
                continue
            finally:
                talk.close()

    def _body(self, name: bytes) -> bytes:
        kind = b"bad" if random.random() < 0.05 else name
        body = b"%s %x" % (kind, random.getrandbits(64))
        self.tried.add(body)
        return body

    def _publish(self, talk: Talk, name: bytes) -> None:
        while not self._over.is_set():
            body = self._body(name)
            talk.send(b"PUB load\n" + struct.pack(">I", len(body)) + body)
            self._answered(talk, {body})

    def _publish_batches(self, talk: Talk, name: bytes) -> None:
        while not self._over.is_set():
            bodies = [self._body(name) for _ in range(20)]
            content = struct.pack(">I", len(bodies))
            content += b"".join(struct.pack(">I", len(body)) + body for body in bodies)
            talk.send(b"MPUB load\n" + struct.pack(">I", len(content)) + content)
            self._answered(talk, set(bodies))

    def _answered(self, talk: Talk, bodies: set[bytes]) -> None:
        if talk.frame() == (0, b"OK"):
            self.acknowledged |= bodies

    def _consume(self, talk: Talk) -> None:
        talk.send(b"SUB load c\n")
        talk.frame()
        talk.send(b"RDY 100\n")
        while not self._done.is_set():
            kind, payload = talk.frame()
            if kind != 2:
                continue
            number, body = payload[10:26], payload[26:]
            if self.bodies.setdefault(number, body) != body:
                self.reused.append(number)
            if body.startswith(b"bad"):
                talk.send(b"REQ %s 0\n" % number)
                continue
            self.received[body] = self.received.get(body, 0) + 1
            if random.random() < 0.9:  # the others are given back, or in flight when it dies
                talk.send(b"FIN %s\n" % number)
            else:
                talk.send(b"REQ %s 0\n" % number)

    def end_publishing(self) -> None:
        self._over.set()
        for thread in self._threads[:2]:
            thread.join(60)

    def end(self) -> None:
        self._over.set()
        self._done.set()


def get(port: int, path: str):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as answer:
        return json.loads(answer.read())


def post(port: int, path: str, body: bytes = b"", method: str = "POST") -> None:
    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=body, method=method)).close()


def letters(port: int) -> list[str]:
    """The ids of the messages that are dead letters."""
    found = []
    start = 0
    while True:
        answer = get(port, f"/log/read?topic=load.c.dead&from={start}&limit=1000")
        if not answer["messages"]:
            return found
        found += [message["headers"]["dead-id"] for message in answer["messages"]]
        start = answer["resume"]


@pytest.fixture
def proxy(s3: S3) -> Iterator[Proxy]:
    proxy = Proxy(s3.endpoint)
    proxy.chance = 0.1
    yield proxy
    proxy.stop()


@pytest.fixture(params=ENGINES)
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty remote log, on each engine in turn: the last is an object store that misbehaves."""
    number = next(_numbers)
    if request.param in ("s3", "proxy"):
        store: S3 = request.getfixturevalue("s3")
        store.make_bucket(f"lost{number}")
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        if request.param == "proxy":
            monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("proxy").endpoint)
        return f"s3://lost{number}/node"
    if request.param == "postgresql":
        database: Cluster = request.getfixturevalue("cluster")
        return f"postgresql://lapwing@/postgres?host={database.folder}&table=lost{number}"
    (tmp_path / "remote").mkdir()
    return f"file://{tmp_path}/remote"


def report(*facts: object) -> None:
    """Add a row to the report, if one is wanted."""
    if REPORT:
        Path(REPORT).parent.mkdir(parents=True, exist_ok=True)
        with Path(REPORT).open("a") as file:
            file.write(("" if file.tell() else HEAD) + f"| {' | '.join(map(str, facts))} |\n")


def start(url: str, path: Path, *arguments: str) -> daemons.Daemon:
    """Start a node; where the engine misbehaves, that may need more than one attempt."""
    for _ in range(20):
        with contextlib.suppress(RuntimeError):
            return start_once(url, path, *arguments)
    return start_once(url, path, *arguments)


def start_once(url: str, path: Path, *arguments: str) -> daemons.Daemon:
    return daemons.start_nsqd(
        str(path), "--durability=replicated", f"--remote={url}", "--remote-checkpoint=1048576", "--take-over=always",
        "--retention-bytes=100000000", *arguments,
        env={},
    )  # fmt: skip


@pytest.mark.timeout(120 + 30 * MACHINES)
def test_no_acknowledged_message_is_lost_with_its_machine(url: str, tmp_path: Path, request: pytest.FixtureRequest):
    machine = start(url, tmp_path / "data0")
    tcp, http = machine.tcp, machine.http
    ports = machine.tcp_port, machine.http_port
    addresses = [f"--tcp-address={tcp}", f"--http-address={http}"]
    post(ports[1], "/topic/create?topic=load")
    post(ports[1], "/channel/create?topic=load&channel=c")
    post(ports[1], "/channel/settings?topic=load&channel=c", b'{"max_attempts": 2}', "PATCH")
    load = Load(ports[0])
    for number in range(1, MACHINES + 1):
        time.sleep(random.uniform(0.05, 0.8))
        machine.kill()
        shutil.rmtree(tmp_path / f"data{number - 1}")
        machine = start(url, tmp_path / f"data{number}", *addresses)
    time.sleep(0.3)
    load.end_publishing()
    good = {body for body in load.acknowledged if not body.startswith(b"bad")}
    bad = load.acknowledged - good
    until = time.monotonic() + 60
    while time.monotonic() < until:
        stats = get(ports[1], "/stats?format=json&topic=load&channel=c")["topics"][0]["channels"][0]
        waiting = stats["depth"] + stats["in_flight_count"] + stats["deferred_count"]
        if good <= load.received.keys() and not waiting:
            break
        time.sleep(0.1)
    load.end()
    dead = Counter(letters(ports[1]))
    machine.stop()
    numbers = {body: number.decode() for number, body in load.bodies.items()}
    lost = (good - load.received.keys()) | {body for body in bad if numbers.get(body) not in dead}
    twice = [number for number, count in dead.items() if count > 1]
    report(
        request.node.callspec.params["url"], MACHINES, len(load.acknowledged), len(lost), len(load.reused), len(twice)
    )

    assert load.acknowledged, "nothing was published"
    assert not lost
    assert not load.reused
    assert not twice
    assert set(load.bodies.values()) <= load.tried
