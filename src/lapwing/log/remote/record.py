"""The records of a remote log, which consist of parts, and their form as bytes.

    record = LWR1 | length u32 | CRC-32C u32 | length of the head u32 | head, JSON | blobs

The frame is that of `log/records`. The head has the fields of `Record`, and for each part its kind and its fields, a
blob as its length; the blobs follow in that order. Everything in a remote log has this form: records proper, slices
(runs of messages that were moved out of records) and checkpoints (the state that all records up to one amount to).
"""

import dataclasses
import json
import struct
from typing import Any, Final, Literal, get_args

from lapwing.errors import RemoteDamaged
from lapwing.log import records
from lapwing.records import dataclass

FORMAT: Final = 1
_LENGTH: Final = struct.Struct("<I")

Kind = Literal["claim", "data", "release", "slice", "checkpoint"]


@dataclass(frozen=True, slots=True)
class LogBegun:
    """A topic has a log of this identity, whose first sequence is `first`; a former log of the topic is gone."""

    topic: str
    log_id: str
    node: int
    first: int


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages [first, first + count) of a log: their frames, and the rows of their headers.

    Without frames they are messages that are lost: quarantined, or missing on the disk that they came from.
    """

    topic: str
    log_id: str
    first: int
    count: int
    frames: bytes
    rows: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """The same for the messages [first, end), which are in the slice `name` of so many bytes."""

    topic: str
    log_id: str
    first: int
    end: int
    name: str
    size: int


@dataclass(frozen=True, slots=True)
class JournalEntries:
    """Entries of a topic's journal, as one record of it has them."""

    topic: str
    log_id: str
    entries: bytes


@dataclass(frozen=True, slots=True)
class SideRecords:
    """Records of a channel's side log, as its file has them."""

    topic: str
    log_id: str
    channel: str
    records: bytes


@dataclass(frozen=True, slots=True)
class FileWritten:
    """The content of a small file of the data path, such as the catalog."""

    path: str
    content: bytes


@dataclass(frozen=True, slots=True)
class FileStored:
    """The same, where the content is long: it is in the slice `name`."""

    path: str
    name: str


@dataclass(frozen=True, slots=True)
class FileRemoved:
    """A small file of the data path is gone."""

    path: str


@dataclass(frozen=True, slots=True)
class SideRemoved:
    """A channel's side log is gone, or has nothing any more."""

    topic: str
    log_id: str
    channel: str


@dataclass(frozen=True, slots=True)
class LogTrimmed:
    """Nobody needs the messages of a log before `first` any more."""

    topic: str
    log_id: str
    first: int


@dataclass(frozen=True, slots=True)
class LogRemoved:
    """A topic was deleted, with its log and all that lies beside it."""

    topic: str
    log_id: str


@dataclass(frozen=True, slots=True)
class CheckpointMade:
    """A checkpoint was made; what it replaces may be deleted from now on."""

    name: str


Part = (
    LogBegun | Messages | Stored | JournalEntries | SideRecords | FileWritten | CheckpointMade
    | FileStored | FileRemoved | SideRemoved | LogTrimmed | LogRemoved
)  # fmt: skip

