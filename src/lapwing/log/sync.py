"""Group fsync: what is to be synced, gathered here and done wherever the caller waits."""

import os
from collections.abc import Callable

from lapwing.errors import WriteFailed
from lapwing.log.disk import File, OpenFiles
from lapwing.log.segment import Segment


class Sync:
    """What of one log's files is written and not yet synced."""

    def __init__(self, directory: str, files: OpenFiles, reached: int) -> None:
        self.reached = reached  # the sequence up to which all is synced
        self._directory = directory
        self._files = files
        self._dirty: set[Segment] = set()
        self._names_dirty = True  # the directory itself may be new
        self._under_way: set[Segment] | None = None
        self._target = reached

    @property
    def needed(self) -> bool:
        """Whether something is not synced."""
        return bool(self._dirty) or self._under_way is not None

    @property
    def boundary(self) -> int:
        """The sequence up to which all is synced, or about to be."""
        return self._target

    def wrote(self, segment: Segment, *, created: bool) -> None:
        """Note a write."""
        self._dirty.add(segment)
        if created:
            self._names_dirty = True

    def deleted(self, segment: Segment) -> None:
        """Note that a segment is gone."""
        self._dirty.discard(segment)
        if self._under_way is not None:
            self._under_way.discard(segment)

    def begin(self, target: int) -> Callable[[], None] | None:
        """The call that syncs everything up to sequence `target`; None when there is none to make.

        It works on descriptors of its own, so that files may be closed, rolled and deleted meanwhile.
        """
        if self._under_way is not None or not self._dirty:
            return None
        disk = self._files.disk
        wanted: list[tuple[int, str]] = []
        trouble: OSError | None = None
        try:
            for segment in sorted(self._dirty, key=lambda segment: segment.first):
                segment.write_index()
                wanted += [(disk.dup(self._files.reach(file)), file.path) for file in _files_of(segment)]
        except (OSError, WriteFailed) as error:
            trouble = error if isinstance(error, OSError) else OSError(error.errno, str(error))
        directory = self._directory if self._names_dirty else ""
        self._names_dirty = False
        self._under_way, self._dirty, self._target = self._dirty, set(), target

        def sync() -> None:
            failed = trouble
            for fd, path in wanted:
                try:
                    if failed is None:
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
        if self._under_way is None:
            return
        if error is None:
            self.reached = max(self.reached, self._target)
        else:
            self._dirty |= self._under_way
            self._names_dirty = True
        self._under_way = None


def _files_of(segment: Segment) -> list[File]:
    attributes = [segment.extras.file] if segment.extras.size else []
    return [*attributes, segment.frames, segment.index.file]  # a record last, as it vouches for the others
