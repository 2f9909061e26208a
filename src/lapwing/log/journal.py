"""What each channel has finished, in batches: a file of small records that is folded to a state when it is read.

A record's payload is a list of entries, each: kind u8 | length of channel name u8 | name | fields, little-endian
    progress  cursor i64, runs u32, attempts u32; then runs (from, to) and attempts (sequence, n), all i64
    deferred  added u32, removed u32; then added (sequence, due ns, attempts) and removed, all i64
    fanned    sequence i64
    forget    (nothing)
"""

import os
import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lapwing.errors import LogError
from lapwing.log import records
from lapwing.log.disk import File, OpenFiles
from lapwing.log.records import RecordFile

PROGRESS: Final = 1
DEFERRED: Final = 2
FANNED: Final = 3
FORGET: Final = 4

_ENTRY: Final = struct.Struct("<BB")
_PROGRESS: Final = struct.Struct("<qII")
_DEFERRED: Final = struct.Struct("<II")
_SEQUENCE: Final = struct.Struct("<q")

_COMPACT_BYTES: Final = 1 << 20
_COMPACT_RATIO: Final = 4
_MANY: Final = 100_000  # messages in doubt that are not worth telling apart


@dataclass(slots=True)
class ChannelState:
    """Where a channel stood."""

    cursor: int = 0
    unfinished: list[tuple[int, int]] = field(default_factory=list)  # runs [a, b) below the cursor, not deferred
    attempts: dict[int, int] = field(default_factory=dict)  # deliveries so far, of what is unfinished or deferred
    deferred: dict[int, int] = field(default_factory=dict)  # sequence -> due, ns


@dataclass(slots=True)
class JournalState:
    """Where a topic and its channels stood."""

    fanned_out: int | None = None
    channels: dict[str, ChannelState] = field(default_factory=dict)


@dataclass(slots=True)
class _Told:
    """One channel while the file is folded: progress and deferrals are said apart, and joined at the end.

    Of bytes that are lost nobody knows whether they said that a message began to wait, so what the channel had before
    them and does not have behind them is in doubt: to be delivered again, unless something is said of it later.
    """

    cursor: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)
    deferred: dict[int, tuple[int, int]] = field(default_factory=dict)
    broken: bool = False  # bytes are lost since its progress was last told
    doubtful: set[int] = field(default_factory=set)
    again: int | None = None  # from here on all is in doubt

    def doubt(self, cursor: int) -> None:
        """Take note that its cursor came to `cursor`, and that what was said on the way is lost."""
        self.broken = False
        if cursor - self.cursor > _MANY:
            self.again = self.cursor if self.again is None else min(self.again, self.cursor)
        else:
            self.doubtful.update(*[range(*run) for run in self.runs], range(self.cursor, cursor))

    def settle(self) -> None:
        """Let what is still in doubt be unfinished."""
        if self.again is not None:
            self.cursor, self.runs = min(self.again, *self.doubtful, *[start for start, _ in self.runs]), []
        else:
            self.runs += [(sequence, sequence + 1) for sequence in sorted(self.doubtful - self.deferred.keys())]


@dataclass(slots=True)
class _Folded:
    """What the records up to some place amount to."""

    fanned: int | None = None
    channels: dict[str, _Told] = field(default_factory=dict)
    floor: int | None = None  # where channels may have begun that are first heard of behind bytes that are lost

    def lose(self, *, all_before: bool) -> None:
        """Take note that bytes are lost here; with `all_before`, those that came first of all."""
        self.floor = 0 if all_before or self.fanned is None else min(self.fanned, self.floor or self.fanned)
        for one in self.channels.values():
            one.broken = True

    def of(self, name: str) -> _Told:
        """What is known of a channel."""
        one = self.channels.get(name)
        if one is None:
            one = self.channels[name] = _Told(self.floor or 0, broken=self.floor is not None)
        return one


