"""A token bucket: how many deliveries a rate allows now, and when it allows the next."""

from __future__ import annotations

from lapwing.broker.settings import Rate


class TokenBucket:
    """Allows `burst` deliveries at once and `rate` over time; exact, as it counts in whole numbers."""

    __slots__ = ("_capacity", "_count", "_level", "_per", "_updated")

    def __init__(self, rate: Rate, burst: int, *, now: int) -> None:
        """Begin full. A burst of 0 is one second's worth, at least one."""
        burst = burst or max(rate.count * 1_000_000_000 // rate.per, 1)
        self._count = rate.count
        self._per = rate.per  # a delivery costs so much; each ns brings `_count`
        self._capacity = burst * rate.per
        self._level = self._capacity
        self._updated = now

    def available(self, now: int) -> int:
        """Return how many deliveries are allowed now."""
        if now > self._updated:
            self._level = min(self._level + (now - self._updated) * self._count, self._capacity)
            self._updated = now
        return self._level // self._per if self._level > 0 else 0

    def take(self, count: int) -> None:
        """Count deliveries that were made."""
        self._level -= count * self._per

    def next_due(self) -> int:
        """Return when a delivery is allowed, as of the last look."""
        missing = self._per - self._level
        return self._updated + (-(-missing // self._count) if missing > 0 else 0)
