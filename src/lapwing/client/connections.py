"""Which nsqds to be connected to: those that were given, and those that discovery lists now; a link to each."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from lapwing.client.address import Address, listed, parse
from lapwing.client.discovery import Discovery, lookup_url
from lapwing.client.errors import Refused, Unreachable
from lapwing.client.link import Link
from lapwing.client.options import Options
from lapwing.errors import ConfigError


class Links:
    """The links of one consumer or producer.

    `make` connects to one address, as `Link` wants it. A given address is wanted for ever, a listed one as long as it
    is listed or works. With `eager`, being listed is a reason to try again at once.
    """

    def __init__(
        self,
        make: Callable[[Address], Awaitable[Awaitable[str]]],
        options: Options,
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
            lookup_url(text, topic=topic)  # what cannot be asked is refused now rather than at the start
        if not self.given and not self.lookupds:
            raise ConfigError("nsqd or lookupd addresses required")
        self._make = make
        self._options = options
        self._topic = topic
        self._label = label
        self._admits = admits
        self._eager = eager
        self._links: dict[Address, Link] = {}
        self._listed: set[Address] = set()
        self._discovery: Discovery | None = None
        self._held = False

    async def start(self) -> None:
        """Begin to connect, and return after discovery's first answers."""
        for address in self.given:
            self._add(address)
        if self.lookupds:
            self._discovery = Discovery(self.lookupds, self._options, self._found, topic=self._topic)
            await self._discovery.start()

    async def first_failures(self, addresses: Iterable[Address]) -> list[Unreachable]:
        """Why the first attempts at `addresses` failed, once all were made; refusals, which do not heal, come first."""
        results = await asyncio.gather(*(self._links[address].first_attempt() for address in addresses))
        errors = [error for error in results if error is not None]
        return sorted(errors, key=lambda error: not isinstance(error, Refused))

    def nobody(self) -> Unreachable:
        """Why there is not one address to connect to, when discovery has been asked."""
        return Unreachable(", ".join(self.lookupds), "; ".join(self.errors) or "nsqlookupd knows no nsqd")

    def hold(self) -> None:
        """Add no more links."""
        self._held = True

    def hurry(self) -> None:
        """Somebody is waiting: try again now, everywhere."""
        for link in self._links.values():
            link.hurry()

    async def stop(self) -> None:
        """No more attempts; the connections themselves are their owner's business."""
        self.hold()
        if self._discovery is not None:
            await self._discovery.stop()
        await asyncio.gather(*(link.stop() for link in self._links.values()))

    @property
    def addresses(self) -> list[Address]:
        """The nsqds that are wanted."""
        return [*self._links]

    @property
    def errors(self) -> list[str]:
        """What keeps us from those we are not connected to, and from discovery; in words."""
        errors = [str(link.error) for link in self._links.values() if link.error is not None]
        return errors + (self._discovery.errors if self._discovery is not None else [])

    def _add(self, address: Address) -> None:
        self._links[address] = Link(
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
            known = self._links.get(address)
            if known is None:
                self._add(address)
            elif self._eager:
                known.hurry()

    def _wanted(self, address: Address) -> bool:
        if address in self.given or address in self._listed:
            return True
        self._links.pop(address, None)
        return False

    def _gone(self, address: Address) -> None:
        if self._discovery is not None:
            self._discovery.poke()
