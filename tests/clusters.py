"""A PostgreSQL of the tests' own, from Debian's package, and S3 on loopback."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

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


SERVER = """
import sys
from moto.moto_server.threaded_moto_server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(*server.get_host_and_port(), sep=":", flush=True)
sys.stdin.read()
"""


class S3:
    """An object store on loopback, in another process: some tests leave no memory to any thread of this one."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.endpoint = f"http://{self._process.stdout.readline().strip()}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs in its environment."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        }  # fmt: skip

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request).close()

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    server = S3()
    yield server
    server.stop()
