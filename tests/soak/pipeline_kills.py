"""Pipelines that are killed again and again: every message once, whatever dies.

    python tests/soak/pipeline_kills.py [--kills 20] [--only outputs,archive] [--seed 1] [--minutes 60]

`outputs` are an archive, a Delta table, PostgreSQL (where it is installed), a transform and the sink of a stream, all
from one topic, in one process that is killed as often as the broker. DuckDB, delta-rs and PostgreSQL count at the end.
`archive` archives all topics of two nodes that are found by nsqlookupd, while drivers and brokers are killed, topics
are deleted, created again and added, a node leaves and returns, and nsqlookupd is away. After every kill, while
nothing is published, `verify` has to account for every message that was acknowledged, and at the end it has to be
complete.
Exits with 1 if a message is missing or doubled, or if something was incomplete and `verify` did not report it.
"""

import argparse
import atexit
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "spark"))

import duckdb
import postgresql
from deltalake import DeltaTable

from daemons import Daemon, start_nsqd, start_nsqlookupd, until

LARGE = ["--once", "--set", "max_messages=100000"]  # there may be much left at the end
LAPWING = [sys.executable, "-m", "lapwing.cli.main", "pipeline"]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def publish(url: str, topic: str, bodies: list[bytes]) -> None:
    batch = struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    post(f"{url}/mpub?topic={topic}&binary=true", batch)


def post(url: str, body: bytes = b"") -> None:
    urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=30).close()


class Driver:
    """A `lapwing pipeline run` in a session of its own, so that it is killed with its Java and its workers."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        environment = {**os.environ}
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [*LAPWING, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, env=environment,
            )  # fmt: skip

        atexit.register(self.kill)

    def kill(self) -> None:
        """End it with all that it has started, unless it has ended by itself."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def end(self, seconds: float = 900) -> int:
        return self.process.wait(seconds)


def batches(data: Path, names: list[str]) -> list[int]:
    """Return the last batch that each pipeline has reported."""
    return [int(status_of(data, name).get("batch_id", -1)) for name in names]


def status_of(data: Path, name: str) -> dict[str, Any]:
    """Return what a pipeline has reported; nothing while it has not, or while it writes."""
    try:
        found: dict[str, Any] = json.loads((data / name / "status.json").read_text())
    except (OSError, ValueError):
        return {}
    return found


def moving(data: Path, names: list[str], driver: Driver, chance: random.Random) -> None:
    """Wait until every pipeline has done a batch of this run, and some time more."""
    for name in names:
        (data / name / "status.json").unlink(missing_ok=True)
    until(
        lambda: min(batches(data, names)) >= 0 or failed(data, names) or driver.process.poll() is not None,
        seconds=900, what="the first batch",
    )  # fmt: skip
    for text in failed(data, names):
        say(f"failed, as may happen where the machine is too busy to start workers: {text}")
    time.sleep(chance.random() * 2)


def failed(data: Path, names: list[str]) -> list[str]:
    """Return the errors of pipelines that have failed."""
    found = {name: status_of(data, name) for name in names}
    return [f"{name}: {status['error']}" for name, status in found.items() if status.get("state") == "failed"]


def finish(run: list[str], log: Path) -> bool:
    """Do what is left to do; return whether that ended well, at the third attempt at most."""
    return any(Driver([*run, *LARGE], log).end() == 0 for _ in range(3))


# --- outputs


class Numbers:
    """Numbers that are published to a topic, each once: what a broker has taken without an answer is not repeated."""

    def __init__(self, url: str) -> None:
        self.acknowledged: list[int] = []
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        first = 0
        while not self._stop.is_set():
            numbers = range(first, first + 20)
            first += 20
            try:
                publish(self._url, "orders", [b'{"n": %d}' % n for n in numbers])
            except (OSError, http.client.HTTPException):
                continue
            else:
                self.acknowledged.extend(numbers)
            finally:
                self._stop.wait(0.1)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def in_topic(broker: Daemon, topic: str) -> list[int]:
    """Return the numbers that the log of a topic has."""
    found: list[int] = []
    while True:
        with urllib.request.urlopen(f"{broker.url}/log/read?topic={topic}&from={len(found)}&limit=10000") as answer:
            page = json.loads(answer.read())["messages"]
        if not page:
            return found
        found += [json.loads(message["body"])["n"] for message in page]


