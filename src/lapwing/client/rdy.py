"""Set the RDY of every connection of a consumer, and lower it while handlers fail."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Sized
from typing import Final, Protocol

from lapwing.client.backoff import Backoff, Signal, Verdict
from lapwing.client.options import ClientOptions
from lapwing.client.rdy_distribution import RdyDistribution, RdyOrders, Share

log: Final = logging.getLogger("lapwing.client")

STARVED: Final = 0.85  # share of a connection's RDY that is in flight
PROBE_PATIENCE: Final = 1.0  # s that a connection has to deliver the one message of a probe
NO_CONNECTION_WAIT: Final = 1.0  # s until a probe looks again for a connection to probe


class RdyTarget(Hashable, Protocol):
    """One connection: the messages in flight on it, and how RDY is sent."""

    @property
    def in_flight(self) -> Sized: ...
    def ready(self, count: int) -> None: ...


class Timers:
    """Scheduled calls, by the monotonic clock of the loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: set[asyncio.TimerHandle] = set()
        self._over = False

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call once, after `seconds`."""

        def ring() -> None:
            self._timers.discard(timer)
            if not self._over:
                call()

        timer = self._loop.call_later(seconds, ring)
        self._timers.add(timer)

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        """Call every `seconds`."""

        def again() -> None:
            call()
            self.after(seconds, again)

        self.after(seconds, again)

    def stop(self) -> None:
        """Cancel all calls."""
        self._over = True
        for timer in self._timers:
            timer.cancel()


class RdyController:
    """Apply RDY distribution and backoff by the clock of the event loop."""

    def __init__(self, options: ClientOptions, *, label: str) -> None:
        self.in_backoff = False
        self._label = label
        self._redistribute_interval = options.rdy_redistribute_interval
        self._distribution: RdyDistribution[RdyTarget] = RdyDistribution(
            options.max_in_flight, low_rdy_idle=options.low_rdy_idle_timeout, low_rdy=options.low_rdy_timeout
        )
        self._backoff = Backoff(
            multiplier=options.backoff_multiplier,
            longest=options.max_backoff_duration,
            strategy=options.backoff_strategy,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = False

    def start(self) -> None:
        """Begin, on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._timers = Timers()
        self._timers.every(self._redistribute_interval, self._redistribute)
        self._timers.every(PROBE_PATIENCE, self._probe_elsewhere)

    def stop(self) -> None:
        """Send no more RDY."""
        self._over = True
        self._timers.stop()

    def join(self, runner: RdyTarget, *, cap: int) -> Share | None:
        """Add a connection whose nsqd takes a RDY of at most `cap`; return its share."""
        self._send(self._distribution.add(runner, cap=cap, now=self._now()))
        return self._distribution.shares.get(runner)

    def leave(self, runner: RdyTarget) -> None:
        """Remove a connection; the others share its RDY."""
        orders = self._distribution.remove(runner, now=self._now())
        if not self._over:
            self._send(orders)

    @property
    def max_in_flight(self) -> int:
        """Messages that may be in flight at once, over all connections."""
        return self._distribution.max_in_flight

    def resize(self, max_in_flight: int) -> None:
        """Change `max_in_flight`; 0 pauses everything."""
        self._send(self._distribution.resize(max_in_flight, now=self._now()))

    @property
    def starved(self) -> bool:
        """Whether a connection has nearly all of its RDY in flight."""
        for runner, share in self._distribution.shares.items():
            held = len(runner.in_flight)
            if held and held >= share.rdy * STARVED:
                return True
        return False

    def signal(self, signal: Signal) -> None:
        """Take note of an answer: it may start or end a backoff."""
        if self._over:
            return
        verdict = self._backoff.signal(signal)
        self.in_backoff = self._backoff.level > 0
        if verdict is Verdict.PAUSE:
            seconds, level = self._backoff.duration, self._backoff.level
            log.warning("[%s] backing off for %.3f s (level %d)", self._label, seconds, level)
            self._send(self._distribution.hold(now=self._now()))
            self._timers.after(seconds, self._probe)
        elif verdict is Verdict.RECOVERED:
            log.info("[%s] recovered, back to normal", self._label)
            self._send(self._distribution.release(now=self._now()))

    def _probe(self) -> None:
        if not self._distribution.shares:
            self._timers.after(NO_CONNECTION_WAIT, self._probe)
            return
        self._backoff.over()
        self._send(self._distribution.probe(now=self._now()))

    def _probe_elsewhere(self) -> None:
        self._send(self._distribution.probe_elsewhere(PROBE_PATIENCE, now=self._now()))

    def _redistribute(self) -> None:
        self._send(self._distribution.redistribute(now=self._now()))

    def _send(self, orders: RdyOrders[RdyTarget]) -> None:
        for runner, count in orders:
            runner.ready(count)

    def _now(self) -> float:
        return self._loop.time() if self._loop is not None else 0.0
