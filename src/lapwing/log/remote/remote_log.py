"""The remote log: numbered records that one process at a time appends.

    records/<index>             what was appended, one after the other, from 1 on
    claims/<index>              marks the records that begin an epoch; these are never deleted
    slices/<epoch>.<nonce>      runs of messages that were moved out of records
    checkpoints/<index>.<number>.<nonce>   the state that the records up to `index` amount to; `number` counts the tries

A process owns the log from the record with which it claims it to the next claim. It appends the record behind its last
one, if there is none yet: when there is one of another process, it was replaced, and is `Fenced`. So whatever an engine
did with a request that it did not answer, and however long a process stood still, two never believe in the same record.

Records below a checkpoint are deleted, but for claims: the record that a replaced process would append next is either
there, or the claim of its successor. A claim itself counts only if there is no record behind it, as its place may be
one where a record was deleted.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from lapwing.errors import Fenced, NotReleased, RemoteDamaged, RemoteFailed
from lapwing.log.remote.engines import CLAIMS, Engine
from lapwing.log.remote.record import (
    CheckpointMade,
    FileStored,
    FileWritten,
    Kind,
    Messages,
    Part,
    Record,
    Stored,
    decode,
    encode,
)
from lapwing.records import dataclass

RECORDS: Final = "records"
SLICES: Final = "slices"
CHECKPOINTS: Final = "checkpoints"

_DIGITS: Final = 20
_TRIES: Final = 8
_CLAIMS: Final = 200  # tries to claim a log whose owner appends meanwhile
_READS: Final = 100  # reads that wait for the next record of such an owner
_MARKED: Final = 8  # places that are marked at a time for them


@dataclass(frozen=True, slots=True)
class Claim:
    """The result of a claim."""

    node: int  # that of the log, whatever was asked for
    epoch: int
    index: int


class RemoteLog:
    """A remote log, as one process sees it: anyone may read it, its owner appends to it.

    It is used by one thread at a time. After `RemoteFailed` the same call is made again, with the same record: nothing
    else can be appended before it is known what became of it.
    """

    def __init__(self, engine: Engine, *, owner: str) -> None:
        self.engine = engine
        self.owner = owner
        self.node = 0
        self.epoch = 0  # 0: not claimed
        self.index = 0  # of the last record that this process knows to be there
        self.unsettled: Record | None = None  # what was sent, and may be there or not
        self._nonce = ""  # of the last record
        self._checkpoints = 0  # that were begun
        self._claims: set[str] = set()  # nonces of claims that this process has sent

    @property
    def nonce(self) -> str:
        """The name of the last record."""
        return self._nonce

    # --- reading -----------------------------------------------------------------------------------------------

    def checkpoint(self) -> Record | None:
        """Return the newest checkpoint. Raises `RemoteDamaged` or `RemoteFailed`."""
        name = self._checkpoint_name()
        return self._read(name) if name else None

    def last(self) -> Record | None:
        """Return the last record; None when the log is empty. Raises `RemoteDamaged` or `RemoteFailed`."""
        for _ in range(_TRIES):
            begin = _index_of(self._checkpoint_name())
            found = [name for name, _ in self.engine.find(RECORDS, after=record_name(begin - 1) if begin else "")]
            if not found:
                if begin:
                    raise RemoteDamaged(f"{self.engine.place}: the records behind checkpoint {begin} are missing")
                return None
            data = self.engine.read(found[-1])
            if data is not None:
                return decode(data, found[-1])
        raise RemoteFailed(f"{self.engine.place}: {found[-1]} is listed and cannot be read")

    def read(self, start: int, previous: str = "") -> Iterator[Record]:
        """Yield the records from `start` on. `previous` is the nonce of the one before, where it is known.

        Raises `RemoteDamaged` at a hole, and at a record that does not follow the one before; a hole may also mean that
        a checkpoint was made meanwhile.
        """
        index = start
        while True:
            name = record_name(index)
            data = self.engine.read(name)
            if data is None:
                for behind, _ in self.engine.find(RECORDS, after=name):
                    raise RemoteDamaged(f"{self.engine.place}: {name} is missing, and there is {behind}")
                return
            record = decode(data, name)
            if record.index != index or (previous and record.previous != previous):
                raise RemoteDamaged(f"{self.engine.place}: {name} does not follow the record before it")
            yield record
            previous = record.nonce
            index += 1

    def slice(self, name: str) -> tuple[Part, ...]:
        """Return the messages in a slice. Raises `RemoteDamaged` or `RemoteFailed`."""
        return self._read(name).parts

    def _read(self, name: str) -> Record:
        data = self.engine.read(name)
        if data is None:
            raise RemoteDamaged(f"{self.engine.place}: {name} is missing")
        return decode(data, name)

    def _checkpoint_name(self) -> str:
        return max((name for name, _ in self.engine.find(CHECKPOINTS)), default="")

    # --- owning ------------------------------------------------------------------------------------------------

    def claim(self, node: int, *, now: int, take_over: bool = False) -> Claim:
        """Begin a new epoch, for `node` if the log is new. From here on a former owner is fenced.

        Raises `NotReleased` unless the last owner has released the log, or `take_over` is set; `Fenced` when another
        process claimed it at the same moment; `RemoteFailed` when it is not known what happened.
        """
        seen: int | None = None
        lost: list[str] = []  # marks of places where somebody else was first
        marked: set[int] = set()
        former = self.last()
        for _ in range(_CLAIMS):
            if former is not None and former.nonce in self._claims:  # one that was not answered, and it is the last
                return self._own_claim(former, lost)
            if former is not None and former.kind != "release":
                if seen is not None and former.epoch > seen:
                    raise Fenced(self.engine.place, former.owner, former.epoch)
                if not take_over:
                    raise NotReleased(self.engine.place, former.owner, readable(former.time))
            seen, index, previous = (0, 0, "") if former is None else (former.epoch, former.index, former.nonce)
            node = node if former is None else former.node
            record = Record("claim", node, seen + 1, index + 1, _new_nonce(), previous, now, self.owner)
            ahead = _MARKED if lost else 1  # an owner that appends all the time is faster than a mark for each try
            for place in range(record.index, record.index + ahead) if record.index not in marked else ():
                self.engine.create(_claim_name(place), b"")  # first: without it a claim is deleted
                marked.add(place)
            self._claims.add(record.nonce)
            other = self._create(record)
            if other is None and self._is_last(record):
                return self._own_claim(record, lost)
            if other is not None and other.kind == "data":
                lost.append(_claim_name(record.index))
                former = self._followed(other)
            else:
                former = self.last()
        raise RemoteFailed(f"{self.engine.place}: other processes append all the time")

    def _followed(self, record: Record) -> Record:
        """Follow an owner that appends to its last record, and return that as soon as it is there.

        The owner needs some time for the next one: that is when its place can be taken.
        """
        waited = appeared = False
        for _ in range(_READS):
            name = record_name(record.index + 1)
            found = self.engine.read(name)
            if found is not None:
                record, appeared = decode(found, name), waited
            if record.kind != "data" or (found is None and appeared):
                break
            waited = waited or found is None
        return record

    def _own_claim(self, record: Record, lost: Sequence[str]) -> Claim:
        self._check_engine(record)
        self._own(record)
        if lost:
            with contextlib.suppress(RemoteFailed):  # they only keep a few records from being deleted
                self.engine.delete(lost)
        return Claim(record.node, record.epoch, record.index)

    def _is_last(self, record: Record) -> bool:
        return not any(True for _ in self.engine.find(RECORDS, after=record_name(record.index)))

    def _check_engine(self, record: Record) -> None:
        """Refuse an engine that writes over what is there. The same bytes do no harm. Raises `RemoteFailed`."""
        if self.engine.create(record_name(record.index), *encode(record)):
            raise RemoteFailed(
                f"{self.engine.place}: this store writes over objects though it was asked not to (If-None-Match); "
                "two processes could write the same record, so it cannot hold a remote log"
            )

    def _own(self, record: Record) -> None:
        self.node, self.epoch, self.index, self._nonce = record.node, record.epoch, record.index, record.nonce
        self.unsettled = None

    def record(self, parts: Sequence[Part], *, now: int, kind: Kind = "data") -> Record:
        """Return the record that would be the next one, for `append`."""
        return self._made(kind, self.index + 1, self._nonce, parts, now)

    def append(self, record: Record) -> None:
        """Append what `record` made. Raises `Fenced`, or `RemoteFailed`: then call it again with the same record."""
        if not self.epoch or record.index != self.index + 1 or self.unsettled not in (None, record):
            raise ValueError(f"record {record.index} is not the next one")
        self.unsettled = record
        other = self._create(record)
        if other is not None:
            self.epoch = 0
            raise Fenced(self.engine.place, other.owner, other.epoch)
        self._own(record)

    def release(self, *, now: int) -> None:
        """Have the next process claim the log without `take_over`; this one no longer owns it."""
        sent = self.unsettled
        self.append(sent if sent is not None and sent.kind == "release" else self.record((), now=now, kind="release"))
        self.epoch = 0

    def _create(self, record: Record) -> Record | None:
        """Create a record; return the one that is there instead. Raises `RemoteFailed` when that is not known."""
        name, data = record_name(record.index), encode(record)
        for _ in range(_TRIES):
            if self.engine.create(name, *data):
                return None
            found = self.engine.read(name)
            if found is not None:
                there = decode(found, name)
                return None if there.nonce == record.nonce else there
        raise RemoteFailed(f"{self.engine.place}: {name} can neither be created nor read")

    def _made(self, kind: Kind, index: int, previous: str, parts: Sequence[Part], now: int) -> Record:
        return Record(kind, self.node, self.epoch, index, _new_nonce(), previous, now, self.owner, tuple(parts))

    def probe(self) -> None:
        """Look whether another process has claimed the log since. Raises `Fenced`, or `RemoteFailed`: nothing is known.

        Only appending shows who owns it; this is for a process that has nothing to append.
        """
        if not self.epoch or self.unsettled is not None:
            return
        name = record_name(self.index + 1)
        found = self.engine.read(name)
        if found is not None:
            other = decode(found, name)
            self.epoch = 0
            raise Fenced(self.engine.place, other.owner, other.epoch)

    # --- checkpoints -------------------------------------------------------------------------------------------

    def store(self, messages: Sequence[Messages], *, now: int) -> Stored:
        """Write consecutive messages of one log as a slice. Raises `RemoteFailed`; a part of it may be there then."""
        return self._writer().store(messages, now=now)

    def store_file(self, part: FileWritten, *, now: int) -> FileStored:
        """Write the content of a file as a slice. Raises `RemoteFailed`."""
        return self._writer().store_file(part, now=now)

    def checkpoint_writer(self, engine: Engine | None = None) -> "CheckpointWriter":
        """Return the writer of a checkpoint that covers all records up to now; with `engine`, for another thread."""
        if self.unsettled is not None:
            raise ValueError(f"it is not known whether record {self.unsettled.index} was written")
        self._checkpoints += 1  # one that failed may still arrive: it must not pass for the newest
        return self._writer(engine)

    def _writer(self, engine: Engine | None = None) -> "CheckpointWriter":
        engine = self.engine if engine is None else engine
        return CheckpointWriter(
            engine, self.owner, self.node, self.epoch, self.index, self._nonce, self._checkpoints
        )

    def make_checkpoint(self, parts: Sequence[Part], *, now: int) -> None:
        """Write the state that all records amount to, and delete what it replaces. Raises `Fenced` or `RemoteFailed`.

        Nothing is deleted before a record behind the checkpoint shows that this process still owns the log. Its
        successor then begins with this checkpoint or a later one, however long this process stands still.
        """
        writer = self.checkpoint_writer()
        made = writer.write(parts, now=now)
        self.append(self.record([made], now=now))
        writer.delete_replaced(older_by=0)


class CheckpointWriter:
    """Writes one checkpoint, beside the process's appends. The steps, in this order:

    1. slices for what is to leave the records, then the checkpoint itself (`write`)
    2. the owner appends the record `CheckpointMade` that `write` returns: only now is it known that no other process
       had claimed the log when the checkpoint was there, so whoever claims it later begins with it
    3. what it replaces is deleted (`delete_replaced`)
    """

    def __init__(
        self, engine: Engine, owner: str, node: int, epoch: int, index: int, nonce: str, number: int
    ) -> None:
        self.engine = engine
        self.index = index  # of the last record that it covers
        self._owner, self._node, self._epoch, self._nonce, self._number = owner, node, epoch, nonce, number
        self._name = ""
        self._kept: set[str] = set()  # slices that it names

    def store(self, messages: Sequence[Messages], *, now: int) -> Stored:
        """Write consecutive messages of one log as a slice. Raises `RemoteFailed`; a part of it may be there then."""
        name, size = self._store(messages, now)
        first, last = messages[0], messages[-1]
        return Stored(first.topic, first.log_id, first.first, last.first + last.count, name, size)

    def store_file(self, part: FileWritten, *, now: int) -> FileStored:
        """Write the content of a file as a slice. Raises `RemoteFailed`."""
        name, _ = self._store([part], now)
        return FileStored(part.path, name)

    def _store(self, parts: Sequence[Part], now: int) -> tuple[str, int]:
        made = self._made("slice", 0, "", parts, now)
        name, data = f"{SLICES}/{self._epoch:0{_DIGITS}d}.{made.nonce}", encode(made)
        self._put(name, data)
        return name, sum(map(len, data))

    def write(self, parts: Sequence[Part], *, now: int) -> CheckpointMade:
        """Write the checkpoint; return the part of the record that makes it count. Raises `RemoteFailed`."""
        made = self._made("checkpoint", self.index, self._nonce, parts, now)
        self._name = f"{CHECKPOINTS}/{made.index:0{_DIGITS}d}.{self._number:0{_DIGITS}d}.{made.nonce}"
        self._put(self._name, encode(made))
        self._kept = {part.name for part in parts if isinstance(part, Stored | FileStored)}
        return CheckpointMade(self._name)

    def delete_replaced(self, *, older_by: int | None, unused: Sequence[str] = ()) -> None:
        """Delete what nobody needs who begins with this checkpoint: only what this process or one before it wrote.

        Of slices these are `unused` ones, and, given `older_by`, all of so many epochs ago, or more, that it does not
        name. With 0 the owner must have no slice that only a later record names. Raises `RemoteFailed`.
        """
        claims = {claim.partition("/")[2] for claim, _ in self.engine.find(CLAIMS)}
        gone = [
            record
            for record, _ in self.engine.find(RECORDS)
            if _index_of(record) < self.index and record.partition("/")[2] not in claims
        ]
        gone += [older for older, _ in self.engine.find(CHECKPOINTS) if older < self._name]
        gone += [stored for stored in unused if stored not in self._kept]
        if older_by is not None:
            last = self._epoch - older_by
            stored = (name for name, _ in self.engine.find(SLICES))
            gone += [name for name in stored if _index_of(name) <= last and name not in self._kept]
        if gone:
            self.engine.delete(list(dict.fromkeys(gone)))

    def _made(self, kind: Kind, index: int, previous: str, parts: Sequence[Part], now: int) -> Record:
        return Record(kind, self._node, self._epoch, index, _new_nonce(), previous, now, self._owner, tuple(parts))

    def _put(self, name: str, data: Sequence[bytes]) -> None:
        """Create an object whose name is new. Raises `RemoteFailed`."""
        for _ in range(_TRIES):
            if self.engine.create(name, *data) or self.engine.read(name) == b"".join(data):
                return
        raise RemoteFailed(f"{self.engine.place}: {name} can neither be created nor read")


def record_name(index: int) -> str:
    """Return the name of a record."""
    return f"{RECORDS}/{index:0{_DIGITS}d}"


def _claim_name(index: int) -> str:
    return f"{CLAIMS}/{index:0{_DIGITS}d}"


def readable(time: int) -> str:
    """Return a time in ns as people read it."""
    return datetime.fromtimestamp(time // 1_000_000_000, UTC).isoformat().replace("+00:00", "Z")


def _index_of(name: str) -> int:
    """Return the number in the name of an object; 0 for no name."""
    return int(name.partition("/")[2].partition(".")[0] or 0)


def _new_nonce() -> str:
    return os.urandom(8).hex()
