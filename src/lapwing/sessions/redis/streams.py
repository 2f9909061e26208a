"""Commands that add, read and delete entries: XADD, XLEN, XRANGE, XREAD, XDEL, XTRIM and their kin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lapwing.errors import LogError
from lapwing.sessions.redis.client_state import ClientState, Wait
from lapwing.sessions.redis.idempotence import header_of, name_of
from lapwing.sessions.redis.replies import SMALL, AddedSlot, Reply, Streamed
from lapwing.sessions.redis.stream import MS, Stream
from lapwing.sessions.redis.trim import trim
from lapwing.sessions.replies import Slot
from lapwing.wire.resp import bodies, errors, ids, replies
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import EntryId
from lapwing.wire.resp.parse_reads import Position, Xread, parse_position, parse_xrange, parse_xread
from lapwing.wire.resp.parse_writes import Xadd, parse_ids, parse_xadd, parse_xcfgset, parse_xsetid, parse_xtrim

EVERYTHING: Final = 1 << 62  # entries


def find(session: ClientState, key: bytes, now: int) -> Stream | None:
    """Return a stream with all that was added in this turn; None if there is none."""
    stream = session.context.find(key, session.database)
    if stream is not None:
        stream.topic.write_pending(now=now)
    return stream


def existing(session: ClientState, key: bytes, now: int, problem: str = errors.NO_SUCH_KEY) -> Stream:
    """Return a stream with all that was added in this turn. Raises `ErrorReply` with `problem` if there is none."""
    stream = find(session, key, now)
    if stream is None:
        raise ErrorReply(problem)
    return stream


# --- adding --------------------------------------------------------------------------------------------------------


def xadd(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XADD key [options] <* | id> field value .."""
    asked = parse_xadd(words)
    context = session.context
    stream = context.find(asked.key, session.database)
    if stream is None:
        if not asked.create:
            return replies.null(session.protocol)
        stream = context.create(asked.key, session.database)
    body = bodies.to_body(asked.pairs, stream.field, as_json=stream.as_json)
    if len(body) > stream.topic.effective.max_msg_size:
        raise ErrorReply(errors.TOO_LONG)
    slot = AddedSlot(session.sink)
    if asked.producer is None:
        slot.expect(stream.add(asked.pairs, asked.id, slot, now=now, body=body))
    elif (before := _add_once(session, stream, asked, asked.producer, slot, now)) is not None:
        return replies.bulk(ids.encode(before))
    if asked.trim is not None:
        stream.topic.write_pending(now=now)
        trim(stream, asked.trim, unread=session.broker.options.redis_trim_unread, now=now)
    return slot


def _add_once(
    session: ClientState, stream: Stream, asked: Xadd, producer: bytes, slot: AddedSlot, now: int
) -> EntryId | None:
    """Add an entry unless its producer has added it before; return the entry from before, if there is one."""
    window = session.context.idempotence(stream, now=now)
    name = name_of(asked.pairs) if asked.idempotent_id is None else asked.idempotent_id
    before = window.find(producer, name, now=now)
    if before is not None:
        return before
    entry = stream.add(asked.pairs, asked.id, slot, now=now, headers=header_of(producer, name))
    slot.expect(entry)
    window.add(producer, name, entry, now=now)
    slot.on_failure = lambda: window.forget(producer, name)
    return None


