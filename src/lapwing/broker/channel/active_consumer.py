"""The setting `active=single`: one consumer of a channel gets messages, and the others stand by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapwing.broker.channel.subscription import STANDBY

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.channel.ledger import Holder
    from lapwing.broker.channel.subscription import Subscription


class ActiveConsumer:
    """The choice of one channel; a channel that delivers to all consumers has no such object.

    A consumer stays the active one while it asks for messages or holds some. Nobody gets a message while somebody else
    holds one, so whoever holds messages is the active one, also after a claim. While two hold some, which only claims
    and a change of the setting bring about, nobody gets any.
    """

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        self._holder: Holder | None = None

    def choose(self, channel: Channel, *, asking: Subscription | None = None) -> Holder | None:
        """Return who may get messages now, and have everybody else stand by.

        `asking` is a read that does not wait, so it is none of the channel's subscriptions; those come first.
        """
        holding = _holding(channel)
        if holding:
            self._holder = holding[0]
        elif not _wants(channel, self._holder):
            waiting = next((each for each in channel.subscriptions if each.wants), asking)
            self._holder = waiting.holder if waiting is not None else None
        chosen = self._holder if len(holding) < 2 else None
        for subscription in channel.subscriptions:
            subscription.withhold(STANDBY, on=subscription.holder is not chosen)
        return chosen

    def prefer(self, channel: Channel, subscription: Subscription) -> None:
        """Make a consumer the active one that an operator hands messages to, unless another holds some."""
        self._holder = subscription.holder
        self.choose(channel)

    def current(self, channel: Channel) -> Holder | None:
        """Return the active consumer; None while nobody asks for messages or holds any."""
        holder = self._holder
        return holder if holder is not None and (holder.in_flight or _wants(channel, holder)) else None


def _holding(channel: Channel) -> list[Holder]:
    """Return who holds messages, two at most; neither the mover of dead letters counts nor what waits for a claim."""
    mover, found = channel.ledger.mover, []
    for holder in channel.ledger.holders:
        if holder.in_flight and holder is not mover and not holder.parked:
            found.append(holder)
            if len(found) == 2:
                break
    return found


def _wants(channel: Channel, holder: Holder | None) -> bool:
    return any(each.holder is holder and each.wants for each in channel.subscriptions)
