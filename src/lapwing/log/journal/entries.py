"""The entries of a journal, in bytes. A record (see `records`) holds a list of them.

    kind u8 | length of the channel's name u8 | name | fields, little-endian
     0 version   length u32, JSON {"version": n, "kinds": {number: name}}; the first entry of a file
     1 progress  cursor i64, runs u32, attempts u32; then runs (start, stop) and attempts (sequence, n), all i64
     2 deferred  added u32, removed u32; then added (sequence, due ns, attempts) and removed (sequence), all i64
     3 fanned    sequence i64 (no channel)
     4 forget    (nothing)
     5 holder    length of its name u16, name, seen ns i64, active ns i64, runs u32;
                 then runs (start, stop, delivered ns, deliveries), all i64
     6 unheld    length of the holder's name u16, name
     7 failed    added u32, removed u32; then added (sequence, count, first ns, kind) and removed (sequence), all i64
     8 emptied   runs u32; then runs (start, stop), all i64 (no channel)
     9 deleted   runs u32; then runs (start, stop), all i64 (no channel)
    10 trimmed   sequence i64 (no channel)
    11 note      length of its key u16, key, length u32, bytes; empty: there is none any more

`progress`, `holder`, `fanned`, `emptied`, `trimmed` and `note` replace what an earlier entry of the kind set;
`deferred`, `failed` and `deleted` add to it. A file without a version is of version 1, which had the kinds 1 to 4.
"""

import json
import struct
import sys
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from lapwing.log.journal.state import FailureState, HeldRun, HolderState, JournalFold, Run

VERSION: Final = 2
KINDS: Final = (
    "version", "progress", "deferred", "fanned", "forget",
    "holder", "unheld", "failed", "emptied", "deleted", "trimmed",
    "note",
)  # fmt: skip
_NUMBERS: Final = {name: number for number, name in enumerate(KINDS)}

DEFERRED_BYTES: Final = 24  # of one deferred message
FAILED_BYTES: Final = 32  # of one message that failed
RUN_BYTES: Final = 16

_ENTRY: Final = struct.Struct("<BB")
_LENGTH: Final = struct.Struct("<I")
_NAME: Final = struct.Struct("<H")
_PROGRESS: Final = struct.Struct("<qII")
_CHANGES: Final = struct.Struct("<II")
_HOLDER: Final = struct.Struct("<qqI")
_SEQUENCE: Final = struct.Struct("<q")


class NotUnderstood(Exception):
    """An entry that another version of lapwing wrote."""


# --- writing ----------------------------------------------------------------------------------------------------


def version() -> bytes:
    """Return the entry that a file begins with."""
    text = json.dumps({"version": VERSION, "kinds": dict(enumerate(KINDS))}, separators=(",", ":")).encode()
    return _entry("version") + _LENGTH.pack(len(text)) + text


def progress(channel: str, cursor: int, runs: Sequence[Run], attempts: Mapping[int, int]) -> bytes:
    """Return the entry of a channel's cursor and what is unfinished below it."""
    values = array("q", chain.from_iterable(runs))
    values.extend(chain.from_iterable(attempts.items()))
    return _entry("progress", channel) + _PROGRESS.pack(cursor, len(runs), len(attempts)) + _packed(values)


def deferred(channel: str, added: Iterable[tuple[int, int, int]], removed: Iterable[int]) -> tuple[bytes, int]:
    """Return the entry of changes to what is deferred, and by how many messages that grows."""
    return _changes("deferred", channel, array("q", chain.from_iterable(added)), removed, 3)


def forget(channel: str) -> bytes:
    """Return the entry of a channel that is deleted."""
    return _entry("forget", channel)


def holder(channel: str, name: str, state: HolderState) -> bytes:
    """Return the entry of a named holder."""
    head = _HOLDER.pack(state.seen, state.active, len(state.runs))
    return _entry("holder", channel) + _long_name(name) + head + _packed(array("q", chain.from_iterable(state.runs)))


def unheld(channel: str, name: str) -> bytes:
    """Return the entry of a holder that is deleted."""
    return _entry("unheld", channel) + _long_name(name)


def failed(
    channel: str, added: Collection[tuple[int, FailureState]], removed: Iterable[int]
) -> tuple[bytes, int]:
    """Return the entry of changes to the failures, and by how many messages they grow."""
    sequences, failures = zip(*added, strict=True) if added else ((), ())
    values = array("q", bytes(FAILED_BYTES * len(sequences)))
    for place, column in enumerate((sequences, *zip(*failures, strict=True))):  # by columns: there may be very many
        values[place::4] = array("q", column)
    return _changes("failed", channel, values, removed, 4)


def runs(kind: str, found: Sequence[Run]) -> bytes:
    """Return the entry of runs of messages: of the kind `emptied` or `deleted`."""
    return _entry(kind) + _LENGTH.pack(len(found)) + _packed(array("q", chain.from_iterable(found)))


def place(kind: str, sequence: int) -> bytes:
    """Return the entry of a place in the topic: of the kind `fanned` or `trimmed`."""
    return _entry(kind) + _SEQUENCE.pack(sequence)


