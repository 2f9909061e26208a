"""Keep connections to the nsqds that were given and to those that nsqlookupd lists."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from lapwing.client.address import Address, listed, parse
from lapwing.client.discovery import Discovery, lookup_url
from lapwing.client.errors import Refused, Unreachable
from lapwing.client.options import ClientOptions
from lapwing.client.reconnection import Reconnection
from lapwing.errors import ConfigError


class Connections:
    """The connections of one consumer or producer.

    `make` connects to one address, as for `Reconnection`. A given address is kept for ever, a listed one as long as it
    is listed or connected. With `eager`, an address that is listed again is tried at once.
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
        self._make = make
        self._options = options
        self._topic = topic
        self._label = label
        self._admits = admits
        self._eager = eager
        self._attempts: dict[Address, Reconnection] = {}
        self._listed: set[Address] = set()
        self._discovery: Discovery | None = None
        self._held = False

    async def start(self) -> None:
        """Begin to connect, and return after the first answers of nsqlookupd."""
        for address in self.given:
            self._add(address)
        if self.lookupds:
            self._discovery = Discovery(self.lookupds, self._options, self._found, topic=self._topic)
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

    def _add(self, address: Address) -> None:
        self._attempts[address] = Reconnection(
            address,
            self._make,
            longest=self._options.max_reconnect_delay,
            label=self._label,
            wanted=self._wanted,
            gone=self._gone,
        )

    def _found(self, addresses: set[Address]) -> None:
        if self._admits is not None:
            addresses = {address for address in addresses if self._admits(str(address))}
        self._listed = addresses
        if self._held:
            return
        for address in addresses:
            known = self._attempts.get(address)
            if known is None:
                self._add(address)
            elif self._eager:
                known.hurry()

    def _wanted(self, address: Address) -> bool:
        if address in self.given or address in self._listed:
            return True
        self._attempts.pop(address, None)
        return False

    def _gone(self, address: Address) -> None:
        if self._discovery is not None:
            self._discovery.poke()
