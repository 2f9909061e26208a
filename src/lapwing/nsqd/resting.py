"""Checkpoints, and idle topics that are made to take little memory, in slices, so that nobody waits for long."""

import asyncio
from typing import Final

from lapwing.broker import persistence
from lapwing.broker.broker import Broker
from lapwing.nsqd.clock import Clock

_SLICE: Final = 25  # topics that are saved before others have their turn


async def save_changes(broker: Broker, clock: Clock) -> None:
    """Save every topic that has changed; others have at least half of the time meanwhile."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    work = persistence.begin_checkpoint(broker, now=clock.now())
    while work.advance(_SLICE, now=clock.now()):
        await asyncio.sleep(loop.time() - began)
        began = loop.time()


async def let_topics_rest(broker: Broker, clock: Clock) -> None:
    """Have all idle topics rest; others have at least half of the time meanwhile."""
    loop = asyncio.get_running_loop()
    while True:
        began = loop.time()
        if not persistence.let_idle_rest(broker, clock.now()):
            return
        await asyncio.sleep(loop.time() - began)
