"""Save a channel's state to the journal, and rebuild it after a restart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from lapwing.broker.channel.channel import LATEST, Channel
from lapwing.broker.channel.ledger import Reason
from lapwing.broker.keeper import notes
from lapwing.broker.topic.skips import Runs, runs_of
from lapwing.log.datapath import folder
from lapwing.log.journal.journal import HeldRun, HolderState

if TYPE_CHECKING:
    from lapwing.broker.channel.ledger import Holder
    from lapwing.log.journal.journal import ChannelState, Journal

SAVING: Final = 5_000  # ns until the next save per unfinished message that was saved

AHEAD: Final = "ahead"  # the note that keeps which messages beyond the cursor are finished
_NAMED: Final = 20  # runs of lost messages that a report names

DOOR: Final = "door"  # the note that keeps what a door knows of a channel or a topic

def save(channel: Channel, journal: Journal, *, now: int | None = None) -> None:
    """Save the state of a channel to its topic's journal."""
    ledger = channel.ledger
    ledger.next_deadline()  # drops settled leases
    added, removed = ledger.deferred.changes()
    if removed:
        journal.deferred(channel.name, [], removed)  # first: a message may have been deferred again
    if added:
        deliveries = ledger.deliveries
        deferrals = [(each, min(due, LATEST), deliveries(each)) for each, due in added.items()]
        journal.deferred(channel.name, deferrals, [])
    _save_failures(channel, journal)
    for key, value in notes.changed(channel):
        journal.note(channel.name, key, value)
    unfinished, tried = ledger.unfinished()
    if channel.ahead.count:  # beyond the cursor, what has no number of deliveries would look as if it had none
        tried = dict.fromkeys((each for each in unfinished if each >= channel.cursor), 1) | tried
    journal.progress(channel.name, channel.cursor, runs_of(unfinished), tried)
    if ledger.named or channel.saved_holders:
        _save_holders(channel, journal)
    if channel.door_state != channel.saved_state:
        journal.note(channel.name, DOOR, json.dumps(channel.door_state).encode() if channel.door_state else b"")
        channel.saved_state = dict(channel.door_state)
    finished = channel.finished_runs()
    if finished != channel.saved_ahead:
        channel.saved_ahead = list(finished)
        journal.note(channel.name, AHEAD, json.dumps({"runs": channel.saved_ahead}).encode())
    channel.dirty = False
    if now is not None:
        count = len(unfinished) + sum(len(holder.in_flight) for holder in ledger.named.values())
        channel.quiet_until = now + (count + len(channel.saved_ahead)) * SAVING


def save_returned(channel: Channel, sequences: Sequence[int], *, now: int, sync: bool) -> None:
    """Save that messages are ready again, without all the others that are unfinished. Raises `WriteFailed`.

    The journal has them as finished, below the cursor; until the channel is saved again, as deferred ones that are due.
    """
    journal, ledger = channel.topic.store.journal, channel.ledger
    if journal is None or channel.ephemeral:
        return
    journal.deferred(channel.name, [(each, now, ledger.deliveries(each)) for each in sequences], [])
    ledger.deferred.note_saved(sequences)
    _save_failures(channel, journal)
    for key, value in notes.changed_by_return(channel):
        journal.note(channel.name, key, value)
    journal.flush(sync=sync)


def _save_failures(channel: Channel, journal: Journal) -> None:
    failures = channel.ledger.failures
    if failures.records or failures.changed:
        journal.failures(channel.name, *failures.changes())


def _save_holders(channel: Channel, journal: Journal) -> None:
    """Save the named holders that are not as the journal has them: who holds which messages, since when."""
    named, saved = channel.ledger.named, channel.saved_holders
    for name in saved.keys() - named.keys():
        journal.drop_holder(channel.name, name)
        del saved[name]
    for name, holder in named.items():
        state = _holder_state(channel, holder)
        if saved.get(name) != state:
            journal.holder(channel.name, name, state)
            saved[name] = state


def _holder_state(channel: Channel, holder: Holder) -> HolderState:
    """Return what the journal keeps of a holder; its times are the broker's."""
    attempts = channel.ledger.attempts
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