class Journal:
    """The journal of one topic. `notes` says what `load` had to skip."""

    def __init__(
        self, directory: str | os.PathLike[str], *, files: OpenFiles | None = None, sync: bool = False
    ) -> None:
        self.path = os.path.join(os.fspath(directory), "journal")
        self.notes: list[str] = []
        self._file = RecordFile(File(self.path, OpenFiles() if files is None else files))
        self._sync = sync  # at compaction; a lost append only means that something is delivered again
        self._known = False  # whether the file was looked at
        self._damaged = False  # whether more than a torn write at its end was found in it
        self._progress: dict[str, bytes] = {}
        self._entries: list[bytes] = []
        self._fanned: int | None = None
        self._live: dict[str, int] = {}  # bytes that a rewrite would need, by channel: progress
        self._live_deferred: dict[str, int] = {}

    def load(self) -> JournalState:
        """Everything the journal knows. A damaged record is skipped, a torn one at the end cut off.

        Behind a damaged one a channel has again whatever may have been said to wait in it. The file is then written
        anew, and a copy of it kept. Raises `LogError` when the disk does not give the file; it is not touched then.
        """
        folded = self._fold()
        if self._damaged:
            self._set_aside()
            self._rewrite(folded)
        state = JournalState(folded.fanned)
        for name, channel in folded.channels.items():
            attempts = channel.attempts
            attempts.update((sequence, tries) for sequence, (_, tries) in channel.deferred.items() if tries)
            due = {sequence: due for sequence, (due, _) in channel.deferred.items()}
            state.channels[name] = ChannelState(channel.cursor, channel.runs, attempts, due)
        return state

    # --- saying ------------------------------------------------------------------------------------------------

    def progress(
        self, channel: str, cursor: int, unfinished: Sequence[tuple[int, int]], attempts: dict[int, int]
    ) -> None:
        """Say where a channel stands; replaces what was said of that before."""
        self._progress[channel] = _progress_entry(channel, cursor, unfinished, attempts)

    def deferred(self, channel: str, added: Iterable[tuple[int, int, int]], removed: Iterable[int]) -> None:
        """Say what began to wait, as (sequence, due, attempts), and what waits no more."""
        entry, grown = _deferred_entry(channel, added, removed)
        self._entries.append(entry)
        self._live_deferred[channel] = max(0, self._live_deferred.get(channel, 0) + grown)

    def fanned_out(self, sequence: int) -> None:
        """Say up to where messages were handed to channels."""
        self._fanned = sequence

    def forget(self, channel: str) -> None:
        """Say that a channel is no more, or empty of all that was said."""
        self._progress.pop(channel, None)
        self._entries.append(_entry(FORGET, channel))
        self._live.pop(channel, None)
        self._live_deferred.pop(channel, None)

    def flush(self) -> None:
        """Write all that was said since the last time, as one record.

        Raises `WriteFailed`; what was said is then still to be written by the next flush.
        """
        if not self._progress and not self._entries and self._fanned is None:
            return
        if not self._known:
            self._fold()
        parts = list(self._entries)
        parts += self._progress.values()
        if self._fanned is not None:
            parts.append(_entry(FANNED, "") + _SEQUENCE.pack(self._fanned))
        self._file.append(records.encode(b"".join(parts)), sync=False)
        for channel, entry in self._progress.items():
            self._live[channel] = len(entry)
        self._progress.clear()
        self._entries.clear()
        self._fanned = None
        if self._file.size > max(_COMPACT_BYTES, _COMPACT_RATIO * self._live_bytes()):
            self.compact()

    def close(self) -> None:
        """Write what is unwritten and give the descriptor back."""
        try:
            self.flush()
        finally:
            self._file.file.close()

    def abandon(self) -> None:
        """Give the descriptor back; what is unwritten is not wanted any more."""
        self._file.file.close()

    # --- the file ----------------------------------------------------------------------------------------------

    def _live_bytes(self) -> int:
        return sum(self._live.values()) + 24 * sum(self._live_deferred.values())

    def _fold(self) -> _Folded:
        folded = _Folded()
        self._damaged = False
        for begin, payload, end in self._file.read():
            if payload is not None:
                try:
                    _apply(payload, folded)
                    continue
                except (struct.error, ValueError) as error:
                    self.notes.append(f"{self.path}: offset {begin}: of another version? not understood: {error}")
                    self._damaged = True
            else:
                self.notes.append(f"{self.path}: offset {begin}: skipped {end - begin} damaged bytes")
                self._damaged |= not begin or end < self._file.file.size()
            folded.lose(all_before=not begin)
        self._known = True
        told = folded.channels
        for one in told.values():
            one.settle()
        self._live = {name: 64 + 16 * (len(one.runs) + len(one.attempts)) for name, one in told.items()}
        self._live_deferred = {name: len(one.deferred) for name, one in told.items()}
        return folded

    def _set_aside(self) -> None:
        """Keep a copy of a file that is damaged, as it will be written over."""
        disk, copy = self._file.file.table.disk, self.path + ".damaged"
        try:
            disk.replace(copy, [disk.read(self.path)], sync=False)
            self.notes.append(f"{self.path}: damaged; a copy of it is kept as {copy}")
        except OSError as error:
            self.notes.append(f"{self.path}: damaged, and could not be copied: {error}")

    def compact(self) -> None:
        """Write the state alone to a new file, which takes the old one's place; on error the old one stays."""
        try:
            folded = self._fold()
        except LogError as error:
            self.notes.append(f"{self.path}: could not be compacted: {error}")
            return
        self._rewrite(folded)

    def _rewrite(self, folded: _Folded) -> None:
        parts: list[bytes] = []
        for name, one in folded.channels.items():
            parts.append(_progress_entry(name, one.cursor, one.runs, one.attempts))
            if one.deferred:
                added = [(sequence, due, tries) for sequence, (due, tries) in one.deferred.items()]
                parts.append(_deferred_entry(name, added, ())[0])
        if folded.fanned is not None:
            parts.append(_entry(FANNED, "") + _SEQUENCE.pack(folded.fanned))
        try:
            self._file.replace([records.encode(b"".join(parts))] if parts else [], sync=self._sync)
        except OSError as error:
            self.notes.append(f"{self.path}: could not be compacted: {error}")


