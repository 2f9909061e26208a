"""A channel as a group: consumers are named holders, pending entries are messages in flight or given back."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.broker.channel import delivery
from lapwing.broker.channel import entries as pending_entries
from lapwing.broker.channel.entries import Entry
from lapwing.broker.channel.ledger import PARKED, State
from lapwing.broker.channel.subscription import Credit
from lapwing.records import dataclass
from lapwing.sessions.redis.stream import MS, Stream
from lapwing.sessions.replies import nothing
from lapwing.wire.resp import ids, keys
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import EntryId

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.channel.ledger import Holder

LONGEST_CONSUMER: Final = 1024  # bytes of a consumer's name: the journal keeps it
_MAX_BYTES: Final = 16 << 20  # of frames that one XREADGROUP delivers, whatever its COUNT is
_MAX_TIMES: Final = 1 << 16  # delivered entries whose times are remembered, so that XACK need not read the log


@dataclass(slots=True)
class PendingEntry:
    """One pending entry, as XPENDING shows it."""

    sequence: int
    consumer: bytes  # empty: nobody
    idle: int  # ms; -1 when nobody has it
    deliveries: int


class Group:
    """One group of a stream."""

    __slots__ = ("_first", "_times", "channel", "ledger", "stream")

    def __init__(self, stream: Stream, channel: Channel) -> None:
        self.stream = stream
        self.channel = channel
        self.ledger = channel.ledger
        self._first = 0  # the first sequence that `_times` is about
        self._times = array("q")  # ms of entries that were delivered lately

    # --- consumers -------------------------------------------------------------------------------------------------

    def consumers(self) -> list[Holder]:
        """Return the consumers, sorted by name."""
        named = self.ledger.named
        return [named[name] for name in sorted(named) if name != PARKED]

    def consumer(self, name: bytes, *, now: int) -> Holder:
        """Return the consumer of that name, created if there is none; it has been seen now. Raises `ErrorReply`."""
        if len(name) > LONGEST_CONSUMER:
            raise ErrorReply(f"ERR the name of a consumer may have {LONGEST_CONSUMER} bytes, this one has {len(name)}")
        holder = self.ledger.by_name(name.decode("latin-1"))
        holder.seen = now
        self.channel.journal_later()
        return holder

    # --- entries ---------------------------------------------------------------------------------------------------

    def read(self, holder: Holder, count: int, *, now: int) -> tuple[list[bytes], int]:
        """Deliver up to `count` entries that nobody has; return them in pieces, and how many they are."""
        channel, stream = self.channel, self.stream
        parts: list[bytes] = []
        given = size = 0
        plain = stream.simple and not self.waits_for_id
        while plain and given < count and size < _MAX_BYTES:
            first = channel.reader.sequence
            span = delivery.take_fresh(channel, holder, count - given, now=now)
            if span is None:
                break
            block, at, after, taken = span
            if not taken:
                return parts, given
            if after > at:  # else the messages are damaged, and the log has reported that
                parts.append(kernel.entry_replies(block, at, after, first, stream.field)[0])
                self._remember(first, kernel.publish_times(block, at, after)[0])
                given += taken
                size += after - at
        if given < count and size < _MAX_BYTES and (frames := self.deliver(holder, count - given, now=now)):
            entries, more = self.entries(frames)
            parts.append(entries)
            given += more
        return parts, given

    def deliver(self, holder: Holder, count: int, *, now: int, max_size: int = 0) -> list[bytes]:
        """Deliver up to `count` entries that nobody has; return their frames, each part a run of sequences.

        With `max_size`, no more entries once they have so many bytes.
        """
        if self.waits_for_id:
            self.pass_floor()
        parts: list[bytes] = []
        size = 0
        while count > 0 and size < (max_size or _MAX_BYTES):
            credit = Credit(holder, parts.append, nothing, count=1 if max_size else min(count, 4096))
            wanted = credit.left
            self.channel.deliver_to(credit, now=now)
            given = wanted - credit.left
            if not given:
                break
            count -= given
            size = sum(map(len, parts))
        if parts:
            holder.active = now
        return parts

    def entries(self, parts: Iterable[bytes]) -> tuple[bytes, int]:
        """Return frames as entries, and how many they are."""
        replies, count = [], 0
        for frames in parts:
            first = self.first_of(frames)
            replies.append(self.stream.entries(frames, 0, len(frames), first))
            times, _ = kernel.publish_times(frames, 0, len(frames))
            count += len(times)
            self._remember(first, times)
        return b"".join(replies), count

    def entry(self, sequence: int) -> bytes | None:
        """Return one pending entry, which may have come back with a redrive; None if it was deleted or is lost."""
        if sequence not in self.channel.side_logged.sequences:
            return self.stream.entry(sequence)
        frame = self.channel.frame(sequence)
        return None if frame is None else self.stream.entries(frame, 0, len(frame), sequence)

    def first_of(self, frames: bytes) -> int:
        """Return the sequence of the first frame."""
        return int(frames[18:34], 16) - self.stream.topic.id_base

    def sequences(self, parts: Iterable[bytes]) -> Iterator[int]:
        """Yield the sequences of frames, each part a run."""
        for frames in parts:
            first = self.first_of(frames)
            positions, _ = kernel.scan_frames(frames, 0, len(frames))
            yield from range(first, first + len(positions) - 1)

    def _remember(self, first: int, times: array[int]) -> None:
        """Keep the times of entries that were delivered."""
        end = self._first + len(self._times)
        if first == end:
            self._times.extend(times)
        elif not self._first <= first < end:
            self._first, self._times = first, times
        if len(self._times) > _MAX_TIMES:
            gone = len(self._times) // 2
            del self._times[:gone]
            self._first += gone

    def known(self, words: list[bytes], start: int) -> list[int]:
        """Return the sequences of the ids in words[start:] that the log has. Raises `ErrorReply`."""
        times = self._times if self.stream.simple else array("q")
        found, others = kernel.known_sequences(words, start, self._first, times)
        for entry in [ids.parse(word) for word in others]:
            sequence = self.stream.sequence_of(entry)
            if sequence is not None:
                found.append(sequence)
        return found

    # --- pending ---------------------------------------------------------------------------------------------------

    def acknowledge(self, sequences: list[int], *, now: int) -> int:
        """Finish pending entries, whoever has them; return how many."""
        deferred, attempts, holder_of = self.ledger.deferred, self.ledger.attempts, self.ledger.holder_of
        if attempts or deferred:  # with 0 deliveries and no holder, a message waits and was never delivered
            deliveries = self.ledger.deliveries
            sequences = [each for each in sequences if deliveries(each) or holder_of(each) is not None]
        return len(self.channel.finish(sequences, now=now))

    def acknowledge_request(self, request: bytes, head: bytes, *, now: int) -> int | None:
        """Finish the entries that an XACK names whose first three words are `head`; return how many were pending.

        Return None if the request is another one or an id needs a closer look; nothing was done then.
        """
        if self.channel.exiting or not self.stream.simple:
            return None
        sequences = kernel.acked_sequences(request, head, self._first, self._times)
        return self.acknowledge(sequences, now=now) if sequences else None

    def is_parked(self, sequence: int) -> bool:
        """Return whether XNACK has taken an entry back, so that it waits for a claim, however short it was idle."""
        nobody = self.ledger.named.get(PARKED)
        return nobody is not None and sequence in nobody.in_flight

    @property
    def pending_count(self) -> int:
        """The number of pending entries."""
        return self.ledger.with_consumers + sum(1 for _ in self._given_back())

    def _given_back(self) -> Iterator[int]:
        """Yield what was delivered and waits to be delivered again. A deferred message was not delivered yet."""
        ledger, deliveries = self.ledger, self.ledger.deliveries
        for waiting in (ledger.ready, ledger.alone, ledger.deferred.sequences()):
            for sequence in waiting:
                if deliveries(sequence):
                    yield sequence

    def is_pending(self, sequence: int) -> bool:
        """Return whether an entry was delivered, and not finished."""
        ledger = self.ledger
        holder = ledger.holder_of(sequence)
        if holder is not None:
            return holder is not ledger.mover
        waits = sequence in ledger.ready or sequence in ledger.alone or ledger.deferred.due(sequence) is not None
        return waits and ledger.deliveries(sequence) > 0

    def pending_entries(
        self, start: int, stop: int, count: int, *, now: int, consumer: bytes | None = None, min_idle: int = 0
    ) -> list[PendingEntry]:
        """Return up to `count` pending entries of the sequences [start, stop), in order; `min_idle` is in ms."""
        name = None if consumer is None else consumer.decode("latin-1")
        limit = count + len(self.ledger.deferred) + len(self.ledger.ready)
        found = pending_entries.entries(
            self.ledger, now=now, holder=name, min_idle=min_idle * MS, after=start - 1, limit=limit
        )
        delivered = [each for each in found if each.state is State.IN_FLIGHT or each.deliveries > 0]
        return [self._shown(each) for each in delivered if each.sequence < stop][:count]

    def _shown(self, entry: Entry) -> PendingEntry:
        if entry.state is not State.IN_FLIGHT or self.is_parked(entry.sequence):
            return PendingEntry(entry.sequence, b"", -1, entry.deliveries)
        idle = max(entry.idle, 0) // MS
        return PendingEntry(entry.sequence, self.shown_name(entry.holder), idle, entry.deliveries)

    def shown_name(self, name: str) -> bytes:
        """Return the consumer that a holder is shown as; an NSQ client is `nsq:<client id>:<port>`."""
        return name.encode("latin-1") if name in self.ledger.named else name.encode()

    def lowest_and_greatest(self) -> tuple[int, int]:
        """Return the first and the last sequence that is pending."""
        holders = [holder for holder in self.ledger.holders if holder is not self.ledger.mover]
        held = [sequence for holder in holders for sequence in holder.in_flight]
        found = [*held, *self._given_back()]
        return min(found), max(found)

    def pending_ahead(self) -> list[tuple[int, Holder, int, int]]:
        """Return what is pending although the group will read it (again): sequence, holder, time and deliveries."""
        cursor = self.channel.cursor
        if cursor >= self.channel.overlap:
            return []
        return [
            (sequence, holder, lease.delivered, self.ledger.attempts.get(sequence, 1))
            for holder in self.ledger.holders
            for sequence, lease in holder.in_flight.items()
            if sequence >= cursor
        ]

    def put_back(self, before: list[tuple[int, Holder, int, int]], sequences: set[int]) -> None:
        """Make entries pending again as they were before they were delivered without an acknowledgement."""
        for sequence, holder, delivered, deliveries in before:
            if sequence in sequences:
                self.channel.force(sequence, holder, delivered=delivered)
                self.ledger.attempts[sequence] = deliveries

    # --- the place of the group ------------------------------------------------------------------------------------

    @property
    def last_delivered(self) -> EntryId:
        """The last id that was delivered, or that the group was set to."""
        state, cursor = self.channel.door_state, self.channel.cursor
        if state.get("at") == cursor:
            return ids.parse(state["id"].encode())
        return self.stream.id_at(cursor - 1) if cursor > self.stream.log.first else ids.LEAST

    @property
    def entries_read(self) -> int | None:
        """The number of entries of the stream that the group has passed; None until that is known."""
        state, cursor = self.channel.door_state, self.channel.cursor
        if state.get("at") == cursor:
            read: int | None = state.get("read")
            return read
        return self.stream.entries_added - (self.stream.log.next - cursor)

    @property
    def lag(self) -> int:
        """The number of entries that wait for the group, by the number read that a client has set, if one has."""
        stream, state = self.stream, self.channel.door_state
        waiting = stream.count(self.channel.cursor, stream.log.end)
        if state.get("at") != self.channel.cursor or state.get("read") is None or waiting == stream.length:
            return waiting
        return stream.entries_added - int(state["read"])

    def place_at(self, entry: EntryId, entries_read: int | None) -> None:
        """Note the id and the count that the group was set to."""
        read = None if entries_read is None else min(entries_read, self.stream.entries_added)
        state = {"at": self.channel.cursor, "id": ids.encode(entry).decode(), "read": read}
        if entry > self.stream.last_id:
            state["floor"] = True  # entries up to that id are to be passed over when they come
        self.channel.door_state = state
        self.channel.journal_later()

    @property
    def waits_for_id(self) -> bool:
        """Whether the group was set to an id that the stream has not reached."""
        return "floor" in self.channel.door_state

    def pass_floor(self) -> None:
        """Pass over the entries up to an id that the group was set to before the stream had reached it."""
        entry = ids.parse(self.channel.door_state["id"].encode())
        read = self.channel.door_state.get("read")
        cursor = self.stream.behind_id(entry)
        if cursor > self.channel.cursor:
            self.channel.move(cursor)
            self.place_at(entry, read)
        elif self.stream.last_id > entry:
            del self.channel.door_state["floor"]


def find_channel(stream: Stream, group: bytes) -> Channel | None:
    """Return the channel of a group; None if there is none."""
    name = keys.channel_of(group)
    return None if name is None else stream.topic.channels.get(name)
