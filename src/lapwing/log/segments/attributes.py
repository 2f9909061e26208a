"""The deferral and the headers of messages that have some; kept beside the segment, checksummed.

One record (see `records`) for all of one write:
    last sequence u64 | JSON [[sequence, defer ns, {headers}], ...]

The rows of that JSON stay text wherever nobody needs a single header: `Rows` is a run of them.
"""

import contextlib
import json
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Final

from lapwing import kernel
from lapwing.log import records
from lapwing.log.disk import File
from lapwing.records import dataclass

_LAST: Final = struct.Struct("<Q")
_STEP: Final = 64 << 10  # bytes between two places remembered
_AHEAD: Final = 128 << 10  # bytes of rows that are read at a time: most readers ask for the next ones soon

RowText = bytes  # `[sequence,defer ns,{headers}],...`
OnDamage = Callable[[str, int, int], None]  # path, offset, length


@dataclass(slots=True)
class Extra:
    """The deferral and the headers of one message."""

    sequence: int
    defer: int = 0  # ns
    headers: dict[str, str] = field(default_factory=dict)


class Rows:
    """The extras of messages among [first, last], as text: `[sequence,defer ns,{headers}],...`."""

    __slots__ = ("_places", "_sequences", "first", "last", "text")

    def __init__(self, first: int, last: int, text: bytes) -> None:
        self.first = first
        self.last = last
        self.text = text
        self._sequences: Sequence[int] = ()
        self._places: Sequence[int] = ()

    @classmethod
    def of(cls, extras: Sequence[Extra]) -> "Rows":
        """Return extras, in order of their sequence, as text."""
        text = b",".join([b"[%d,%d,%b]" % (each.sequence, each.defer, encode_headers(each.headers)) for each in extras])
        return cls(extras[0].sequence, extras[-1].sequence, text)

    def between(self, start: int, stop: int) -> bytes:
        """Return the rows of [start, stop). Raises `ValueError` when the text is damaged."""
        if start <= self.first and self.last < stop:
            return self.text
        self.check()
        begin, end = bisect_left(self._sequences, start), bisect_left(self._sequences, stop)
        return self.text[self._places[begin] : max(self._places[end] - 1, 0)] if begin < end else b""

    def check(self) -> None:
        """Raise `ValueError` when the text is damaged."""
        if not self._places:
            self._sequences, self._places = kernel.row_places(self.text)

    def extras(self, start: int, stop: int) -> list[Extra]:
        """Return the extras of [start, stop). Raises `ValueError` when the text is damaged."""
        return extras_of(self.text, start, stop)


def extras_of(text: RowText, start: int, stop: int) -> list[Extra]:
    """Return the extras of [start, stop) among rows. Raises `ValueError` when the text is damaged."""
    found = kernel.find_rows(text, start, stop) if text else ()
    return [Extra(sequence, defer, decode_headers(headers)) for sequence, defer, headers in found]


_encoded: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def encode_headers(headers: dict[str, str]) -> bytes:
    """Return headers as JSON; what UTF-8 cannot hold is escaped."""
    try:
        return _encoded(headers).encode()
    except UnicodeEncodeError:
        return json.dumps(headers, separators=(",", ":")).encode()


def decode_headers(text: bytes) -> dict[str, str]:
    """Return headers from JSON; raises `ValueError` when it is none."""
    found = json.loads(text.decode("utf-8", "surrogatepass"))
    if not isinstance(found, dict):
        raise ValueError(f"headers that are no object: {text[:40]!r}")
    return found


def encode(rows: Sequence[Rows]) -> bytes:
    """Return one record of rows in order of their sequence."""
    text = rows[0].text if len(rows) == 1 else b",".join([each.text for each in rows])
    return records.encode(b"%b[%b]" % (_LAST.pack(rows[-1].last), text))


def decode(payload: bytes) -> Rows:
    """Return the rows of one record; raises `ValueError` when it is of another form."""
    if len(payload) < _LAST.size + 2 or payload[_LAST.size] != 0x5B or payload[-1] != 0x5D:
        raise ValueError("no list of rows")
    last = _last_sequence(payload)
    return Rows(-1, last, payload[_LAST.size + 1 : -1])


def _last_sequence(payload: bytes) -> int:
    return int.from_bytes(payload[: _LAST.size], "little")


