"""Consume until the operator ends it: what every tool does that reads topics."""

import asyncio
from collections.abc import Collection

from lapwing.client.consumer import Consumer
from lapwing.tools.program import first_of, say


async def consume(consumers: Collection[Consumer], until: asyncio.Event) -> None:
    """Start them in turn and stop all when told to; one whose nsqd cannot be reached ends them all with its error."""
    try:
        await first_of(until.wait(), _start_and_stay(consumers, until))
    finally:
        await asyncio.gather(*(consumer.stop() for consumer in consumers))


async def _start_and_stay(consumers: Collection[Consumer], until: asyncio.Event) -> None:
    for consumer in consumers:
        await consumer.start(need="every")
        if not consumer.addresses and not consumer.errors:
            say(f"no nsqd has topic {consumer.topic} yet; waiting for one")
    await until.wait()
