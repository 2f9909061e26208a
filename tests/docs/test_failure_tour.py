"""The quick tour of docs/reference/failure.md works as it is written."""

import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import asking
from daemons import Daemon, nsqd, until
from documents import joined

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "failure.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def tour() -> list[tuple[str, str]]:
    """Return the blocks of the tour: their language, and the text."""
    text = PAGE.read_text()
    start = text.index("## Quick tour")
    return BLOCK.findall(joined(text[start : text.index("\n## ", start + 1)]))


def addressed(text: str, daemon: Daemon) -> str:
    return text.replace("127.0.0.1:4151", daemon.http).replace("127.0.0.1:4150", daemon.tcp)


def shell(text: str, daemon: Daemon) -> list[object]:
    """Run the commands of a block; return the JSON that each prints."""
    found = []
    for line in textwrap.dedent(addressed(text, daemon)).splitlines():
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout)
    return found


def test_the_tour_works_as_it_is_written():
    (_, begin), (kind, consumer), (_, look), (_, redrive), (_, pending), (_, again) = tour()
    assert kind == "python"
    with nsqd() as daemon:
        shell(begin, daemon)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            [sys.executable, "-c", addressed(consumer, daemon)], stdout=subprocess.PIPE, text=True, env=environment,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "customer 17\n"
            until(lambda: asking.ask(daemon, "GET", "/dead")[1]["topics"], seconds=60, what="a dead letter")
            topics, letters, groups = shell(look, daemon)
            assert topics["topics"] == [{"topic": "orders.billing.dead", "letters": 1, "redrive": None}]
            (letter,) = letters["letters"]
            assert (letter["reason"], letter["failures"], letter["body"]) == ("attempts", 3, '{"id": 2}')
            assert "KeyError" in letter["error"]
            assert groups["groups"][0]["letters"] == 1

            preview, task, _ = shell(redrive, daemon)
            assert preview["letters"] == 1
            assert task["state"] == "running"
            assert process.stdout.readline() == "customer 18\n"
            until(lambda: shell(pending, daemon)[0]["entries"] == [], what="both orders to be finished")
            planned, done = shell(again, daemon)
            assert planned["again"] == done["again"] == 2
            assert {process.stdout.readline() for _ in range(1)} == {"customer 17\n"}
        finally:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
