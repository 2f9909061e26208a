"""Limits on the deliveries of a channel: messages in flight at a time, a rate, and who gets any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapwing.broker.channel.active_consumer import ActiveConsumer

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.channel.keys import Keys
    from lapwing.broker.settings.definitions import ChannelSettings, Rate


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


class DeliveryLimits:
    """The limits of one channel; a channel without limits has no such object."""

    __slots__ = ("_bucket", "_most", "active", "keys")

    def __init__(
        self, settings: ChannelSettings, before: DeliveryLimits | None, keys: Keys | None, *, now: int
    ) -> None:
        """`before` are the limits that they replace: the active consumer stays the same."""
        self.active: ActiveConsumer | None = None
        if settings.active == "single":
            self.active = before.active if before is not None and before.active is not None else ActiveConsumer()
        self.keys = keys  # where it delivers by key
        self._most = settings.max_in_flight  # 0: no limit
        self._bucket = TokenBucket(settings.rate, settings.burst, now=now) if settings.rate.count else None

    def allowance(self, channel: Channel, waiting: int, *, now: int) -> int:
        """Return how many of the waiting messages may be delivered now."""
        if self._most:
            waiting = max(min(waiting, self._most - channel.ledger.with_consumers), 0)
        if self._bucket is not None and (allowed := self._bucket.available(now)) < waiting:
            channel.counts.throttled += 1
            return allowed
        return waiting

    def took(self, channel: Channel, count: int) -> None:
        """Count deliveries that were made; have the channel deliver again when the rate allows the next."""
        if self._bucket is not None:
            self._bucket.take(count)
            channel.schedule(self._bucket.next_due())


def limits_of(
    settings: ChannelSettings, before: DeliveryLimits | None, keys: Keys | None, *, now: int
) -> DeliveryLimits | None:
    """Return the limits that settings ask for, instead of those `before`; None without any."""
    if not settings.max_in_flight and not settings.rate.count and settings.active == "all" and keys is None:
        return None
    return DeliveryLimits(settings, before, keys, now=now)


def same_limits(one: ChannelSettings, other: ChannelSettings) -> bool:
    """Return whether two settings have the same limits on deliveries."""
    return same_keys(one, other) and (one.active, one.max_in_flight, one.rate, one.burst) == (
        other.active, other.max_in_flight, other.rate, other.burst
    )  # fmt: skip


def by_key(settings: ChannelSettings) -> bool:
    """Return whether settings have a channel deliver by key."""
    return settings.order == "key" or settings.fair or settings.max_in_flight_per_key > 0


def same_keys(one: ChannelSettings, other: ChannelSettings) -> bool:
    """Return whether two settings have a channel deliver by key in the same way."""
    return (one.order, one.fair, one.max_in_flight_per_key, one.key_from, one.key_weights) == (
        other.order, other.fair, other.max_in_flight_per_key, other.key_from, other.key_weights
    )  # fmt: skip
