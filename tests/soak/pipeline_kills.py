"""Pipelines that are killed again and again: every message once, whatever dies.

    python tests/soak/pipeline_kills.py [--kills 20] [--only tables,archive] [--seed 1]

`tables` fills Parquet and, where it is installed, PostgreSQL from one topic, in one process that is killed. `archive`
archives all topics of two nodes that are found by nsqlookupd, while drivers and brokers are killed, topics are deleted,
created again and added, a node leaves and returns, and nsqlookupd is away. At the end what was archived is proven.
Exits with 1 if a message is missing or doubled.
"""

import argparse
import contextlib
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
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "spark"))

import postgresql
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from daemons import Daemon, start_nsqd, start_nsqlookupd, until

LAPWING = [sys.executable, "-m", "lapwing.cli.main", "pipeline"]


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def publish(broker: Daemon, topic: str, bodies: list[bytes]) -> None:
    batch = struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)
    request = urllib.request.Request(f"{broker.url}/mpub?topic={topic}&binary=true", data=batch)
    urllib.request.urlopen(request, timeout=30).close()


class Driver:
    """A `lapwing pipeline run` in a session of its own, so that it is killed with its Java and its workers."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        environment = {**os.environ, "LAPWING_SPARK_WARM": "0"}
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [*LAPWING, *arguments], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, env=environment,
            )  # fmt: skip

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self, seconds: float = 900) -> int:
        return self.process.wait(seconds)


def batches(data: Path, names: list[str]) -> list[int]:
    """Return the last batch that each pipeline has reported."""
    found = []
    for name in names:
        try:
            found.append(int(json.loads((data / name / "status.json").read_text())["batch_id"]))
        except (OSError, ValueError, KeyError):
            found.append(-1)
    return found


def moving(data: Path, names: list[str], driver: Driver, chance: random.Random) -> None:
    """Wait until every pipeline has done a batch of this run, and some time more."""
    for name in names:
        (data / name / "status.json").unlink(missing_ok=True)
    until(
        lambda: min(batches(data, names)) >= 0 or failed(data, names) or driver.process.poll() is not None,
        seconds=300, what="the first batch",
    )  # fmt: skip
    for text in failed(data, names):
        say(f"failed, as may happen where the machine is too busy to start workers: {text}")
    time.sleep(chance.random() * 2)


def failed(data: Path, names: list[str]) -> list[str]:
    """Return the errors of pipelines that have failed."""
    found = []
    for name in names:
        with contextlib.suppress(OSError, ValueError):
            status = json.loads((data / name / "status.json").read_text())
            if status.get("state") == "failed":
                found.append(f"{name}: {status['error']}")
    return found


def finish(run: list[str], log: Path) -> bool:
    """Do what is left to do; return whether that ended well, at the third attempt at most."""
    large = ["--once", "--set", "max_messages=100000"]  # there may be much left
    return any(Driver([*run, *large], log).end() == 0 for _ in range(3))


# --- tables


def tables(kills: int, chance: random.Random, scratch: Path) -> bool:
    """Kill a process that fills two tables from one topic; return whether each has every message once."""
    with ExitStack() as stack:
        (scratch / "broker").mkdir()
        broker = start_nsqd(scratch / "broker", "--node-id=1")
        stack.callback(broker.kill)
        names = ["lake"]
        common = "topics: [orders]\nschema: n bigint\ntrigger: 200ms\nmax_messages: 300\nretry: 2m\n"
        text = f"kind: table\nname: lake\nout: {scratch}/lake\npartition: none\n{common}"
        jar = postgresql.POSTGRESQL_JAR
        server = None
        if missing := postgresql.missing(jar):
            say(f"without a database: {missing}")
        else:
            server = stack.enter_context(postgresql.running())
            names.append("shop")
            text += f"---\nkind: table\nname: shop\nstore: jdbc\nurl: {server.url}\nuser: postgres\n"
            text += f"password: x\ntable: orders\njars: [{jar}]\n{common}"
        file = scratch / "both.yaml"
        file.write_text(text)
        run = ["run", str(file), "--nsqd", broker.http, "--data", str(scratch / "data"), "--master", "local[2]"]
        published = 0
        stop = threading.Event()

        def produce() -> None:
            nonlocal published
            while not stop.is_set():
                publish(broker, "orders", [b'{"n": %d}' % n for n in range(published, published + 20)])
                published += 20
                stop.wait(0.1)

        producer = threading.Thread(target=produce)
        producer.start()
        try:
            for kill in range(kills):
                driver = Driver(run, scratch / "driver.log")
                moving(scratch / "data", names, driver, chance)
                if driver.process.poll() is None:
                    driver.kill()
                if server is not None and kill % 5 == 4:
                    server.kill()
                    server.start()
                say(f"tables: kill {kill + 1} of {kills}, {published:,} messages published")
        finally:
            stop.set()
            producer.join()
        if not finish(run, scratch / "driver.log"):
            say(f"the last run failed, see {scratch}/driver.log")
            return False
        rows: list[int] = []
        for path in (scratch / "lake").rglob("*.parquet"):
            if not str(path.relative_to(scratch / "lake")).startswith("_"):
                rows += parquet.read_table(path, columns=["n"], partitioning=None)["n"].to_pylist()
        good = sorted(rows) == list(range(published))
        say(f"Parquet: {len(rows):,} rows, {len(set(rows)):,} different, {published:,} published")
        if server is not None:
            found = server.sql("select count(*), count(distinct n), coalesce(max(n), -1) from orders")
            say(f"PostgreSQL: rows|different|largest {found}, {published:,} published")
            good = good and found == f"{published}|{published}|{published - 1}"
        return good


# --- archive


class Topics:
    """Topics with traffic on two nodes, of which some are deleted and created again."""

    def __init__(self, brokers: list[Daemon]) -> None:
        self.brokers = brokers
        self.names = ["steady", "other", "brief"]
        self.sent: Counter[tuple[str, int]] = Counter()  # messages of topics that are never deleted, by node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        while not self._stop.is_set():
            for number, broker in enumerate(self.brokers):
                for topic in list(self.names):
                    bodies = [b"%s %d" % (topic.encode(), n) for n in range(10)]
                    try:
                        publish(broker, topic, bodies)
                    except OSError:
                        continue  # it is away, and nothing was acknowledged; a retry could double it
                    self.sent[topic, number] += len(bodies)
            self._stop.wait(0.2)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def archive(kills: int, chance: random.Random, scratch: Path) -> bool:
    """Kill drivers and brokers of an archive of all topics; return whether it is complete at the end."""
    with ExitStack() as stack:
        lookupd = start_nsqlookupd()
        stack.callback(lambda: lookupd.kill())
        brokers = []
        for number in (1, 2):
            (scratch / f"node{number}").mkdir()
            flags = [f"--node-id={number}", f"--lookupd-tcp-address={lookupd.tcp}"]
            brokers.append(start_nsqd(scratch / f"node{number}", *flags))
            stack.callback(brokers[-1].kill)
        topics = Topics(brokers)
        stack.callback(topics.stop)
        place = scratch / "archive"
        data = scratch / "data"
        run = ["run", "archive", "--lookupd", lookupd.http, "--data", str(data), "--out", str(place)]
        run += ["--master", "local[2]", "--set", "trigger=300ms", "--set", "max_messages=500"]
        run += ["--set", "compact_after=4"]
        created = 0
        for kill in range(kills):
            driver = Driver(run, scratch / "driver.log")
            moving(data, ["archive"], driver, chance)
            event = kill % 5
            broker = chance.choice(brokers)
            if event == 0:
                broker.kill()
                broker.restart()
            elif event == 1:  # deleted on both nodes; traffic creates it again
                for each in brokers:
                    url = f"{each.url}/topic/delete?topic=brief"
                    urllib.request.urlopen(urllib.request.Request(url, data=b""), timeout=30).close()
            elif event == 2:
                created += 1
                topics.names.append(f"new{created}")
            elif event == 3:  # leaves in order, and comes back
                broker.stop()
                time.sleep(3)
                broker.restart()
            else:
                lookupd.kill()
                time.sleep(35)  # longer than a query waits for a broker
                lookupd.restart()
            time.sleep(chance.random() * 2)
            alive = driver.process.poll() is None
            if alive:
                driver.kill()
            say(f"archive: kill {kill + 1} of {kills}, event {event}, the driver {'ran' if alive else 'had ended'}")
        topics.stop()
        time.sleep(6)  # nsqds report to nsqlookupd again
        if not finish(run, scratch / "driver.log"):
            say(f"the last run failed, see {scratch}/driver.log")
            return False
        proof = subprocess.run(
            [*LAPWING, "verify", str(place), "--lookupd", lookupd.http], capture_output=True, text=True, check=False
        )  # fmt: skip
        print(proof.stdout)
        held: Counter[tuple[str, int]] = Counter()
        for path in place.rglob("*.parquet"):
            if "_staging" in str(path):
                continue
            topic = next(part for part in path.parts if part.startswith("topic=")).removeprefix("topic=")
            for node in parquet.read_table(path, columns=["node"], partitioning=None)["node"].to_pylist():
                held[topic, node - 1] += 1
        wrong = {
            log: (count, held[log]) for log, count in topics.sent.items() if log[0] != "brief" and held[log] < count
        }  # a publish whose answer a kill took away may be there as well: never fewer
        say(f"verify: exit status {proof.returncode}; fewer than acknowledged: {wrong or 'none'}")
        return proof.returncode == 0 and not wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", default="tables,archive")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    good = True
    for name, show in (("tables", tables), ("archive", archive)):
        if name in arguments.only.split(","):
            scratch = Path(tempfile.mkdtemp(prefix=f"lapwing-{name}-"))
            passed = show(arguments.kills, random.Random(arguments.seed), scratch)
            say(f"{name}: {'every message once' if passed else f'FAILED, see {scratch}'}")
            if passed:
                shutil.rmtree(scratch)
            good = good and passed
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
