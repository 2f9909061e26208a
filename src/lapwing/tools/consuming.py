"""Run the consumers of a tool until the operator ends it."""

import asyncio
from collections.abc import Collection

from lapwing.client.consumer import Consumer
from lapwing.tools.program import first_of, write_line


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
