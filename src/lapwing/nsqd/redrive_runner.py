"""Work off the redrives of a broker, a step at a time, between everything else."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from lapwing.net.logs import Log
from lapwing.nsqd.turn import Turn

_LONG: Final = 20_000_000  # ns; after a step that takes longer, others have as much time


class RedriveRunner:
    """A task of the event loop that runs while there is a redrive."""

    def __init__(self, turn: Turn, log: Log) -> None:
        self._broker, self._now, self._schedule_flush = turn.broker, turn.clock.now, turn.schedule_flush
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Look at once whether there is something to do."""
        self._changed.set()
        self.resume()

    def resume(self) -> None:
        """Work off redrives, if there are any and nobody does."""
        if self._broker.redrives.active and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._run(), name="redrive")

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            now = self._now()
            try:
                due = self._broker.redrives.step(now=now)
            except Exception as error:  # a mistake of ours must not end redrives for good
                self._log.error(f"redrive: {type(error).__name__}: {error}")
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
