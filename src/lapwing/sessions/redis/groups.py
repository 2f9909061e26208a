"""Commands about groups: XGROUP, XACK, XPENDING, XCLAIM, XAUTOCLAIM, XNACK, XACKDEL, XDELEX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapwing.broker.channel.ledger import FATAL, PARKED, Reason
from lapwing.sessions.redis.group import Group, PendingEntry, find_channel
from lapwing.sessions.redis.replies import Reply, SavedSlot
from lapwing.sessions.redis.stream import MS, Stream
from lapwing.sessions.redis.streams import existing, find
from lapwing.sessions.redis.trim import Needed, release
from lapwing.wire.resp import errors, ids, keys, replies
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import EntryId
from lapwing.wire.resp.parse_groups import (
    NackMode,
    Xclaim,
    parse_group_options,
    parse_xautoclaim,
    parse_xclaim,
    parse_xnack,
    parse_xpending,
)
from lapwing.wire.resp.parse_writes import References, parse_xackdel, parse_xdelex

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.channel.ledger import Holder
    from lapwing.sessions.redis.client_state import ClientState

_LOOKED_AT: Final = 10  # times COUNT: pending entries that XAUTOCLAIM looks at


def find_group(session: ClientState, key: bytes, name: bytes, now: int) -> Group | None:
    """Return a group with all that was added to its stream in this turn; None if there is none."""
    group = session.context.known_group(key, name, session.database)
    if group is not None:
        group.stream.topic.write_pending(now=now)
        return group
    stream = find(session, key, now)
    channel = find_channel(stream, name) if stream is not None else None
    if stream is None or channel is None:
        return None
    return session.context.remember_group(key, name, session.database, session.context.group(stream, channel))


def _existing(session: ClientState, words: list[bytes], now: int, at: int = 1) -> Group:
    group = find_group(session, words[at], words[at + 1], now)
    if group is None:
        raise errors.no_group(words[at], words[at + 1])
    return group


# --- XGROUP --------------------------------------------------------------------------------------------------------


def create(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XGROUP CREATE key group <id | $> [MKSTREAM] [ENTRIESREAD n]."""
    options = parse_group_options(words)
    stream = find(session, words[2], now)
    if stream is None and not options.create_stream:
        raise ErrorReply(errors.KEY_MUST_EXIST)
    entry = _place(stream, words[4])
    name = keys.channel_of(words[3])
    if name is None:
        raise ErrorReply("ERR the name of a group must not be empty, nor longer than the name of a channel may be")
    if stream is None:
        stream = session.context.create(words[2], session.database)
    if name in stream.topic.channels:
        raise ErrorReply(errors.BUSY_GROUP)
    cursor = stream.behind_id(entry)
    channel = stream.topic.create_channel(name, now=now, cursor=cursor, sync=False)
    session.context.group(stream, channel).place_at(entry, options.entries_read)
    if not session.broker.options.answers_wait:
        return replies.OK
    slot = SavedSlot(session.sink)
    session.broker.save_topic(stream.topic, slot)
    return slot


