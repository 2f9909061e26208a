"""Small checksummed records one after the other: the form of extras, journals and side logs.

    magic 4 | length u32 | crc32c of the payload u32 | payload         (little-endian)
"""

import contextlib
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from lapwing import kernel
from lapwing.errors import ReadFailed, WriteFailed
from lapwing.log.disk import File

MAGIC: Final = b"LWR1"
HEAD: Final = 12
BLOCK: Final = 256 << 10  # bytes that are read at a time

_HEAD: Final = struct.Struct("<4sII")
_MOST_TRIES: Final = 64  # beginnings of records in damaged bytes that are read whole, beyond their block

Found = tuple[int, bytes | None, int]  # offset, payload (None: damaged), end


def encode(payload: bytes) -> bytes:
    """Return the payload as one record."""
    return _HEAD.pack(MAGIC, len(payload), kernel.crc32c(payload)) + payload


def encode_parts(payload: list[bytes]) -> list[bytes]:
    """Return a payload that is in parts as one record; the first of what is returned has the head."""
    crc = 0
    for part in payload:
        crc = kernel.crc32c(part, crc)
    return [_HEAD.pack(MAGIC, sum(map(len, payload)), crc) + payload[0], *payload[1:]]


def matches(data: bytes, payload: Sequence[bytes]) -> bool:
    """Return whether `data` is one whole, sound record of this payload, which is in parts."""
    if len(data) < HEAD:
        return False
    magic, length, stated = _HEAD.unpack_from(data)
    crc = 0
    for part in payload:
        crc = kernel.crc32c(part, crc)
    whole: bool = length == len(data) - HEAD == sum(map(len, payload)) > 0
    return whole and magic == MAGIC and stated == crc


def payload_at(data: bytes, offset: int) -> bytes | None:
    """Return the payload of the whole, sound record at `offset`, or None. An empty one is a torn head before zeros."""
    if offset + HEAD > len(data):
        return None
    magic, length, crc = _HEAD.unpack_from(data, offset)
    begin = offset + HEAD
    if magic != MAGIC or not 0 < length <= len(data) - begin:
        return None
    payload = data[begin : begin + length]
    return payload if kernel.crc32c(payload) == crc else None


def scan(data: bytes) -> Iterator[Found]:
    """Yield each record of `data`; a damaged stretch is one without payload, and reaches to the next sound record."""
    at = 0
    while at < len(data):
        payload = payload_at(data, at)
        if payload is not None:
            end = at + HEAD + len(payload)
        else:
            end = data.find(MAGIC, at + 1)
            while end >= 0 and payload_at(data, end) is None:
                end = data.find(MAGIC, end + 1)
            if end < 0:
                end = len(data)
        yield at, payload, end
        at = end


def stream(file: File, start: int, size: int, block: int = BLOCK) -> Iterator[Found]:
    """Yield each record of [start, size) of a file, read in blocks: memory stays small whatever the file holds."""
    at, tries = start, 0
    while at < size:
        data = file.read(min(block, size - at), at)
        if missing := _missing(data, size - at):
            data += file.read(missing, at + len(data))
        last = at + len(data) >= size
        if not data:
            return
        begin = 0
        for begin, payload, end in scan(data):
            if payload is None and end == len(data) and not last:
                break
            yield at + begin, payload, at + end
            begin = end
        if begin:
            at += begin  # what reaches beyond this block is read from its beginning
        else:
            tries += 1
            resume = _next_beginning(data, size - at) if tries <= _MOST_TRIES else len(data) - len(MAGIC) + 1
            yield at, None, at + resume
            at += resume


def _next_beginning(data: bytes, room: int) -> int:
    """Return where a record may begin that reaches beyond the damaged block `data`; else where to search on."""
    at = data.find(MAGIC, 1)
    while at >= 0:
        end = at + HEAD
        if end <= len(data):
            end += int.from_bytes(data[at + 4 : at + 8], "little")
        if len(data) < end <= room:
            return at
        at = data.find(MAGIC, at + 1)
    return len(data) - len(MAGIC) + 1


