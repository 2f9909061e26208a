"""Real daemons for tests: started on port 0 of the loopback, known by the addresses they print, ended by their id.

`LAPWING_TEST_NSQD` and `LAPWING_TEST_NSQLOOKUPD` name other compatible binaries to run the same tests against.
"""

import atexit
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

import forking

LISTENING = re.compile(r"(TCP|HTTPS?|Redis(?: over TLS)?): listening on (\S+)")
START_SECONDS = 120.0
STOP_SECONDS = 60.0
BESIDE_PYTHON = Path(sys.executable).parent

# pytest has daemons forked; a benchmark or a soak starts each as a user does
forks = False

Process = subprocess.Popen[str] | forking.Forked


class Daemon:
    """A running daemon; `tcp`, `http` and `https` are the `host:port` (or socket path) it listens on."""

    def __init__(self, command: list[str], *, doors: tuple[str, ...], env: dict[str, str] | None = None) -> None:
        self.command = command
        self.doors = doors
        self.env = env
        self.addresses: dict[str, str] = {}
        self.lines: list[str] = []
        self._ports = contextlib.ExitStack()
        weakref.finalize(self, self._ports.close)
        self._start()

    @property
    def tcp(self) -> str:
        return self.addresses["TCP"]

    @property
    def http(self) -> str:
        return self.addresses["HTTP"]

    @property
    def https(self) -> str:
        return self.addresses["HTTPS"]

    @property
    def tcp_port(self) -> int:
        return int(self.tcp.rpartition(":")[2])

    @property
    def http_port(self) -> int:
        return int(self.http.rpartition(":")[2])

    @property
    def url(self) -> str:
        return f"http://{self.http}"

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        return "".join(self.lines)

    def _start(self) -> None:
        self.addresses.clear()
        self.lines.clear()
        self._heard = threading.Event()
        self.process = self._forked() or self._executed()
        self._ear = threading.Thread(target=self._listen, args=(self.process, self._heard), daemon=True)
        self._ear.start()
        atexit.register(self._leave_nothing_running, self.process)
        heard = self._heard.wait(START_SECONDS)
        self._ports.close()
        if not heard or any(door not in self.addresses for door in self.doors):
            self.kill()
            raise RuntimeError(f"{self.command[0]} did not start:\n{self.stderr}")

    def _forked(self) -> forking.Forked | None:
        """Fork it, unless it is another program, or one that was given an environment (which may be empty)."""
        program = Path(self.command[0])
        known = program.parent == BESIDE_PYTHON and program.name in forking.IMPORTED
        if not (forks and known and self.env is None):
            return None
        parent = forking.parent(program.name)
        return parent.start(self.command) if parent.fits() else None

    def _executed(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(self.env or {})}
        return subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, errors="replace", env=environment,
        )

    def _listen(self, process: Process, heard: threading.Event) -> None:
        assert process.stderr is not None
        with process.stderr:
            for line in process.stderr:
                self.lines.append(line)
                if match := LISTENING.search(line):
                    self.addresses[match[1]] = match[2]
                    if all(door in self.addresses for door in self.doors):
                        heard.set()
        heard.set()

    def kill(self) -> None:
        """End it as a crash would: SIGKILL, nothing saved."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """End it in order (SIGTERM); its exit status."""
        return self._end(signal.SIGTERM)

    def ended(self) -> int:
        """Wait until it has ended by itself and all that it printed is read; return its exit status."""
        status = self.process.wait(STOP_SECONDS)
        self._ear.join(STOP_SECONDS)
        return status

    def _end(self, number: signal.Signals) -> int:
        with contextlib.suppress(ProcessLookupError):
            if self.process.poll() is None:
                self.process.send_signal(number)
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        self._reserve_ports()
        self._ear.join(STOP_SECONDS)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return status

    def _reserve_ports(self) -> None:
        """Let no other process have its ports before `restart`: tests beside these ask for free ones all the time."""
        for address in self.addresses.values():
            host, _, port = address.rpartition(":")
            if not port.isdigit():
                continue  # the path of a socket
            holder = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._ports.callback(holder.close)
            with contextlib.suppress(OSError):  # of another machine, or taken already
                holder.bind((host.strip("[]"), int(port)))

    @staticmethod
    def _leave_nothing_running(process: Process) -> None:
        """However the tests end: a daemon without its test is nobody's, and holds its ports for ever."""
        if process.poll() is None:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """Start it again after `kill` or `stop`: same command and data, and the same addresses as before."""
        flags = ("TCP", "--tcp-address"), ("HTTP", "--http-address"), ("HTTPS", "--https-address")
        for door, flag in (*flags, ("Redis", "--redis-address")):
            if door in self.addresses:
                self.command = [part for part in self.command if not part.startswith(flag + "=")]
                self.command.append(f"{flag}={self.addresses[door]}")
        self._start()

    def __enter__(self) -> "Daemon":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def program(name: str) -> list[str]:
    """How to run one of our programs: what an environment variable names, or the one of this Python."""
    if given := os.environ.get(f"LAPWING_TEST_{name.upper()}"):
        return [given]
    if (installed := BESIDE_PYTHON / name).exists():
        return [str(installed)]
    return [sys.executable, "-m", f"lapwing.cli.{name}"]


