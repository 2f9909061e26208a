"""Find and read the disk queues that NSQ's own nsqd has left in a data path."""

from __future__ import annotations

import os
from collections.abc import Iterator
from struct import Struct
from typing import BinaryIO, Final

from lapwing.errors import LogError
from lapwing.records import dataclass

_META: Final = ".diskqueue.meta.dat"
_RECORD: Final = Struct(">qH16s")  # of a message: timestamp, attempts, id; the body follows
_HEAD: Final = _RECORD.size
_LARGEST_RECORD: Final = (1 << 30) + _HEAD  # bytes: more than any sane --max-msg-size
_LARGEST_META: Final = 4096  # bytes; such a file holds five numbers


@dataclass(frozen=True, slots=True)
class NsqQueue:
    """A disk queue with messages in it."""

    name: str  # `topic` or `topic:channel`
    depth: int  # messages


def undrained(data_path: str) -> list[NsqQueue]:
    """Return every disk queue of NSQ in `data_path` that still holds messages, by name.

    A file that cannot be read or understood is left out: nothing is lost by not naming it.
    """
    found = []
    for entry in sorted(os.listdir(data_path or ".")):
        if entry.endswith(_META):
            depth = _depth(os.path.join(data_path, entry))
            if depth > 0:
                found.append(NsqQueue(entry.removesuffix(_META), depth))
    return found


def _depth(path: str) -> int:
    """Return the first number of a queue's metadata: how many messages it holds."""
    try:
        with open(path, "rb") as file:
            return int(file.read(_LARGEST_META).partition(b"\n")[0])
    except (OSError, ValueError):
        return 0


@dataclass(frozen=True, slots=True)
class NsqMessage:
    """One message of a disk queue."""

    timestamp: int  # ns
    attempts: int
    id: bytes
    body: bytes


@dataclass(frozen=True, slots=True)
class Damage:
    """Part of a queue that cannot be read as messages, in place of them."""

    path: str
    offset: int
    reason: str


def messages(data_path: str, name: str) -> Iterator[NsqMessage | Damage]:
    """Yield what the disk queue `name` still holds, in order.

    Behind damage, reading continues with the next file, as in NSQ. Raises `LogError` when the positions cannot be read.
    """
    first, start, last, stop = _positions(os.path.join(data_path, name + _META))
    for number in range(first, last + 1):
        path = os.path.join(data_path, f"{name}.diskqueue.{number:06}.dat")
        begin = start if number == first else 0
        if number == last and begin == stop and not os.path.exists(path):
            return  # read up to its end, in a file that was never begun
        try:
            with open(path, "rb") as file:
                file.seek(begin)
                yield from _records(file, path, begin)
        except OSError as error:
            yield Damage(path, begin, error.strerror or str(error))


def files(data_path: str, name: str) -> list[str]:
    """Return the names of the files of one disk queue."""
    begin = f"{name}.diskqueue."
    return sorted(entry for entry in os.listdir(data_path or ".") if entry.startswith(begin) and entry.endswith(".dat"))


def _positions(path: str) -> tuple[int, int, int, int]:
    try:
        with open(path, "rb") as file:
            _, read, write = file.read(_LARGEST_META).split()
        (first, start), (last, stop) = (map(int, each.split(b",")) for each in (read, write))
    except (OSError, ValueError) as error:
        raise LogError(f"{path}: the positions of the queue cannot be read: {error}") from error
    return first, start, last, stop


def _records(file: BinaryIO, path: str, offset: int) -> Iterator[NsqMessage | Damage]:
    """Yield the records up to the end of the file: what lies behind the write position was written before a crash."""
    while head := file.read(4):
        size = int.from_bytes(head, "big", signed=True)
        if len(head) < 4 or not _HEAD <= size <= _LARGEST_RECORD:
            yield Damage(path, offset, f"a record of {size} bytes, {_HEAD} to {_LARGEST_RECORD} expected")
            return
        record = file.read(size)
        if len(record) < size:
            yield Damage(path, offset, f"a record of {size} bytes of which {len(record)} are there")
            return
        timestamp, attempts, message_id = _RECORD.unpack_from(record)
        yield NsqMessage(timestamp, attempts, message_id, record[_HEAD:])
        offset += 4 + size
