"""A channel's stragglers, so that none pins a segment: frames copied out of the log, until they are finished.

Records (see `records`): kind u8 = 1 | sequence u64 | frame, or kind u8 = 2 | sequences u64 ... that are done with.
"""

import errno
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Final

from lapwing.errors import CorruptChunk, LogError, OutOfRange, WriteFailed
from lapwing.log import records
from lapwing.log.datapath import folder
from lapwing.log.disk import File, OpenFiles
from lapwing.log.records import RecordFile
from lapwing.log.side.sequence_map import SequenceMap

PUT: Final = 1
DROP: Final = 2

_PUT: Final = struct.Struct("<BQ")
_COMPACT_BYTES: Final = 1 << 20
_COMPACT_RATIO: Final = 4


def side_path(directory: str | os.PathLike[str], channel: str) -> str:
    """Return the file of a channel's side log, in the directory of its topic."""
    return os.path.join(os.fspath(directory), "side", folder(channel, "c-"))


def apply(data: bytes, kept: dict[int, bytes]) -> None:
    """Have `kept` hold the records, by sequence, of the frames that are left behind the records of a side log."""
    for begin, payload, end in records.scan(data):
        if payload is None:
            continue
        if payload[0] == PUT:
            kept[_PUT.unpack_from(payload)[1]] = data[begin:end]
        elif payload[0] == DROP:
            for (sequence,) in struct.iter_unpack("<Q", payload[1:]):
                kept.pop(sequence, None)


