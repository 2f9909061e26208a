"""Group fsync: the files of a log that have to be synced, and the call that syncs them in any thread.

A failed fsync leaves pages that the system takes for clean although the disk does not have them: a second fsync would
succeed and mean nothing. So everything since the last good sync is written again before the next one.
"""

import errno
import os
from collections.abc import Callable, Sequence

from lapwing import kernel
from lapwing.errors import LogError
from lapwing.log.disk import Disk, File, OpenFiles
from lapwing.log.segments.index import BadRecord
from lapwing.log.segments.segment import Segment

Piece = tuple[int, int, int | None]  # offset, length, CRC-32C of what was written there if it is known
Job = tuple[int, str, Sequence[Piece]]  # descriptor, path, what to write again before the sync


class Sync:
    """The files of one log that are written and not yet synced."""

    __slots__ = ("_directory", "_doubtful", "_files", "_under_way", "dirty", "names_dirty", "reached", "target")

    def __init__(self, directory: str, files: OpenFiles, reached: int) -> None:
        self.reached = reached  # the sequence up to which all is synced
        self._directory = directory
        self._files = files
        self.dirty: set[Segment] = set()  # segments that have to be synced
        self.names_dirty = True  # names in the directory may not be synced; it may be new
        self._under_way: dict[Segment, tuple[int, int]] | None = None  # sizes of frames and attributes when it began
        self._doubtful: set[Segment] = set()  # segments whose last sync failed
        self.target = reached  # the sequence up to which all is synced, or about to be

    @property
    def needed(self) -> bool:
        """Whether something is not synced."""
        return bool(self.dirty) or self._under_way is not None

    @property
    def settled(self) -> bool:
        """Whether no sync is under way, and none has to be made good."""
        return self._under_way is None and not self._doubtful

    def wrote(self, segment: Segment, *, created: bool = False) -> None:
        self.dirty.add(segment)
        if created:
            self.names_dirty = True

    def deleted(self, segment: Segment) -> None:
        """Note that a segment is deleted."""
        self.dirty.discard(segment)
        self._doubtful.discard(segment)
        if self._under_way is not None:
            self._under_way.pop(segment, None)

    def begin(self, target: int) -> Callable[[], None] | None:
        """Return a call that syncs everything up to sequence `target`; None when there is nothing to sync.

        It works on descriptors of its own, so that files may be closed, rolled and deleted meanwhile.
        """
        if self._under_way is not None or not self.dirty:
            return None
        disk = self._files.disk
        wanted: list[Job] = []
        trouble: OSError | None = None
        try:
            for segment in sorted(self.dirty, key=lambda segment: segment.first):
                segment.write_index()
                again = _lost_pieces(segment) if segment in self._doubtful else {}
                wanted.extend(
                    (disk.dup(self._files.reach(file)), file.path, again.get(file, ())) for file in _files_of(segment)
                )
        except (OSError, LogError) as error:
            trouble = error if isinstance(error, OSError) else OSError(getattr(error, "errno", errno.EIO), str(error))
        directory = self._directory if self.names_dirty else ""
        self.names_dirty = False
        self._under_way = {segment: (segment.size, segment.extras.size) for segment in self.dirty}
        self.dirty, self.target = set(), target

        def sync() -> None:
            failed = trouble
            for fd, path, again in wanted:
                try:
                    if failed is None:
                        _write_again(disk, fd, again)
                        disk.fsync(fd)
                except OSError as error:
                    failed = OSError(error.errno, error.strerror, path)
                finally:
                    disk.close(fd)
            if failed is not None:
                raise failed
            if directory:
                disk.sync_directory(directory)
                disk.sync_directory(os.path.dirname(directory))

        return sync

    def finish(self, error: OSError | None) -> None:
        """Note how the call ended."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        if error is None:
            self.reached = max(self.reached, self.target)
            for segment, sizes in under_way.items():
                segment.synced, segment.synced_extras = sizes
            self._doubtful.difference_update(under_way)
        else:
            self.dirty.update(under_way)
            self._doubtful.update(under_way)
            self.names_dirty = True


def _files_of(segment: Segment) -> list[File]:
    attributes = [segment.extras.file] if segment.extras.size else []
    return [*attributes, segment.frames, segment.index.file]  # a record last, as it vouches for the others


def _lost_pieces(segment: Segment) -> dict[File, list[Piece]]:
    """Return what a failed sync may have lost of a segment's files. Raises `LogError` or `OSError`.

    The index is written again here: its last record may change while the sync runs in another thread.
    """
    segment.index.write_again()
    frames: list[Piece] = []
    number = segment.index.count
    try:
        while number:
            number -= 1
            chunk = segment.index.chunk(number)
            if chunk.stop <= segment.synced:
                break
            frames.append((chunk.offset, chunk.length, chunk.crc))
    except BadRecord as error:
        raise LogError(str(error)) from error
    beside = segment.extras.size - segment.synced_extras
    return {segment.frames: frames, segment.extras.file: [(segment.synced_extras, beside, None)] if beside else []}


def _write_again(disk: Disk, fd: int, pieces: Sequence[Piece]) -> None:
    """Write pieces of a file again as they are. Raises `OSError`.

    A piece that the system has lost does not match its checksum. It is left as it is, and readers set it aside.
    """
    for offset, length, crc in pieces:
        data = disk.pread(fd, length, offset)
        if crc is None or (len(data) == length and kernel.crc32c(data) == crc):
            disk.write(fd, data, offset)