def in_table(place: Path) -> tuple[list[int], list[int]]:
    """Return the numbers that a Delta table has, as DuckDB and as delta-rs read them."""
    table = DeltaTable(str(place))
    parsed = "n" in {field.name for field in table.schema().fields}
    with duckdb.connect() as database:
        database.register("rows", table.to_pyarrow_dataset())
        column = "n" if parsed else "cast(json_extract_string(decode(body), '$.n') as bigint)"
        by_duckdb = [n for (n,) in database.sql(f"select {column} from rows").fetchall()]
    rows = table.to_pyarrow_table()
    return by_duckdb, rows["n"].to_pylist() if parsed else [json.loads(body)["n"] for body in rows["body"].to_pylist()]


def outputs(kills: int, chance: random.Random, scratch: Path, until_then: float) -> bool:
    """Kill drivers and the broker of five pipelines over one topic; return whether each has every message once."""
    with ExitStack() as stack:
        (scratch / "broker").mkdir()
        broker = start_nsqd(scratch / "broker", "--node-id=1")
        stack.callback(broker.kill)
        urllib.request.urlopen(f"{broker.url}/topic/create?topic=orders", data=b"").close()
        urllib.request.urlopen(f"{broker.url}/channel/create?topic=orders&channel=kept", data=b"").close()
        common = "topics: [orders]\nmax_messages: 300\ntrigger: 200ms\nretry: 2m\n"
        parsed = f"{common}schema: n bigint\n"
        pipelines = {
            "archive": f"kind: archive\nout: {scratch}/archive\n{common}",
            "lake": f"kind: table\nout: {scratch}/lake\npartition: none\n{parsed}",
            "copy": f"kind: transform\nto: copied\nsql: select n from input\n{parsed}",
            "sink": f"kind: transform\nto: streamed\nsql: select n from input\nrejects: none\n{parsed}",
        }
        jar = postgresql.POSTGRESQL_JAR
        server = None
        if missing := postgresql.missing(jar):
            say(f"without a database: {missing}")
        else:
            server = stack.enter_context(postgresql.running())
            about = f"store: jdbc\nurl: {server.url}\nuser: postgres\npassword: x\ntable: orders\njars: [{jar}]\n"
            pipelines["shop"] = f"kind: table\n{about}{parsed}"
        file = scratch / "all.yaml"
        file.write_text("---\n".join(f"name: {name}\n{text}" for name, text in pipelines.items()))
        run = ["run", str(file), "--nsqd", broker.http, "--data", str(scratch / "data"), "--master", "local[2]"]
        numbers = Numbers(broker.url)
        try:
            for kill in range(kills):
                driver = Driver(run, scratch / "driver.log")
                moving(scratch / "data", list(pipelines), driver, chance)
                broker.kill()
                broker.restart()
                time.sleep(chance.random() * 5)
                driver.kill()
                if server is not None and kill % 5 == 4:
                    server.kill()
                    server.start()
                say(f"outputs: kill {kill + 1} of {kills}, {len(numbers.acknowledged):,} messages acknowledged")
                if time.monotonic() > until_then:
                    break
        finally:
            numbers.stop()
        first = Driver([*run, *LARGE], scratch / "driver.log")
        time.sleep(8)
        second = Driver(run, scratch / "second.log")
        refused = second.end(), "is running already" in (scratch / "second.log").read_text()
        say(f"two runs at once: the second ended with {refused[0]}, and named the first: {refused[1]}")
        if first.end() and not finish(run, scratch / "driver.log"):
            say(f"the last run failed, see {scratch}/driver.log")
            return False
        published = in_topic(broker, "orders")
        good = refused == (2, True) and set(numbers.acknowledged) <= set(published)
        say(f"{len(published):,} messages published, {len(numbers.acknowledged):,} of them acknowledged")
        found = {topic: in_topic(broker, topic) for topic in ("copied", "streamed")}
        for name in ("archive", "lake"):
            found[f"{name} by DuckDB"], found[f"{name} by delta-rs"] = in_table(scratch / name)
        if server is not None:
            found["shop by PostgreSQL"] = [int(n) for n in server.sql("select n from orders").split()]
        for name, has in found.items():
            lost, twice = len(set(published) - set(has)), len(has) - len(set(has))
            say(f"{name}: {len(has):,}, {lost} lost, {twice} doubled")
            good = good and sorted(has) == sorted(published)
        return good


