"""Keeps one connection to one nsqd: made, made again when lost, with growing pauses between attempts that fail."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from lapwing.client.address import Address
from lapwing.client.backoff import Delays
from lapwing.client.errors import Refused, Unreachable

log: Final = logging.getLogger("lapwing.client")

SETTLED: Final = 5.0  # s; a connection that lasted so long has worked
RARELY: Final = 0.5  # s; the least between two attempts that were asked for


class Reconnection:
    """Keep a connection to `address`: connect, and connect again whenever it is lost.

    `make` connects and returns a future that is done when the connection is lost. Waiting goes by the monotonic clock
    of the event loop, so a wall clock that jumps changes nothing.
    """

    def __init__(
        self,
        address: Address,
        make: Callable[[Address], Awaitable[Awaitable[str]]],
        *,
        longest: float,
        label: str = "",
        wanted: Callable[[Address], bool],
        gone: Callable[[Address], None],
    ) -> None:
        self.address = address
        self.error: Unreachable | None = None  # of the last attempt
        self.connected = False
        self._label = f"[{label}] ({address})" if label else f"({address})"
        self._make = make
        self._wanted = wanted
        self._gone = gone
        self._delays = Delays(longest=longest)
        self._hurry = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._task = asyncio.create_task(self._keep(), name=f"lapwing-link-{address}")

    async def first_attempt(self) -> Unreachable | None:
        """Wait for the first attempt and return its error; None if it worked or was stopped."""
        await asyncio.wait([self._first, self._task], return_when=asyncio.FIRST_COMPLETED)
        if self._task.done() and not self._task.cancelled():
            self._task.result()  # an unexpected error must not be lost
        return self.error

    def hurry(self) -> None:
        """Try again now instead of after the pause."""
        self._hurry.set()

    async def stop(self) -> None:
        """Make no more attempts; the owner closes the connection."""
        self._task.cancel()
        self._attempted()  # release a caller that waits for the first attempt
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _keep(self) -> None:
        while True:
            began = self._loop.time()
            try:
                lost = await self._make(self.address)
            except Unreachable as error:
                self.error = error
                self._log(error)
            else:
                self.error = None
                self.connected = True
                self._attempted()
                began = self._loop.time()
                try:
                    reason = await lost
                finally:
                    self.connected = False
                if self._loop.time() - began >= SETTLED:
                    self._delays.reset()
                self.error = Unreachable(str(self.address), reason)
                log.warning("%s %s; connecting again", self._label, reason)
                self._gone(self.address)
            self._attempted()
            await self._pause(self._delays.next())
            if not self._wanted(self.address):
                return

    def _attempted(self) -> None:
        if not self._first.done():
            self._first.set_result(None)

    def _log(self, error: Unreachable) -> None:
        # a refusal is logged each time, as somebody has to act; an outage when it begins, then every tenth time
        if isinstance(error, Refused) or self._delays.failures % 10 == 0:
            log.error("%s %s", self._label, error.reason)
        else:
            log.info("%s %s", self._label, error.reason)

    async def _pause(self, seconds: float) -> None:
        if seconds <= RARELY:
            await asyncio.sleep(seconds)
            return
        self._hurry.clear()
        await asyncio.sleep(RARELY)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - RARELY):
                await self._hurry.wait()
