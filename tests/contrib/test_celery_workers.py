"""Celery's own workers on lapwing: prefork and solo, with kills of workers and of nsqd."""

import contextlib
import datetime
import importlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemons import Daemon, nsqd, until
from lapwing import SyncAdmin

PROJECT = Path(__file__).parent / "celery_project"
TASKS = int(os.environ.get("LAPWING_CELERY_TASKS", "150"))  # of the kill test; 10000 for a long one
KILLS = max(3, TASKS // 500)


class Stage:
    """An nsqd, a Celery application, and the book that its tasks write."""

    def __init__(self, daemon: Daemon, book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.daemon, self.book = daemon, book
        self.logs = book.parent
        values = {"CELERY_BROKER": f"lapwing://{daemon.tcp}", "CELERY_NSQD_HTTP": daemon.http, "CELERY_BOOK": str(book)}
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        monkeypatch.syspath_prepend(str(PROJECT))
        sys.modules.pop("celery_tasks", None)
        self.tasks: Any = importlib.import_module("celery_tasks")

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "-n", f"{name}@here", "-l", "INFO"]
        with (self.logs / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, *arguments], cwd=PROJECT, stdout=log, stderr=log, start_new_session=True
            )

    @contextlib.contextmanager
    def worker(self, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        process = self.start(name, *arguments)
        try:
            until(lambda: f"{name}@here ready" in self.log(name), seconds=200, what="the worker")
            yield process
        finally:
            kill(process)

    def log(self, name: str) -> str:
        return (self.logs / f"{name}.log").read_text()

    def lines(self, word: str) -> list[list[str]]:
        text = self.book.read_text() if self.book.exists() else ""
        return [line.split()[1:] for line in text.splitlines() if line.split()[0] == word]


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a worker and its children as a crash of their machine would."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    with nsqd(*getattr(request, "param", ())) as daemon:
        found = Stage(daemon, tmp_path / "book", monkeypatch)
        yield found
        found.tasks.app.close()


@pytest.mark.slow
def test_a_prefork_worker_runs_tasks_and_answers_inspect(stage: Stage) -> None:
    app, tasks = stage.tasks.app, stage.tasks
    events: list[str] = []
    with stage.worker("one", "-c", "2", "-E") as process:
        assert tasks.add.delay(2, 3).get(timeout=60) == 5
        due = 0.0
        with app.connection() as connection:
            receiver = app.events.Receiver(connection, handlers={"*": lambda event: events.append(event["type"])})
            deadline = time.monotonic() + 100
            for _ in receiver.itercapture(limit=None, timeout=100, wakeup=True):
                if events and not due:  # a heartbeat: whoever subscribes later misses what was before
                    due = time.time() + 1.5
                    tasks.work.apply_async((1, due), countdown=1.5)
                    tasks.work.apply_async((2, due), eta=datetime.datetime.fromtimestamp(due, datetime.UTC))
                if events.count("task-succeeded") >= 2 or time.monotonic() > deadline:
                    break
        until(lambda: len(stage.lines("end")) == 2, seconds=100, what="both tasks")
        assert app.control.inspect(timeout=5).ping() == {"one@here": {"ok": "pong"}}
        assert app.control.inspect(timeout=5).active_queues()["one@here"][0]["name"] == "celery"
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        tasks.add.apply_async((2, 3), eta=later)
        found = app.control.inspect(timeout=5).scheduled()["one@here"]
        assert isinstance(found, list), found
        (waiting,) = found
        assert (waiting["eta"], waiting["request"]["args"]) == (later.isoformat(), [2, 3])
        process.send_signal(signal.SIGTERM)
        process.wait(100)

    assert {"worker-heartbeat", "task-succeeded"} <= set(events)
    assert all(float(begun) >= due - 0.01 for _, begun, _, _, _ in stage.lines("begin"))
    assert process.returncode == 0
    assert "sync with" in stage.log("one") or "mingle: all alone" in stage.log("one")


@pytest.mark.slow
def test_a_poison_task_is_a_dead_letter_that_can_be_sent_back(stage: Stage) -> None:
    with stage.worker("one", "-c", "1"), SyncAdmin(stage.daemon.http) as admin:
        stage.tasks.poison.delay()
        stage.tasks.quick.delay(1)
        until(lambda: "celery.celery.dead" in admin.stats().topics, seconds=200, what="the dead letter")
        until(lambda: stage.lines("quick") != [], seconds=100, what="the task behind it")
        (letter,) = admin.dead_letters("celery.celery.dead").answers[stage.daemon.http].letters
        stage.book.with_suffix(".cured").touch()
        admin.redrive("celery.celery.dead")
        until(lambda: stage.lines("cured") != [], seconds=100, what="the task that was sent back")

    assert letter.headers["task"] == "celery_tasks.poison"


@pytest.mark.slow
@pytest.mark.parametrize("stage", [("--msg-timeout=500ms", "--max-msg-timeout=1s")], indirect=True)
@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_task_that_outlives_every_timeout_is_delivered_once(stage: Stage, pool: str) -> None:
    with stage.worker("long", "-P", pool, "-c", "1"), SyncAdmin(stage.daemon.http) as admin:
        stage.tasks.long.delay(4.0)
        until(lambda: stage.lines("end") != [], seconds=100, what="the task")
        until(lambda: admin.stats().topics["celery"].channels[0].in_flight == 0, seconds=100, what="its answer")
        (found,) = admin.stats().topics["celery"].channels

    assert [line[3] for line in stage.lines("begin")] == ["0"]
    assert (found.messages, found.timed_out, found.requeued) == (1, 0, 0)


@pytest.mark.slow
def test_a_solo_worker_keeps_its_connection_while_a_task_runs(stage: Stage) -> None:
    with stage.worker("solo", "-P", "solo"):
        for number in range(3):
            stage.tasks.work.delay(number, 0.0)
        until(lambda: len(stage.lines("end")) == 3, seconds=100, what="the tasks")

    assert sorted(int(line[0]) for line in stage.lines("begin")) == [0, 1, 2]


@pytest.mark.slow
def test_tasks_with_a_time_run_once_over_kills_of_workers_and_nsqd(stage: Stage) -> None:
    rng, span = random.Random(7), max(6.0, TASKS / 150)
    start = time.time() + 3
    dues = [start + rng.random() * span for _ in range(TASKS)]
    workers = {name: stage.start(name, "-c", "2") for name in ("one", "two")}
    killed: dict[str, float] = {}  # worker's pid: when
    nsqd_killed: list[float] = []
    try:
        for number, due in enumerate(dues):
            eta = datetime.datetime.fromtimestamp(due, datetime.UTC)
            stage.tasks.work.apply_async((number, due), eta=eta)
        for turn in range(KILLS):
            until(lambda share=(turn + 1) / (KILLS + 1): len(stage.lines("end")) >= share * TASKS, seconds=600,
                  what="a share of the tasks")  # fmt: skip
            if turn % 3 == 2:
                nsqd_killed.append(time.time())
                stage.daemon.kill()
                stage.daemon.restart()
            else:
                name = rng.choice(sorted(workers))
                killed[str(workers[name].pid)] = time.time()
                kill(workers[name])
                workers[name] = stage.start(name, "-c", "2")
        until(lambda: len({line[0] for line in stage.lines("end")}) == TASKS, seconds=600, what="every task")
    finally:
        for process in workers.values():
            kill(process)
    runs = defaultdict(list)
    for number, begun, parent, _, _ in stage.lines("begin"):
        runs[number].append((float(begun), parent))
    ends = {number: float(ended) for number, ended in stage.lines("end")}

    assert all(begun >= dues[int(number)] - 0.01 for number, each in runs.items() for begun, _ in each)
    for number, each in runs.items():
        for begun, parent in sorted(each)[:-1]:
            by_worker = parent in killed and begun <= killed[parent] + 1
            by_nsqd = any(begun <= moment + 5 and ends[number] >= moment - 5 for moment in nsqd_killed)
            assert by_worker or by_nsqd, f"task {number} ran twice: {sorted(each)}, killed {killed} {nsqd_killed}"
