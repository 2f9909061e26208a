"""The state of a log that nobody uses, in few bytes: its segments, and what of them is synced.

A node may have very many topics, of which few are in use. An open log is two dozen objects; packed it is one value,
from which the same objects are made again without the disk. Nothing is packed that is only in memory.
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from lapwing.log.disk import OpenFiles
from lapwing.log.options import LogOptions
from lapwing.log.segments.index import decode
from lapwing.log.segments.segment import Segment
from lapwing.log.segments.sync import Sync

_MOST_SEGMENTS: Final = 64  # there are few logs of more, and they are rarely idle
_HEAD: Final = struct.Struct("<BB")  # flags, bytes of the identity
_SUMS: Final = struct.Struct("<QQQ"), struct.Struct("<III")  # bytes of frames, synced up to, target of that
_SEGMENT: Final = struct.Struct("<BQQQQQqQQ"), struct.Struct("<BIIIIIqII")
_CHUNK: Final = 64
_SMALL_END: Final = 1 << 32
_UNSYNCED, _NAMES, _SEVERAL, _SMALL = 1, 2, 4, 8  # flags of the head; small: the second form of the numbers
_DIRTY, _BOOT, _LAST = 1, 2, 4  # flags of a segment


class ColdLog(NamedTuple):
    """A log that is not used."""

    node: int
    first: int
    end: int
    rows_end: int
    packed: bytes

    @property
    def next(self) -> int:
        """The sequence that the next message gets."""
        return self.end

    @property
    def bytes(self) -> int:
        """Bytes of frames in all segments."""
        size: int = _SUMS[self._is_small].unpack_from(self.packed, _HEAD.size)[0]
        return size

    @property
    def unsynced(self) -> bool:
        """Whether something would not survive a power loss."""
        return bool(self.packed[0] & _UNSYNCED)

    @property
    def has_one_segment(self) -> bool:
        """Whether nothing can be deleted, as only the segment is left that is written to."""
        return not self.packed[0] & _SEVERAL

    @property
    def identity(self) -> str:
        """The 16 hex digits that another log of the same topic does not have."""
        start = _HEAD.size + _SUMS[self._is_small].size
        return self.packed[start : start + self.packed[1]].decode()

    @property
    def _is_small(self) -> bool:
        return bool(self.packed[0] & _SMALL)


def pack(identity: str, segments: Sequence[Segment], sync: Sync) -> bytes | None:
    """Return the state of a log; None while something of it has to be written, or is being synced, or it is large."""
    name = identity.encode()
    if len(segments) > _MOST_SEGMENTS or len(name) > 255 or not sync.settled:
        return None
    rows: list[tuple[int, ...]] = []
    records = []
    for segment in segments:
        index, last = segment.index, segment.last
        known = [] if last is None else [last]
        if segment.torn or index.unwritten or index.recent != known:
            return None
        flags = _DIRTY * (segment in sync.dirty) | _BOOT * segment.recorded_boot | _LAST * (last is not None)
        rows.append((
            flags, segment.first, segment.end, segment.size, segment.synced, segment.synced_extras, segment.newest,
            index.count, segment.extras.size,
        ))  # fmt: skip
        records.append(b"" if last is None else last.encode())
    sums = (sum(segment.size for segment in segments), sync.reached, sync.target)
    small = all(each < _SMALL_END for row in [sums, *rows] for each in (*row[:6], *row[7:]))  # but for the time
    flags = _UNSYNCED * sync.needed | _NAMES * sync.names_dirty | _SEVERAL * (len(segments) > 1) | _SMALL * small
    parts = [_HEAD.pack(flags, len(name)), _SUMS[small].pack(*sums), name]
    for row, record in zip(rows, records, strict=True):
        parts += _SEGMENT[small].pack(*row), record
    return b"".join(parts)


def unpack(packed: bytes, directory: str, files: OpenFiles, options: LogOptions) -> tuple[str, list[Segment], Sync]:
    """Return what was packed: the identity, the segments, and what of them is synced."""
    head, length = _HEAD.unpack_from(packed)
    small = bool(head & _SMALL)
    sums, form = _SUMS[small], _SEGMENT[small]
    _, reached, target = sums.unpack_from(packed, _HEAD.size)
    at = _HEAD.size + sums.size + length
    identity = packed[at - length : at].decode()
    sync = Sync(directory, files, reached)
    segments = []
    while at < len(packed):
        flags, first, end, size, synced, synced_extras, newest, count, extras = form.unpack_from(packed, at)
        at += form.size
        segment = Segment(directory, first, files, options.merge_bytes, options.boot)
        segment.end, segment.size, segment.newest = end, size, newest
        segment.synced, segment.synced_extras = synced, synced_extras
        segment.recorded_boot = bool(flags & _BOOT)
        segment.index.count, segment.extras.size = count, extras
        if flags & _LAST:
            segment.last = decode(packed, at)
            assert segment.last is not None
            segment.index.recent = [segment.last]
            at += _CHUNK
        if flags & _DIRTY:
            sync.wrote(segment)
        segments.append(segment)
    sync.target, sync.names_dirty = target, bool(head & _NAMES)
    return identity, segments, sync
