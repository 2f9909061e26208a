"""Idle topics made to take little memory, in slices, so that nobody waits for long."""

import asyncio

from lapwing.broker import persistence
from lapwing.broker.broker import Broker
from lapwing.nsqd.clock import Clock


async def let_topics_rest(broker: Broker, clock: Clock) -> None:
    """Have all idle topics rest; others have at least half of the time meanwhile."""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        if not persistence.let_idle_rest(broker, clock.now()):
            return
        await asyncio.sleep(loop.time() - began)
