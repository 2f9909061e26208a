"""XREADGROUP: deliver entries to a consumer, or have it wait for some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from lapwing import kernel
from lapwing.broker.channel.ledger import Reason
from lapwing.broker.channel.subscription import Credit
from lapwing.errors import LapwingError
from lapwing.sessions.redis.client_state import ClientState, Wait
from lapwing.sessions.redis.group import Group, PendingEntry
from lapwing.sessions.redis.groups import find_group
from lapwing.sessions.redis.replies import Reply
from lapwing.sessions.redis.stream import MS
from lapwing.sessions.replies import Slot
from lapwing.wire.resp import errors, ids, replies
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import EntryId
from lapwing.wire.resp.parse_reads import Position, Xread, parse_position, parse_xread

_EVERYTHING: Final = 1 << 62
_MAX_ENTRIES: Final = 100_000  # entries that one XREADGROUP delivers at most, whatever its COUNT is

_Plan = tuple[bytes, Group, Position | EntryId]
_Found = list[tuple[bytes, int, list[bytes]]]  # key, number of entries, and the entries in pieces


def xreadgroup(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XREADGROUP GROUP group consumer [options] STREAMS key .. id .."""
    asked = parse_xread(words)
    plans = [_plan(session, asked, at, now) for at in range(len(asked.keys))]
    found = _read(session, asked, plans, now)
    nothing = replies.null_array(session.protocol)
    if found or asked.block is None or session.in_transaction:
        return replies.streams(found, session.protocol)
    return _begin_wait(session, asked, plans, nothing, now)


def _plan(session: ClientState, asked: Xread, at: int, now: int) -> _Plan:
    """Return where one stream is read from. Raises `ErrorReply` if its group is not there."""
    key, name = asked.keys[at], asked.group or b""
    group = find_group(session, key, name, now)
    if group is None:
        raise _no_group(key, name)
    return key, group, parse_position(asked.positions[at], grouped=True)


def _no_group(key: bytes, name: bytes) -> ErrorReply:
    return errors.no_group(key, name, " in XREADGROUP with GROUP option")


def _read(session: ClientState, asked: Xread, plans: list[_Plan], now: int) -> _Found:
    found: _Found = []
    left, size = asked.max_count or _EVERYTHING, asked.max_size or _EVERYTHING
    for key, group, position in plans:
        consumer = group.consumer(asked.consumer, now=now)
        if isinstance(position, tuple):
            history = _history(session, group, position, asked, now)
            found.append((key, len(history), history))
            continue
        count = min(asked.count or _MAX_ENTRIES, left, _MAX_ENTRIES)
        if count <= 0 or size <= 0:
            continue
        if asked.is_plain:
            parts, many = group.read(consumer, count, now=now)
            if many:
                found.append((key, many, parts))
                left -= many
            continue
        parts, many = [], 0
        if asked.claim is not None:
            parts = _claim(group, asked, count, now)
            many = len(parts)
        ahead = group.pending_ahead() if asked.acknowledge else []
        frames = group.deliver(consumer, count - many, now=now, max_size=asked.max_size and size)
        if frames:
            entries, given = _fresh(group, frames, asked, now)
            if ahead:
                group.put_back(ahead, set(group.sequences(frames)))
            parts.append(entries)
            many += given
        if many:
            found.append((key, many, parts))
            left -= many
            size -= sum(map(len, parts))
    return found


def _fresh(group: Group, frames: list[bytes], asked: Xread, now: int) -> tuple[bytes, int]:
    """Return what was delivered as entries, and how many; with NOACK they are finished."""
    if asked.claim is None:
        entries, given = group.entries(frames)
    else:
        entries, given = _with_deliveries(group, frames, now)
    if asked.acknowledge:
        group.channel.finish(list(group.sequences(frames)), now=now)
    return entries, given


