"""Timers on the event loop that can all be cancelled at once."""

import asyncio
from collections.abc import Callable


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
