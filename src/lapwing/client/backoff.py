"""Backoff of a consumer whose handler fails, and delays between attempts to connect. Pure."""

import enum
import random
from typing import Final, Literal

Strategy = Literal["exponential", "full_jitter"]


class Signal(enum.Enum):
    """The effect of an answer on backoff."""

    RESUME = "resume"  # finished
    BACKOFF = "backoff"  # requeued
    CONTINUE = "continue"  # requeued or released without a failure


class Verdict(enum.Enum):
    """The change that a signal makes."""

    NOTHING = "nothing"
    PAUSE = "pause"  # stop deliveries for `Backoff.duration` seconds, then try one message
    RECOVERED = "recovered"  # everything back to normal


class Backoff:
    """The backoff of one consumer: a level, and whether a pause is running.

    After a pause, a single message is delivered: its outcome is the next signal. Signals during a pause come from
    messages that were delivered before, and change nothing.
    """

    def __init__(
        self,
        *,
        multiplier: float = 1.0,
        longest: float = 120.0,
        strategy: Strategy = "exponential",
        rng: random.Random | None = None,
    ) -> None:
        self._multiplier = multiplier
        self._longest = longest
        self._strategy = strategy
        self._rng = rng or random.Random()
        self.level = 0
        self.paused = False
        self.duration = 0.0

    def signal(self, signal: Signal) -> Verdict:
        """Take one answer into account; after PAUSE, `duration` is its length."""
        if self.paused or self._longest <= 0:
            return Verdict.NOTHING
        if signal is Signal.BACKOFF:
            if self._at(self.level + 1) <= self._longest or self.level == 0:
                self.level += 1
        elif signal is Signal.RESUME and self.level:
            self.level -= 1
            if self.level == 0:
                return Verdict.RECOVERED
        if self.level == 0:
            return Verdict.NOTHING
        self.paused = True
        full = min(self._at(self.level), self._longest)
        self.duration = full if self._strategy == "exponential" else self._rng.uniform(0, full)
        return Verdict.PAUSE

    def over(self) -> None:
        """End the pause: the next signal counts."""
        self.paused = False

    def _at(self, level: int) -> float:
        return self._multiplier * float(1 << min(level, 62))


FIRST_DELAY: Final = 0.1


class Delays:
    """Delays between attempts to connect: doubling up to a limit, each chosen at random from its upper half.

    The jitter keeps a thousand clients of one restarted nsqd from coming back in the same millisecond.
    """

    def __init__(self, *, longest: float = 15.0, first: float = FIRST_DELAY, rng: random.Random | None = None) -> None:
        self._longest = longest
        self._first = first
        self._rng = rng or random.Random()
        self.failures = 0

    def next(self) -> float:
        """Return the seconds to wait before the next attempt."""
        full = min(self._longest, self._first * float(1 << min(self.failures, 30)))
        self.failures += 1
        return self._rng.uniform(full / 2, full)

    def reset(self) -> None:
        """Start again with the shortest delay."""
        self.failures = 0
