"""The tutorial, from top to bottom, as a reader follows it."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import IO

from daemons import BESIDE_PYTHON, Daemon, nsqd, until
from documents import Block, blocks


class Reader:
    """Somebody who saves the files and types the commands."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.daemon = daemon
        self.folder = folder
        known = {"LAPWING_NSQD_HTTP": daemon.http, "LAPWING_NSQD_TCP": daemon.tcp}
        self.environment = {**os.environ, **known, "PATH": f"{BESIDE_PYTHON}:{os.environ['PATH']}"}

    def save(self, block: Block) -> None:
        """Save a file under the name in its first line, with the addresses of the test."""
        here = f'App("{self.daemon.tcp}", nsqd_http="{self.daemon.http}")'
        (self.folder / block.first.removeprefix("# ")).write_text(block.text.replace('App("127.0.0.1:4150")', here))

    def run(self, block: Block) -> str:
        done = subprocess.run(["bash", "-ec", block.text], cwd=self.folder, env=self.environment, timeout=100,
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == 0, f"{block}: {done.stdout}{done.stderr}"
        return done.stdout

    def start(self, *command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)  # fmt: skip

    def dead(self) -> list[str]:
        """The bodies of the dead letters."""
        try:
            with urllib.request.urlopen(f"{self.daemon.url}/dead/letters?topic=orders.billing.dead") as answer:
                return [letter["body"] for letter in json.load(answer)["letters"]]
        except urllib.error.HTTPError:
            return []


def lines_until(stream: IO[str] | None, text: str) -> None:
    assert stream is not None
    while text not in (line := stream.readline()):
        assert line, f"{text!r} was not printed"


def test_the_tutorial_does_what_it_promises(tmp_path: Path) -> None:
    up, shop, run, pub, failing, show, redrive, test, pytest_, web = blocks("docs/tutorials/first-worker.md")
    assert up.text.strip() == "lapwing up"
    with nsqd() as daemon:
        reader = Reader(daemon, tmp_path)
        reader.save(shop)
        worker = reader.start(*run.text.split())
        lines_until(worker.stderr, "consuming orders/billing")

        reader.run(pub)
        lines_until(worker.stdout, "order 1 is paid at attempt 1")
        reader.run(failing)
        until(lambda: len(reader.dead()) == 2, what="two dead letters")
        shown = reader.run(show)
        assert "the bank declines order 2" in shown
        assert "the body is no Order" in shown
        assert "2" in reader.run(redrive)

        reader.save(test)
        passed = subprocess.run(
            [sys.executable, *pytest_.text.split()[1:], "-p", "no:lapwing", "-p", "lapwing.pytest_plugin",
             "-p", "no:cacheprovider"],
            cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert "1 passed" in passed.stdout, passed.stdout + passed.stderr

        worker.terminate()
        worker.communicate(timeout=60)
        assert worker.returncode == 0

        reader.save(web)
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
            port = free.getsockname()[1]
        service = reader.start(sys.executable, "-m", "uvicorn", "web:service", "--port", str(port))
        lines_until(service.stderr, "Uvicorn running")
        order = urllib.request.Request(f"http://127.0.0.1:{port}/orders", b'{"id": 3, "card": "good"}', method="POST")
        order.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(order, timeout=60) as answer:
            assert answer.status == 200
        lines_until(service.stdout, "order 3 is paid at attempt 1")
        service.terminate()
        service.communicate(timeout=60)
