"""Drop or give up the oldest messages of a channel when more wait than it may hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapwing.broker.failures.dead_letters import OVERFLOW
from lapwing.broker.topic.skips import count_of, gaps

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.settings.definitions import ChannelSettings

_AT_ONCE: Final = 10_000  # messages dropped in one turn


def sheds(settings: ChannelSettings) -> bool:
    """Return whether settings have a channel drop or give up what is too much."""
    return settings.overflow != "reject" and bool(settings.max_depth or settings.max_bytes)


def shed(channel: Channel, *, now: int) -> None:
    """Drop or give up the oldest of the waiting messages, until the rest is within the limits. Raises `ReadFailed`."""
    many, heavy = _surplus(channel)
    surplus = max(many, heavy)
    if surplus <= 0:
        return
    dead = channel.effective.overflow == "dead" and bool(channel.dead_topic)
    most = channel.topic.mover.room(channel) if dead else _AT_ONCE
    if surplus > most:
        surplus = most
        channel.deliver_later()  # sheds the rest
        if not most:
            return
    channel.counts.overflowed += surplus
    ledger = channel.ledger
    given_up: list[int] = []
    dropped: list[int] = []
    again = min(many - heavy, surplus)  # the bytes are those of messages that were never delivered
    while again > 0 and (first := ledger.ready.first()) is not None:
        again -= 1
        surplus -= 1
        if dead:
            ledger.ready.remove(first[0])
            given_up.append(first[0])
        else:
            ledger.drop(first[0])
            dropped.append(first[0])
    channel.note_ahead(dropped)
    while surplus > 0:
        channel.pass_over()
        cursor = channel.cursor
        stop = min(channel.ahead.clear_until(channel.topic.fanned_out), cursor + surplus)
        stop = channel.topic.deleted.clear_until(cursor, stop)
        if stop <= cursor:
            break
        channel.reader.seek(stop)
        surplus -= stop - cursor
        if dead:
            ledger.attempts.update(dict.fromkeys(range(cursor, stop), 0))
            given_up += range(cursor, stop)
    channel.journal_later()
    if given_up:
        channel.give_up(given_up, OVERFLOW, now=now)


def room(channel: Channel) -> int | None:
    """Return how many messages a channel that sheds may get before it does; None: any number.

    Deferred messages need room when they are due.
    """
    settings = channel.effective
    if not channel.sheds or not settings.max_depth:
        return None
    taken = channel.depth - len(channel.ledger.alone) + len(channel.ledger.deferred)
    return max(settings.max_depth - taken, 0)


def _surplus(channel: Channel) -> tuple[int, int]:
    """Return how many messages are too many, and how many of those that were never delivered are too many bytes."""
    settings, depth = channel.effective, channel.depth - len(channel.ledger.alone)
    many = depth - settings.max_depth if settings.max_depth else 0
    heavy = _too_many_bytes(channel, settings.max_bytes) if settings.max_bytes else 0
    return max(many, 0), heavy


def _too_many_bytes(channel: Channel, most: int) -> int:
    """Return how many of the messages that wait for their first delivery are too much, by their bytes."""
    size, low, high = channel.topic.log.bytes_from, channel.cursor, channel.topic.fanned_out
    if size(low) <= most:
        return 0
    while low < high:
        middle = (low + high) // 2
        if size(middle) <= most:
            high = middle
        else:
            low = middle + 1
    fresh = gaps(channel.cursor, low, channel.ahead.runs)
    return count_of(fresh) - sum(channel.topic.deleted.count(*run) for run in fresh)
