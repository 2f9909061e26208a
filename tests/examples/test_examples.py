"""Every program of examples/ does what its first lines promise, and is short. tests/spark runs those for Spark."""

import ast
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from daemons import Daemon, nsqd, start_nsqlookupd, until
from documents import ROOT
from lapwing import SyncAdmin, SyncConsumer, SyncProducer

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with nsqd() as running:
        yield running


def start(name: str, *arguments: str, daemon: Daemon, cwd: Path = EXAMPLES) -> subprocess.Popen[str]:
    known = {"LAPWING_NSQD_TCP": daemon.tcp, "LAPWING_NSQD_HTTP": daemon.http, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-u", *([EXAMPLES / name] if name.endswith(".py") else ["-m", name]), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cwd,
                            env={**os.environ, **known})  # fmt: skip


def output(name: str, *arguments: str, daemon: Daemon) -> list[str]:
    process = start(name, *arguments, daemon=daemon)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    return out.splitlines()


def code_lines(path: Path) -> int:
    """The lines of a program without its docstring, its imports and empty lines."""
    tree = ast.parse(path.read_text())
    skipped = {line for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) or node is tree.body[0]
               for line in range(node.lineno, (node.end_lineno or 0) + 1)}  # fmt: skip
    lines = path.read_text().splitlines()
    return sum(bool(line.strip()) for number, line in enumerate(lines, 1) if number not in skipped)


TASKS = ["orders.py", "webhooks.py", "outbox.py", "delayed_jobs.py", "keyed.py", "test_orders.py", "cluster.py"]


@pytest.mark.parametrize("name", TASKS)
def test_a_task_takes_under_25_lines(name: str) -> None:
    assert code_lines(EXAMPLES / name) < 25


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60


def test_web_hooks_are_confirmed_and_handled(daemon: Daemon) -> None:
    process = start("uvicorn", "webhooks:service", "--port", "0", daemon=daemon)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        while "Uvicorn running on" not in (line := process.stderr.readline()):
            assert line
        url = line.split("running on ")[1].split()[0]
        with urllib.request.urlopen(f"{url}/hooks/payments", data=b'{"event": "paid"}', timeout=30) as answer:
            assert answer.status == 200
        lines = [process.stdout.readline() for _ in range(2)]
    finally:
        process.terminate()
        process.communicate(timeout=60)

    assert "payments {'event': 'paid'}\n" in lines


def test_orders_are_tried_again_and_given_up(daemon: Daemon) -> None:
    process = start("orders.py", daemon=daemon)
    assert process.stdout is not None
    with SyncProducer(daemon.tcp) as producer:
        bodies = [{"id": 1, "card": "good"}, {"id": 2, "card": "declined"}, {"id": 3, "card": "expired"}, {"id": 4}]
        producer.publish_many("purchases", bodies)
    assert {process.stdout.readline() for _ in range(2)} == {
        "order 1 is paid at attempt 1\n", "order 2 is paid at attempt 2\n",
    }  # fmt: skip
    where = f"{daemon.url}/dead/letters?topic=purchases.billing.dead"

    def errors() -> list[str]:
        try:
            with urllib.request.urlopen(where, timeout=30) as answer:
                return [letter["error"] for letter in json.load(answer)["letters"]]
        except urllib.error.HTTPError:
            return []

    until(lambda: len(errors()) == 2, what="two dead letters")
    process.terminate()
    process.communicate(timeout=60)

    assert process.returncode == 0
    assert any("the card of order 3 is expired" in error for error in errors())


def test_the_test_of_a_handler_passes(daemon: Daemon) -> None:
    plugin = ("-p", "no:lapwing", "-p", "lapwing.pytest_plugin", "-p", "no:cacheprovider")
    lines = output("pytest", *plugin, "-o", "addopts=", "test_orders.py", daemon=daemon)

    assert "1 passed" in lines[-1]


def test_an_order_and_its_message_commit_together(daemon: Daemon, tmp_path: Path) -> None:
    process = start("outbox.py", daemon=daemon, cwd=tmp_path)
    with SyncConsumer("bought", "c", nsqd=daemon.tcp) as consumer:
        message = consumer.get(timeout=60)
        assert message is not None
        message.finish()
    process.terminate()
    _, err = process.communicate(timeout=60)

    assert (process.returncode, err) == (0, "")
    assert json.loads(message.body) == {"article": "tea"}