def _entry(kind: int, channel: str) -> bytes:
    name = channel.encode()
    return _ENTRY.pack(kind, len(name)) + name


def _numbers(values: "array[int]") -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _progress_entry(channel: str, cursor: int, runs: Sequence[tuple[int, int]], attempts: dict[int, int]) -> bytes:
    values = array("q", [number for run in runs for number in run])
    values.extend(number for pair in attempts.items() for number in pair)
    return _entry(PROGRESS, channel) + _PROGRESS.pack(cursor, len(runs), len(attempts)) + _numbers(values)


def _deferred_entry(
    channel: str, added: Iterable[tuple[int, int, int]], removed: Iterable[int]
) -> tuple[bytes, int]:
    values = array("q", [number for row in added for number in row])
    count = len(values) // 3
    values.extend(removed)
    gone = len(values) - 3 * count
    return _entry(DEFERRED, channel) + _DEFERRED.pack(count, gone) + _numbers(values), count - gone


def _apply(payload: bytes, folded: _Folded) -> None:
    """Fold one record into what is known; raises `ValueError` or `struct.error` when it is of another form."""
    at = 0
    while at < len(payload):
        kind, length = _ENTRY.unpack_from(payload, at)
        at += _ENTRY.size
        name = payload[at : at + length].decode()
        at += length
        if kind == FANNED:
            (folded.fanned,) = _SEQUENCE.unpack_from(payload, at)
            at += _SEQUENCE.size
        elif kind == FORGET:
            folded.channels.pop(name, None)
        elif kind == PROGRESS:
            cursor, runs, attempts = _PROGRESS.unpack_from(payload, at)
            at += _PROGRESS.size
            values = _read_numbers(payload, at, 2 * runs + 2 * attempts)
            at += 8 * len(values)
            one = folded.of(name)
            if one.broken:
                one.doubt(cursor)
            one.cursor = cursor
            one.runs = list(zip(values[: 2 * runs : 2], values[1 : 2 * runs : 2], strict=True))
            one.attempts = dict(zip(values[2 * runs :: 2], values[2 * runs + 1 :: 2], strict=True))
            if one.doubtful:
                one.doubtful.difference_update(*[range(*run) for run in one.runs])
        elif kind == DEFERRED:
            added, removed = _DEFERRED.unpack_from(payload, at)
            at += _DEFERRED.size
            values = _read_numbers(payload, at, 3 * added + removed)
            at += 8 * len(values)
            one = folded.of(name)
            for row in range(0, 3 * added, 3):
                one.deferred[values[row]] = (values[row + 1], values[row + 2])
            for sequence in values[3 * added :]:
                one.deferred.pop(sequence, None)
            if one.doubtful:
                one.doubtful.difference_update(values[0 : 3 * added : 3], values[3 * added :])
        else:
            raise ValueError(f"an entry of kind {kind}")


def _read_numbers(payload: bytes, at: int, count: int) -> "array[int]":
    if len(payload) < at + 8 * count:
        raise ValueError(f"{count} numbers that are not there")
    values = array("q")
    values.frombytes(payload[at : at + 8 * count])
    if sys.byteorder == "big":
        values.byteswap()
    return values
