"""A disk that fails when told to: the seam through which tests run out of space."""

import errno
import os
from typing import Any

from lapwing.log.disk import Disk

CHANGES = ("open", "pwrite", "fsync", "truncate", "rename", "unlink", "mkdir")


class FaultyDisk(Disk):
    """Counts the calls that change something; fails from the `fail_at`-th on, `times` times.

    A failing write writes `short` bytes first, as a disk that fills does.
    """

    def __init__(self, *, error: int = errno.ENOSPC, short: int = 0, only: tuple[str, ...] = CHANGES) -> None:
        self.calls: list[str] = []
        self.fail_at = -1
        self.times = 0
        self.error = error
        self.short = short
        self.only = only
        self.free_bytes: int | None = None

    def arm(self, fail_at: int, times: int = 1) -> None:
        """Let the `fail_at`-th call from now on (0: the next) and the `times - 1` after it fail."""
        self.calls.clear()
        self.fail_at, self.times = fail_at, times

    @property
    def _fails(self) -> bool:
        return 0 <= self.fail_at < len(self.calls) <= self.fail_at + self.times

    def _called(self, name: str) -> None:
        if name in self.only:
            self.calls.append(name)
            if self._fails:
                raise OSError(self.error, os.strerror(self.error))

    def pwrite(self, fd: int, data: Any, offset: int) -> int:  # type: ignore[override]
        if "pwrite" in self.only:
            self.calls.append("pwrite")
            if self._fails:
                if self.short:
                    os.pwrite(fd, bytes(data)[: self.short], offset)
                raise OSError(self.error, os.strerror(self.error))
        return os.pwrite(fd, data, offset)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        if flags & os.O_CREAT:
            self._called("open")
        return os.open(path, flags, mode)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self._called("fsync")
        os.fsync(fd)

    def truncate(self, fd: int, length: int) -> None:  # type: ignore[override]
        self._called("truncate")
        os.ftruncate(fd, length)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        self._called("rename")
        os.replace(source, target)

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self._called("unlink")
        os.unlink(path)

    def free(self, path: str) -> int:  # type: ignore[override]
        return Disk.free(path) if self.free_bytes is None else self.free_bytes


class ShortDisk(Disk):
    """A disk that never writes more than a few bytes at once."""

    def __init__(self, most: int) -> None:
        self.most = most

    def pwrite(self, fd: int, data: Any, offset: int) -> int:  # type: ignore[override]
        return os.pwrite(fd, bytes(data)[: self.most], offset)
