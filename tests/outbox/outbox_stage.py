"""An nsqd whose topics store a message-id once, and databases: SQLite, and a PostgreSQL of our own."""

import glob
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import daemons

PROGRAMS = sorted(glob.glob("/usr/lib/postgresql/*/bin"))


class Cluster:
    """A PostgreSQL cluster in a temporary folder, reached through a Unix socket."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lapwing-pg-", dir="/tmp"))
        self._user = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}  # it refuses to run as root
        if self._user:
            shutil.chown(self.folder, "nobody", "nogroup")
        data = self.folder / "data"
        self._run("initdb", "-A", "trust", "-U", "lapwing", "-E", "UTF8", "--no-sync", "-D", str(data))
        self._run(
            "pg_ctl", "-D", str(data), "-w", "-t", "120", "-l", str(self.folder / "log"),
            "-o", f"-k {self.folder} -c listen_addresses='' -c fsync=off", "start",
        )  # fmt: skip

    def _run(self, program: str, *arguments: str) -> None:
        command = [os.path.join(PROGRAMS[-1], program), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **self._user
        )
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "-w", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if not PROGRAMS:
        pytest.skip("PostgreSQL is not installed: scripts/system-packages installs it where this user may")
    cluster = Cluster()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd() as daemon:
        policy = {"topics": "*", "settings": {"dedup_window": "1h"}}
        request = urllib.request.Request(f"{daemon.url}/policies/once", json.dumps(policy).encode(), method="PUT")
        urllib.request.urlopen(request).close()
        yield daemon


def stored(daemon: daemons.Daemon, topic: str) -> list[tuple[str, dict[str, str]]]:
    """Body and headers of every message of a topic."""
    with urllib.request.urlopen(f"{daemon.url}/log/read?topic={topic}&from=0&format=json") as answer:
        return [(message["body"], message["headers"]) for message in json.load(answer)["messages"]]