class RecentRows:
    """The newest rows of a log, in memory, found by sequence: all from `start` on."""

    __slots__ = ("_lasts", "_runs", "bytes", "start")

    def __init__(self, start: int) -> None:
        self.start = start
        self.bytes = 0
        self._runs: list[Rows] = []
        self._lasts: list[int] = []

    def add(self, runs: Sequence[Rows]) -> None:
        """Take rows of later messages than all before."""
        for run in runs:
            self._runs.append(run)
            self._lasts.append(run.last)
            self.bytes += len(run.text)

    def text(self, start: int, stop: int) -> bytes:
        """Return the rows of [start, stop)."""
        runs, at, texts = self._runs, bisect_left(self._lasts, start), []
        while at < len(runs) and runs[at].first < stop:
            texts.append(runs[at].between(start, stop))
            at += 1
        return texts[0] if len(texts) == 1 else b",".join([text for text in texts if text])

    def shrink(self, limit: int) -> None:
        """Drop the oldest rows while there are more bytes than `limit`."""
        gone = 0
        while self.bytes > limit:
            self.bytes -= len(self._runs[gone].text)
            self.start = self._lasts[gone] + 1
            gone += 1
        del self._runs[:gone], self._lasts[:gone]

    def drop_below(self, sequence: int) -> None:
        """Drop rows of messages below `sequence`, as far as whole runs are below it."""
        gone = bisect_left(self._lasts, sequence)
        self.bytes -= sum(len(run.text) for run in self._runs[:gone])
        del self._runs[:gone], self._lasts[:gone]
        self.start = max(self.start, sequence)


class ExtrasFile:
    """The extras of one segment, found by sequence.

    Nothing is read until somebody asks. Places are remembered as they are passed (one every 64 KiB), so that reading on
    is cheap and memory stays small whatever the file holds.
    """

    __slots__ = ("_lasts", "_places", "file", "size")

    def __init__(self, file: File) -> None:
        self.file = file
        self.size = 0  # bytes known to be written
        self._lasts: list[int] = [-1]  # all sequences before the place of the same number are at most this
        self._places: list[int] = [0]

    def write(self, rows: Sequence[Rows]) -> int:
        """Write rows behind those that are there; return the end of the file then, which is not its `size` yet."""
        record = encode(rows)
        self.file.write(record, self.size)
        return self.size + len(record)

    def read(self, start: int, stop: int, on_damage: OnDamage) -> list[Extra]:
        """Return the extras of [start, stop), in order. Damage is reported, and skipped."""
        found: list[Extra] = []
        for at, end, rows in self._records(start, stop):
            try:
                if rows is None:
                    raise ValueError("a damaged record")
                found += rows.extras(start, stop)
            except ValueError:
                on_damage(self.file.path, at, end - at)
        return found

    def rows_from(self, start: int, stop: int, on_damage: OnDamage) -> Rows:
        """Return the rows from `start` on, a block of the file. Without more in the file, they end before `stop`.

        The rows know their last sequence, which is at least `start`. Damage is skipped.
        """
        found: list[tuple[int, int, Rows]] = []
        begun, last = -1, stop - 1
        for at, after, rows in self._records(start, 1 << 62, _AHEAD):
            if rows is None:
                on_damage(self.file.path, at, after - at)
            elif rows.text:
                found.append((at, after, rows))
            begun = at if begun < 0 else begun
            if rows is not None and 2 * after - at - begun > _AHEAD:  # another record like it would reach beyond
                last = rows.last
                self._remember(after, last)
                break
        together = Rows(-1, last, b",".join([rows.text for _, _, rows in found]))
        try:
            together.check()
        except ValueError:
            sound = [rows.text for at, after, rows in found if self._is_sound(at, after, rows, on_damage)]
            together = Rows(-1, last, b",".join(sound))
        return together

    def _is_sound(self, at: int, after: int, rows: Rows, on_damage: OnDamage) -> bool:
        try:
            rows.check()
        except ValueError:
            on_damage(self.file.path, at, after - at)
            return False
        return True

    def _records(self, start: int, stop: int, block: int = records.BLOCK) -> Iterator[tuple[int, int, Rows | None]]:
        """Yield where each record with rows of [start, stop) begins and ends, and the rows; None if it is damaged."""
        if not self.size:
            return
        begin = self._places[bisect_right(self._lasts, start - 1) - 1]
        for at, payload, end in records.stream(self.file, begin, self.size, block):
            if payload is None:
                yield at, end, None
                continue
            last = _last_sequence(payload)
            if end - self._places[-1] >= _STEP:
                self._remember(end, last)
            if last >= start:
                try:
                    yield at, end, decode(payload)
                except ValueError:
                    yield at, end, None
                if last >= stop - 1:
                    break

    def _remember(self, place: int, last: int) -> None:
        """Remember a place behind the row of `last`, if it is beyond those that are known."""
        if place > self._places[-1]:
            self._places.append(place)
            self._lasts.append(last)

    def cut(self, end: int) -> int:
        """Cut off a torn tail, and the extras of sequences from `end` on, which no message has; return the bytes."""
        size = self.file.size()
        good = 0
        kept: list[Extra] = []
        if size:
            for _, payload, after in records.stream(self.file, 0, size):
                if payload is not None:
                    if _last_sequence(payload) >= end:
                        # of a write that was torn: its first messages may be there, and need what they carry
                        with contextlib.suppress(ValueError):  # else it is of another file, and needed by nobody
                            kept = decode(payload).extras(0, end)
                        break
                    good = after
            if good < size:
                self.file.truncate(good)
            if kept:
                record = encode([Rows.of(kept)])
                self.file.write(record, good)
                good += len(record)
        self.size = good
        return size - good
