"""What few messages have beside their body: a deferral, and headers; kept beside the segment, checksummed.

One record (see `records`) for all of one write:
    last sequence u64 | JSON [[sequence, defer ns, {headers}], ...]
"""

import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lapwing.log import records
from lapwing.log.disk import File

_LAST: Final = struct.Struct("<Q")
_BLOCK: Final = 256 << 10
_STEP: Final = 64 << 10  # bytes between two places remembered

OnDamage = Callable[[str, int, int], None]  # path, offset, length


@dataclass(slots=True)
class Extra:
    """What one message carries beside its body."""

    sequence: int
    defer: int = 0  # ns
    headers: dict[str, str] = field(default_factory=dict)


def encode(extras: Sequence[Extra]) -> bytes:
    """One record for extras in order of their sequence."""
    rows = [[extra.sequence, extra.defer, extra.headers] for extra in extras]
    text = json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode()
    return records.encode(_LAST.pack(extras[-1].sequence) + text)


def decode(payload: bytes) -> list[Extra]:
    """The extras of one record."""
    return [Extra(sequence, defer, headers) for sequence, defer, headers in json.loads(payload[_LAST.size :])]


def last_sequence(payload: bytes) -> int:
    """The last sequence a record speaks of, without decoding it."""
    last: int = _LAST.unpack_from(payload)[0]
    return last


class ExtrasFile:
    """The extras of one segment, found by sequence.

    While nobody asks, nothing is read; who asks in order never reads the same bytes twice. Some places are remembered
    (one every 64 KiB), so that memory stays small whatever the file holds.
    """

    __slots__ = ("_lasts", "_places", "_scanned", "file", "size")

    def __init__(self, file: File) -> None:
        self.file = file
        self.size = 0  # bytes known to be good
        self._lasts: list[int] = [-1]  # before the record at the same place of `_places` all sequences are <= this
        self._places: list[int] = [0]
        self._scanned = 0

    def read(self, start: int, stop: int, on_damage: OnDamage) -> list[Extra]:
        """The extras of [start, stop), in order. Damage is told of, and skipped."""
        if not self.size:
            return []
        found: list[Extra] = []
        at = self._places[bisect_right(self._lasts, start - 1) - 1]
        while at < self.size:
            data = self.file.read(min(_BLOCK, self.size - at), at)
            whole = at + len(data) >= self.size
            used = 0
            for begin, payload, end in records.scan(data):
                if payload is None and end == len(data) and not whole:
                    break  # a record that goes on beyond this block
                used = end
                if payload is None:
                    on_damage(self.file.path, at + begin, end - begin)
                    continue
                last = last_sequence(payload)
                self._remember(at + end, last)
                if last < start:
                    continue
                rows = decode(payload)
                if rows and rows[0].sequence >= stop:
                    return found
                found.extend(extra for extra in rows if start <= extra.sequence < stop)
                if last >= stop - 1:
                    return found
            if not used and not whole:  # one record longer than a block
                used = self._long_record(at, data, on_damage, start, stop, found)
            at += used if used else len(data)
        return found

    def _long_record(
        self, at: int, data: bytes, on_damage: OnDamage, start: int, stop: int, found: list[Extra]
    ) -> int:
        length = records.HEAD + int.from_bytes(data[4:8], "little")
        data = self.file.read(min(length, self.size - at), at)
        payload = records.payload_at(data, 0)
        if payload is None:
            following = data.find(records.MAGIC, 1)
            skipped = following if following > 0 else len(data)
            on_damage(self.file.path, at, skipped)
            return skipped
        self._remember(at + len(data), last_sequence(payload))
        found.extend(extra for extra in decode(payload) if start <= extra.sequence < stop)
        return len(data)

    def _remember(self, place: int, last: int) -> None:
        if place > self._scanned:
            self._scanned = place
            if place - self._places[-1] >= _STEP:
                self._places.append(place)
                self._lasts.append(last)

    def cut(self, end: int) -> int:
        """Forget a torn tail, and records of sequences at or after `end`, which no message has; the good size."""
        data = self.file.read(self.file.size(), 0) if self.file.size() else b""
        good = 0
        for _begin, payload, after in records.scan(data):
            if payload is None:
                if after == len(data):
                    break
            elif last_sequence(payload) >= end:
                break
            good = after
        if good < len(data):
            self.file.truncate(good)
        self.size = good
        return good
