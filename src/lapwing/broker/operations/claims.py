"""Claim pending messages: take them from their holders; make them ready, finish, reject, defer or hand them over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from lapwing.broker.channel import delivery
from lapwing.broker.channel.ledger import Reason
from lapwing.broker.failures.dead_letters import REJECTED
from lapwing.errors import NoSuchHolder

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.channel.subscription import Subscription

ACTIONS: Final = ("ready", "finish", "reject", "defer")


def claim(
    channel: Channel,
    sequences: Iterable[int],
    action: str,
    *,
    now: int,
    delay: int = 0,
    error: str = "",
    to: str = "",
) -> list[int]:
    """Do something with pending messages, whoever holds them; return those that were pending. Raises `NoSuchHolder`.

    A former holder can no longer answer for them. A claim counts as no failure. `delay` (ns) is for "defer", `error`
    for "reject", and `to` names the consumer that gets what is made ready.
    """
    ledger, wanted = channel.ledger, list(dict.fromkeys(sequences))
    if to and to in ledger.named:
        claimed = channel.claim(wanted, ledger.named[to], now=now)
    elif action == "finish":
        claimed = channel.finish(_free(channel, wanted), now=now)
    else:
        receiver = _receiver(channel, to) if to else None
        claimed = ledger.take_pending(wanted)
        if action == "reject":
            channel.give_up(claimed, REJECTED, now=now, error=error)
        else:
            channel.give_back(claimed, Reason.CLAIMED, now=now, delay=delay if action == "defer" else 0)
        if receiver is not None:
            delivery.hand_over(channel, claimed, receiver, now)
    channel.counts.claimed += len(claimed)
    channel.changed()
    return sorted(claimed)


def _free(channel: Channel, sequences: list[int]) -> list[int]:
    """Return the messages that are not on their way to the dead-letter topic."""
    mover = channel.ledger.mover
    return sequences if mover is None else [each for each in sequences if each not in mover.in_flight]


def _receiver(channel: Channel, name: str) -> Subscription:
    for subscription in channel.subscriptions:
        if subscription.holder.name == name:
            return subscription
    raise NoSuchHolder(f"no consumer {name[:80]} of {channel.topic.name}/{channel.name} is connected")
