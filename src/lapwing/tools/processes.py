"""CPU time and memory of processes, from /proc; where there is none, nothing is known of them."""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SESSION: Final = 3  # fields behind the name in /proc/<pid>/stat
_USER: Final = 11
_SYSTEM: Final = 12


def cpu_seconds(pid: int) -> float:
    """Return the user and system time that a process has used. Raises `OSError` if it cannot be seen."""
    fields = _stat(pid)
    return (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds (VmRSS). Raises `OSError`."""
    for row in (PROC / f"{pid}/status").read_text().splitlines():
        if row.startswith("VmRSS:"):
            return int(row.split()[1]) * 1024
    return 0


def by_session() -> dict[int, list[int]]:
    """Return the processes of each session: a program that leads one, and all that it has started."""
    found: dict[int, list[int]] = {}
    for name in os.listdir(PROC) if PROC.is_dir() else ():
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                found.setdefault(int(_stat(int(name))[_SESSION]), []).append(int(name))
    return found


def usage(pids: Iterable[int]) -> tuple[float, int]:
    """Return CPU seconds and bytes of several processes together; one that has ended counts nothing."""
    seconds, size = 0.0, 0
    for pid in pids:
        with contextlib.suppress(OSError):
            seconds += cpu_seconds(pid)
            size += resident_bytes(pid)
    return seconds, size


def _stat(pid: int) -> list[str]:
    return (PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()