def restore(channel: Channel, state: ChannelState, *, now: int, longest: int) -> None:
    """Rebuild a channel from the journal: messages of holders without a name are ready again.

    Deadlines are those of the broker's time, which continues. No message is deferred for longer than `longest` from now
    on, in case it could not.
    """
    log, ledger = channel.topic.log, channel.ledger
    latest = now + longest
    channel.reader.seek(min(max(state.cursor, log.first), log.end))
    channel.side_logged.open()
    copied = channel.side_logged.sequences
    _report_lost(channel, state)
    # copied, and its segment deleted, after the journal was last written: such a message may be unfinished
    unknown = [sequence for sequence in copied if state.cursor <= sequence < channel.cursor]

    def there(sequence: int) -> bool:
        if sequence >= log.end:  # a power loss took it from the log alone: the sequence will be another message's
            return False
        return (sequence >= log.first and sequence not in log.lost) or sequence in copied

    ledger.attempts.update((each, attempts) for each, attempts in state.attempts.items() if there(each))
    _restore_holders(channel, state.holders, there, now)
    channel.door_state = read_note(state.notes.get(DOOR, b""))
    channel.saved_state = dict(channel.door_state)
    held = {sequence for holder in ledger.named.values() for sequence in holder.in_flight}
    ready = {sequence for start, stop in state.unfinished for sequence in range(start, min(stop, channel.cursor))}
    ready |= set(unknown) - state.deferred.keys()
    again = [sequence for sequence in sorted(ready - held) if there(sequence)]
    ledger.give_back(again, Reason.RESTARTED, now=now)
    # deferred messages that were ready, and that the cursor has not passed yet, are not deferred again
    runs = [range(max(start, channel.cursor), stop) for start, stop in state.unfinished]
    due = {sequence: now for run in runs for sequence in run if there(sequence)}
    due |= {sequence: min(until, latest) for sequence, until in state.deferred.items() if there(sequence)}
    for sequence in due:
        ledger.attempts.setdefault(sequence, 0)
    waiting = {sequence: until for sequence, until in due.items() if sequence < channel.cursor}
    ledger.deferred.restore(waiting, gone=state.deferred.keys() - due.keys())
    channel.saved_ahead = [(start, stop) for start, stop in read_note(state.notes.get(AHEAD, b"")).get("runs", [])]
    channel.finished_ahead = Runs((start, min(stop, log.end)) for start, stop in channel.saved_ahead)
    channel.finished_ahead.drop_below(channel.cursor)
    settled = [*channel.finished_ahead.runs, *runs_of(sequence for sequence in held if sequence >= channel.cursor)]
    channel.skip(channel.find_skips(channel.cursor, due, settled, begin=now))
    channel.side_logged.leave([sequence for sequence in copied if sequence not in ledger])
    if state.failures:
        ledger.own_failures().restore(state.failures, ledger.sequences())
        for sequence in set(again).difference(ledger.keep_alone(again)):
            ledger.ready.remove(sequence)
    notes.restore(channel, state.notes)
    channel.schedule(ledger.deferred.next_due())
    channel.dirty = True


def _restore_holders(
    channel: Channel, states: dict[str, HolderState], there: Callable[[int], bool], now: int
) -> None:
    """Create the named holders as they were saved, with the messages that are still `there`."""
    ledger = channel.ledger
    for name, state in states.items():
        holder = ledger.by_name(name)
        holder.seen = min(state.seen, now)
        holder.active = min(state.active, now)
        for run in state.runs:
            held = [sequence for sequence in range(run.start, run.stop) if there(sequence)]
            ledger.hold(held, holder, timeout=None, delivered=min(run.delivered, now))
            if run.deliveries != 1:
                ledger.attempts.update(dict.fromkeys(held, run.deliveries))
            if held:
                channel.overlap = max(channel.overlap, held[-1] + 1)
    channel.saved_holders = dict(states)


def _report_lost(channel: Channel, state: ChannelState) -> None:
    """Count and report messages that the log does not hold any more, when the side log that should does not either."""
    missing = not channel.topic.store.has_side_log(channel.name)
    if not (missing or channel.side_logged.damaged):
        return  # a message that is not there was finished after the journal was written
    first, copied = channel.topic.log.first, channel.side_logged.sequences
    runs = [(start, min(stop, first)) for start, stop in state.unfinished]
    runs += [(run.start, min(run.stop, first)) for holder in state.holders.values() for run in holder.runs]
    unfinished = {sequence for start, stop in runs for sequence in range(start, stop)}
    unfinished |= {sequence for sequence in state.deferred if sequence < first}
    lost = sorted(sequence for sequence in unfinished if sequence not in copied)
    if lost:
        channel.counts.lost += len(lost)
        several = [f"{start} to {stop - 1}" if stop - start > 1 else f"{start}" for start, stop in runs_of(lost)]
        named = ", ".join(several[:_NAMED]) + (f" and {len(several) - _NAMED} more runs" if several[_NAMED:] else "")
        channel.topic.report(
            f"{channel}: its side log is {'missing' if missing else 'damaged'}: {len(lost)} unfinished messages are "
            f"lost, with the sequences {named}; if there is a backup, stop nsqd and put back the journal and "
            f"side/{folder(channel.name, 'c-')} of the topic"
        )


def wait_in_doubt(channel: Channel, doubtful: Iterable[int], *, until: int) -> int:
    """Deliver none of these messages before `until`; return how many of them are pending."""
    ledger = channel.ledger
    count = 0
    for sequence in sorted(doubtful):
        due = ledger.deferred.due(sequence)
        if due is None and not ledger.remove_waiting(sequence):
            continue
        ledger.deferred.defer(sequence, until=max(due or 0, until))
        count += 1
    channel.schedule(ledger.deferred.next_due())
    return count


def read_note(value: bytes) -> dict[str, Any]:
    """Return the JSON object of a note; an empty one if there is none."""
    found = json.loads(value) if value else {}
    return found if isinstance(found, dict) else {}
