"""Django's tasks over lapwing: each scene is a program of a small project, and workers are processes."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import daemons

PROJECT = Path(__file__).parent / "django_project"
PATIENCE = 120.0
PREFACE = """
import django, json, sys, time
django.setup()
import jobs
from django.db import transaction
from datetime import timedelta
from django.utils import timezone
def result(task, name):
    found = task.get_result(name)
    value = found.return_value if found.status == "SUCCESSFUL" else None
    return [found.status, value, [error.exception_class.__name__ for error in found.errors], found.attempts]
"""


@pytest.fixture(scope="module")
def nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd() as daemon:
        yield daemon


class Project:
    """The project with a database of its own."""

    def __init__(self, nsqd: daemons.Daemon, folder: Path, prefix: str) -> None:
        self.nsqd = nsqd
        self.prefix = prefix
        self.notes = folder / "tasks.db.notes"
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "settings",
            "PYTHONPATH": str(PROJECT),
            "TASKS_DATABASE": str(folder / "tasks.db"),
            "TASKS_NSQD": nsqd.tcp,
            "TASKS_NSQD_HTTP": nsqd.http,
            "TASKS_PREFIX": prefix,
        }
        self.workers: list[subprocess.Popen[bytes]] = []
        self.manage("migrate", "--verbosity=0")

    def manage(self, *words: str) -> None:
        """Run a command of manage.py."""
        subprocess.run([sys.executable, "-m", "django", *words], env=self.environment, check=True, timeout=PATIENCE)

    def run(self, program: str) -> Any:
        """Run a program in the project; return the JSON that it prints."""
        command = [sys.executable, "-c", PREFACE + program]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout) if done.stdout else None

    def worker(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a worker."""
        command = [sys.executable, "-m", "django", "lapwing_worker", *words]
        process = subprocess.Popen(command, env=self.environment, start_new_session=True)
        self.workers.append(process)
        return process

    def results(self, task: str, names: list[str]) -> list[Any]:
        """Wait until tasks have finished; return status, value, errors and attempts of each."""
        deadline = time.monotonic() + PATIENCE
        program = f"print(json.dumps([result(jobs.{task}, name) for name in {names!r}]))"
        while True:
            found: list[Any] = self.run(program)
            if not any(each[0] in ("READY", "RUNNING") for each in found):
                return found
            assert time.monotonic() < deadline, found
            time.sleep(0.2)

    def noted(self) -> list[str]:
        """The lines that tasks have written."""
        return self.notes.read_text().split() if self.notes.exists() else []

    def stop(self) -> None:
        for process in self.workers:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def project(nsqd: daemons.Daemon, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Project]:
    made = Project(nsqd, tmp_path, f"{abs(hash(request.node.name)) % 10**8}.")
    yield made
    made.stop()


def letters(project: Project, topic: str = "default") -> list[Any]:
    url = f"{project.nsqd.url}/dead/letters?topic={project.prefix}{topic}.workers.dead"
    found: list[Any] = json.load(urllib.request.urlopen(url))["letters"]
    return found


def test_tasks_return_fail_and_take_their_context(project: Project) -> None:
    project.worker("--concurrency=2")
    names = project.run(
        """
tasks = [jobs.note, jobs.wait_and_double, jobs.attempt, jobs.fail, jobs.opaque, jobs.leave, jobs.fail_twice]
arguments = [["x"], [21], [], [], [], [], []]
print(json.dumps([task.enqueue(*words).id for task, words in zip(tasks, arguments)]))
"""
    )
    kinds = ["note", "wait_and_double", "attempt", "fail", "opaque", "leave"]
    found = [project.results(kind, [name])[0] for kind, name in zip(kinds, names, strict=False)]

    assert found == [
        ["SUCCESSFUL", "X", [], 1],
        ["SUCCESSFUL", 42, [], 1],
        ["SUCCESSFUL", 1, [], 1],
        ["FAILED", None, ["ValueError"], 1],
        ["FAILED", None, ["TypeError"], 1],
        ["FAILED", None, ["SystemExit"], 1],
    ]
    errors = {letter["error"].partition(" (")[0] for letter in letters(project)}
    assert errors >= {"failed: ValueError: no such card", "failed: SystemExit: 3"}
    project.worker("--backend=again")
    assert project.results("fail_twice", names[-1:]) == [["SUCCESSFUL", 3, ["OSError", "OSError"], 3]]


def test_a_dead_letter_that_is_returned_runs_again(project: Project) -> None:
    project.worker()
    (name,) = project.run("print(json.dumps([jobs.fail.enqueue().id]))")
    project.results("fail", [name])
    until(lambda: len(letters(project)) == 1)
    url = f"{project.nsqd.url}/dead/redrive?topic={project.prefix}default.workers.dead"
    urllib.request.urlopen(url, data=b'{"filter": {"reason": "rejected"}}').read()

    until(lambda: len(letters(project)) == 1 and letters(project)[0]["sequence"] > 0)
    assert project.results("fail", [name]) == [["FAILED", None, ["ValueError"], 1]]


