"""Memory, processor time, files and disk of the process, in the figures that NSQ reports of Go."""

from __future__ import annotations

import gc
import os
import resource
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Final

_PAUSES: Final = 256  # remembered, as Go does
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


class GcPauses:
    """The pauses of the last garbage collections, measured from construction on."""

    def __init__(self) -> None:
        self._began = 0
        self._pauses: deque[int] = deque(maxlen=_PAUSES)  # microseconds
        gc.callbacks.append(self._note_pause)

    def close(self) -> None:
        if self._note_pause in gc.callbacks:
            gc.callbacks.remove(self._note_pause)

    def _note_pause(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter_ns()
        else:
            self._pauses.append((time.perf_counter_ns() - self._began) // 1000)

    def percentile(self, quantile: float) -> int:
        """Return the microseconds within which that share of the last pauses stayed; 0 without any."""
        ordered = sorted(self._pauses)
        return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)] if ordered else 0


def resident() -> int:
    """Return the bytes of physical memory that the process holds."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE
    except OSError:
        return _peak()


def private() -> int:
    """Return the bytes of memory that the process alone holds: without pages of files, which can be dropped."""
    try:
        with open("/proc/self/statm", "rb") as statm:
            _, held, of_files, *_ = map(int, statm.read().split())
            return (held - of_files) * _PAGE
    except OSError:
        return _peak()


def total() -> int:
    """Return the bytes of memory that the machine has, or the container, if that may have less."""
    return min([os.sysconf("SC_PHYS_PAGES") * _PAGE, *_container_limits()])


def _container_limits() -> list[int]:
    """Return the limits of the control groups that the process is in; none where they cannot be read."""
    limits = []
    try:
        with open("/proc/self/cgroup") as lines:
            groups = [line.rstrip("\n").split(":", 2) for line in lines]
    except OSError:
        return []
    for _, controllers, path in groups:
        for place in (f"/sys/fs/cgroup{path}/memory.max", "/sys/fs/cgroup/memory.max") if not controllers else (
            f"/sys/fs/cgroup/memory{path}/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        ):  # fmt: skip
            try:
                with open(place) as file:
                    text = file.read().strip()
            except OSError:
                continue
            if text.isdigit():  # else `max`
                limits.append(int(text))
    return limits


def trim() -> None:
    """Return free memory to the system, where the C library can."""
    import ctypes

    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return  # another C library: it decides by itself


def _peak() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def cpu_seconds() -> float:
    """Return the processor time of the process, in user and kernel mode."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def open_files() -> int:
    """Return how many file descriptors the process holds; -1 where that cannot be read."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return -1


def most_files() -> int:
    """Return how many file descriptors the process may hold; -1 for no limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def free_disk(path: str) -> int | None:
    """Return the bytes that are free where `path` is, or None if that cannot be found out."""
    try:
        facts = os.statvfs(path)
    except OSError:
        return None
    return facts.f_bavail * facts.f_frsize


def figures(pauses: GcPauses) -> dict[str, int]:
    """Return the figures of `/stats` and statsd, in their order.

    Objects are Python's allocated blocks, bytes in use are those resident, released ones those below the peak; a
    collection is due by counts of objects in Python, not by bytes, so `next_gc_bytes` is 0.
    """
    held = resident()
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": held,
        "heap_released_bytes": max(_peak() - held, 0),
        "gc_pause_usec_100": pauses.percentile(1.0),
        "gc_pause_usec_99": pauses.percentile(0.99),
        "gc_pause_usec_95": pauses.percentile(0.95),
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }
