"""Deliver a message alone: to a consumer that holds nothing else, and gets nothing else until it has answered.

The last chance of a message whose failures were all lost connections: a consumer that crashes takes every message down
that it holds, and only one of them may be to blame.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lapwing.broker.channel_core import ChannelCore
    from lapwing.broker.subscription import Subscription


def deliver_alone(channel: ChannelCore, deliver: Callable[[Subscription, int], int], most: int) -> int:
    """Deliver up to `most` messages to consumers that hold nothing; keep one consumer free if there is none.

    `deliver` sends one message to a subscription, and returns 0 when the message is gone. Return how many were sent.
    """
    left = most
    alone, reserved = channel.pending.alone, channel.reserved
    for subscription, sequence in list(reserved.items()):
        answered = sequence is not None and sequence not in subscription.holder.in_flight
        over = answered or (sequence is None and not alone)
        if over or subscription not in channel.subscriptions:
            del reserved[subscription]
            subscription.reserved = False
    if not alone:
        return 0
    for subscription in list(channel.subscriptions):
        if reserved.get(subscription) is not None or subscription.holder.in_flight:
            continue
        subscription.reserved = False
        while alone and left > 0 and subscription.room > 0:
            sequence = next(iter(alone))
            if deliver(subscription, sequence):
                left -= 1
                _reserve(channel, subscription, sequence)
    if alone and not reserved:
        wanting = [each for each in channel.subscriptions if each.room > 0 or each.holder.in_flight]
        if wanting:
            _reserve(channel, min(wanting, key=lambda each: len(each.holder.in_flight)), None)
    return most - left


def _reserve(channel: ChannelCore, subscription: Subscription, sequence: int | None) -> None:
    channel.reserved[subscription] = sequence
    subscription.reserved = True
