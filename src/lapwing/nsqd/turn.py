"""The turn: each round of the event loop ends in one write per log and one per socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from lapwing.broker.broker import Broker
from lapwing.nsqd.clock import Alarm, Clock


class Flushable(Protocol):
    """A connection with something to send."""

    def flush(self) -> None:
        """Send it."""


class Turn:
    """Ends each round of the event loop in which anything was done."""

    def __init__(self, broker: Broker, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.clock = clock
        self.alarm = Alarm(broker, clock, loop, self.schedule_flush)
        self.on_changes: Callable[[], None] = lambda: None
        self.on_unsynced: Callable[[], None] = lambda: None
        self.gatherers: list[Callable[[], None]] = []  # called before the logs are written: they may publish more
        self.watchers: list[Callable[[], None]] = []  # called when messages may have been delivered
        self._loop = loop
        self._connections: dict[Flushable, None] = {}
        self._scheduled = False

    def schedule_flush(self) -> None:
        """Have logs and sockets written at the end of this round."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.end)

    def begin(self) -> None:
        """Note that the caller ends this round itself, with `end`."""
        self._scheduled = True

    def add(self, connection: Flushable) -> None:
        """Have a connection flushed at the end of this round."""
        self._connections[connection] = None
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.end)

    def end(self) -> None:
        """Write the logs, then the sockets: no OK is sent before its publish is written."""
        broker = self.broker
        self._scheduled = True  # what is ready now is sent below
        try:
            for gather in self.gatherers:
                gather()
            if broker.has_work:
                now = self.clock.now()
                broker.commit(now)
                for watch in self.watchers:
                    watch()
                if broker.growth.grown:
                    broker.growth.wake(now)
        except Exception as error:  # of whoever was called; the others are served
            self._report("a turn could not be finished", error)
        self._scheduled = False
        if broker.work.unsynced:
            self._call("a sync could not be begun", self.on_unsynced)
        if broker.changes:
            self._call("changes could not be announced", self.on_changes)
        connections, self._connections = self._connections, {}
        for connection in connections:
            try:
                connection.flush()
            except Exception as error:  # of this connection alone
                self._report("answers could not be sent", error)
        self.alarm.arm()
        if broker.work:
            self.schedule_flush()  # others have their turn first

    def _call(self, failure: str, function: Callable[[], None]) -> None:
        """Call a function; report a failure, so that the others are served."""
        try:
            function()
        except Exception as error:
            self._report(failure, error)

    def _report(self, message: str, error: Exception) -> None:
        self._loop.call_exception_handler({"message": message, "exception": error})
