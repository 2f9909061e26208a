"""Named holders in the journal: who holds which messages, since when, and how often they were delivered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lapwing.log.journal import HeldRun, HolderState

if TYPE_CHECKING:
    from lapwing.broker.channel_core import ChannelCore
    from lapwing.broker.holder import Holder
    from lapwing.log.journal import Journal


def save(channel: ChannelCore, journal: Journal, saved: dict[str, HolderState]) -> None:
    """Save the named holders that differ from what was `saved` last, which is brought up to date."""
    named = channel.pending.holders.named
    for name in saved.keys() - named.keys():
        journal.drop_holder(channel.name, name)
        del saved[name]
    for name, holder in named.items():
        state = _state(channel, holder)
        if saved.get(name) != state:
            journal.holder(channel.name, name, state)
            saved[name] = state


def _state(channel: ChannelCore, holder: Holder) -> HolderState:
    """Return what the journal keeps of a holder; its times are the broker's."""
    attempts = channel.pending.attempts
    runs: list[HeldRun] = []
    for sequence in sorted(holder.in_flight):
        delivered = holder.in_flight[sequence].delivered
        found = HeldRun(sequence, sequence + 1, delivered, attempts.get(sequence, 1))
        last = runs[-1] if runs else None
        if last is not None and (last.stop, *last[2:]) == (sequence, *found[2:]):
            runs[-1] = last._replace(stop=sequence + 1)
        else:
            runs.append(found)
    return HolderState(holder.seen, holder.active, runs)


def restore(
    channel: ChannelCore, states: dict[str, HolderState], there: Callable[[int], bool], *, now: int
) -> dict[str, HolderState]:
    """Create the named holders as they were saved, with the messages that are still `there`; return what was saved."""
    pending = channel.pending
    for name, state in states.items():
        holder = pending.holders.by_name(name)
        holder.seen = min(state.seen, now)
        holder.active = min(state.active, now)
        for run in state.runs:
            held = [sequence for sequence in range(run.start, run.stop) if there(sequence)]
            delivered = min(run.delivered, now)
            pending.leases.hold(held, holder, timeout=None, delivered=delivered)
            if run.deliveries != 1:
                pending.attempts.update(dict.fromkeys(held, run.deliveries))
            if held:
                channel.overlap = max(channel.overlap, held[-1] + 1)
    return dict(states)