def note(channel: str, key: str, value: bytes) -> bytes:
    """Return the entry of something that the broker keeps of a channel under a key."""
    return _entry("note", channel) + _long_name(key) + _LENGTH.pack(len(value)) + value


def _entry(kind: str, channel: str = "") -> bytes:
    name = channel.encode()
    return _ENTRY.pack(_NUMBERS[kind], len(name)) + name


def _long_name(name: str) -> bytes:
    text = name.encode("utf-8", "surrogateescape")
    return _NAME.pack(len(text)) + text


def _changes(
    kind: str, channel: str, values: "array[int]", removed: Iterable[int], width: int
) -> tuple[bytes, int]:
    count = len(values) // width
    values.extend(removed)
    gone = len(values) - width * count
    return _entry(kind, channel) + _CHANGES.pack(count, gone) + _packed(values), count - gone


def _packed(values: "array[int]") -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


# --- reading ----------------------------------------------------------------------------------------------------


class _Fields:
    """The bytes of a record, taken one after the other. Raises `NotUnderstood` where they are too few."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        if self.at + form.size > len(self.data):
            raise NotUnderstood("it ends too early")
        values = form.unpack_from(self.data, self.at)
        self.at += form.size
        return values

    def bytes(self, length: int) -> bytes:
        if self.at + length > len(self.data):
            raise NotUnderstood("it ends too early")
        self.at += length
        return self.data[self.at - length : self.at]

    def numbers(self, count: int) -> "array[int]":
        values = array("q")
        values.frombytes(self.bytes(8 * count))
        if sys.byteorder == "big":
            values.byteswap()
        return values

    def name(self) -> str:
        return self.bytes(self.take(_NAME)[0]).decode("utf-8", "surrogateescape")

    def runs(self) -> list[Run]:
        return _pairs(self.numbers(2 * self.take(_LENGTH)[0]))

    def rows(self, count: int, width: int) -> list[tuple[int, ...]]:
        values = self.numbers(count * width)
        return list(zip(*[values[place::width] for place in range(width)], strict=True))


def _pairs(values: "array[int]") -> list[Run]:
    return list(zip(values[::2], values[1::2], strict=True))


def apply(payload: bytes, folded: JournalFold) -> None:
    """Fold the entries of one record into what is known. Raises `NotUnderstood` for what another version wrote."""
    fields = _Fields(payload)
    while fields.at < len(payload):
        number, length = fields.take(_ENTRY)
        kind = KINDS[number] if number < len(KINDS) else ""
        if not kind:
            name = folded.kinds.get(number)
            raise NotUnderstood(f"entry of the unknown kind {number}" + (f" ({name})" if name else ""))
        try:
            _apply(kind, fields.bytes(length).decode(), fields, folded)
        except (NotUnderstood, ValueError) as error:
            raise NotUnderstood(f"entry of kind {kind}: {error}") from error


def _apply(kind: str, name: str, fields: _Fields, folded: JournalFold) -> None:
    match kind:
        case "version":
            _apply_version(fields, folded)
        case "progress":
            cursor, runs, attempts = fields.take(_PROGRESS)
            unfinished = _pairs(fields.numbers(2 * runs))
            folded.channel(name).progress(cursor, unfinished, fields.numbers(2 * attempts))
        case "deferred":
            added, removed = fields.take(_CHANGES)
            values = fields.numbers(3 * added)
            rows = zip(values[::3], values[1::3], values[2::3], strict=True)
            folded.channel(name).defer(rows, fields.numbers(removed))
        case "fanned":
            (folded.fanned_out,) = fields.take(_SEQUENCE)
        case "forget":
            folded.channels.pop(name, None)
        case "holder":
            holder_name = fields.name()
            seen, active, count = fields.take(_HOLDER)
            held = [HeldRun(*row) for row in fields.rows(count, 4)]
            folded.channel(name).hold(holder_name, HolderState(seen, active, held))
        case "unheld":
            folded.channel(name).holders.pop(fields.name(), None)
        case "failed":
            added, removed = fields.take(_CHANGES)
            failures = folded.channel(name).failures
            failures.update((row[0], FailureState(*row[1:])) for row in fields.rows(added, 4))
            for sequence in fields.numbers(removed):
                failures.pop(sequence, None)
        case "emptied":
            folded.emptied = fields.runs()
        case "deleted":
            folded.deleted += fields.runs()
        case "trimmed":
            (folded.trimmed,) = fields.take(_SEQUENCE)
        case "note":
            key = fields.name()
            notes = folded.channel(name).notes if name else folded.notes
            notes[key] = fields.bytes(fields.take(_LENGTH)[0])


def _apply_version(fields: _Fields, folded: JournalFold) -> None:
    try:
        known = json.loads(fields.bytes(fields.take(_LENGTH)[0]))
        found = int(known["version"])
        folded.kinds = {int(number): str(name) for number, name in known["kinds"].items()}
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NotUnderstood(str(error)) from error
    if found > VERSION:
        raise NotUnderstood(f"the file is of version {found}, up to {VERSION} is known")
    folded.version = found
