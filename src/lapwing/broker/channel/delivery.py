"""Deliver the messages of a channel: to which subscriptions, and as which bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.broker.channel.ledger import FATAL
from lapwing.broker.channel.subscription import RESERVED, Credit, Subscription
from lapwing.broker.topic.skips import runs_of
from lapwing.errors import OutOfRange, ReadFailed
from lapwing.log.segments.segment import time_of

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.channel.keys import Keys
    from lapwing.broker.channel.ledger import Holder

SLICE: Final = 256 * 1024  # bytes given to one subscription at a time
_LARGE: Final = 32 * 1024  # bytes that are not copied to be sent
LOOKED_AT: Final = 16 * 1024  # messages whose keys are looked at in a turn before others have theirs
EXPIRED_AT_ONCE: Final = 500  # messages of a channel that are found too old before others have their turn


def depth_of(channel: Channel) -> int:
    """Return how many messages of a channel are ready to be delivered."""
    topic = channel.topic
    waiting = topic.fanned_out - channel.reader.sequence
    waiting = (waiting if waiting > 0 else 0) - channel.ahead.count
    if topic.deleted.total:
        waiting -= channel.deleted_ahead()
    return waiting + channel.ledger.waiting


def deliver(channel: Channel, now: int) -> None:
    """Deliver ready messages to the subscriptions with room: evenly to windows, oldest first to credits."""
    alone, limits = channel.ledger.alone, channel.limits
    if limits is not None and limits.active is not None:
        limits.active.choose(channel)
    if alone or channel.reserved:
        most = len(alone) if limits is None else limits.allowance(channel, len(alone), now=now)
        took = _deliver_alone(channel, most, now)
        if limits is not None:
            limits.took(channel, took)
        _delivered(channel)
    held_back = len(alone)
    waiting = depth_of(channel) - held_back
    if waiting <= 0:
        return
    ready = _with_room(channel, waiting)
    if not ready:
        return
    if channel.effective.message_ttl and channel.effective.expired_to_dead and not channel.topic.mover.room(channel):
        channel.deliver_later()  # so many expired that others have to be moved first
        return
    near_first = channel.topology_aware
    if len(ready) > 1:
        ready = _in_turn(channel, ready)
    total, enough = sum(channel.delivered), channel.counts.expired + EXPIRED_AT_ONCE
    if limits is not None:
        allowed = limits.allowance(channel, waiting, now=now)
        if limits.keys is not None:
            _deliver_by_key(channel, ready, allowed, now)
            return
        held_back += waiting - allowed
        waiting = allowed
    while ready and waiting > 0:
        share = waiting if near_first else -(-waiting // len(ready))
        before = waiting
        for subscription in ready:
            room = min(subscription.room, waiting)
            _give(channel, subscription, room if isinstance(subscription, Credit) else min(share, room), now)
            waiting = depth_of(channel) - held_back
            if waiting <= 0:
                break
        if waiting == before:
            break
        if channel.counts.expired >= enough:
            channel.deliver_later()
            break
        ready = [subscription for subscription in ready if subscription.room > 0]
    if limits is not None:
        took = sum(channel.delivered) - total
        limits.took(channel, took)
        if took < allowed and ready and waiting <= 0 < channel.depth:
            channel.deliver_later()  # some expired instead: others may be delivered in their place
    _delivered(channel)


def deliver_to(channel: Channel, subscription: Subscription, now: int) -> None:
    """Deliver ready messages to one subscription, as far as it has room."""
    count, limits, total = subscription.room, channel.limits, sum(channel.delivered)
    if limits is not None:
        if limits.active is not None and limits.active.choose(channel, asking=subscription) is not subscription.holder:
            return
        count = limits.allowance(channel, min(count, channel.depth), now=now)
        if limits.keys is not None:
            _deliver_by_key(channel, [subscription], count, now)
            return
    _give(channel, subscription, count, now)
    if limits is not None:
        limits.took(channel, sum(channel.delivered) - total)
    _delivered(channel)


def take_fresh(channel: Channel, holder: Holder, count: int, *, now: int) -> tuple[bytes, int, int, int] | None:
    """Deliver up to `count` messages to a named holder where the cursor alone decides which.

    Return a block of the log, where in it their frames begin and end, and how many messages they are: 0 when none is
    ready. Return None where more has to be looked at; nothing was delivered then, and `deliver_to` has to do it.
    """
    if channel.stands_still(now):
        return None
    ledger, reader, topic = channel.ledger, channel.reader, channel.topic
    first = reader.sequence
    if channel.limits is not None or channel.latencies is not None or channel.effective.message_ttl:
        return None
    if channel.ahead.count or ledger.ready or topic.deleted.total or first < channel.overlap:
        return None
    try:
        span = reader.span(topic.fanned_out, count, SLICE)
    except OutOfRange:
        return None
    _, at, after, taken = span
    if after > at:
        ledger.deliver(range(first, first + taken), holder, timeout=None, now=now)
        holder.delivered_count += taken
        channel.delivered[0] += taken
        channel.journal_later()
    return span


def hand_over(channel: Channel, sequences: Sequence[int], subscription: Subscription, now: int) -> None:
    """Deliver messages that are ready to one subscription, and no others, as far as it has room."""
    limits = channel.limits
    if limits is not None:
        if limits.active is not None:
            limits.active.prefer(channel, subscription)
        if limits.keys is not None:
            sequences = limits.keys.claimable(channel, sequences)
    for sequence in sequences:
        if subscription.room <= 0:
            break
        if sequence in channel.ledger.ready:
            _redeliver(channel, sequence, subscription, now)
            channel.ledger.ready.remove(sequence)
    _delivered(channel)
    channel.topic.changed()


# --- by key ------------------------------------------------------------------------------------------------------


def _deliver_by_key(channel: Channel, ready: list[Subscription], count: int, now: int) -> None:
    """Deliver up to `count` messages whose keys allow it to subscriptions with room: evenly, credits what they ask."""
    limits = channel.limits
    assert limits is not None
    assert limits.keys is not None
    keys, total = limits.keys, sum(channel.delivered)
    keys.now = now
    channel.pass_over()
    if not keys.learn(channel):
        channel.deliver_later()
        return
    budget = LOOKED_AT
    if keys.fair:
        _, _, budget = keys.look(channel.topic, channel.cursor, 0, budget)
        if keys.catches_up(channel.topic):
            channel.deliver_later()
            return
    enough = channel.counts.expired + EXPIRED_AT_ONCE
    near_first = channel.topology_aware
    while ready and count > 0:
        share = count if near_first else -(-count // len(ready))
        before = count
        for subscription in ready:
            room = min(subscription.room, count)
            wanted = room if isinstance(subscription, Credit) else min(share, room)
            given, budget = _give_by_key(channel, keys, subscription, wanted, budget, now)
            count -= given
            if count <= 0:
                break
        if count == before or channel.counts.expired >= enough:
            break
        ready = [subscription for subscription in ready if subscription.room > 0]
    if budget <= 0 or channel.counts.expired >= enough:
        channel.deliver_later()  # others have their turn before more is looked at
    channel.pass_over()
    limits.took(channel, sum(channel.delivered) - total)
    _delivered(channel)


def _give_by_key(
    channel: Channel, keys: Keys, subscription: Subscription, count: int, budget: int, now: int
) -> tuple[int, int]:
    """Deliver up to `count` messages to one subscription: those whose turn it is, then those not yet looked at.

    Return how many were taken, and what is left of the messages that may be looked at.
    """
    given = 0
    enough = channel.counts.expired + EXPIRED_AT_ONCE
    while given < count and subscription.room > 0 and channel.counts.expired < enough:
        most = min(count - given, subscription.room)
        fresh, again = keys.pick(most)
        if again >= 0:
            try:
                given += _redeliver(channel, again, subscription, now)
            except BaseException:
                keys.pick_again(again)
                raise
            channel.ledger.ready.remove(again)
            continue
        frames = b""
        if fresh:
            fresh.sort()  # each is of another key, or all of them go to one consumer
            try:
                pieces = keys.read(channel.topic, fresh)
            except BaseException:
                keys.put_back(fresh)
                raise
            lost = [sequence for sequence, piece in zip(fresh, pieces, strict=True) if not piece]
            if lost:
                keys.leave(lost)
                fresh = [sequence for sequence, piece in zip(fresh, pieces, strict=True) if piece]
            frames = b"".join(pieces)
        elif not keys.fair:
            fresh, frames, budget = keys.look(channel.topic, channel.cursor, most, budget)
        if not fresh:
            if keys.reach():
                continue
            break
        given += len(fresh)
        try:
            _send_picked(channel, keys, subscription, fresh, frames, now)
        except BaseException:
            keys.put_back(fresh)
            raise
    return given, budget


def _send_picked(
    channel: Channel, keys: Keys, subscription: Subscription, sequences: list[int], frames: bytes, now: int
) -> None:
    """Deliver messages for the first time, given with their frames, in rising order. Raises `ReadFailed`."""
    holder, ledger = subscription.holder, channel.ledger
    rows = b""
    if subscription.headers:  # first: if they cannot be read, nothing has changed
        rows = channel.topic.log.rows(sequences[0], sequences[-1] + 1)
    deleted = channel.topic.deleted
    looked_at = subscription.sample_rate or channel.latencies is not None or channel.effective.message_ttl
    if looked_at or (deleted.total and any(sequence in deleted for sequence in sequences)):
        frames, sequences = _inspect_each(channel, keys, frames, sequences, subscription.sample_rate, now)
        if not sequences:
            return
    overlap = channel.overlap
    if sequences[0] < overlap:
        for sequence in sequences:
            if sequence < overlap:
                ledger.disown(range(sequence, sequence + 1), holder)
    ledger.deliver(sequences, holder, timeout=subscription.timeout, now=now)
    given = len(sequences)
    holder.delivered_count += given
    channel.delivered[subscription.locality] += given
    if rows:
        frames = kernel.with_headers(frames, rows)
    if isinstance(subscription, Credit) and sequences[-1] - sequences[0] >= given:
        _give_in_runs(subscription, sequences, frames)
    else:
        subscription.give(frames, given)


def _give_in_runs(subscription: Subscription, sequences: list[int], frames: bytes) -> None:
    """Give each run of sequences by itself, as the readers of a stream expect it."""
    positions, _ = kernel.scan_frames(frames, 0, len(frames))
    place = 0
    for start, stop in runs_of(sequences):
        after = place + stop - start
        subscription.give(frames[positions[place] : positions[after]], stop - start)
        place = after


def _inspect_each(
    channel: Channel, keys: Keys, frames: bytes, sequences: list[int], sample_rate: int, now: int
) -> tuple[bytes, list[int]]:
    """Drop what is deleted, too old or not wanted by a sampling consumer, and note when the rest was published."""
    positions, _ = kernel.scan_frames(frames, 0, len(frames))
    deleted = channel.topic.deleted
    kept = [index for index, sequence in enumerate(sequences) if sequence not in deleted]
    keys.leave([sequence for sequence in sequences if sequence in deleted])
    if channel.effective.message_ttl:
        oldest = _oldest(channel, now)
        old = [sequences[index] for index in kept if time_of(frames, positions[index]) < oldest]
        kept = [index for index in kept if time_of(frames, positions[index]) >= oldest]
        if old:
            channel.expire(old, now=now, fresh=True)
            keys.leave([sequence for sequence in old if sequence not in channel.ledger])
    if sample_rate:
        wanted = [index for index in kept if channel.random.randrange(100) <= sample_rate]
        keys.leave([sequences[index] for index in set(kept).difference(wanted)])
        channel.discarded_count += len(kept) - len(wanted)
        kept = wanted
    if channel.latencies is not None:
        channel.latencies.stamp(frames, positions, sequences, kept, skew=channel.topic.skew)
    if len(kept) == len(sequences):
        return frames, sequences
    parts = [frames[positions[index] : positions[index + 1]] for index in kept]
    return b"".join(parts), [sequences[index] for index in kept]


def _delivered(channel: Channel) -> None:
    channel.dirty = True
    due = channel.ledger.soonest
    if due is not None and (channel.scheduled is None or due < channel.scheduled):
        channel.schedule(due)


def _with_room(channel: Channel, waiting: int) -> list[Subscription]:
    """Return the subscriptions with room, the oldest first.

    Where thousands of reads wait and there are no windows, these are only as many as can take all that is waiting.
    """
    if channel.window_count or channel.topology_aware:
        return [subscription for subscription in channel.subscriptions if subscription.room > 0]
    ready: list[Subscription] = []
    for subscription in channel.subscriptions:
        room = subscription.room
        if room > 0:
            ready.append(subscription)
            waiting -= room
            if waiting <= 0:
                break
    return ready


def _in_turn(channel: Channel, ready: list[Subscription]) -> list[Subscription]:
    """Put subscriptions in the order in which they are served: another window first each time, credits by age."""
    channel.turn += 1
    credits: list[Subscription] = [each for each in ready if isinstance(each, Credit)]
    windows = [each for each in ready if not isinstance(each, Credit)] if credits else ready
    if windows:
        shift = channel.turn % len(windows)
        windows = windows[shift:] + windows[:shift]
    ready = credits + windows if channel.turn % 2 else windows + credits
    if channel.topology_aware:
        ready.sort(key=lambda subscription: -subscription.locality)
    return ready


def _give(channel: Channel, subscription: Subscription, count: int, now: int) -> None:
    """Deliver up to `count` messages to one subscription: requeued ones when it is their turn, else fresh ones."""
    again, ahead, reader = channel.ledger.ready, channel.ahead, channel.reader
    deleted = channel.topic.deleted
    enough = channel.counts.expired + EXPIRED_AT_ONCE
    while count > 0 and subscription.room > 0 and channel.counts.expired < enough:
        if ahead.count or deleted.total:
            channel.pass_over()
        cursor = reader.sequence
        stop = channel.topic.fanned_out
        if again and (first := again.first()) is not None:
            behind = first[1]
            if behind <= cursor:
                count -= _redeliver_run(channel, subscription, count, now)
                continue
            stop = min(stop, behind)
        if ahead.count:
            stop = ahead.clear_until(stop)
        if deleted.total:
            stop = deleted.clear_until(cursor, stop)
        if cursor >= stop:
            return
        count -= _deliver_fresh(channel, subscription, stop, count, now)


def _deliver_fresh(channel: Channel, subscription: Subscription, stop: int, count: int, now: int) -> int:
    """Deliver one slice of the log; return how many messages it has."""
    reader = channel.reader
    try:
        block, at, after, taken = reader.span(stop, count, SLICE)
    except OutOfRange:  # the log was cut under a cursor that stood below it
        reader.seek(channel.topic.log.first)
        return 0
    if after == at:
        return 0  # the end, or a quarantined range that the log has reported and the reader has passed
    looked_at = subscription.sample_rate or channel.latencies is not None or channel.effective.message_ttl
    frames = _slice(block, at, after, copy=bool(looked_at or subscription.headers) or isinstance(subscription, Credit))
    run = range(reader.sequence - taken, reader.sequence)
    if looked_at:
        frames, runs = _inspect(channel, frames, run, subscription.sample_rate, now)
    else:
        runs = [run]
    if subscription.headers:
        try:
            frames = _with_headers(channel, frames, run)
        except ReadFailed:
            reader.seek(run.start)
            raise
    holder, ledger = subscription.holder, channel.ledger
    for run in runs:
        if run.start < channel.overlap:
            ledger.disown(run, holder)
        ledger.deliver(run, holder, timeout=subscription.timeout, now=now)
    given = sum(map(len, runs))
    holder.delivered_count += given
    channel.delivered[subscription.locality] += given
    if frames:
        subscription.give(frames, given)
    return taken


def _slice(block: bytes, at: int, after: int, *, copy: bool) -> bytes:
    """Return a part of a block; where it is a large part, as a view, which keeps all of the block in memory."""
    if after - at == len(block):
        return block
    if copy or after - at < max(_LARGE, len(block) >> 2):
        return block[at:after]
    return memoryview(block)[at:after]  # type: ignore[return-value]  # bytes for all who send it


def _with_headers(channel: Channel, frames: bytes, run: range) -> bytes:
    """Return frames of the log with the headers of the messages that have some. Raises `ReadFailed`."""
    rows = channel.topic.log.rows(run.start, run.stop)
    return kernel.with_headers(frames, rows) if rows else frames


def _inspect(channel: Channel, frames: bytes, run: range, sample_rate: int, now: int) -> tuple[bytes, list[range]]:
    """Drop what is too old or what a sampling consumer does not want, and note when some of the rest was published."""
    positions, _ = kernel.scan_frames(frames, 0, len(frames))
    kept: Sequence[int] = range(len(run))
    if channel.effective.message_ttl:
        oldest = _oldest(channel, now)
        kept = [index for index in kept if time_of(frames, positions[index]) >= oldest]
        if len(kept) < len(run):
            channel.expire([run[index] for index in set(range(len(run))).difference(kept)], now=now, fresh=True)
    if sample_rate:
        before = len(kept)
        kept = [index for index in kept if channel.random.randrange(100) <= sample_rate]
        channel.discarded_count += before - len(kept)
    if channel.latencies is not None:
        channel.latencies.stamp(frames, positions, run, kept, skew=channel.topic.skew)
    if len(kept) == len(run):
        return frames, [run]
    parts = [frames[positions[index] : positions[index + 1]] for index in kept]
    runs = [range(run[0] + start, run[0] + stop) for start, stop in runs_of(kept)]
    return b"".join(parts), runs


def _oldest(channel: Channel, now: int) -> int:
    """Return the earliest time of publishing, Unix ns, of messages that are not too old."""
    return now + channel.topic.skew - channel.effective.message_ttl


def _deliver_alone(channel: Channel, most: int, now: int) -> int:
    """Deliver up to `most` messages, each to a consumer that holds nothing else; return how many.

    The consumer gets nothing else until it has answered. If none is free, one is kept free. It is the last chance of a
    message whose failures were all lost connections: a consumer that crashes takes every message down that it holds,
    and only one of them may be to blame.
    """
    left = most
    alone, reserved = channel.ledger.alone, channel.reserved
    for subscription, sequence in list(reserved.items()):
        answered = sequence is not None and sequence not in subscription.holder.in_flight
        over = answered or (sequence is None and not alone)
        if over or subscription not in channel.subscriptions:
            del reserved[subscription]
            subscription.withhold(RESERVED, on=False)
    if not alone:
        return 0
    for subscription in list(channel.subscriptions):
        if reserved.get(subscription) is not None or subscription.holder.in_flight:
            continue
        subscription.withhold(RESERVED, on=False)
        while alone and left > 0 and subscription.room > 0:
            sequence = next(iter(alone))
            given = _redeliver(channel, sequence, subscription, now)
            alone.pop(sequence, None)  # only now: a failed read leaves it where it is
            if given:
                left -= 1
                _reserve(channel, subscription, sequence)
    if alone and not reserved:
        wanting = [each for each in channel.subscriptions if each.room > 0 or each.holder.in_flight]
        if wanting:
            _reserve(channel, min(wanting, key=lambda each: len(each.holder.in_flight)), None)
    return most - left


def _reserve(channel: Channel, subscription: Subscription, sequence: int | None) -> None:
    channel.reserved[subscription] = sequence
    subscription.withhold(RESERVED)


def _redeliver_run(channel: Channel, subscription: Subscription, count: int, now: int) -> int:
    """Deliver again what is first of the ready messages, a run of the log at a time; return how many were given."""
    ledger = channel.ledger
    ready = ledger.ready
    if _looked_at_one_by_one(channel, subscription):
        first = ready.first_run(channel.cursor, 1)[0]
        given = _redeliver(channel, first, subscription, now)
        ready.remove(first)  # only now: a failed read leaves it where it is
        return given
    run = ready.first_run(channel.cursor, min(count, subscription.room))
    frames, taken = channel.read_again(run[0], run[-1] + 1, SLICE)
    if not frames:
        given = _redeliver(channel, run[0], subscription, now)  # it is lost, which is reported there
        ready.remove(run[0])
        return given
    run = run[:taken]
    for sequence in run:
        ready.remove(sequence)
    holder = subscription.holder
    ledger.deliver(range(run[0], run[-1] + 1), holder, timeout=subscription.timeout, now=now)
    holder.delivered_count += taken
    channel.delivered[subscription.locality] += taken
    subscription.give(kernel.with_each_attempts(frames, ledger.count_deliveries(run)), taken)
    return taken


def _looked_at_one_by_one(channel: Channel, subscription: Subscription) -> bool:
    """Return whether more than the log decides which of the ready messages are delivered, and as which bytes."""
    return bool(
        subscription.sample_rate
        or subscription.headers
        or channel.latencies is not None
        or channel.effective.message_ttl
        or channel.topic.deleted.total
        or channel.side_logged.sequences
    )


def _redeliver(channel: Channel, sequence: int, subscription: Subscription, now: int) -> int:
    """Deliver one message again, rebuilt with its attempts; return 1, or 0 when it is gone for good."""
    ledger, holder = channel.ledger, subscription.holder
    find = channel.headed_frame if subscription.headers else channel.frame
    frame = find(sequence) if not channel.is_gone(sequence) else None
    if frame is None:
        ledger.drop(sequence)
        return 0
    if subscription.sample_rate and channel.random.randrange(100) > subscription.sample_rate:
        channel.discarded_count += 1
        ledger.drop(sequence)
        channel.note_ahead([sequence])
        return 0
    if channel.effective.message_ttl and time_of(frame) < _oldest(channel, now):
        channel.expire([sequence], now=now, fresh=False)
        return 0
    attempts = ledger.attempts[sequence] = min(ledger.attempts.get(sequence, 1) + 1, FATAL)
    run = range(sequence, sequence + 1)
    ledger.deliver(run, holder, timeout=subscription.timeout, now=now)
    if channel.latencies is not None:
        channel.latencies.stamp(frame, [0], run, [0], skew=channel.topic.skew)
    holder.delivered_count += 1
    channel.delivered[subscription.locality] += 1
    subscription.give(kernel.with_attempts(frame, attempts), 1)
    return 1
