"""Every program of examples/ does what its first lines promise, and is short. tests/spark runs those for Spark."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import Daemon, nsqd, start_nsqlookupd, until
from documents import ROOT
from lapwing import SyncAdmin, SyncConsumer, SyncProducer

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with nsqd() as running:
        yield running


def start(name: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-u", EXAMPLES / name, *arguments], stdout=subprocess.PIPE, text=True,
                            stderr=subprocess.DEVNULL, env=os.environ)  # fmt: skip


def output(name: str, *arguments: str) -> list[str]:
    process = start(name, *arguments)
    lines = process.communicate(timeout=60)[0].splitlines()
    assert process.returncode == 0
    return lines


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 60


def test_web_hooks_are_confirmed_and_handled(daemon: Daemon) -> None:
    process = start("webhooks.py", daemon.tcp, "0")
    try:
        assert process.stdout is not None
        port = process.stdout.readline().split()[-1]
        url = f"http://127.0.0.1:{port}/hooks/payments"
        with urllib.request.urlopen(url, data=b'{"event": "paid"}', timeout=30) as answer:
            assert answer.status == 200
        assert process.stdout.readline() == "payments {'event': 'paid'}\n"
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/elsewhere", data=b"x", timeout=30)
        refused.value.close()
    finally:
        process.kill()
        process.communicate()


def test_orders_are_tried_again_given_up_and_sent_back(daemon: Daemon) -> None:
    lines = output("orders.py", daemon.tcp, daemon.http)

    assert "order 2 is paid at attempt 2" in lines
    assert any("given up" in line and "the card of order 3 has expired" in line for line in lines)
    assert any("given up" in line and "rejected" in line for line in lines)
    assert lines[-1] == "order 3 is paid at attempt 4"


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
        lines = output("cluster.py", lookupd.http)

    assert lines == ["jobs/work: 1 messages and no consumer", "jobs.work.dead/dead: 1 messages and no consumer",
                     f"jobs.work.dead on {node.http}: 1 letters sent back"]  # fmt: skip


def test_jobs_run_when_they_are_due_and_not_before_they_may(daemon: Daemon) -> None:
    lines = output("delayed_jobs.py", daemon.tcp)

    assert {line.partition(",")[0] for line in lines} == {"mail ann", "clean up", "report"}
    assert lines[-1].startswith("report")


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