def _missing(data: bytes, room: int) -> int:
    """Return how many bytes the first record reaches beyond `data`, if it is believable."""
    if data[:4] != MAGIC or len(data) < HEAD:
        return 0
    length = HEAD + int.from_bytes(data[4:8], "little")
    return max(length - len(data), 0) if length <= room else 0


class RecordFile:
    """A file of records that is only appended to, or replaced as a whole."""

    __slots__ = ("_syncing", "_torn", "_unnamed", "doubtful", "file", "size")

    def __init__(self, file: File) -> None:
        self.file = file
        self.size = 0  # bytes that are known to be good
        self.doubtful = False  # a sync failed: records before may be lost, and the caller has to replace the file
        self._torn = False  # there is more in the file than that, to be cut off first
        self._unnamed = True  # the name of the file may not be synced
        self._syncing = False  # the call that `begin_sync` gave is not over

    @property
    def known(self) -> tuple[int, bool] | None:
        """The state of the file, for `resume` of another object; None while it is synced, or after a failure."""
        return None if self.doubtful or self._torn or self._syncing else (self.size, self._unnamed)

    def resume(self, known: tuple[int, bool]) -> None:
        """Take over what another object knew."""
        self.size, self._unnamed = known

    def read(self) -> Iterator[Found]:
        """Yield everything in the file; afterwards records are appended behind the last sound one.

        Raises `ReadFailed` when the disk does not return it; nothing is changed then.
        """
        try:
            length = self.file.size()
        except OSError as error:
            raise ReadFailed(self.file.path, 0, error) from error
        good = 0
        for begin, payload, end in stream(self.file, 0, length):
            if payload is not None:
                good = end
            yield begin, payload, end
        self.size, self._torn = good, good < length  # not before: a read may fail, and the next append needs the end

    def append(self, data: bytes, *, sync: bool) -> None:
        """Write records, with `sync` so that they survive a power loss; or, raising `WriteFailed`, do not."""
        try:
            self.cut()
            self._torn = True
            self.file.write(data, self.size)
            if sync:
                self._sync()
        except OSError as error:
            raise WriteFailed(self.file.path, self.size, error) from error
        self._torn = False
        self.size += len(data)

    def cut(self) -> None:
        """Cut off what a failed append has left. Raises `OSError`."""
        if self._torn:
            self.file.truncate(self.size)
            self._torn = False

    def _sync(self) -> None:
        disk = self.file.table.disk
        fd = self.file.table.reach(self.file)
        try:
            disk.fsync(fd)
        except OSError:
            self.doubtful = True
            raise
        if self._unnamed:
            disk.sync_directory(os.path.dirname(self.file.path))
            self._unnamed = False

    def begin_sync(self) -> Callable[[], None]:
        """Return a call that syncs what is appended by now, to be run in any thread. Raises `OSError`.

        It raises `OSError`, and then the file is `doubtful`.
        """
        disk = self.file.table.disk
        fd = disk.dup(self.file.table.reach(self.file))
        folder = os.path.dirname(self.file.path) if self._unnamed else ""
        self._syncing = True

        def sync() -> None:
            try:
                disk.fsync(fd)
                if folder:
                    disk.sync_directory(folder)
                    self._unnamed = False
            except OSError:
                self.doubtful = True
                raise
            finally:
                self._syncing = False
                disk.close(fd)

        return sync

    def empty(self, *, sync: bool) -> None:
        """Make it a file without records, with `sync` after a power loss too; raises `WriteFailed`."""
        try:
            self.file.truncate(0)
            self.size = 0
            self._torn = False
            if sync:
                self._sync()
        except OSError as error:
            raise WriteFailed(self.file.path, 0, error) from error
        self.doubtful = False

    def replace(self, parts: Iterable[bytes], *, sync: bool) -> None:
        """Make other records the content, in one step; raises `OSError`, and then nothing is changed.

        With `sync` the new content is synced, and its name as soon as the disk syncs names: now, or with the next
        append.
        """
        self.file.table.disk.replace(self.file.path, parts, sync=sync, sync_name=False)
        self.file.close()  # its descriptor is that of the old file
        self.size = self.file.size()
        self.doubtful = self._torn = False
        self._unnamed = True
        if sync:
            with contextlib.suppress(OSError):
                self.file.table.disk.sync_directory(os.path.dirname(self.file.path))
                self._unnamed = False