def test_a_rolled_back_task_never_runs_and_a_committed_one_does(project: Project) -> None:
    names = project.run(
        """
names = []
for backend in ("default", "outbox"):
    try:
        with transaction.atomic():
            jobs.note.using(backend=backend).enqueue("never")
            raise KeyError
    except KeyError:
        pass
    with transaction.atomic():
        names.append(jobs.note.using(backend=backend).enqueue("once").id)
print(json.dumps(names))
"""
    )
    project.worker("--backend=outbox", "--no-reload")

    assert [each[0] for each in project.results("note", names)] == ["SUCCESSFUL"] * 2
    assert project.noted() == ["once", "once"]


def test_a_task_is_not_run_before_its_time(project: Project) -> None:
    project.worker("--backend=outbox")
    names = project.run(
        """
later = timezone.now() + timedelta(seconds=3)
tasks = [jobs.note.using(run_after=later, backend=backend) for backend in ("default", "outbox")]
print(json.dumps([task.enqueue("later").id for task in tasks]))
"""
    )
    assert [each[0] for each in project.results("note", names)] == ["SUCCESSFUL"] * 2
    early = project.run(
        "from lapwing.contrib.django.models import TaskRow\n"
        "print(json.dumps([str(row) for row in TaskRow.objects.all() if row.started_at < row.run_after]))"
    )
    assert early == []


def test_urgent_tasks_run_first(project: Project) -> None:
    project.run(
        """
for number in range(5):
    for name, priority in (("low", -5), ("usual", 0), ("high", 7)):
        jobs.note.using(priority=priority).enqueue(name)
"""
    )
    project.worker()

    until(lambda: len(project.noted()) == 15)
    noted = project.noted()
    high, usual, low = (sum(at for at in range(15) if noted[at] == name) for name in ("high", "usual", "low"))
    assert high < usual < low


def test_a_worker_finishes_what_it_has_begun(project: Project) -> None:
    worker = project.worker()
    (name,) = project.run("print(json.dumps([jobs.block.enqueue(2).id]))")
    until(lambda: project.noted() == ["begun"])
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(PATIENCE) == 0
    assert project.results("block", [name])[0][0] == "SUCCESSFUL"


def test_tasks_survive_the_kills_of_their_workers(project: Project) -> None:
    names = project.run(
        """
with transaction.atomic():
    names = [jobs.note.using(backend="outbox").enqueue(str(number)).id for number in range(100)]
print(json.dumps(names))
"""
    )
    for rest in (80, 60, 40):
        worker = project.worker("--backend=outbox")
        until(lambda rest=rest: len(set(project.noted())) >= 100 - rest)
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    supervisor = project.worker("--backend=outbox", "--processes=2")

    assert {each[0] for each in project.results("note", names)} == {"SUCCESSFUL"}
    assert set(project.noted()) == {str(number) for number in range(100)}
    assert len(project.noted()) <= 103  # twice at most what a killed worker had begun
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(PATIENCE) == 0


def test_a_worker_waits_while_another_program_writes_to_sqlite(project: Project) -> None:
    (name,) = project.run("print(json.dumps([jobs.note.enqueue('once').id]))")
    other = sqlite3.connect(project.environment["TASKS_DATABASE"], isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    project.worker("--no-relay")
    topic = f"{project.prefix}default"

    def counted(name: str) -> int:
        url = f"{project.nsqd.url}/stats?format=json&topic={topic}"
        channels = json.load(urllib.request.urlopen(url))["topics"][0]["channels"]
        return sum(int(channel[name]) for channel in channels)

    until(lambda: counted("in_flight_count") == 1)
    time.sleep(1)  # in which a worker that does not wait fails
    other.execute("COMMIT")
    other.close()

    assert project.results("note", [name]) == [["SUCCESSFUL", "ONCE", [], 1]]
    assert counted("requeue_count") == 0


def test_a_task_that_kills_its_workers_is_given_up(project: Project) -> None:
    (name,) = project.run("print(json.dumps([jobs.kill.enqueue().id]))")
    project.worker("--processes=2")

    (found,) = project.results("kill", [name])

    assert found == ["FAILED", None, [], 5]
    assert project.noted() == ["killed"] * 5
    until(lambda: [letter["error"].partition(":")[0] for letter in letters(project)] == ["killed its workers"])


def test_without_nsqd_nothing_is_enqueued_but_into_the_outbox(project: Project) -> None:
    project.environment["TASKS_NSQD"] = "127.0.0.1:1"

    assert project.run(
        """
import lapwing
from lapwing.contrib.django.models import TaskRow
from lapwing.outbox.django.models import OutboxMessage
try:
    jobs.note.enqueue("lost")
except lapwing.Unreachable:
    jobs.note.using(backend="outbox").enqueue("kept")
print(json.dumps([TaskRow.objects.count(), OutboxMessage.objects.count()]))
"""
    ) == [1, 1]
