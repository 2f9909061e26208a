"""Refuse publishes before the machine runs out of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lapwing.broker.broker import Broker
from lapwing.net.logs import Log
from lapwing.nsqd.stats import memory

NEVER: Final = -1  # of --max-memory
CHECK_SECONDS: Final = 0.25

_SHARE: Final = 0.8  # of what the machine or the container has, where the operator names no limit
_RESUME: Final = 0.95  # of the limit: below it messages are taken again
_TRIM_EVERY: Final = 20  # checks between two attempts to return free memory to the system
_MIB: Final = 1 << 20


class MemoryGuard:
    """Compares the memory of the process with a limit, and makes the broker refuse publishes above it."""

    def __init__(
        self,
        limit: int,
        broker: Broker,
        log: Log,
        *,
        held: Callable[[], int] = memory.private,
        trim: Callable[[], None] = memory.trim,
    ) -> None:
        """`limit` is in bytes; 0 means 80 % of the memory of the machine or of the container."""
        self.limit = limit or int(memory.total() * _SHARE)
        self._broker = broker
        self._log = log
        self._held = held
        self._trim = trim
        self._over = 0  # checks since the limit was passed

    def check(self) -> None:
        """Refuse publishes if the process holds too much memory, take them again if it no longer does."""
        held = self._held()
        if self._over and held < self.limit * _RESUME:
            self._over = 0
            self._broker.set_memory_problem(None)
            self._log.info(f"memory: nsqd holds {held // _MIB} MiB again; publishes are taken")
        elif self._over or held > self.limit:
            if self._over % _TRIM_EVERY == 0:
                self._trim()
                held = self._held()
            if not self._over and held <= self.limit:
                return
            problem = (
                f"memory: nsqd holds {held // _MIB} MiB and --max-memory is {self.limit // _MIB} MiB; "
                f"publishes are refused until it holds less than {int(self.limit * _RESUME) // _MIB} MiB"
            )
            if not self._over:
                self._log.error(problem)
            self._over += 1
            self._broker.set_memory_problem(problem)
