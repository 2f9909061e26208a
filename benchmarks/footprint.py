"""Memory of a Spark program by kind of process, sampled from a thread of its own.

A page that several processes share (a forked Python worker, a mapped class cache) is counted once: PSS, not RSS.
"""

import contextlib
import os
import re
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEASURED = re.compile(r"^(Rss|Pss|Pss_Anon): +(\d+) kB", re.MULTILINE)


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += parents.get(found[-1], [])
    return found


def kind_of(pid: int, broker: int) -> str:
    """driver (this process), java, worker (Python processes of Spark's) or broker."""
    if pid == os.getpid():
        return "driver"
    if pid == broker:
        return "broker"
    return "java" if Path(f"/proc/{pid}/comm").read_text().startswith("java") else "worker"


@dataclass(frozen=True)
class Sample:
    """Megabytes at one moment."""

    at: float  # seconds since the start
    pss: dict[str, float]  # by kind
    anonymous: dict[str, float]  # the part of it that is no file
    rss: dict[str, float]
    processes: int
    heap_used: float
    heap: float  # what Java has taken from the system for its heap
    other: float  # Java's classes, compiled code and the like

    @property
    def total(self) -> float:
        """Spark's side: driver, Java and workers."""
        return sum(used for kind, used in self.pss.items() if kind != "broker")


class Footprint:
    """Samples every other second until it is closed."""

    def __init__(self, spark: Any, broker: int, every: float = 2.0) -> None:
        self._memory = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
        self._broker = broker
        self._begun = time.perf_counter()
        self._over = threading.Event()
        self.samples: list[Sample] = []
        self._every = every
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def between(self, start: float, stop: float) -> list[Sample]:
        """The samples of a stretch of time."""
        return [sample for sample in self.samples if start <= sample.at < stop]

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every):
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        by_kind: dict[str, dict[str, float]] = {"Rss": {}, "Pss": {}, "Pss_Anon": {}}
        pids = family(os.getpid())
        for pid in pids:
            with contextlib.suppress(OSError):  # gone in the meantime
                kind = kind_of(pid, self._broker)
                for name, size in MEASURED.findall(Path(f"/proc/{pid}/smaps_rollup").read_text()):
                    by_kind[name][kind] = by_kind[name].get(kind, 0.0) + int(size) / 1000
        heap, other = self._memory.getHeapMemoryUsage(), self._memory.getNonHeapMemoryUsage()
        return Sample(
            time.perf_counter() - self._begun, by_kind["Pss"], by_kind["Pss_Anon"], by_kind["Rss"], len(pids),
            heap.getUsed() / 1e6, heap.getCommitted() / 1e6, other.getCommitted() / 1e6,
        )  # fmt: skip


def median(samples: list[Sample]) -> float:
    return statistics.median(sample.total for sample in samples)


def shown(samples: list[Sample]) -> str:
    """A stretch of time in one line: medians, and the highest total."""

    def middle(kind: str) -> float:
        return statistics.median(sample.pss.get(kind, 0.0) for sample in samples)

    last = samples[-1]
    return (
        f"{median(samples):5,.0f} MB, most {max(sample.total for sample in samples):5,.0f}: "
        f"java {middle('java'):5,.0f} (heap {last.heap_used:4,.0f} of {last.heap:5,.0f}, other {last.other:3,.0f}), "
        f"driver {middle('driver'):4,.0f}, workers {middle('worker'):4,.0f}; nsqd {middle('broker'):4,.0f}; "
        f"{last.processes} processes"
    )