def xcfgset(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XCFGSET key [IDMP-DURATION s] [IDMP-MAXSIZE n]."""
    asked = parse_xcfgset(words)
    stream = existing(session, asked.key, now)
    window = session.context.idempotence(stream, now=now)
    window.configure(duration=asked.duration, max_size=asked.max_size)
    stream.state["once"] = [window.duration, window.max_size, stream.log.next]
    stream.topic.changed()
    return replies.OK


def xlen(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XLEN key."""
    stream = find(session, words[1], now)
    return replies.integer(0 if stream is None else stream.length)


def xsetid(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XSETID key id [ENTRIESADDED n] [MAXDELETEDID id]."""
    asked = parse_xsetid(words)
    stream = existing(session, asked.key, now)
    deleted = stream.max_deleted
    if asked.id < deleted:
        raise ErrorReply("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id")
    if stream.length:
        if asked.id < stream.top_id:
            raise ErrorReply("ERR The ID specified in XSETID is smaller than the target stream top item")
        if asked.entries_added is not None and asked.entries_added < stream.length:
            raise ErrorReply("ERR The entries_added specified in XSETID is smaller than the target stream length")
    stream.set_last(asked.id, entries_added=asked.entries_added, max_deleted=asked.max_deleted)
    return replies.OK


# --- reading -------------------------------------------------------------------------------------------------------


def xrange(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XRANGE key start end [COUNT n] and XREVRANGE key end start [COUNT n]."""
    asked = parse_xrange(words)
    stream = find(session, asked.key, now)
    if stream is None:
        return replies.EMPTY
    if asked.count == 0:
        return replies.null_array(session.protocol)
    start, stop = stream.from_id(asked.start), stream.behind_id(asked.end)
    most = EVERYTHING if asked.count is None else asked.count
    pieces = stream.pieces_back if asked.reverse else stream.pieces
    count = min(stream.count(start, stop), most)
    return Streamed(_array(count, pieces(start, stop, count)))


def _array(count: int, pieces: Iterator[tuple[bytes, int]]) -> Iterator[bytes]:
    """Yield an array of up to `count` entries in pieces.

    Entries that turn out to be damaged are left out of an array that is small enough to be read before it is sent.
    Raises `LogError` where its length is promised already; the log knows of the damage from then on.
    """
    found: list[bytes] = []
    total = size = 0
    for piece, many in pieces:
        total += many
        size += len(piece)
        found.append(piece)
        if size > SMALL:
            break
    else:
        count = total
    yield b"*%d\r\n" % count
    yield from found
    for piece, many in pieces:
        total += many
        yield piece
    if total < count:
        raise LogError(f"{count - total} of {count} entries are damaged and cannot be sent; ask again without them")


def xread(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XREAD [COUNT n] [MAXCOUNT n] [MAXSIZE b] [BLOCK ms] STREAMS key .. id .."""
    asked = parse_xread(words)
    places = [_place(session, key, word, now) for key, word in zip(asked.keys, asked.positions, strict=True)]
    found = _news(session, asked, places, now)
    if found:
        return Streamed(_streams(found, session.protocol))
    nothing = replies.null_array(session.protocol)
    if asked.block is None or session.in_transaction:
        return nothing

    def attempt(now: int) -> bytes | None:
        news = _news(session, asked, places, now)
        return b"".join(_streams(news, session.protocol)) if news else None

    deadline = now + asked.block * MS if asked.block else None
    wait = Wait(Slot(session.sink), "xread", deadline, nothing, attempt)
    session.context.follow(session, asked.keys, wait)
    return session.begin_wait(wait)


_Place = EntryId | None  # entries beyond that id; None: the last entry, whichever that is
_Found = tuple[bytes, Stream, int, int, int]  # key, stream, first sequence, behind the last, entries


def _place(session: ClientState, key: bytes, word: bytes, now: int) -> _Place:
    place = parse_position(word, grouped=False)
    if isinstance(place, tuple):
        return place
    stream = find(session, key, now)
    if place is Position.LAST:
        return None
    return stream.last_id if stream is not None else ids.LEAST


def _news(session: ClientState, asked: Xread, places: list[_Place], now: int) -> list[_Found]:
    """Return what there is beyond each place, within the limits."""
    found: list[_Found] = []
    left = asked.max_count or EVERYTHING
    size = asked.max_size or EVERYTHING
    for key, place in zip(asked.keys, places, strict=True):
        stream = find(session, key, now)
        if stream is None or left <= 0 or size <= 0:
            continue
        stop = stream.log.end
        if place is None:
            start, most = stream.last_entry(), 1
        elif place == ids.GREATEST:
            continue
        else:
            start, most = stream.from_id(ids.following(place)), min(asked.count or EVERYTHING, left)
        count = min(stream.count(start, stop), most)
        if count and asked.max_size:
            count, size = _fitting(stream, start, stop, count, size)
        if count:
            found.append((key, stream, start, stop, count))
            left -= count
    return found


def _fitting(stream: Stream, start: int, stop: int, count: int, size: int) -> tuple[int, int]:
    """Return how many entries fit into `size` bytes, at least one, and the bytes that are left."""
    taken = 0
    for sequence in stream.sequences(start, stop):
        if taken == count or (taken and size <= 0):
            break
        entry = stream.entry(sequence)
        size -= len(entry or b"")
        taken += 1
    return taken, size


def _streams(found: list[_Found], protocol: int) -> Iterator[bytes]:
    """Yield the entries of several streams in pieces."""
    yield b"%%%d\r\n" % len(found) if protocol == 3 else b"*%d\r\n" % len(found)
    for key, stream, start, stop, count in found:
        if protocol == 2:
            yield b"*2\r\n"
        yield replies.bulk(key)
        yield from _array(count, stream.pieces(start, stop, count))


# --- deleting ------------------------------------------------------------------------------------------------------


def xdel(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XDEL key id .."""
    stream = find(session, words[1], now)
    if stream is None:
        return replies.integer(0)
    sequences = [stream.sequence_of(entry) for entry in parse_ids(words, 2)]
    return replies.integer(sum(stream.delete(sequence) for sequence in sequences if sequence is not None))


def xtrim(session: ClientState, words: list[bytes], now: int) -> Reply:
    """XTRIM key <MAXLEN | MINID> .."""
    key, asked = parse_xtrim(words)
    stream = find(session, key, now)
    if stream is None:
        return replies.integer(0)
    return replies.integer(trim(stream, asked, unread=session.broker.options.redis_trim_unread, now=now))
