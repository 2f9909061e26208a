"""The way back of a message from its holder: count the failure, then retry it, try it alone, or give it up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from lapwing.broker.dead_letters import ATTEMPTS, EXPIRED
from lapwing.broker.pending import FAILURES, Reason

if TYPE_CHECKING:
    from lapwing.broker.channel_core import ChannelCore
    from lapwing.broker.settings import ChannelSettings

_MOST_DOUBLINGS: Final = 1000  # beyond that any factor above 1.05 has long passed the longest delay
_SHORTEST: Final = 1_000_000_000  # ns that a message waits at least when its dead-letter topic refuses it
_QUIET: Final = 10_000_000_000  # ns between two log lines of one channel about dropped messages


def give_back(
    channel: ChannelCore,
    sequences: Sequence[int],
    reason: Reason,
    *,
    now: int,
    delay: int = 0,
    consumer: str = "",
    error: str = "",
) -> None:
    """Make messages ready again, or defer them, or give them up, that were taken from their holder.

    `delay` is what the consumer asked for, `consumer` its name, and `error` the error that it reported.
    """
    pending, behind = channel.pending, channel.topic.fanned_out
    if reason not in FAILURES:
        pending.give_back(sequences, reason, now=now, behind=behind, delay=delay)
        return
    channel.counts.failures += len(sequences)
    failures, settings = pending.own_failures(), channel.effective
    lost, wall = reason is Reason.DISCONNECTED, now + channel.topic.skew
    if not settings.max_attempts and not settings.retry_first:
        for sequence in sequences:
            failures.add(sequence, lost=lost, now=wall, error=error)
        pending.give_back(sequences, reason, now=now, behind=behind, delay=delay)
        return
    ready: list[int] = []
    hopeless: list[int] = []
    for sequence in sequences:
        failure = failures.add(sequence, lost=lost, now=wall, error=error)
        if settings.max_attempts and failure.failures >= settings.max_attempts:
            if failure.lost_only and not failure.only_alone:
                pending.wait_alone(sequence)
            else:
                hopeless.append(sequence)
            continue
        wait = delay or delay_after(failure.failures, settings, channel.random.random)
        if wait:
            pending.give_back((sequence,), reason, now=now, delay=wait)
        else:
            ready.append(sequence)
    pending.give_back(ready, reason, now=now, behind=behind)
    if hopeless:
        give_up(channel, hopeless, ATTEMPTS, now=now, consumer=consumer)


def delay_after(failures: int, settings: ChannelSettings, random: Callable[[], float]) -> int:
    """Return the ns to wait after that many failures: growing, at most `retry_max`, then varied by the jitter.

    `random` gives numbers of [0, 1).
    """
    first = settings.retry_first
    if not first:
        return 0
    try:
        delay = first * settings.retry_factor ** min(failures - 1, _MOST_DOUBLINGS)
    except OverflowError:
        delay = settings.retry_max
    delay = min(delay, settings.retry_max)
    return max(int(delay * (1 + settings.retry_jitter * (2 * random() - 1))), 0)


def give_up(
    channel: ChannelCore, sequences: Sequence[int], reason: str, *, now: int, consumer: str = "", error: str = ""
) -> None:
    """Give messages up that no holder has: they go to the dead-letter topic, or nowhere if the channel has none."""
    pending = channel.pending
    if not sequences:
        return
    if not channel.dead_topic:
        _drop(channel, sequences, reason, now)
        return
    failures = pending.own_failures()
    for sequence in sequences:
        failures.doom(sequence, reason, error)
    pending.move(sequences, now=now)
    channel.topic.mover.add(channel, dict.fromkeys(sequences, consumer))
    channel.changed()


def _drop(channel: ChannelCore, sequences: Sequence[int], reason: str, now: int) -> None:
    for sequence in sequences:
        channel.pending.drop(sequence)
    channel.note_ahead(sequences)
    channel.counts.dead += len(sequences)
    channel.changed()
    link = channel.dead_link()
    if now >= link.quiet_until:
        link.quiet_until = now + _QUIET
        name = f"{channel.topic.name}/{channel.name}"
        channel.topic.report(
            f"channel {name}: gave up message {sequences[0]} ({reason}) and dropped it, as dead_topic is empty; "
            f"{channel.counts.dead} so far"
        )


def expire(channel: ChannelCore, sequences: Sequence[int], *, now: int, fresh: bool) -> None:
    """Deal with messages that are too old to be delivered; `fresh` if they never were."""
    pending = channel.pending
    channel.counts.expired += len(sequences)
    if channel.effective.expired_to_dead and channel.dead_topic:
        if fresh:
            pending.attempts.update(dict.fromkeys(sequences, 0))
        for sequence in sequences:
            pending.remove_waiting(sequence)
        give_up(channel, sequences, EXPIRED, now=now)
        return
    if not fresh:
        for sequence in sequences:
            pending.drop(sequence)
    channel.changed()


def resume(channel: ChannelCore, sequences: Iterable[int], *, now: int) -> None:
    """Move messages on that were given up before: they waited, or the broker was restarted meanwhile."""
    pending = channel.pending
    by_reason: dict[str, list[int]] = {}
    for sequence in sequences:
        by_reason.setdefault(pending.failures.get(sequence).doom, []).append(sequence)
    for reason, doomed in by_reason.items():
        give_up(channel, doomed, reason, now=now)


def refuse(channel: ChannelCore, sequences: Iterable[int], *, now: int) -> None:
    """Have messages wait with the longest delay, as their dead-letter topic does not take them."""
    pending = channel.pending
    pending.refuse_move(sequences, now=now, delay=max(channel.effective.retry_max, _SHORTEST))
    channel.schedule(pending.deferred.next_due())
    channel.changed()


def spare(channel: ChannelCore, sequence: int, *, now: int) -> None:
    """Deal with a dead letter that is given up: it never becomes another one.

    After too many failures it is tried again with the longest delay; one that nobody wants any more is finished.
    """
    failures = channel.pending.own_failures()
    if failures.get(sequence).doom == ATTEMPTS:
        failures.pardon(sequence)
        refuse(channel, [sequence], now=now)
        return
    channel.counts.dead += len(channel.finish([sequence], now=now))
