"""Group fsync, off the event loop: one sync covers all publishes that were written by then."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from lapwing.broker.broker import Broker
from lapwing.broker.topic.receipt import Receipt
from lapwing.broker.topic.topic import Topic
from lapwing.errors import LapwingError, WriteFailed


class Syncer:
    """Syncs logs in a thread of its own and settles the receipts that wait for it.

    `observe` gets the seconds each sync of one log took.
    """

    def __init__(self, broker: Broker, schedule_flush: Callable[[], None], observe: Callable[[float], None]) -> None:
        self._broker = broker
        self._schedule_flush = schedule_flush
        self._observe = observe
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fsync")
        self._running: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()  # a sync under way may have begun before what this one has to cover

    def kick(self) -> None:
        """Sync what receipts wait for, as soon as the sync under way is done."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        work = self._broker.work
        while work.unsynced:
            waiting: dict[Topic, list[tuple[Receipt, int]]] = {}
            for topic, receipts in work.take_unsynced():
                waiting.setdefault(topic, []).extend(receipts)
            for topic, receipts in waiting.items():
                error = await self.sync(topic)
                for receipt, sequence in receipts:
                    self._settle(receipt, sequence, error)
            self._schedule_flush()

    def _settle(self, receipt: Receipt, sequence: int, error: LapwingError | None) -> None:
        try:
            receipt.settle(sequence, error)
        except Exception as raised:  # the others wait too, and for nothing but this
            self._broker.report(f"a publish could not be answered: {type(raised).__name__}: {raised}")

    async def sync(self, topic: Topic) -> LapwingError | None:
        """Sync one topic's log now; return the error, if there was one."""
        async with self._one_at_a_time:
            return await self._sync(topic)

    async def _sync(self, topic: Topic) -> LapwingError | None:
        if topic.exiting:
            return None
        try:
            job = topic.store.begin_sync()
            if job is None:
                return None
            seconds = await asyncio.get_running_loop().run_in_executor(self._thread, _timed, job)
        except Exception as raised:  # also where there is no thread or memory: nothing is synced then either
            error = raised if isinstance(raised, OSError) else OSError(errno.EIO, f"{type(raised).__name__}: {raised}")
            topic.store.finish_sync(error)
            if topic.exiting:
                return None  # deleted meanwhile with its files, so the disk is fine
            failure = WriteFailed(topic.name, topic.log.end, error)
            self._broker.fail(failure)
            return failure
        topic.store.finish_sync(None)
        self._observe(seconds)
        return None

    async def settled(self) -> LapwingError | None:
        """Return at once: files beside the logs are synced by whoever writes them."""
        return None

    async def sync_all(self) -> None:
        """Sync every log that needs it, so that a power loss takes little with `os` durability."""
        for topic in self._broker.keeper.unsynced():
            await self.sync(topic)

    async def stop(self) -> None:
        """Wait for the sync under way, and end the thread."""
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)
        self._thread.shutdown(wait=True)


def _timed(job: Callable[[], None]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began