class MessageStore:
    """A channel's copies of messages, in memory alone."""

    def __init__(self) -> None:
        self.notes: list[str] = []  # damage and repairs, in words
        self.damaged = False  # whether records could not be read at opening
        self._fresh: dict[int, bytes] = {}  # frames that are in memory alone

    def sequences(self) -> Iterator[int]:
        """Yield every sequence whose frame is here, in no order."""
        return iter(self._fresh)

    def put(self, sequence: int, frame: bytes) -> None:
        self._fresh[sequence] = frame

    def frame(self, sequence: int) -> bytes:
        """Return the frame of a message. Raises `OutOfRange`, `CorruptChunk`, or `ReadFailed`."""
        frame = self._fresh.get(sequence)
        if frame is None:
            raise OutOfRange(f"memory: no frame of sequence {sequence}")
        return frame

    def drop(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            self._fresh.pop(sequence, None)

    def drop_all(self) -> None:
        """Drop every frame, in the time of few."""
        self._fresh.clear()

    def flush(self) -> None:
        """Write what was put and dropped since the last time. Raises `WriteFailed`."""


class SideLog(MessageStore):
    """The same in a file, the side log of one channel: where each frame lies is in memory, the frames are not.

    `notes` names what had to be skipped at opening. What is put can be read at once, and is kept by `flush`.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        channel: str,
        *,
        files: OpenFiles | None = None,
        sync: bool = False,
    ) -> None:
        super().__init__()
        self.path = side_path(directory, channel)
        self._file = RecordFile(File(self.path, OpenFiles() if files is None else files))
        self._sync = sync  # whether what was flushed must survive a power loss: its segment may go next
        self.on_flush: Callable[[bytes], object] | None = None  # called with the records written; none: it was emptied
        self._places = SequenceMap(1)  # sequence -> offset of its record
        self._dropped: list[int] = []
        self._puts = 0  # frames in the file, wanted or not
        self._file.file.table.disk.make_directory(os.path.dirname(self.path), sync=sync)
        self._open()

    def __len__(self) -> int:
        return len(self._places) + len(self._fresh)

    def sequences(self) -> Iterator[int]:
        return chain(self._places, self._fresh)

    def put(self, sequence: int, frame: bytes) -> None:
        if self._places.pop(sequence) is not None:
            self._dropped.append(sequence)
        self._fresh[sequence] = frame

    def frame(self, sequence: int) -> bytes:
        fresh = self._fresh.get(sequence)
        if fresh is not None:
            return fresh
        found = self._places.get(sequence)
        if found is None:
            raise OutOfRange(f"{self.path}: no frame of sequence {sequence}")
        (place,) = found
        head = self._file.file.read(records.HEAD, place)
        data = head + self._file.file.read(int.from_bytes(head[4:8], "little"), place + records.HEAD)
        payload = records.payload_at(data, 0)
        if payload is None or _PUT.unpack_from(payload) != (PUT, sequence):
            raise CorruptChunk(self.path, place, f"not the frame of sequence {sequence}")
        return payload[_PUT.size :]

    def drop(self, sequences: Iterable[int]) -> None:
        for sequence in sequences:
            if self._fresh.pop(sequence, None) is not None:
                continue
            if self._places.pop(sequence) is not None:
                self._dropped.append(sequence)

    def drop_all(self) -> None:
        self._fresh.clear()
        self._dropped.extend(self._places)
        self._places.clear()

    def flush(self) -> None:
        """Write what was put and dropped since the last time.

        Raises `WriteFailed`; all of it is then still to be written by the next flush.
        """
        if not self._fresh and not self._dropped:
            return
        if not self._places and not self._fresh and self._file.size:
            self._file.empty(sync=self._sync)
            self._puts = 0
            self._dropped.clear()
            if self.on_flush is not None:
                self.on_flush(b"")
            return
        if self._file.doubtful:
            self._write_again()
        parts: list[bytes] = []
        places: dict[int, int] = {}
        at = self._file.size
        if self._dropped:  # before the frames: one of them may be of a sequence that was dropped and came back
            parts.append(records.encode(struct.pack(f"<B{len(self._dropped)}Q", DROP, *self._dropped)))
            at += len(parts[-1])
        for sequence, frame in self._fresh.items():
            places[sequence] = at
            parts.append(records.encode(_PUT.pack(PUT, sequence) + frame))
            at += len(parts[-1])
        data = b"".join(parts)
        self._file.append(data, sync=self._sync)
        if self.on_flush is not None:
            self.on_flush(data)
        for sequence, place in places.items():
            self._places.set(sequence, place)
        self._puts += len(places)
        self._fresh.clear()
        self._dropped.clear()
        if self._file.size > _COMPACT_BYTES and self._puts > _COMPACT_RATIO * len(self._places):
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

    def destroy(self) -> None:
        self._places.clear()
        self._fresh.clear()
        self._dropped.clear()
        self._puts = 0
        self._file.size = 0
        self._file.file.unlink()

    # --- the file ----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        for begin, payload, end in self._file.read():
            if payload is None:
                self.damaged = True
                self.notes.append(f"{self.path}: offset {begin}: skipped {end - begin} damaged bytes")
                continue
            try:
                self._learn(payload, begin)
            except (struct.error, ValueError) as error:
                self.notes.append(f"{self.path}: offset {begin}: of another version? not understood: {error}")

    def _learn(self, payload: bytes, place: int) -> None:
        if payload[0] == PUT:
            self._places.set(_PUT.unpack_from(payload)[1], place)
            self._puts += 1
        elif payload[0] == DROP:
            for (sequence,) in struct.iter_unpack("<Q", payload[1:]):
                self._places.pop(sequence)
        else:
            raise ValueError(f"a record of kind {payload[0]}")

    def compact(self) -> None:
        """Write the frames still wanted to a new file, which takes the old one's place; on error the old one stays."""
        try:
            self._rewrite()
        except (OSError, LogError) as error:
            self.notes.append(f"{self.path}: could not be compacted: {error}")

    def _write_again(self) -> None:
        """Write all frames again after a sync failed: the disk may lack those appended before. Raises `WriteFailed`."""
        try:
            self._rewrite()
        except OSError as error:
            raise WriteFailed(self.path, 0, error) from error
        except LogError as error:
            raise WriteFailed(self.path, 0, OSError(errno.EIO, str(error))) from error

    def _rewrite(self) -> None:
        places = SequenceMap(1)

        def wanted() -> Iterator[bytes]:
            at = 0
            for sequence in sorted(self._places):
                try:
                    frame = self.frame(sequence)
                except CorruptChunk as error:
                    self.notes.append(str(error))
                    continue
                part = records.encode(_PUT.pack(PUT, sequence) + frame)
                places.set(sequence, at)
                at += len(part)
                yield part

        self._file.replace(wanted(), sync=self._sync)
        self._places = places
        self._puts = len(places)
