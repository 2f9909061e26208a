"""The consumers of a tool: the flags that they have in common, and how they run until the operator ends them."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from lapwing.client.consumer import Consumer
from lapwing.client.options import ClientOptions
from lapwing.client.workers import Handler
from lapwing.net.options import option
from lapwing.tools.program import CLIENT_OPTIONS, first_of, write_line


@dataclass(frozen=True, slots=True)
class ConsumingOptions:
    """The flags of a tool that consumes."""

    channel: str = option("", "consume through this channel")
    consumer_opt: tuple[str, ...] = option((), "set an option of the consumer: `name,value`", kind=CLIENT_OPTIONS)
    lookupd_http_address: tuple[str, ...] = option((), "find nsqds through this nsqlookupd (HTTP address)")
    nsqd_tcp_address: tuple[str, ...] = option((), "connect to this nsqd (TCP address)")
    max_in_flight: int = option(200, "take at most this many messages at a time")
    version: bool = option(False, "print version string")

    def consumer(self, topic: str, handler: Handler, settings: ClientOptions, **more: Any) -> Consumer:
        """Return a consumer of the topic; `more` are arguments of `Consumer`."""
        nsqds, lookupds = self.nsqd_tcp_address, self.lookupd_http_address
        return Consumer(topic, self.channel, handler, nsqd=nsqds, lookupd=lookupds, options=settings, **more)


async def consume(consumers: Collection[Consumer], until: asyncio.Event) -> None:
    """Start consumers in turn and stop all on `stop`. One whose nsqd cannot be reached ends all with its error."""
    try:
        await first_of(until.wait(), _start_and_stay(consumers, until))
    finally:
        await asyncio.gather(*(consumer.stop() for consumer in consumers))


async def _start_and_stay(consumers: Collection[Consumer], until: asyncio.Event) -> None:
    for consumer in consumers:
        await consumer.start(need="every")
        if not consumer.addresses and not consumer.errors:
            write_line(f"no nsqd has topic {consumer.topic} yet; waiting for one")
    await until.wait()
