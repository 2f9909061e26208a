"""Tutorials and how-to pages do what they promise to somebody who follows them to the letter.

A reader saves each Python block under the name in its first line, runs each line of the shell blocks, and finds what
the plain block behind it shows (`...`: anything). A line that fails is run again for a while, as consumers and
relays need a moment. The daemons of the test have the addresses that the page calls 4150, 4151, 4161 and 6379.
"""

import contextlib
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemons import BESIDE_PYTHON, Daemon, nsqd, start_nsqlookupd
from documents import ROOT, joined

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    "tutorials/from-nsq", "tutorials/from-redis", "how-to/fastapi", "how-to/monitoring", "how-to/order",
    "how-to/outbox", "how-to/replay", "how-to/retries", "how-to/several-nodes",
]  # fmt: skip
# what is there already, or belongs to other machines
SKIPPED = re.compile(
    r"(pip install|lapwing up|mkdir|nsqd|nsqlookupd|nsqadmin|systemctl|lapwing import-\w+|lapwing context)\b"
    r"|.* --context prod|.*--node 10\.0\.0\.7"
)
PATIENCE = 40  # s


class Reader:
    """Somebody who follows a page in a folder of their own."""

    def __init__(self, daemon: Daemon, lookupd: Daemon, folder: Path) -> None:
        with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
            web = str(free.getsockname()[1])
        redis = daemon.addresses["Redis"].rpartition(":")[2]
        self.names = {
            'App("127.0.0.1:4150")': f'App("{daemon.tcp}", nsqd_http="{daemon.http}")',
            "127.0.0.1:4150": daemon.tcp, "127.0.0.1:4151": daemon.http, "127.0.0.1:4161": lookupd.http,
            "kind: table\n": f"kind: table\nnsqd: {daemon.http}\n",
            "port=6379": f"port={redis}", "127.0.0.1:8000": f"127.0.0.1:{web}", "--port 8000": f"--port {web}",
        }  # fmt: skip
        self.folder = folder
        self.output = folder / "output.txt"
        self.environment = {
            **os.environ, "PATH": f"{BESIDE_PYTHON}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1",
            "LAPWING_NSQD_HTTP": daemon.http, "LAPWING_NSQD_TCP": daemon.tcp, "COLUMNS": "200",
        }  # fmt: skip
        self.running: list[subprocess.Popen[bytes]] = []

    def follow(self, page: str) -> None:
        last = ""
        for language, text in FENCE.findall((ROOT / f"docs/{page}.md").read_text()):
            text = self.addressed(joined(text))
            if text.startswith("# "):
                (self.folder / text.partition("\n")[0].removeprefix("# ")).write_text(text)
            elif language == "sh":
                for line in text.splitlines():
                    if not SKIPPED.match(line):
                        last = line
                        self.run(line)
            elif not language:
                self.find(text, last)

    def addressed(self, text: str) -> str:
        for name, here in self.names.items():
            text = text.replace(name, here)
        return text

    def run(self, line: str) -> None:
        ended = time.monotonic() + PATIENCE
        command = f"exec {line.removesuffix(' &')}" if line.endswith(" &") else line
        while True:
            with self.output.open("ab") as output:
                process = subprocess.Popen(
                    ["bash", "-c", command], cwd=self.folder, env=self.environment, stdout=output, stderr=output
                )
            if line.endswith(" &"):
                self.running.append(process)
                return
            status = process.wait(timeout=120)
            if status == 0 or line.startswith("lapwing check"):
                return
            assert time.monotonic() < ended, f"{line}: {self.output.read_text()}"
            time.sleep(0.2)

    def find(self, shown: str, line: str) -> None:
        """Find each line that the page shows; what a command prints may come a moment later."""
        patterns = [".*".join(map(re.escape, each.split("..."))) for each in shown.splitlines() if each]
        ended = time.monotonic() + PATIENCE
        while missing := [each for each in patterns if not re.search(each, self.output.read_text())]:
            assert time.monotonic() < ended, f"{missing} not in: {self.output.read_text()}"
            time.sleep(0.3)
            if "peek" in line or "dead show" in line:
                self.run(line)

    def leave(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(timeout=60)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with start_nsqlookupd() as lookupd:
        flags = ("--redis-address=127.0.0.1:0", "--retention-age=24h")
        with nsqd(*flags, lookupd_tcp_addresses=(lookupd.tcp,)) as daemon:
            made = Reader(daemon, lookupd, tmp_path)
            yield made
            made.leave()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_does_what_it_promises(reader: Reader, page: str) -> None:
    reader.follow(page)


@pytest.mark.spark
@pytest.mark.slow
def test_the_tutorial_on_spark_does_what_it_promises(reader: Reader) -> None:
    reader.follow("tutorials/spark-table")
