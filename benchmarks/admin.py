"""Measure nsqadmin: its start, and its answers for a cluster with many topics.

    python benchmarks/admin.py [--topics 3000] [--channels 2] [--limit 1]

Starts a real nsqlookupd, nsqd and nsqadmin, creates the topics on the nsqd and as many that only nsqlookupd knows, and
asks nsqadmin for its pages and its API. CPU times are nsqadmin's own. The first page loads the libraries of the pages.
Exits with 1 when a later answer takes more than `--limit` seconds of CPU in all programs, which on an idle machine is
about its time.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from lapwing.client.http import DaemonHttp

PATHS = (
    *("/api/topics", "/api/topics?inactive=true", "/api/topics/active-1", "/api/nodes", "/api/counter", "/api/alarms"),
    *("/", "/topics", "/topics/active-1", "/topics/active-1/c0", "/nodes", "/lookup", "/messages", "/clients"),
)


class Program:
    """A daemon of ours on the loopback, ended with the benchmark."""

    def __init__(self, name: str, *flags: str) -> None:
        command = [str(Path(sys.executable).parent / name), "--http-address=127.0.0.1:0", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.addresses: dict[str, str] = {}
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if match := re.search(r"(TCP|HTTP): listening on (\S+)", line):
                self.addresses[match[1]] = match[2]
                if match[1] == "HTTP":
                    break
        # nobody reads the rest of its log; a full pipe would stop it
        subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)

    @property
    def cpu(self) -> float:
        """CPU seconds that the daemon has used so far."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End the daemon."""
        self.process.terminate()
        self.process.wait()


async def fill(nsqd: str, lookupd: str, topics: int, channels: int) -> None:
    """Create the topics, some at a time."""
    http = DaemonHttp(request_timeout=60.0)
    waiting = iter(range(topics))

    async def work() -> None:
        for number in waiting:
            await http.post(lookupd, "/channel/create", {"topic": f"inactive-{number}", "channel": "c"})
            await http.post(nsqd, "/topic/create", {"topic": f"active-{number}"})
            for channel in range(channels):
                await http.post(nsqd, "/channel/create", {"topic": f"active-{number}", "channel": f"c{channel}"})

    await asyncio.gather(*(work() for _ in range(8)))
    await http.aclose()


def measured(what: str, programs: list[Program], act: Callable[[], object]) -> float:
    """Print a line of the table; return the CPU seconds that all programs used."""
    before, began = [each.cpu for each in programs], time.perf_counter()
    act()
    took = time.perf_counter() - began
    used = [each.cpu - cpu for each, cpu in zip(programs, before, strict=True)]
    print(f"| {what} | {took:.2f} s | {used[-1]:.2f} s | {sum(used[:-1]):.2f} s |", flush=True)
    return sum(used)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=3000)
    parser.add_argument("--channels", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds of CPU that an answer may take (1)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lookupd = Program("nsqlookupd", "--tcp-address=127.0.0.1:0")
        nsqd = Program(
            "nsqd",
            "--tcp-address=127.0.0.1:0",
            "--broadcast-address=127.0.0.1",
            f"--data-path={folder}",
            f"--lookupd-tcp-address={lookupd.addresses['TCP']}",
        )
        programs = [lookupd, nsqd]
        try:
            asyncio.run(fill(nsqd.addresses["HTTP"], lookupd.addresses["HTTP"], given.topics, given.channels))
            print(f"{given.topics} topics with {given.channels} channels each, as many that only nsqlookupd knows\n")
            print("| | wall | CPU of nsqadmin | of the others |\n|---|---|---|---|")
            began = time.perf_counter()
            admin = Program("nsqadmin", f"--lookupd-http-address={lookupd.addresses['HTTP']}")
            programs.append(admin)
            print(f"| start | {time.perf_counter() - began:.2f} s | {admin.cpu:.2f} s | |")
            slow = []
            for number, path in enumerate(("/counter", *PATHS)):
                url = f"http://{admin.addresses['HTTP']}{path}"
                what = path if number else "the first page"
                used = measured(what, programs, lambda url=url: urllib.request.urlopen(url).read())
                if number and used > given.limit:
                    slow.append(path)
            if slow:
                sys.exit(f"more than {given.limit:g} s of CPU: {', '.join(slow)}")
        finally:
            for program in reversed(programs):
                program.stop()


if __name__ == "__main__":
    main()
