"""A PostgreSQL of its own for a test, from Debian's package."""

import contextlib
import glob
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from daemons import until

POSTGRESQL_JAR = Path("/usr/share/java/postgresql.jar")  # Debian's, if it is there
SQLITE_JAR = Path("/usr/share/java/sqlite-jdbc.jar")


def programs() -> Path | None:
    """Return the directory of PostgreSQL's programs, if they are installed."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    return Path(found[-1]).parent if found else None


def missing(jar: Path) -> str:
    """Return why PostgreSQL cannot be used, or nothing."""
    if programs() is None:
        return "PostgreSQL is not installed (Debian: postgresql)"
    return "" if jar.exists() else f"{jar} is not installed (Debian: libpostgresql-jdbc-java)"


class Server:
    """A running server; it takes connections of 127.0.0.1 without a password."""

    def __init__(self, directory: str, port: int) -> None:
        self.directory = directory
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"jdbc:postgresql://127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        bin_ = programs()
        assert bin_ is not None
        command = [str(bin_ / "postgres"), "-D", self.directory, "-p", str(self.port), "-h", "127.0.0.1",
                   "-k", self.directory, "-F"]  # fmt: skip
        self.process = subprocess.Popen(_as_user(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: self.sql("select 1", check=False) == "1", seconds=60, what="PostgreSQL")

    def kill(self) -> None:
        """End it as a crash would."""
        assert self.process is not None
        lines = Path(self.directory, "postmaster.pid").read_text().splitlines()
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(lines[0]), 9)
        self.process.wait()

    def stop(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            lines = Path(self.directory, "postmaster.pid").read_text().splitlines()
            os.kill(int(lines[0]), 2)  # fast
            self.process.wait()

    def sql(self, text: str, *, check: bool = True) -> str:
        """Return what psql prints: rows by line, columns by `|`."""
        bin_ = programs()
        assert bin_ is not None
        found = subprocess.run(
            [str(bin_ / "psql"), "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-At", "-c", text],
            capture_output=True, text=True, check=check,
        )  # fmt: skip
        return found.stdout.strip()


def _as_user(command: list[str]) -> list[str]:
    """PostgreSQL refuses to run as root."""
    return ["runuser", "-u", "postgres", "--", *command] if os.getuid() == 0 else command


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """A server with an empty database, for the length of a `with` block."""
    bin_ = programs()
    assert bin_ is not None
    directory = tempfile.mkdtemp(prefix="lapwing-postgresql-")
    server = None
    try:
        if os.getuid() == 0:
            shutil.chown(directory, "postgres", "postgres")
        subprocess.run(
            _as_user([str(bin_ / "initdb"), "-D", directory, "-A", "trust", "-U", "postgres", "--no-sync"]),
            check=True, capture_output=True,
        )  # fmt: skip
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        server = Server(directory, port)
        yield server
    finally:
        if server is not None:
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)
