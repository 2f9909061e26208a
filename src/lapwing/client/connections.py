"""Keep connections to the nsqds that were given and to those that nsqlookupd lists."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from lapwing.client.address import Address, listed, parse
from lapwing.client.backoff import Delays
from lapwing.client.discovery import Discovery, lookup_url
from lapwing.client.errors import Refused, Unreachable
from lapwing.client.options import ClientOptions
from lapwing.errors import ConfigError

log: Final = logging.getLogger("lapwing.client")

SETTLED: Final = 5.0  # s; a connection that lasted so long has worked
RARELY: Final = 0.5  # s; the least between two attempts that were asked for


class Reconnection:
    """Keep a connection to `address`: connect, and connect again whenever it is lost, with growing pauses.

    Waiting goes by the monotonic clock of the event loop, so a wall clock that jumps changes nothing.
    """

    def __init__(self, address: Address, pool: "Connections") -> None:
        self.address = address
        self.error: Unreachable | None = None  # of the last attempt
        self._pool = pool
        self._label = f"[{pool.label}] ({address})" if pool.label else f"({address})"
        self._delays = Delays(longest=pool.options.max_reconnect_delay)
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
            try:
                lost = await self._pool.make(self.address)
            except Unreachable as error:
                self.error = error
                self._log(error)
            else:
                self.error = None
                self._attempted()
                began = self._loop.time()
                reason = await lost
                if self._loop.time() - began >= SETTLED:
                    self._delays.reset()
                self.error = Unreachable(str(self.address), reason)
                log.warning("%s %s; connecting again", self._label, reason)
                self._pool.ask_again()
            self._attempted()
            await self._pause(self._delays.next())
            if not self._pool.wanted(self.address):
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


class Connections:
    """The connections of one consumer or producer.

    `make` connects to one address and returns a future that is done when the connection is lost. A given address is
    kept for ever, a listed one as long as it is listed or connected. With `eager`, an address that is listed again is
    tried at once.
    """

    def __init__(
        self,
        make: Callable[[Address], Awaitable[Awaitable[str]]],
        options: ClientOptions,
        *,
        nsqd: str | Iterable[str],
        lookupd: str | Iterable[str],
        topic: str | None = None,
        label: str = "",
        admits: Callable[[str], bool] | None = None,
        eager: bool = False,
    ) -> None:
        self.given = [*dict.fromkeys(parse(text) for text in listed(nsqd))]
        self.lookupds = listed(lookupd)
        for text in self.lookupds:
            lookup_url(text, topic=topic)  # refuses a bad address now instead of at the start
        if not self.given and not self.lookupds:
            raise ConfigError("nsqd or lookupd addresses required")
        self.make = make
        self.options = options
        self.label = label
        self._topic = topic
        self._admits = admits
        self._eager = eager
        self._attempts: dict[Address, Reconnection] = {}
        self._listed: set[Address] = set()
        self._discovery: Discovery | None = None
        self._held = False

    async def start(self) -> None:
        """Begin to connect, and return after the first answers of nsqlookupd."""
        self._attempts = {address: Reconnection(address, self) for address in self.given}
        if self.lookupds:
            self._discovery = Discovery(self.lookupds, self.options, self._found, topic=self._topic)
            await self._discovery.start()

    async def first_failures(self, addresses: Iterable[Address]) -> list[Unreachable]:
        """Wait for the first attempts at `addresses` and return their errors, refusals, which do not heal, first."""
        results = await asyncio.gather(*(self._attempts[address].first_attempt() for address in addresses))
        errors = [error for error in results if error is not None]
        return sorted(errors, key=lambda error: not isinstance(error, Refused))

    def nobody(self) -> Unreachable:
        """Return the error that there is no address to connect to."""
        return Unreachable(", ".join(self.lookupds), "; ".join(self.errors) or "nsqlookupd knows no nsqd")

    def hold(self) -> None:
        """Add no more connections."""
        self._held = True

    def hurry(self) -> None:
        """Try again now, everywhere: a publish waits."""
        for attempt in self._attempts.values():
            attempt.hurry()

    async def stop(self) -> None:
        """Make no more connections; the owner closes the existing ones."""
        self.hold()
        if self._discovery is not None:
            await self._discovery.stop()
        await asyncio.gather(*(attempt.stop() for attempt in self._attempts.values()))

    @property
    def addresses(self) -> list[Address]:
        """The nsqds that connections are kept to."""
        return [*self._attempts]

    @property
    def errors(self) -> list[str]:
        """The reasons why nsqds are not connected and nsqlookupds do not answer."""
        errors = [str(attempt.error) for attempt in self._attempts.values() if attempt.error is not None]
        return errors + (self._discovery.errors if self._discovery is not None else [])

    def _found(self, addresses: set[Address]) -> None:
        if self._admits is not None:
            addresses = {address for address in addresses if self._admits(str(address))}
        self._listed = addresses
        if self._held:
            return
        for address in addresses:
            known = self._attempts.get(address)
            if known is None:
                self._attempts[address] = Reconnection(address, self)
            elif self._eager:
                known.hurry()

    def wanted(self, address: Address) -> bool:
        """Return whether a lost address is connected to again; one that is not is forgotten."""
        if address in self.given or address in self._listed:
            return True
        self._attempts.pop(address, None)
        return False

    def ask_again(self) -> None:
        """Ask nsqlookupd soon: a connection was lost."""
        if self._discovery is not None:
            self._discovery.poke()