def start_nsqd(
    data_path: str | os.PathLike[str] | None = None,
    *flags: str,
    tcp_address: str = "127.0.0.1:0",
    http_address: str = "127.0.0.1:0",
    lookupd_tcp_addresses: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
) -> Daemon:
    """An nsqd that is listening; without a data path it gets a temporary one that `stop` and `kill` leave behind."""
    path = str(data_path) if data_path is not None else tempfile.mkdtemp(prefix="lapwing-nsqd-")
    command = [
        *program("nsqd"),
        f"--tcp-address={tcp_address}",
        f"--http-address={http_address}",
        "--https-address=127.0.0.1:0",  # used with a certificate only; the default port may be somebody else's
        f"--data-path={path}",
        "--broadcast-address=127.0.0.1",
        *(f"--lookupd-tcp-address={address}" for address in lookupd_tcp_addresses),
        *flags,
    ]
    named = {"--redis-address=": "Redis", "--redis-tls-address=": "Redis over TLS"}
    redis = [door for flag, door in named.items() if any(given.startswith(flag) for given in flags)]
    return Daemon(command, doors=("TCP", "HTTP", *redis), env=env)


def failed_start(command: list[str]) -> tuple[int, str]:
    """Start a daemon that ends by itself; return its exit status and all that it printed."""
    with Daemon(command, doors=()) as daemon:
        return daemon.ended(), daemon.stderr


def start_nsqlookupd(*flags: str, env: dict[str, str] | None = None) -> Daemon:
    """An nsqlookupd that is listening."""
    command = [
        *program("nsqlookupd"),
        "--tcp-address=127.0.0.1:0",
        "--http-address=127.0.0.1:0",
        "--broadcast-address=127.0.0.1",
        *flags,
    ]
    return Daemon(command, doors=("TCP", "HTTP"), env=env)


def start_nsqadmin(*flags: str, env: dict[str, str] | None = None) -> Daemon:
    """An nsqadmin that is listening. Its first page takes seconds where it was not forked, as it loads libraries."""
    return Daemon([*program("nsqadmin"), "--http-address=127.0.0.1:0", *flags], doors=("HTTP",), env=env)


@contextlib.contextmanager
def nsqd(*flags: str, **options: object) -> Iterator[Daemon]:
    """An nsqd on a temporary data path, for the length of a `with` block."""
    path = tempfile.mkdtemp(prefix="lapwing-nsqd-")
    daemon = None
    try:
        daemon = start_nsqd(path, *flags, **options)  # type: ignore[arg-type]
        yield daemon
    finally:
        if daemon is not None:
            daemon.kill()
        shutil.rmtree(path, ignore_errors=True)


def until(claim: Callable[[], object], *, seconds: float = 60.0, what: str = "the claim") -> None:
    """Wait until `claim()` is true, looking every 10 ms; fail the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while not claim():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(0.01)