def test_a_cluster_is_looked_at_and_its_dead_letters_are_sent_back() -> None:
    here = "--broadcast-address=127.0.0.1"
    with start_nsqlookupd() as lookupd, nsqd(here, lookupd_tcp_addresses=(lookupd.tcp,)) as node:
        with SyncAdmin(node.http) as admin, SyncProducer(node.tcp) as producer:
            admin.create("jobs", "work")
            admin.change_settings("jobs", "work", max_attempts=1)
            producer.publish_many("jobs", [b"one", b"two"])
            with SyncConsumer("jobs", "work", nsqd=node.tcp, max_attempts=0) as consumer:
                (message,) = consumer.take(1, timeout=60)
                message.requeue()
                until(lambda: admin.dead_topics().answers[node.http].topics, what="the dead letter")
            with SyncAdmin(lookupd=lookupd.http) as cluster:
                until(lambda: "jobs.work.dead" in cluster.stats().topics, what="the topic in discovery")
        lines = output("cluster.py", lookupd.http, daemon=node)

    assert lines == ["jobs/work: 1 messages and no consumer", "jobs.work.dead/dead: 1 messages and no consumer",
                     f"jobs.work.dead on {node.http}: 1 letters sent back"]  # fmt: skip


def test_a_retry_keeps_the_order_of_its_customer(daemon: Daemon) -> None:
    lines = output("keyed.py", daemon=daemon)

    assert lines.index("ann pays") < lines.index("ann gets")
    assert lines.index("bob pays") < lines.index("bob gets") < lines.index("ann pays")
    assert len(lines) == 4


def test_jobs_run_when_they_are_due_and_not_before_they_may(daemon: Daemon) -> None:
    lines = output("delayed_jobs.py", daemon=daemon)

    assert {line.partition(",")[0] for line in lines} == {"mail ann", "clean up", "report"}
    assert lines[-1].startswith("report")


def test_a_sensor_requests_one_run_for_each_message(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    dagster = ModuleType("dagster")  # as far as the sensor uses it; Dagster itself is not a dependency of the tests
    kinds = ("Config", "Definitions", "RunConfig", "RunRequest", "SensorEvaluationContext")
    dagster.__dict__.update(dict.fromkeys(kinds, SimpleNamespace))
    dagster.__dict__.update(job=lambda job: job, op=lambda op: op, sensor=lambda **_: lambda sensor: sensor)
    monkeypatch.setitem(sys.modules, "dagster", dagster)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("LAPWING_NSQD_HTTP", daemon.http)
    import dagster_sensor

    class Context:
        cursor: str | None = None

        def update_cursor(self, cursor: str) -> None:
            self.cursor = cursor

    context, ticks = Context(), []
    for published in ([b"one", b"two"], [], [b"three"]):
        with SyncProducer(daemon.tcp) as producer:
            for body in published:
                producer.publish("orders", body)
        ticks.append(list(dagster_sensor.new_orders(context)))

    assert [[run.run_config.ops["bill"].body for run in runs] for runs in ticks] == [["one", "two"], [], ["three"]]
    assert len({run.run_key for runs in ticks for run in runs}) == 3


def test_a_line_that_is_written_while_others_are_shipped_is_shipped_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import ship_logs

    log, shipped = tmp_path / "access.log", []
    log.write_text("first\nhalf ")

    class Producer:
        def __init__(self, nsqd: str) -> None: ...
        def __enter__(self) -> "Producer":
            return self

        def __exit__(self, *_: object) -> None: ...
        def publish_many(self, topic: str, bodies: list[bytes]) -> None:
            shipped.extend(json.loads(body)["line"] for body in bodies)
            if len(shipped) == 1:
                with log.open("a") as file:
                    file.write("of it\nlast\n")

    monkeypatch.setattr(ship_logs, "SyncProducer", Producer)
    counts = [ship_logs.ship(log, "") for _ in range(2)]
    log.write_text("rotated\n")
    counts.append(ship_logs.ship(log, ""))

    assert shipped == ["first\n", "half of it\n", "last\n", "rotated\n"]
    assert counts == [3, 0, 1]


def test_lines_of_a_log_are_shipped_once(daemon: Daemon, tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text('10.0.0.1 - - [16/Nov/2026:07:00:00 +0000] "GET / HTTP/1.1" 200 512\nno log line\nunfinished')
    code = f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); import ship_logs; from pathlib import Path; " \
           f"print(ship_logs.ship(Path({str(log)!r}), {daemon.tcp!r}))"  # fmt: skip
    shipped = [subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60) for _ in range(2)]
    log.write_text(log.read_text() + " no more\n")
    shipped.append(subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60))

    assert shipped == ["2\n", "0\n", "1\n"]
    url = f"{daemon.url}/log/read?topic=access&from=0&format=json"
    with urllib.request.urlopen(url, timeout=60) as answer:
        text = answer.read().decode()
    assert '\\"status\\": 200' in text
    assert "no log line" in text
