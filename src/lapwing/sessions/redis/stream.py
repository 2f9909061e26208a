"""A topic as a stream: entries by id, read and added.

An entry's id is `<ms>-<sequence>`: the time at which the message was published, and its place in the topic's log. A
whole id is found by arithmetic. An entry whose id a client chose carries the id beside the message; in a topic that has
such entries ids are found by bisection, as they rise with the sequence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from lapwing import kernel
from lapwing.broker.topic.batch import Batch, rows_of
from lapwing.broker.topic.receipt import Receipt
from lapwing.broker.topic.topic import Topic
from lapwing.errors import CorruptChunk, OutOfRange
from lapwing.log.log import Extra
from lapwing.wire.resp import bodies, ids, replies
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import GREATEST, GREATEST_PART, LEAST, EntryId, NewId

if TYPE_CHECKING:
    from lapwing.broker.settings.definitions import TopicSettings
    from lapwing.log.segments.reader import Reader

MS: Final = 1_000_000  # ns
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
CHOSEN_ID: Final = "redis-id"  # the header that holds an id which a client chose
PIECE: Final = 256 * 1024  # bytes of frames that one piece of a reply is made of

_BACKWARDS: Final = 256  # entries that are read at a time when the last one comes first
_TOO_SMALL: Final = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
_EXHAUSTED: Final = "ERR The stream has exhausted the last possible ID, unable to add more items"


class Stream:
    """The entries of one topic."""

    __slots__ = ("_effective", "_field", "_stamped", "log", "newest", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.log = topic.log
        self.newest = 0  # ns; the time of the last entry that was added
        self._stamped = False  # whether that is known
        self._effective: TopicSettings | None = None  # the settings that `_field` comes from
        self._field = b""

    # --- what the topic keeps for us -------------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, Any]:
        """Facts that are kept with the topic: `chosen` is the first sequence whose id a client chose, `last` the
        greatest id that was given out, `added` a number of entries and the sequence that it held for.
        """
        state: dict[str, Any] = self.topic.door_state
        return state

    @property
    def field(self) -> bytes:
        """The field that a plain body is shown as."""
        if self._effective is not self.topic.effective:
            self._effective = self.topic.effective
            self._field = self._effective.body_field.encode()
        return self._field

    @property
    def as_json(self) -> bool:
        """Whether entries are kept as JSON where JSON can keep them."""
        return self.topic.effective.fields == "json"

    @property
    def simple(self) -> bool:
        """Whether entries are what the kernel makes of frames: no ids that clients chose, no JSON."""
        return "chosen" not in self.topic.door_state and self.topic.effective.fields != "json"

    @property
    def takes_runs(self) -> bool:
        """Whether plain XADDs need no look at each of them."""
        topic = self.topic
        state = topic.door_state
        if topic.admission is not None or topic.effective.fields == "json":
            return False
        return not state or ("chosen" not in state and "last" not in state)

    # --- ids -------------------------------------------------------------------------------------------------------

    def id_at(self, sequence: int) -> EntryId:
        """Return the id of an entry that the log holds, deleted or not."""
        chosen = self.state.get("chosen")
        if chosen is not None and sequence >= chosen:
            for extra in self.log.extras(sequence, sequence + 1):
                if CHOSEN_ID in extra.headers:
                    return ids.parse(extra.headers[CHOSEN_ID].encode())
        return max(self.log.timestamp(sequence), 0) // MS, sequence

    def sequence_of(self, entry: EntryId) -> int | None:
        """Return the sequence of the entry with exactly that id, deleted or not; None if the log has none."""
        log = self.log
        if "chosen" not in self.state:
            milliseconds, sequence = entry
            if not log.first <= sequence < log.end or max(log.timestamp(sequence), 0) // MS != milliseconds:
                return None
            return sequence
        found = self.from_id(entry)
        return found if found < log.end and self.id_at(found) == entry else None

    def from_id(self, entry: EntryId) -> int:
        """Return the first sequence whose id is that one or beyond it; the log's end if there is none."""
        log = self.log
        if "chosen" in self.state:
            return log.first + bisect_left(range(log.first, log.end), entry, key=self.id_at)
        milliseconds, sequence = entry
        if self.sequence_of(entry) is not None:
            return sequence
        first = log.at_time(_nanoseconds(milliseconds))
        # of the entries of that very millisecond, those from the sequence on
        return min(sequence, log.at_time(_nanoseconds(milliseconds + 1))) if sequence > first else first

    def behind_id(self, entry: EntryId) -> int:
        """Return the first sequence whose id is beyond that one; the log's end if there is none."""
        return self.log.end if entry == GREATEST else self.from_id(ids.following(entry))

    @property
    def last_id(self) -> EntryId:
        """The greatest id that was given out; 0-0 if there was none."""
        floor = self.state.get("last")
        least: EntryId = (floor[0], floor[1]) if floor else LEAST
        if not self.log.end:
            return least
        try:
            return max(least, self.id_at(self.log.end - 1))
        except (OutOfRange, CorruptChunk):  # nothing is left of it: the time is that of our last entry, if any
            return max(least, (self.newest // MS, self.log.end - 1))

    @property
    def entries_added(self) -> int:
        """The number of entries that were ever added."""
        count, at = self.state.get("added", (0, 0))
        return int(count) + self.log.next - int(at)

    @property
    def max_deleted(self) -> EntryId:
        """The greatest id that was deleted by name; 0-0 if none was."""
        milliseconds, number = self.state.get("max_deleted", LEAST)
        return int(milliseconds), int(number)

    def set_last(self, entry: EntryId, *, entries_added: int | None, max_deleted: EntryId | None) -> None:
        """Let the next entry have an id beyond `entry`."""
        self.state["last"] = list(entry)
        if entries_added is not None:
            self.state["added"] = [entries_added, self.log.next]
        if max_deleted is not None:
            self.state["max_deleted"] = list(max_deleted)
        self.topic.save()

    @property
    def length(self) -> int:
        """The number of entries."""
        return self.log.end - self.log.first - self.topic.deleted.count(self.log.first, self.log.end)

    # --- reading ---------------------------------------------------------------------------------------------------

    def count(self, start: int, stop: int) -> int:
        """Return how many entries of the sequences [start, stop) there are, without those known to be damaged."""
        start = max(start, self.log.first)
        if stop <= start:
            return 0
        deleted = self.topic.deleted
        damaged = [(max(first, start), min(end, stop)) for first, end in self.log.unserved]
        lost = sum(end - first - deleted.count(first, end) for first, end in damaged if first < end)
        return stop - start - deleted.count(start, stop) - lost

    def sequences(self, start: int, stop: int) -> Iterator[int]:
        """Yield the sequences of the entries of [start, stop)."""
        for begin, end in self.topic.deleted.live(max(start, self.log.first), stop):
            yield from range(begin, end)

    def first_entry(self) -> int:
        """Return the sequence of the first entry; the log's end if there is none."""
        return min(self.topic.deleted.jump(self.log.first), self.log.end)

    def last_entry(self) -> int:
        """Return the sequence of the last entry; the log's end if there is none."""
        runs = self.topic.deleted.live_back(self.log.first, self.log.end)
        return next((stop - 1 for _, stop in runs), self.log.end)

    @property
    def top_id(self) -> EntryId:
        """The id of the last entry; 0-0 if there is none."""
        last = self.last_entry()
        return self.id_at(last) if last < self.log.end else LEAST

    def pieces(self, start: int, stop: int, count: int) -> Iterator[tuple[bytes, int]]:
        """Yield up to `count` entries of [start, stop) as parts of an array, and how many each piece has."""
        for begin, end in self.topic.deleted.live(max(start, self.log.first), stop):
            reader = self.log.reader(begin)
            while count > 0 and reader.sequence < end:
                first = reader.sequence
                block, at, after, taken = reader.span(end, count, PIECE)
                if not taken:
                    break
                if after > at:  # else the messages are damaged, and the log has reported that
                    yield self.entries(block, at, after, first), taken
                    count -= taken
            if count <= 0:
                return

    def pieces_back(self, start: int, stop: int, count: int) -> Iterator[tuple[bytes, int]]:
        """Yield up to `count` entries of [start, stop), the last one first."""
        for begin, end in self.topic.deleted.live_back(max(start, self.log.first), stop):
            while count > 0 and begin < end:
                low = max(begin, end - min(count, _BACKWARDS))
                found = list(self._single(self.log.reader(low), end))
                yield b"".join(reversed(found)), len(found)
                count -= len(found)
                end = low
            if count <= 0:
                return

    def _single(self, reader: Reader, stop: int) -> Iterator[bytes]:
        """Yield the entries up to `stop`, each for itself."""
        while reader.sequence < stop:
            first = reader.sequence
            block, at, after, taken = reader.span(stop, stop - first, PIECE)
            if not taken:
                return
            positions, _ = kernel.scan_frames(block, at, after)
            for index in range(len(positions) - 1):
                yield self.entries(block, positions[index], positions[index + 1], first + index)

    def entries(self, block: bytes, at: int, after: int, first: int) -> bytes:
        """Return the entries of a run of frames, whose first sequence is `first`."""
        if self.simple:
            return kernel.entry_replies(block, at, after, first, self.field)[0]
        messages, _ = kernel.decode_messages(block, at, after)
        chosen = self._chosen(first, first + len(messages))
        parts = []
        for sequence, (stamp, _, _, body) in enumerate(messages, first):
            entry = chosen.get(sequence) or b"%d-%d" % (max(stamp, 0) // MS, sequence)
            pairs = bodies.to_pairs(body, self.field, as_json=self.as_json)
            parts.append(b"*2\r\n%b%b" % (replies.bulk(entry), replies.bulks(pairs)))
        return b"".join(parts)

    def _chosen(self, start: int, stop: int) -> dict[int, bytes]:
        """Return the ids of [start, stop) that clients chose."""
        chosen = self.state.get("chosen")
        if chosen is None or stop <= chosen:
            return {}
        extras = self.log.extras(start, stop)
        return {each.sequence: each.headers[CHOSEN_ID].encode() for each in extras if CHOSEN_ID in each.headers}

    def entry(self, sequence: int) -> bytes | None:
        """Return one entry; None if it was deleted, or the log no longer has it."""
        if sequence in self.topic.deleted:
            return None
        try:
            frame = self.log.frame(sequence)
        except (OutOfRange, CorruptChunk):
            return None
        return self.entries(frame, 0, len(frame), sequence)

    # --- deleting --------------------------------------------------------------------------------------------------

    def delete(self, sequence: int) -> bool:
        """Delete one entry by name; return whether it was there."""
        if not self.topic.delete(sequence, sequence + 1):
            return False
        self.state["max_deleted"] = list(max(self.max_deleted, self.id_at(sequence)))
        return True

    # --- adding ----------------------------------------------------------------------------------------------------

    def stamp(self, now: int) -> int:
        """Return the time of an entry that is added now: never before that of the last one."""
        if not self._stamped:
            self._stamped = True
            if self.log.end > self.log.first:
                self.newest = self.log.timestamp(self.log.end - 1)
        stamp = now + self.topic.skew
        if stamp < self.newest:
            return self.newest
        self.newest = stamp
        return stamp

    def add_run(self, block: bytes, receipt: Receipt, *, now: int) -> tuple[EntryId, int] | None:
        """Add the entries of a run of plain XADDs; return the first id and their number.

        None if ids or bodies need a look at each of them.
        """
        if not self.takes_runs:
            return None
        topic = self.topic
        stamp, first = self.stamp(now), self.log.next
        frames, count, size = kernel.frame_xadds(block, topic.id_base + first, stamp, self.field)
        topic.append(Batch(frames, count, size), receipt, now=now)
        return (stamp // MS, first), count

    def add(
        self,
        pairs: list[bytes],
        new: NewId,
        receipt: Receipt,
        *,
        now: int,
        body: bytes | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> EntryId:
        """Add one entry and return its id. Raises `ErrorReply` if the id is not beyond the last one."""
        stamp, first = self.stamp(now), self.log.next
        natural: EntryId = (stamp // MS, first)
        entry = natural
        if new.milliseconds is not None or "chosen" in self.state or "last" in self.state:
            self.topic.write_pending(now=now)
            entry = self._next_id(new, natural)
        if entry != natural:
            headers = {**headers, CHOSEN_ID: ids.encode(entry).decode()}
            if "chosen" not in self.state:
                self.state["chosen"] = first
                self.topic.save()  # before the entry: without it a start would show another id
        if body is None:
            body = bodies.to_body(pairs, self.field, as_json=self.as_json)
        frames = kernel.frame_one(body, self.topic.id_base + first, stamp)
        rows = rows_of([Extra(first, headers=dict(headers))]) if headers else b""
        self.topic.append(Batch(frames, 1, len(body), rows), receipt, now=now)
        return entry

    def _next_id(self, new: NewId, natural: EntryId) -> EntryId:
        last = self.last_id
        if last == GREATEST:
            raise ErrorReply(_EXHAUSTED)
        if new.milliseconds is None:
            return natural if natural > last else ids.following(last)
        number = new.number
        if number is None:
            number = last[1] + 1 if new.milliseconds == last[0] else 0
            if (new.milliseconds, number) == LEAST:
                number = 1
            if number > GREATEST_PART:
                raise ErrorReply(_TOO_SMALL)
        if (new.milliseconds, number) <= last:
            raise ErrorReply(_TOO_SMALL)
        return new.milliseconds, number


def _nanoseconds(milliseconds: int) -> int:
    return min(milliseconds * MS, 2**63 - 1)
