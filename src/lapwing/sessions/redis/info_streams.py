"""XINFO: streams, groups and consumers as maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapwing.broker.channel.ledger import PARKED
from lapwing.sessions.redis.group import Group
from lapwing.sessions.redis.groups import existing_group
from lapwing.sessions.redis.replies import Reply
from lapwing.sessions.redis.stream import MS, Stream
from lapwing.sessions.redis.streams import existing
from lapwing.wire.resp import errors, ids, keys, replies
from lapwing.wire.resp.parse_groups import parse_xinfo_full

if TYPE_CHECKING:
    from lapwing.broker.channel.ledger import Holder
    from lapwing.sessions.redis.client_state import ClientState

_EVERYTHING: Final = 1 << 62

_Fields = list[tuple[str, bytes]]


def _groups(session: ClientState, stream: Stream) -> list[tuple[bytes, Group]]:
    named = [(keys.group_of(name) or name.encode(), channel) for name, channel in stream.topic.channels.items()]
    return [(name, session.context.group(stream, channel)) for name, channel in sorted(named, key=lambda pair: pair[0])]


def show_stream(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XINFO STREAM key [FULL [COUNT n]]."""
    stream = existing(session, words[2], now)
    count = parse_xinfo_full(words)
    fields = _facts(session, stream, now)
    if count is not None:
        return _full(session, stream, fields, count or _EVERYTHING, now)
    first, last = stream.first_entry(), stream.last_entry()
    nothing = replies.null(session.protocol)
    empty = first >= stream.log.end
    fields += [
        ("groups", replies.integer(len(stream.topic.channels))),
        ("first-entry", nothing if empty else stream.entry(first) or nothing),
        ("last-entry", nothing if empty else stream.entry(last) or nothing),
    ]
    return replies.fields(fields, session.protocol)


def _facts(session: ClientState, stream: Stream, now: int) -> _Fields:
    first = stream.first_entry()
    first_id = stream.id_at(first) if first < stream.log.end else ids.LEAST
    window = session.context.idempotence(stream, now=now)
    tree = 1 if stream.length else 0  # there is none: the numbers of a small one, as some clients expect
    return [
        ("length", replies.integer(stream.length)),
        ("radix-tree-keys", replies.integer(tree)),
        ("radix-tree-nodes", replies.integer(tree + 1)),
        ("last-generated-id", replies.bulk(ids.encode(stream.last_id))),
        ("max-deleted-entry-id", replies.bulk(ids.encode(stream.max_deleted))),
        ("entries-added", replies.integer(stream.entries_added)),
        ("recorded-first-entry-id", replies.bulk(ids.encode(first_id))),
        ("idmp-duration", replies.integer(window.duration)),
        ("idmp-maxsize", replies.integer(window.max_size)),
        ("pids-tracked", replies.integer(window.producers)),
        ("iids-tracked", replies.integer(window.remembered)),
        ("iids-added", replies.integer(window.added)),
        ("iids-duplicates", replies.integer(window.duplicates)),
    ]


def _full(session: ClientState, stream: Stream, fields: _Fields, count: int, now: int) -> bytes:
    protocol = session.protocol
    entries = list(stream.pieces(stream.log.first, stream.log.end, count))
    total = sum(many for _, many in entries)
    groups = [_full_group(session, name, group, count, now) for name, group in _groups(session, stream)]
    fields = [
        *fields,
        ("entries", replies.array_of(total, [piece for piece, _ in entries])),
        ("groups", replies.array(groups)),
    ]
    return replies.fields(fields, protocol)


def _full_group(session: ClientState, name: bytes, group: Group, count: int, now: int) -> bytes:
    protocol, skew = session.protocol, session.broker.skew
    stream = group.stream
    given_back = group.ledger.named.get(PARKED)
    pending = group.pending_entries(stream.log.first, stream.log.end, min(count, group.pending_count), now=now)
    lines = []
    for each in pending:
        delivered = max((now + skew) // MS - each.idle, 0) if each.idle >= 0 else 0
        parts = [replies.bulk(ids.encode(stream.id_at(each.sequence))), replies.bulk(each.consumer)]
        lines.append(replies.array([*parts, replies.integer(delivered), replies.integer(each.deliveries)]))
    nacked = len(group.ledger.ready) + (len(given_back.in_flight) if given_back else 0)
    return replies.fields(
        [
            ("name", replies.bulk(name)),
            ("last-delivered-id", replies.bulk(ids.encode(group.last_delivered))),
            *_progress(group, protocol),
            ("pel-count", replies.integer(group.pending_count)),
            ("nacked-count", replies.integer(nacked)),
            ("pending", replies.array(lines)),
            ("consumers", replies.array([_full_consumer(session, group, each, count) for each in group.consumers()])),
        ],
        protocol,
    )


def _full_consumer(session: ClientState, group: Group, holder: Holder, count: int) -> bytes:
    skew = session.broker.skew
    lines = []
    for sequence in sorted(holder.in_flight)[:count]:
        delivered = (holder.in_flight[sequence].delivered + skew) // MS
        deliveries = group.ledger.attempts.get(sequence, 1)
        entry = replies.bulk(ids.encode(group.stream.id_at(sequence)))
        lines.append(replies.array([entry, replies.integer(delivered), replies.integer(deliveries)]))
    active = (holder.active + skew) // MS if holder.active else -1
    return replies.fields(
        [
            ("name", replies.bulk(holder.name.encode("latin-1"))),
            ("seen-time", replies.integer((holder.seen + skew) // MS)),
            ("active-time", replies.integer(active)),
            ("pel-count", replies.integer(len(holder.in_flight))),
            ("pending", replies.array(lines)),
        ],
        session.protocol,
    )


def _progress(group: Group, protocol: int) -> _Fields:
    read = group.entries_read
    return [
        ("entries-read", replies.null(protocol) if read is None else replies.integer(read)),
        ("lag", replies.integer(group.lag)),
    ]


def show_groups(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XINFO GROUPS key."""
    stream = existing(session, words[2], now)
    protocol = session.protocol
    return replies.array(
        [
            replies.fields(
                [
                    ("name", replies.bulk(name)),
                    ("consumers", replies.integer(len(group.consumers()))),
                    ("pending", replies.integer(group.pending_count)),
                    ("last-delivered-id", replies.bulk(ids.encode(group.last_delivered))),
                    *_progress(group, protocol),
                ],
                protocol,
            )
            for name, group in _groups(session, stream)
        ]
    )


def show_consumers(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XINFO CONSUMERS key group."""
    group = existing_group(session, words, now, errors.NO_SUCH_KEY)
    return replies.array(
        [
            replies.fields(
                [
                    ("name", replies.bulk(each.name.encode("latin-1"))),
                    ("pending", replies.integer(len(each.in_flight))),
                    ("idle", replies.integer(max(now - each.seen, 0) // MS)),
                    ("inactive", replies.integer(max(now - each.active, 0) // MS if each.active else -1)),
                ],
                session.protocol,
            )
            for each in group.consumers()
        ]
    )