# --- archive

Log = tuple[str, int]  # topic and node


class Traffic:
    """Messages on two nodes, each different from all others, and which of them were acknowledged."""

    def __init__(self, urls: dict[int, str]) -> None:
        self.urls = urls  # by node
        self.topics = ["steady", "other", "brief"]
        self.acknowledged: dict[Log, list[int]] = {}
        self._sent: Counter[Log] = Counter()
        self._stop = threading.Event()
        self._flowing = threading.Event()
        self._between = threading.Lock()  # held while messages are being published
        self._flowing.set()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        while not self._stop.is_set():
            self._flowing.wait()
            with self._between:
                for node, url in self.urls.items():
                    for topic in list(self.topics):
                        self._publish(url, topic, node)
            self._stop.wait(0.2)

    def _publish(self, url: str, topic: str, node: int) -> None:
        log = topic, node
        numbers = range(self._sent[log], self._sent[log] + 10)
        self._sent[log] += 10  # never sent again: a publish without an answer may be there or not
        try:
            publish(url, topic, [body(topic, node, number) for number in numbers])
        except (OSError, http.client.HTTPException):
            return
        self.acknowledged.setdefault(log, []).extend(numbers)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Publish nothing for the length of a `with` block."""
        self._flowing.clear()
        with self._between:
            yield
        self._flowing.set()

    def stop(self) -> None:
        self._stop.set()
        self._flowing.set()
        self._thread.join()


def body(topic: str, node: int, number: int) -> bytes:
    return b"%s %d %d" % (topic.encode(), node, number)


@dataclass
class Cluster:
    """The daemons of the archive, what is published there, and what was found to be wrong."""

    lookupd: Daemon
    brokers: dict[int, Daemon]
    traffic: Traffic
    place: Path
    data: Path
    log: Path
    chance: random.Random
    created: int = 0
    absences: int = 0  # of nsqlookupd
    deleted: list[tuple[str, int, str]] = field(default_factory=list)  # topic, node and log
    wrong: list[str] = field(default_factory=list)

    def complain(self, text: str) -> None:
        say(f"WRONG: {text}")
        self.wrong.append(text)

    def verify(self) -> tuple[int, dict[str, Any], str]:
        """Return the exit status of `verify`, its proof, and what it printed beside that."""
        command = [*LAPWING, "verify", str(self.place), "--lookupd", self.lookupd.addresses.get("HTTP", self.http)]
        done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout) if done.stdout.startswith("{") else {}, done.stderr.strip()

    def __post_init__(self) -> None:
        self.http = self.lookupd.http  # also while it is away


def archive(kills: int, chance: random.Random, scratch: Path, until_then: float) -> bool:
    """Kill drivers and brokers of an archive of all topics; return whether it is complete at the end."""
    with ExitStack() as stack:
        lookupd = start_nsqlookupd()
        stack.callback(lookupd.kill)
        brokers = {}
        for node in (1, 2):
            (scratch / f"node{node}").mkdir()
            flags = [f"--node-id={node}", f"--lookupd-tcp-address={lookupd.tcp}"]
            brokers[node] = start_nsqd(scratch / f"node{node}", *flags)
            stack.callback(brokers[node].kill)
        traffic = Traffic({node: broker.url for node, broker in brokers.items()})
        stack.callback(traffic.stop)
        log = scratch / "driver.log"
        cluster = Cluster(lookupd, brokers, traffic, scratch / "archive", scratch / "data", log, chance)
        run = ["run", "archive", "--lookupd", lookupd.http, "--data", str(cluster.data), "--out", str(cluster.place)]
        run += ["--master", "local[2]", "--set", "trigger=300ms", "--set", "max_messages=5000"]
        run += ["--set", "compact_after=4"]
        for kill in range(kills):
            driver = Driver(run, log)
            moving(cluster.data, ["archive"], driver, chance)
            event = EVENTS[kill % len(EVENTS)]
            event(cluster)
            time.sleep(chance.random() * 2)
            alive = driver.process.poll() is None
            driver.kill()
            if not alive:
                cluster.complain(f"the driver had ended after: {event.__doc__}")
            left_out, waiting = account(cluster)
            say(f"archive: kill {kill + 1} of {kills}: {event.__doc__} {waiting:,} wait, {left_out:,} unaccounted for")
            if time.monotonic() > until_then:
                break
        traffic.stop()
        if not finish(run, log):
            cluster.complain(f"the last run failed, see {log}")
        prove_all(cluster)
        return not cluster.wrong


def kill_broker(cluster: Cluster) -> None:
    """A broker was killed."""
    broker = cluster.brokers[cluster.chance.choice([1, 2])]
    broker.kill()
    broker.restart()


def delete_topic(cluster: Cluster) -> None:
    """A topic was deleted on both nodes, and created again by its next message."""
    for node, broker in cluster.brokers.items():
        with urllib.request.urlopen(f"{broker.url}/log/offsets?topic=brief", timeout=30) as answer:
            held = json.load(answer)["topics"]
        post(f"{broker.url}/topic/delete?topic=brief")
        cluster.deleted += [("brief", node, topic["log_id"]) for topic in held]


def create_topic(cluster: Cluster) -> None:
    """A topic was created."""
    cluster.created += 1
    cluster.traffic.topics.append(f"new{cluster.created}")


def leave(cluster: Cluster) -> None:
    """A broker left in order, and came back."""
    broker = cluster.brokers[cluster.chance.choice([1, 2])]
    address = broker.http
    broker.stop()
    status, _, text = cluster.verify()
    if status == 0 or address not in text:
        cluster.complain(f"verify without {address}: exit status {status}, {text!r}")
    until(lambda: address in str(status_of(cluster.data, "archive").get("away")), seconds=60, what="its absence")
    broker.restart()


def lose_lookupd(cluster: Cluster) -> None:
    """The only nsqlookupd was away, two minutes at first and then 35 s, and a batch more."""
    cluster.lookupd.kill()
    time.sleep(35 if cluster.absences else 120)  # longer than a query waits for a broker
    cluster.absences += 1
    before = batches(cluster.data, ["archive"])
    deadline = time.monotonic() + 300  # a batch may take a minute where the machine is busy
    while batches(cluster.data, ["archive"]) <= before:
        if time.monotonic() > deadline or failed(cluster.data, ["archive"]):
            cluster.complain(f"no batch while nsqlookupd is away: {before}, {failed(cluster.data, ['archive'])}")
            break
        time.sleep(0.2)
    status, _, text = cluster.verify()
    if status == 0 or cluster.http not in text:
        cluster.complain(f"verify without nsqlookupd: exit status {status}, {text!r}")
    cluster.lookupd.restart()


EVENTS = (kill_broker, delete_topic, create_topic, leave, lose_lookupd)


def log_text(cluster: Cluster) -> str:
    return cluster.log.read_text(errors="replace")


def account(cluster: Cluster) -> tuple[int, int]:
    """Compare `verify` with what was acknowledged while nothing is published.

    Returns how many messages it does not account for (in the archive, waiting, or reported as missing), and how many
    wait. Topics that were deleted are left out: nobody knows how many messages they had.
    """
    with cluster.traffic.pause():
        until(lambda: registered(cluster), seconds=60, what="both brokers at nsqlookupd")
        _, proof, text = cluster.verify()
    if not proof:
        cluster.complain(f"verify: {text}")
        return 0, 0
    known: Counter[Log] = Counter()
    waiting = 0
    for log in proof["logs"]:
        known[log["topic"], log["node"]] += log["rows"] + (log["waiting"] or 0)
        known[log["topic"], log["node"]] += sum(stop - first for first, stop in log["missing"])
        waiting += log["waiting"] or 0
    unreported = 0
    for log, numbers in cluster.traffic.acknowledged.items():
        if log[0] != "brief" and known[log] < len(numbers):
            cluster.complain(f"{log}: {len(numbers):,} acknowledged, verify accounts for {known[log]:,}")
            unreported += len(numbers) - known[log]
    return unreported, waiting


def registered(cluster: Cluster) -> bool:
    """Return whether nsqlookupd lists every topic of both nodes."""
    with urllib.request.urlopen(f"{cluster.lookupd.url}/nodes", timeout=30) as answer:
        producers = json.load(answer)["producers"]
    return len(producers) == 2 and all({"steady", "other"} <= set(each["topics"]) for each in producers)


def prove_all(cluster: Cluster) -> None:
    """Compare the files of the archive with what was acknowledged, and what `verify` and the log report."""
    until(lambda: registered(cluster), seconds=60, what="both brokers at nsqlookupd")
    status, proof, text = cluster.verify()
    if status != 0:
        cluster.complain(f"verify: exit status {status}, {text or json.dumps(proof)}")
    bodies = DeltaTable(str(cluster.place)).to_pyarrow_table(columns=["body"])["body"]
    held: Counter[bytes] = Counter(bodies.to_pylist())
    doubled = sum(count - 1 for count in held.values())
    lost: Counter[str] = Counter()
    acknowledged = 0
    for (topic, node), numbers in cluster.traffic.acknowledged.items():
        acknowledged += len(numbers)
        lost[topic] += sum(body(topic, node, number) not in held for number in numbers)
    deleted = lost.pop("brief")
    if doubled or lost.total():
        cluster.complain(f"{lost.total():,} messages lost ({+lost}), {doubled:,} doubled")
    waiting = sum(log["waiting"] or 0 for log in proof.get("logs", ()))
    if waiting:
        cluster.complain(f"{waiting:,} messages wait after the last run")
    ended = {log["log_id"] for log in proof.get("logs", ()) if log["ended"]}
    reported = log_text(cluster)
    for topic, node, log_id in cluster.deleted:
        if log_id not in ended:
            cluster.complain(f"verify does not report that log {log_id} of topic {topic}, node {node} was deleted")
        if log_id not in reported:
            cluster.complain(f"the driver's log does not have the end of log {log_id} of topic {topic}, node {node}")
    say(
        f"{acknowledged:,} acknowledged, {held.total():,} archived, {lost.total():,} lost, {doubled:,} doubled; "
        f"{deleted:,} of the deleted topic were not archived before; {len(cluster.deleted)} logs deleted, "
        f"{len(ended)} reported; verify: exit status {status}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", default="outputs,archive")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=600.0, help="after which no more are killed")
    arguments = parser.parse_args()
    good = True
    for name, show in (("outputs", outputs), ("archive", archive)):
        if name in arguments.only.split(","):
            scratch = Path(tempfile.mkdtemp(prefix=f"lapwing-{name}-"))
            until_then = time.monotonic() + 60 * arguments.minutes
            passed = show(arguments.kills, random.Random(arguments.seed), scratch, until_then)
            say(f"{name}: {'every message once' if passed else f'FAILED, see {scratch}'}")
            if passed:
                shutil.rmtree(scratch)
            good = good and passed
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