_KINDS: Final = {
    "begun": LogBegun,
    "messages": Messages,
    "stored": Stored,
    "journal": JournalEntries,
    "side": SideRecords,
    "file": FileWritten,
    "checkpoint": CheckpointMade,
    "file stored": FileStored,
    "file removed": FileRemoved,
    "side removed": SideRemoved,
    "trimmed": LogTrimmed,
    "removed": LogRemoved,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_FIELDS: Final = {kind: [(field.name, field.type) for field in dataclasses.fields(kind)] for kind in _NAMES}


@dataclass(frozen=True, slots=True)
class Record:
    """A record, or an object of the same form."""

    kind: Kind
    node: int
    epoch: int
    index: int  # of a slice: 0; of a checkpoint: that of the last record that it covers
    nonce: str  # a name that no other record has
    previous: str  # the nonce of the record before; of a checkpoint: of the last record that it covers
    time: int  # ns, for people
    owner: str  # who wrote it, for people
    parts: tuple[Part, ...] = ()


def _blobs(part: Part) -> list[bytes]:
    return [getattr(part, name) for name, form in _FIELDS[type(part)] if form is bytes]


def encode(record: Record) -> list[bytes]:
    """Return a record as bytes: its head, then the blobs as they are, which may be long."""
    parts = []
    for part in record.parts:
        values = [getattr(part, name) for name, _ in _FIELDS[type(part)]]
        parts.append([_NAMES[type(part)], *(len(value) if type(value) is bytes else value for value in values)])
    head = {
        "format": FORMAT, "kind": record.kind, "node": record.node, "epoch": record.epoch, "index": record.index,
        "nonce": record.nonce, "previous": record.previous, "time": record.time, "owner": record.owner, "parts": parts,
    }  # fmt: skip
    text = json.dumps(head, separators=(",", ":")).encode()
    blobs = [blob for part in record.parts for blob in _blobs(part) if blob]
    return records.encode_parts([_LENGTH.pack(len(text)) + text, *blobs])


def decode(data: bytes, name: str) -> Record:
    """Return the record in `data`, which was read from `name`. Raises `RemoteDamaged`."""
    begin = records.HEAD + _LENGTH.size
    begin += int.from_bytes(data[records.HEAD : begin], "little")
    try:
        return _decode(data, name, begin)
    except (RemoteDamaged, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if not records.matches(data, [data[records.HEAD :]]):
            raise RemoteDamaged(f"{name}: {len(data)} bytes that do not match their checksum") from error
        if isinstance(error, RemoteDamaged):
            raise
        raise RemoteDamaged(f"{name}: not understood: {error!r}") from error


def _decode(data: bytes, name: str, begin: int) -> Record:
    """Return a record whose blobs begin at `begin`. They are copied once: their checksum is that of the copies.

    Raises `RemoteDamaged`, or whatever bytes lead to that are no record.
    """
    head = json.loads(data[records.HEAD + _LENGTH.size : begin])
    if head["format"] != FORMAT:
        raise RemoteDamaged(f"{name}: of format {head['format']}, which a later version of lapwing reads")
    parts, at = [], begin
    for each in head["parts"]:
        part, at = _part(each, data, at)
        parts.append(part)
    if not records.matches(data, [data[records.HEAD : begin], *(blob for part in parts for blob in _blobs(part))]):
        raise RemoteDamaged(f"{name}: its parts do not match its checksum")
    numbers = [_typed(int, head[key]) for key in ("node", "epoch", "index", "time")]
    texts = [_typed(str, head[key]) for key in ("nonce", "previous", "owner")]
    if head["kind"] not in get_args(Kind):
        raise RemoteDamaged(f"{name}: not understood: a {head['kind']}")
    node, epoch, index, time = numbers
    nonce, previous, owner = texts
    return Record(head["kind"], node, epoch, index, nonce, previous, time, owner, tuple(parts))


def _part(facts: list[Any], data: bytes, at: int) -> tuple[Part, int]:
    """Return a part, and where the blobs of the next one begin. Raises `ValueError`, `KeyError` or `TypeError`."""
    kind = _KINDS[facts[0]]
    values: list[Any] = []
    for (_, form), value in zip(_FIELDS[kind], facts[1:], strict=True):
        if form is bytes:
            end = at + _typed(int, value)
            if not at <= end <= len(data):
                raise ValueError(f"a blob of {value} bytes")
            values.append(data[at:end])
            at = end
        else:
            values.append(_typed(form, value))
    made: Part = kind(*values)
    return made, at


def _typed(form: Any, value: Any) -> Any:
    if type(value) is not form or (form is int and value < 0):
        raise TypeError(f"{value!r} is no {form.__name__}")
    return value
