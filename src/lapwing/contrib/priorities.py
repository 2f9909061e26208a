"""Priorities by topics: a queue is a topic for each band, and a worker begins what has the highest one.

A channel delivers in order, so a priority is a topic of its own: `q.high`, `q` and `q.low`. A worker subscribes to all
of them and has `slots` tasks at a time.
"""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from itertools import count
from typing import Final

from lapwing.client.message import Hold

BANDS: Final = (".high", "", ".low")  # ends of topics, the most urgent one first
_GATHER: Final = 0.03  # s that a message waits for more urgent ones after all topics were asked for some
_PATIENCE: Final = 1.0  # s that a message waits here for a slot; then it is for another worker


def topic_of(queue: str, priority: int) -> str:
    """Return the topic of the tasks of a queue that have this priority; 0 is the usual one."""
    return queue + BANDS[0 if priority > 0 else 1 if priority == 0 else 2]


def topics_of(queues: Iterable[str]) -> list[str]:
    """Return the topics of queues, the most urgent ones first."""
    named = list(queues)
    return [queue + band for band in BANDS for queue in named]


class PriorityGate:
    """Lets `slots` tasks run at a time, those of the most urgent topic first.

    One message more of each topic waits here, so that the choice is at hand when a slot is free. While tasks take long,
    `resize` is called with 0, what waits is held for other workers, and with `in_flight` when there is a slot again.
    """

    def __init__(self, slots: int, resize: Callable[[int], None]) -> None:
        self.in_flight = slots + 1  # messages that a worker wants of each topic
        self._slots = slots
        self._resize = resize
        self._busy = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()
        self._complete = 0.0  # when messages of all topics have had the time to come
        self._timer: asyncio.TimerHandle | None = None
        self._paused = True  # until the first message

    @asynccontextmanager
    async def entered(self, band: int) -> AsyncIterator[None]:
        """Wait for a slot, and keep it during the block. Raises `Hold` when there is none for a second."""
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (band, next(self._numbers), turn))
        if self._paused and not self._busy:
            self._go_on()
        self._admit()
        try:
            async with asyncio.timeout(_PATIENCE):
                await turn
        except BaseException as error:
            admitted = turn.done() and not turn.cancelled()  # in the same turn of the loop
            if not isinstance(error, TimeoutError):
                if admitted:
                    self._leave()
                raise
            if not admitted:
                if not self._paused:
                    self._paused = True
                    self._resize(0)
                raise Hold(0) from None
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        self._busy -= 1
        if self._paused:
            self._resize(self.in_flight)
            self._go_on()
        self._admit()

    def _go_on(self) -> None:
        self._paused = False
        self._complete = asyncio.get_running_loop().time() + _GATHER

    def _admit(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and self._busy < self._slots:
            band, _, turn = self._waiting[0]
            if turn.done():
                heapq.heappop(self._waiting)
                continue
            if band and loop.time() < self._complete:
                if self._timer is None:
                    self._timer = loop.call_at(self._complete, self._admit_later)
                return
            heapq.heappop(self._waiting)
            self._busy += 1
            turn.set_result(None)

    def _admit_later(self) -> None:
        self._timer = None
        self._admit()