def set_id(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XGROUP SETID key group <id | $> [ENTRIESREAD n]."""
    options = parse_group_options(words)
    group = existing_group(session, words, now)
    entry = _place(group.stream, words[4])
    group.channel.move(group.stream.behind_id(entry))
    group.place_at(entry, options.entries_read)
    return replies.OK


def _place(stream: Stream | None, word: bytes) -> EntryId:
    if word == b"$":
        return ids.LEAST if stream is None else stream.last_id
    return ids.parse(word)


def existing_group(session: ClientState, words: list[bytes], now: int, problem: str = errors.KEY_MUST_EXIST) -> Group:
    """Return the group that a subcommand names. Raises `ErrorReply`, with `problem` if there is no such stream."""
    stream = existing(session, words[2], now, problem)
    channel = find_channel(stream, words[3])
    if channel is None:
        raise errors.no_group_of_key(words[2], words[3])
    return session.context.group(stream, channel)


def destroy(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XGROUP DESTROY key group."""
    stream = existing(session, words[2], now, errors.KEY_MUST_EXIST)
    channel = find_channel(stream, words[3])
    if channel is None:
        return replies.integer(0)
    session.broker.delete_channel(stream.topic.name, channel.name)
    return replies.integer(1)


def create_consumer(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XGROUP CREATECONSUMER key group consumer."""
    group = existing_group(session, words, now)
    known = words[4].decode("latin-1") in group.ledger.named
    group.consumer(words[4], now=now)
    return replies.integer(0 if known else 1)


def delete_consumer(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XGROUP DELCONSUMER key group consumer."""
    group = existing_group(session, words, now)
    name = words[4].decode("latin-1")
    if name not in group.ledger.named:
        return replies.integer(0)
    return replies.integer(group.channel.drop_holder(name, now=now))


# --- pending entries -----------------------------------------------------------------------------------------------


def acknowledge(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XACK key group id .."""
    group = find_group(session, words[1], words[2], now)
    if group is None:
        return replies.integer(0)
    return replies.integer(group.acknowledge(group.known(words, 3), now=now))


def pending(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XPENDING key group [[IDLE ms] start end count [consumer]]."""
    asked = parse_xpending(words)
    group = _existing(session, words, now)
    if asked is None:
        return _summary(group, session.protocol)
    stream = group.stream
    if not asked.count:
        return replies.EMPTY
    start, stop = stream.from_id(asked.start), stream.behind_id(asked.end)
    found = group.pending_entries(
        start, stop, asked.count, now=now, consumer=asked.consumer, min_idle=max(asked.min_idle, 0)
    )
    return replies.array([_pending_line(stream, each) for each in found])


def _pending_line(stream: Stream, entry: PendingEntry) -> bytes:
    parts = [replies.bulk(ids.encode(stream.id_at(entry.sequence))), replies.bulk(entry.consumer)]
    return replies.array([*parts, replies.integer(entry.idle), replies.integer(entry.deliveries)])


def _summary(group: Group, protocol: int) -> bytes:
    count = group.pending_count
    if not count:
        nothing = replies.null(protocol)
        return replies.array([replies.integer(0), nothing, nothing, replies.null_array(protocol)])
    low, high = group.lowest_and_greatest()
    ledger = group.ledger
    holding = [each for each in ledger.holders if each.in_flight and not each.parked and each is not ledger.mover]
    consumers = sorted((group.shown_name(each.name), len(each.in_flight)) for each in holding)
    return replies.array(
        [
            replies.integer(count),
            replies.bulk(ids.encode(group.stream.id_at(low))),
            replies.bulk(ids.encode(group.stream.id_at(high))),
            replies.array([replies.bulks([name, b"%d" % many]) for name, many in consumers]),
        ]
    )


def claim(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XCLAIM key group consumer min-idle id .. [options]."""
    group = _existing(session, words, now)
    asked = parse_xclaim(words)
    stream = group.stream
    consumer = group.consumer(words[3], now=now)
    if asked.last_id is not None and asked.last_id > group.last_delivered:
        cursor = stream.behind_id(asked.last_id)
        group.channel.move(max(cursor, group.channel.cursor))
        group.place_at(asked.last_id, None)
    claimed = []
    for entry in asked.ids:
        sequence = stream.sequence_of(entry)
        if sequence is not None and _claim_one(session, group, asked, sequence, consumer, now):
            claimed.append(sequence)
    if claimed:
        consumer.active = now
    return _claimed(group, claimed, just_ids=asked.just_ids)


def _claim_one(session: ClientState, group: Group, asked: Xclaim, sequence: int, consumer: Holder, now: int) -> bool:
    channel, attempts = group.channel, group.ledger.attempts
    if channel.is_gone(sequence):
        channel.finish([sequence], now=now)
        return False
    delivered = now
    if asked.idle is not None:
        delivered = now - asked.idle * MS
    elif asked.time is not None:
        delivered = asked.time * MS - session.broker.skew
    if not 0 <= delivered <= now:
        delivered = now
    counted = not asked.just_ids and asked.deliveries is None
    found = channel.claim(
        [sequence] if group.is_pending(sequence) else [],
        consumer,
        now=now,
        min_idle=0 if group.is_parked(sequence) else asked.min_idle * MS,
        delivered=delivered,
        counted=counted,
    )
    if not found:
        if not asked.force or group.ledger.holder_of(sequence) is not None:
            return False
        channel.force(sequence, consumer, delivered=delivered)
        attempts[sequence] = 2 if counted else 1
    if asked.deliveries is not None:
        attempts[sequence] = asked.deliveries
    return True


def _claimed(group: Group, sequences: list[int], *, just_ids: bool) -> bytes:
    if just_ids:
        return replies.bulks([ids.encode(group.stream.id_at(each)) for each in sequences])
    found = [group.entry(each) for each in sequences]
    return replies.array([entry for entry in found if entry is not None])


def autoclaim(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XAUTOCLAIM key group consumer min-idle start [COUNT n] [JUSTID]."""
    asked = parse_xautoclaim(words)
    group = _existing(session, words, now)
    stream = group.stream
    consumer = group.consumer(words[3], now=now)
    start = stream.from_id(asked.start)
    limit = _LOOKED_AT * asked.count
    found = group.pending_entries(start, stream.log.end, limit + 1, now=now)
    claimed: list[int] = []
    gone: list[int] = []
    following = ids.LEAST
    for number, entry in enumerate(found):
        if number == limit or len(claimed) + len(gone) == asked.count:
            following = stream.id_at(entry.sequence)
            break
        if group.channel.is_gone(entry.sequence):
            group.channel.finish([entry.sequence], now=now)
            gone.append(entry.sequence)
        elif entry.idle < 0 or entry.idle >= asked.min_idle:
            claimed += group.channel.claim([entry.sequence], consumer, now=now, counted=not asked.just_ids)
    if claimed:
        consumer.active = now
    return replies.array(
        [
            replies.bulk(ids.encode(following)),
            _claimed(group, claimed, just_ids=asked.just_ids),
            replies.bulks([ids.encode(stream.id_at(each)) for each in gone]),
        ]
    )


def nack(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XNACK key group mode IDS n id .. [RETRYCOUNT n] [FORCE].

    While NSQ consumers share the channel, or its settings rule over failed messages, entries are requeued;
    otherwise they wait for a claim, as in Redis. Where failed messages become dead letters, FATAL makes one at once.
    """
    asked = parse_xnack(words)
    group = _existing(session, words, now)
    channel, held = group.channel, group.ledger
    requeues = asked.mode is not NackMode.FATAL and _requeues(channel)
    rejects = asked.mode is NackMode.FATAL and channel.effective.max_attempts > 0
    count = 0
    for entry in asked.ids:
        sequence = group.stream.sequence_of(entry)
        if sequence is None:
            continue
        holder = held.holder_of(sequence)
        deliveries = held.attempts.get(sequence, 1)
        if holder is None:
            if not asked.force or sequence in held.ready or sequence in group.stream.topic.deleted:
                continue
            deliveries = 0
        if asked.deliveries is not None:
            deliveries = asked.deliveries
        elif asked.mode is NackMode.SILENT:
            deliveries = max(deliveries - 1, 0)
        elif asked.mode is NackMode.FATAL:
            deliveries = FATAL
        count += 1
        if rejects and holder is not None:
            channel.reject(sequence, holder, now=now)
        elif requeues and holder is not None:
            held.attempts[sequence] = deliveries
            reason = Reason.RELEASED if asked.mode is NackMode.SILENT else Reason.REQUEUED
            channel.requeue(sequence, holder, delay=0, now=now, reason=reason)
        else:
            channel.force(sequence, held.by_name(PARKED), delivered=0)
            held.attempts[sequence] = deliveries
    if count:
        session.context.look_again(channel)
    return replies.integer(count)


def _requeues(channel: Channel) -> bool:
    """Return whether entries that are given back are delivered again without a claim."""
    settings = channel.effective
    return bool(settings.max_attempts or settings.retry_first or channel.window_count)


# --- deleting ------------------------------------------------------------------------------------------------------


def delete_entries(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XDELEX key [how] IDS n id .."""
    asked = parse_xdelex(words)
    stream = find(session, asked.key, now)
    if stream is None:
        return replies.array([replies.integer(-1)] * len(asked.ids))
    return replies.array([replies.integer(_delete(stream, entry, asked.references, now)) for entry in asked.ids])


def acknowledge_and_delete(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XACKDEL key group [how] IDS n id .."""
    asked = parse_xackdel(words)
    group = find_group(session, asked.key, asked.group, now)
    answers = []
    for entry in asked.ids:
        sequence = None if group is None else group.stream.sequence_of(entry)
        if group is None or sequence is None or not group.acknowledge([sequence], now=now):
            answers.append(-1)
        else:
            answers.append(max(_delete(group.stream, entry, asked.references, now), 1))
    return replies.array([replies.integer(answer) for answer in answers])


def _delete(stream: Stream, entry: EntryId, references: References, now: int) -> int:
    """Delete one entry; return 1, -1 if it was not there, or 2 if a group still needs it."""
    sequence = stream.sequence_of(entry)
    if sequence is None:
        return -1
    if references is References.DELREF:
        release(stream, [sequence], now=now)
    if sequence in stream.topic.deleted:
        return -1
    if references is References.ACKED and sequence in Needed(stream):
        return 2
    stream.delete(sequence)
    return 1
