"""What is to happen later, once or again and again, until everything is called off."""

import asyncio
from collections.abc import Callable


class Timers:
    """Calls on the event loop, by its monotonic clock."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: set[asyncio.TimerHandle] = set()
        self._over = False

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call once, so many seconds from now."""

        def ring() -> None:
            self._timers.discard(timer)
            if not self._over:
                call()

        timer = self._loop.call_later(seconds, ring)
        self._timers.add(timer)

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        """Call again and again."""

        def again() -> None:
            call()
            self.after(seconds, again)

        self.after(seconds, again)

    def stop(self) -> None:
        """Call nothing any more."""
        self._over = True
        for timer in self._timers:
            timer.cancel()
