"""Publish once: the ids of the messages that were published to a topic lately, so that a repeated one is not stored.

The ids lie beside the messages in the log, as the header `message-id`. This module keeps those of the last `span` in
memory, the newest `most` of them. A start reads them back, so the log keeps the segments that hold them (`oldest`).
Times are those of the broker, which never jump, whatever is done to the machine's clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.errors import OutOfRange

if TYPE_CHECKING:
    from lapwing.log.log import TopicLog

HEADER: Final = "message-id"
_STEP: Final = 5_000  # messages that are read back at a time, newest first
_PRECISION: Final = 50  # parts of the window that an id may be remembered for too long, after a start
_SIZE: Final = Struct(">i")

Ids = Sequence[tuple[int, bytes]]  # sequence and id


class DedupWindow:
    """The newest ids of one topic, and the sequences of their messages."""

    __slots__ = ("_fresh", "_ids", "_marks", "duplicates", "forgotten", "most", "span")

    def __init__(self, span: int, most: int) -> None:
        self.span = span  # ns
        self.most = most  # ids
        self.duplicates = 0  # messages that were not stored
        self.forgotten = 0  # ids that had to go before their time
        self._ids: OrderedDict[bytes, int] = OrderedDict()
        self._marks: deque[list[int]] = deque()  # ns; time of publishing, and how many ids are of that time
        self._fresh: list[bytes] = []  # of messages that are not written yet

    def __len__(self) -> int:
        return len(self._ids)

    def continue_counts(self, before: DedupWindow) -> None:
        """Count on from a window that this one replaces."""
        self.duplicates, self.forgotten = before.duplicates, before.forgotten

    def oldest(self, *, now: int) -> int | None:
        """Return the sequence from which on the log has to be kept, so that a start can read the ids back."""
        self._expire(now)
        return next(iter(self._ids.values()), None)

    def repeats(self, ids: Ids, *, now: int) -> dict[int, int]:
        """Count which of new messages repeat an id; return by their sequence that of the message they repeat.

        A message that repeats one of the same batch is one too.
        """
        self._expire(now)
        known, found = self._ids, {}
        if len({message_id for _, message_id in ids}) == len(ids) and known.keys().isdisjoint(
            [message_id for _, message_id in ids]
        ):
            return {}
        new: dict[bytes, int] = {}
        for sequence, message_id in ids:
            first = known.get(message_id, new.get(message_id))
            if first is None:
                new[message_id] = sequence
            else:
                found[sequence] = first
        self.duplicates += len(found)
        return found

    def add(self, ids: Ids, *, now: int) -> None:
        """Remember the ids of messages that were appended to the log and are not written yet."""
        self._fresh += [message_id for _, message_id in ids]
        self.restore(ids, now)

    def restore(self, ids: Ids, time: int) -> None:
        """Remember the ids of messages that were published at that time, later than all that are known."""
        if not ids:
            return
        before = len(self._ids)
        self._ids.update((message_id, sequence) for sequence, message_id in ids)
        if self._marks and self._marks[-1][0] >= time:
            self._marks[-1][1] += len(self._ids) - before
        else:
            self._marks.append([time, len(self._ids) - before])
        if len(self._ids) > self.most:
            self.forgotten += self._drop(len(self._ids) - self.most)

    def written(self) -> None:
        """Note that everything that was added is written."""
        self._fresh.clear()

    def take_back(self) -> None:
        """Forget the ids that were added and whose messages could not be written."""
        marks = self._marks
        gone = sum(self._ids.pop(message_id, None) is not None for message_id in self._fresh)
        while gone and marks:  # they are the newest
            few = min(gone, marks[-1][1])
            gone -= few
            marks[-1][1] -= few
            if not marks[-1][1]:
                marks.pop()
        self._fresh.clear()

    def _expire(self, now: int) -> None:
        marks = self._marks
        while marks and marks[0][0] + self.span <= now:
            time = marks[0][0]
            self._drop(marks[0][1])
            if marks and marks[0][0] == time:
                marks.popleft()

    def _drop(self, count: int) -> int:
        """Drop the oldest ids; return how many."""
        ids, marks, left = self._ids, self._marks, count
        while left and marks:
            gone = min(left, marks[0][1], len(ids))
            for _ in range(gone):
                ids.popitem(last=False)
            marks[0][1] -= gone
            left -= gone
            if marks[0][1] <= 0 or not ids:
                marks.popleft()
        return count - left

    def read_back(self, log: TopicLog, *, now: int, skew: int) -> None:
        """Remember the ids of the log that are young enough, as a start does. Raises `ReadFailed`.

        `skew` leads from the broker's time to that of the machine's clock. Messages may be stamped by either, as the
        clock may have been set since: an id is rather remembered for too long. Of a repeated id the newest counts.
        """
        start = max(log.at_time(now + min(skew, 0) - self.span), log.first)
        known: set[bytes] = set()
        found: list[Ids] = []
        stop = log.end
        while stop > start and len(known) < self.most:
            first = max(stop - _STEP, start)
            ids = []
            for sequence, message_id in reversed(kernel.message_ids(log.rows(first, stop))):
                if message_id not in known:
                    known.add(message_id)
                    ids.append((sequence, message_id))
            found.append(ids[::-1])
            stop = first
        for older in reversed(found):
            self._restore_by_time(older, log, now, max(-skew, 0))
        self.forgotten = 0

    def _restore_by_time(self, ids: Ids, log: TopicLog, now: int, behind: int) -> None:
        """Remember ids that were published at different times: not much longer than the window, and never shorter.

        `behind` is how far timestamps may be behind the broker's time, ns.
        """
        if not ids:
            return
        first, last = (min(_time_of(log, each[0], now) + behind, now) for each in (ids[0], ids[-1]))
        if len(ids) > 1 and last - first > self.span // _PRECISION:
            middle = len(ids) // 2
            self._restore_by_time(ids[:middle], log, now, behind)
            self._restore_by_time(ids[middle:], log, now, behind)
        else:
            self.restore(ids, last)


def _time_of(log: TopicLog, sequence: int, now: int) -> int:
    """Return when a message was published, ns; `now` for one that cannot be read."""
    try:
        return log.timestamp(sequence)
    except OutOfRange:
        return now


def without(body: bytes, indexes: set[int]) -> bytes:
    """Return the body of an HMPUB that was checked before without some of its messages."""
    parts: list[bytes] = [b""]
    at, index = 4, 0
    while at < len(body):
        (size,) = _SIZE.unpack_from(body, at)
        if index not in indexes:
            parts.append(body[at : at + 4 + size])
        at += 4 + size
        index += 1
    parts[0] = _SIZE.pack(len(parts) - 1)
    return b"".join(parts)
