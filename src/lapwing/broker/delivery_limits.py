"""Limits on the deliveries of a channel: messages in flight at a time, and a rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapwing.broker.rate import TokenBucket

if TYPE_CHECKING:
    from lapwing.broker.channel_core import ChannelCore
    from lapwing.broker.settings import ChannelSettings


class DeliveryLimits:
    """The limits of one channel; a channel without limits has no such object."""

    __slots__ = ("_bucket", "_most")

    def __init__(self, settings: ChannelSettings, *, now: int) -> None:
        self._most = settings.max_in_flight  # 0: no limit
        self._bucket = TokenBucket(settings.rate, settings.burst, now=now) if settings.rate.count else None

    def allowance(self, channel: ChannelCore, waiting: int, *, now: int) -> int:
        """Return how many of the waiting messages may be delivered now."""
        if self._most:
            waiting = max(min(waiting, self._most - channel.pending.holders.with_consumers), 0)
        if self._bucket is not None and (allowed := self._bucket.available(now)) < waiting:
            channel.counts.throttled += 1
            return allowed
        return waiting

    def took(self, channel: ChannelCore, count: int) -> None:
        """Count deliveries that were made; have the channel deliver again when the rate allows the next."""
        if self._bucket is not None:
            self._bucket.take(count)
            channel.schedule(self._bucket.next_due())


def limits_of(settings: ChannelSettings, *, now: int) -> DeliveryLimits | None:
    """Return the limits that settings ask for; None without any."""
    if not settings.max_in_flight and not settings.rate.count:
        return None
    return DeliveryLimits(settings, now=now)


def same_limits(one: ChannelSettings, other: ChannelSettings) -> bool:
    """Return whether two settings have the same limits on deliveries."""
    return (one.max_in_flight, one.rate, one.burst) == (other.max_in_flight, other.rate, other.burst)