def _with_deliveries(group: Group, frames: list[bytes], now: int) -> tuple[bytes, int]:
    """Return entries with their idle time and deliveries before: 0 and 0, unless they were given back."""
    found = []
    for part in frames:
        first = group.first_of(part)
        positions, _ = kernel.scan_frames(part, 0, len(part))
        for index in range(len(positions) - 1):
            deliveries = group.ledger.attempts.get(first + index, 1) - 1
            entry = group.stream.entries(part, positions[index], positions[index + 1], first + index)
            found.append(_four_parts(entry, now // MS if deliveries else 0, deliveries))
    return b"".join(found), len(found)


def _four_parts(entry: bytes, idle: int, deliveries: int) -> bytes:
    return b"*4\r\n%b:%d\r\n:%d\r\n" % (entry[4:], idle, deliveries)


def _claim(group: Group, asked: Xread, count: int, now: int) -> list[bytes]:
    """Take over what was pending for long with anybody, the longest first; return it as entries."""
    log = group.stream.log
    consumer = group.consumer(asked.consumer, now=now)
    pending = group.pending_entries(log.first, log.end, _EVERYTHING, now=now)
    old = [each for each in pending if each.idle < 0 or each.idle >= (asked.claim or 0)]
    claimed: list[bytes] = []
    for each in sorted(old, key=_longest_first):
        if len(claimed) == count:
            break
        entry = group.entry(each.sequence)
        if entry is None:
            group.channel.finish([each.sequence], now=now)
            continue
        group.channel.claim([each.sequence], consumer, now=now)
        claimed.append(_four_parts(entry, now // MS if each.idle < 0 else each.idle, each.deliveries))
    if claimed:
        consumer.active = now
    return claimed


def _longest_first(entry: PendingEntry) -> tuple[int, int, int]:
    return (0 if entry.idle < 0 else 1), -entry.idle, entry.sequence


def _history(session: ClientState, group: Group, beyond: EntryId, asked: Xread, now: int) -> list[bytes]:
    """Return what is pending with the consumer beyond an id, which counts as a delivery."""
    consumer = group.consumer(asked.consumer, now=now)
    stream, start = group.stream, group.stream.behind_id(beyond)
    held = sorted(sequence for sequence in consumer.in_flight if sequence >= start)
    parts = []
    for sequence in held[: asked.count or len(held)]:
        entry = group.entry(sequence)
        if entry is None:
            name = replies.bulk(ids.encode(stream.id_at(sequence)))
            entry = b"*2\r\n%b%b" % (name, replies.null_array(session.protocol))
        else:
            group.channel.claim([sequence], consumer, now=now)
        parts.append(entry)
    return parts


# --- waiting -------------------------------------------------------------------------------------------------------


class GroupWait:
    """A read that waits for entries of several groups; the first one with any answers it, alone."""

    def __init__(self, session: ClientState, asked: Xread, plans: list[_Plan]) -> None:
        self.session = session
        self._asked = asked
        self._demands: list[tuple[bytes, Group, Credit, list[bytes]]] = []
        count = min(asked.count or _MAX_ENTRIES, asked.max_count or _MAX_ENTRIES, _MAX_ENTRIES)
        for key, group, _ in plans:
            consumer = group.consumer(asked.consumer, now=session.peer.active)
            parts: list[bytes] = []
            credit = Credit(consumer, self._taker(parts), self._gone(key), count=1 if asked.max_size else count)
            group.channel.subscribe(credit)
            self._demands.append((key, group, credit, parts))

    def _taker(self, parts: list[bytes]) -> Callable[[bytes], None]:
        """Return where one group's frames go; the demand at the others ends with the first of them."""

        def take(frames: bytes) -> None:
            parts.append(frames)
            for _, _, credit, others in self._demands:
                if others is not parts:
                    credit.left = 0
            self.session.context.serve(self.answer)

        return take

    def _gone(self, key: bytes) -> Callable[[], None]:
        """Return what is called when the stream or the group is deleted."""

        def gone() -> None:
            if self.session.wait is not None:
                self.session.end_wait(replies.error(_no_group(key, self._asked.group or b"")))

        return gone

    def answer(self, now: int) -> None:
        """Answer the command with what was delivered."""
        if self.session.wait is None:
            return
        for key, group, credit, frames in self._demands:
            if frames:
                credit.holder.active = now
                entries, count = _fresh(group, frames, self._asked, now)
                self.session.end_wait(replies.streams([(key, count, [entries])], self.session.protocol))
                return

    def cancel(self) -> None:
        """End the demand everywhere."""
        for _, group, credit, _ in self._demands:
            group.channel.unsubscribe(credit, now=0, reason=Reason.CLOSED)


def _begin_wait(session: ClientState, asked: Xread, plans: list[_Plan], nothing: bytes, now: int) -> Slot:
    deadline = now + asked.block * MS if asked.block else None

    def attempt(now: int) -> bytes | None:
        if any(group.channel.exiting for _, group, _ in plans):
            return replies.error(_no_group(plans[0][0], asked.group or b""))
        found = _read(session, asked, plans, now)
        wait.look_at = _next_idle(asked, plans, now)
        return replies.streams(found, session.protocol) if found else None

    wait = Wait(Slot(session.sink), "xreadgroup", deadline, nothing, attempt)
    wait.look_at = _next_idle(asked, plans, now)
    if any(group.waits_for_id for _, group, _ in plans):
        session.context.follow(session, asked.keys, wait)
    else:
        try:
            wait.cancel = GroupWait(session, asked, plans).cancel
        except LapwingError as error:
            raise ErrorReply(f"ERR {error}") from error
    if asked.claim is not None:
        wait.channels = [group.channel for _, group, _ in plans]
    return session.begin_wait(wait)


def _next_idle(asked: Xread, plans: list[_Plan], now: int) -> int | None:
    """Return when the next pending entry has been idle long enough to be claimed."""
    if asked.claim is None:
        return None
    holders = [holder for _, group, _ in plans for holder in group.ledger.holders]
    delivered = [lease.delivered for holder in holders for lease in holder.in_flight.values() if lease.delivered]
    return max(min(delivered) + asked.claim * MS, now + MS) if delivered else None
