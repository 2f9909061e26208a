"""Workers of a framework in processes of their own, with an nsqd, a queue and a file of notes."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import daemons

PATIENCE = 120.0


def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Scene:
    """A queue, and the workers that serve it."""

    def __init__(self, nsqd: daemons.Daemon, folder: Path, queue: str) -> None:
        self.nsqd = nsqd
        self.queue = queue
        self.notes = folder / "notes"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parent),
            "TASKS_NSQD": nsqd.tcp,
            "TASKS_NSQD_HTTP": nsqd.http,
            "TASKS_QUEUE": queue,
            "TASKS_NOTES": str(self.notes),
        }
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a worker: `python -m` these words."""
        process = subprocess.Popen([sys.executable, "-m", *words], env=self.environment, start_new_session=True)
        self.workers.append(process)
        return process

    def run(self, program: str) -> str:
        """Run a program; return what it prints."""
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill a worker with its processes."""
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def noted(self) -> list[str]:
        """The lines that tasks have written."""
        return self.notes.read_text().split() if self.notes.exists() else []

    def get(self, path: str) -> Any:
        """What an endpoint of nsqd answers."""
        return json.load(urllib.request.urlopen(f"{self.nsqd.url}{path}"))

    def letters(self, topic: str) -> list[str]:
        """The errors of the dead letters of a topic."""
        dead = f"{topic}.workers.dead"
        if not self.get(f"/stats?format=json&topic={dead}")["topics"]:
            return []
        return [letter["error"] for letter in self.get(f"/dead/letters?topic={dead}")["letters"]]


@contextmanager
def scene(nsqd: daemons.Daemon, folder: Path, queue: str) -> Iterator[Scene]:
    """A scene whose workers end with it."""
    made = Scene(nsqd, folder, queue)
    try:
        yield made
    finally:
        for worker in made.workers:
            if worker.poll() is None:
                made.kill(worker)
