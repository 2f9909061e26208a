"""How fast messages may come: RDY for every connection of a consumer, held back while its handlers fail."""

import asyncio
import logging
from collections.abc import Hashable, Sized
from typing import Final, Protocol

from lapwing.client.backoff import Backoff, Signal, Verdict
from lapwing.client.flow import Flow, Orders, Share
from lapwing.client.options import Options
from lapwing.client.timers import Timers

log: Final = logging.getLogger("lapwing.client")

STARVED: Final = 0.85  # share of a connection's RDY that is in flight
PROBE_PATIENCE: Final = 1.0  # s that a connection has to deliver the one message of a probe
NO_CONNECTION_WAIT: Final = 1.0  # s until a probe looks again for a connection to probe


class Runner(Hashable, Protocol):
    """Whose pace it is: what came over one connection and is not answered for, and how it asks for more."""

    @property
    def in_flight(self) -> Sized: ...
    def ready(self, count: int) -> None: ...


class Pace:
    """`flow` and `backoff` brought together, with a clock."""

    def __init__(self, options: Options, *, label: str) -> None:
        self.in_backoff = False
        self._label = label
        self._redistribute_interval = options.rdy_redistribute_interval
        self._flow: Flow[Runner] = Flow(
            options.max_in_flight, low_rdy_idle=options.low_rdy_idle_timeout, low_rdy=options.low_rdy_timeout
        )
        self._backoff = Backoff(
            multiplier=options.backoff_multiplier,
            longest=options.max_backoff_duration,
            strategy=options.backoff_strategy,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = False

    def start(self, timers: Timers) -> None:
        """Go by this clock from now on."""
        self._loop = asyncio.get_running_loop()
        self._timers = timers
        timers.every(self._redistribute_interval, self._redistribute)
        timers.every(PROBE_PATIENCE, self._probe_elsewhere)

    def stop(self) -> None:
        """Nobody asks for messages any more."""
        self._over = True

    def join(self, runner: Runner, *, cap: int) -> Share | None:
        """One more connection, whose nsqd takes a RDY of `cap` at the most; its share."""
        self._send(self._flow.add(runner, cap=cap, now=self._now()))
        return self._flow.shares.get(runner)

    def leave(self, runner: Runner) -> None:
        """A connection has gone: the others share what it had."""
        orders = self._flow.remove(runner, now=self._now())
        if not self._over:
            self._send(orders)

    @property
    def max_in_flight(self) -> int:
        """How many messages may be held at once, over all connections."""
        return self._flow.max_in_flight

    def resize(self, max_in_flight: int) -> None:
        """Let so many be held at once; 0 pauses everything."""
        self._send(self._flow.resize(max_in_flight, now=self._now()))

    @property
    def starved(self) -> bool:
        """Whether some connection has as much in flight as it may, or nearly."""
        for runner, share in self._flow.shares.items():
            held = len(runner.in_flight)
            if held and held >= share.rdy * STARVED:
                return True
        return False

    def signal(self, signal: Signal) -> None:
        """A message was answered for; what does that mean for the flow?"""
        if self._over:
            return
        verdict = self._backoff.signal(signal)
        self.in_backoff = self._backoff.level > 0
        if verdict is Verdict.PAUSE:
            seconds, level = self._backoff.duration, self._backoff.level
            log.warning("[%s] backing off for %.3f s (level %d)", self._label, seconds, level)
            self._send(self._flow.hold(now=self._now()))
            self._timers.after(seconds, self._probe)
        elif verdict is Verdict.RECOVERED:
            log.info("[%s] recovered, back to normal", self._label)
            self._send(self._flow.release(now=self._now()))

    def _probe(self) -> None:
        if not self._flow.shares:
            self._timers.after(NO_CONNECTION_WAIT, self._probe)
            return
        self._backoff.over()
        self._send(self._flow.probe(now=self._now()))

    def _probe_elsewhere(self) -> None:
        self._send(self._flow.probe_elsewhere(PROBE_PATIENCE, now=self._now()))

    def _redistribute(self) -> None:
        self._send(self._flow.redistribute(now=self._now()))

    def _send(self, orders: Orders[Runner]) -> None:
        for runner, count in orders:
            runner.ready(count)

    def _now(self) -> float:
        return self._loop.time() if self._loop is not None else 0.0
