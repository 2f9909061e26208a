"""Work off what the broker does by itself, redrives and schedules, a step at a time, between everything else."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol

from lapwing.net.logs import Log
from lapwing.nsqd.turn import Turn

_LONG: Final = 20_000_000  # ns; after a step that takes longer, others have as much time


class Work(Protocol):
    """Something to be done in steps."""

    @property
    def active(self) -> object:
        """Something true while there is work, now or later."""

    def step(self, *, now: int) -> int | None:
        """Do a part of it; return the time of the next step, ns (`now`: at once), or None without work."""


class StepRunner:
    """A task of the event loop that runs while there is work."""

    def __init__(self, name: str, work: Work, turn: Turn, log: Log) -> None:
        self._name, self._work, self._log = name, work, log
        self._broker, self._now, self._schedule_flush = turn.broker, turn.clock.now, turn.schedule_flush
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Look at once whether there is something to do."""
        self._changed.set()
        self.resume()

    def resume(self) -> None:
        """Work, if there is something to do and nobody does it."""
        if self._work.active and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            now = self._now()
            try:
                due = self._work.step(now=now)
            except Exception as error:  # a mistake of ours must not end the work for good
                self._log.error(f"{self._name}: {type(error).__name__}: {error}")
                due = now + 1_000_000_000
            if self._broker.has_work:
                self._schedule_flush()
            if due is None:
                return
            took = self._now() - now
            await self._wait(max(due - now, took if took > _LONG else 0, 0) / 1e9)  # others have half of the time

    async def _wait(self, seconds: float) -> None:
        """Wait, but not beyond the next `wake`."""
        if not seconds:
            await asyncio.sleep(0)  # others get their turn
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def stop(self) -> None:
        """End; the rest continues at the next start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
