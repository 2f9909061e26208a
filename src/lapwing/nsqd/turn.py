"""The turn: all that happened in one round of the event loop ends in one write per log and one per socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from lapwing.broker.broker import Broker
from lapwing.nsqd.clock import Alarm, Clock


class Talker(Protocol):
    """A connection with something to send."""

    def flush(self) -> None:
        """Send what is there."""


class Turn:
    """Ends each round of the event loop in which anything was done."""

    def __init__(self, broker: Broker, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.clock = clock
        self.alarm = Alarm(broker, clock, loop, self.stir)
        self.on_changes: Callable[[], None] = lambda: None
        self.on_unsynced: Callable[[], None] = lambda: None
        self.watchers: list[Callable[[], None]] = []  # called when logs may have grown
        self._loop = loop
        self._talkers: dict[Talker, None] = {}
        self._stirred = False

    def stir(self) -> None:
        """Have this round ended."""
        if not self._stirred:
            self._stirred = True
            self._loop.call_soon(self.end)

    def begin(self) -> None:
        """Note that the caller ends this round itself, with `end`."""
        self._stirred = True

    def add(self, talker: Talker) -> None:
        """Have a connection flushed at the end of this round."""
        self._talkers[talker] = None
        if not self._stirred:
            self._stirred = True
            self._loop.call_soon(self.end)

    def end(self) -> None:
        """Write the logs, then the sockets; nobody hears OK of what is not written."""
        self._stirred = False
        broker = self.broker
        if broker.restless:
            broker.commit(self.clock.now())
            for watch in self.watchers:
                watch()
        if broker.unsynced:
            self.on_unsynced()
        if broker.changes:
            self.on_changes()
        talkers, self._talkers = self._talkers, {}
        for talker in talkers:
            talker.flush()
        self.alarm.arm()
