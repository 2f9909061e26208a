"""What few messages have beside their body: a deferral, and headers; kept beside the segment, checksummed.

One record (see `records`) for all of one write:
    last sequence u64 | JSON [[sequence, defer ns, {headers}], ...]
"""

import contextlib
import json
import struct
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lapwing.log import records
from lapwing.log.disk import File

_LAST: Final = struct.Struct("<Q")
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
    text = json.dumps(rows, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return records.encode(_LAST.pack(extras[-1].sequence) + text)


def decode(payload: bytes) -> list[Extra]:
    """The extras of one record; raises `ValueError` when it is of another form."""
    rows = json.loads(payload[_LAST.size :].decode("utf-8", "surrogatepass"))
    try:
        return [Extra(int(sequence), int(defer), dict(headers)) for sequence, defer, headers in rows]
    except TypeError as error:
        raise ValueError(f"not understood: {error}") from error


def _last_sequence(payload: bytes) -> int:
    return int.from_bytes(payload[: _LAST.size], "little")


class ExtrasFile:
    """The extras of one segment, found by sequence.

    While nobody asks, nothing is read. Places are remembered as they are passed (one every 64 KiB), so that going on
    is cheap and memory stays small whatever the file holds.
    """

    __slots__ = ("_lasts", "_places", "file", "size")

    def __init__(self, file: File) -> None:
        self.file = file
        self.size = 0  # bytes known to be written
        self._lasts: list[int] = [-1]  # all sequences before the place of the same number are at most this
        self._places: list[int] = [0]

    def read(self, start: int, stop: int, on_damage: OnDamage) -> list[Extra]:
        """The extras of [start, stop), in order. Damage is told of, and skipped."""
        found: list[Extra] = []
        if not self.size:
            return found
        begin = self._places[bisect_right(self._lasts, start - 1) - 1]
        for at, payload, end in records.stream(self.file, begin, self.size):
            if payload is None:
                on_damage(self.file.path, at, end - at)
                continue
            last = _last_sequence(payload)
            if end - self._places[-1] >= _STEP:
                self._places.append(end)
                self._lasts.append(last)
            if last >= start:
                try:
                    found += [extra for extra in decode(payload) if start <= extra.sequence < stop]
                except ValueError:
                    on_damage(self.file.path, at, end - at)
                    continue
                if last >= stop - 1:
                    break
        return found

    def cut(self, end: int) -> int:
        """Cut off a torn tail, and what is said of sequences from `end` on, which no message has; how many bytes."""
        size = self.file.size()
        good = 0
        kept: list[Extra] = []
        if size:
            for _, payload, after in records.stream(self.file, 0, size):
                if payload is not None:
                    if _last_sequence(payload) >= end:
                        # of a write that was torn: its first messages may be there, and need what they carry
                        with contextlib.suppress(ValueError):  # else it is of another file, and needed by nobody
                            kept = [extra for extra in decode(payload) if extra.sequence < end]
                        break
                    good = after
            if good < size:
                self.file.truncate(good)
            if kept:
                record = encode(kept)
                self.file.write(record, good)
                good += len(record)
        self.size = good
        return size - good
