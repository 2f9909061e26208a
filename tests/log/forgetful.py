"""A disk whose failed fsync loses pages: the system takes them for clean, and the next fsync does not write them."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lapwing.log.disk import Disk

PAGE = 4096


class ForgetfulDisk(Disk):
    """Knows which pages of each file are dirty, and what of each file is on the disk."""

    def __init__(self) -> None:
        self.failing = 0  # so many fsyncs fail
        self._dirty: dict[int, set[int]] = {}  # inode -> pages
        self._stored: dict[int, dict[int, bytes]] = {}  # inode -> page -> content

    def pwrite(self, fd: int, data: Any, offset: int) -> int:  # type: ignore[override]
        written = os.pwrite(fd, data, offset)
        pages = range(offset // PAGE, (offset + written - 1) // PAGE + 1)
        self._dirty.setdefault(os.fstat(fd).st_ino, set()).update(pages)
        return written

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        inode = os.fstat(fd).st_ino
        dirty = self._dirty.pop(inode, set())
        if self.failing:
            self.failing -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        stored = self._stored.setdefault(inode, {})
        for page in dirty:
            stored[page] = os.pread(fd, PAGE, page * PAGE)

    def lose_power(self, folder: Path) -> None:
        """Make every file what the disk has of it."""
        for path in files_in(folder):
            facts = path.stat()
            stored = self._stored.get(facts.st_ino, {})
            pages = range((facts.st_size + PAGE - 1) // PAGE)
            data = b"".join(stored.get(page, b"").ljust(PAGE, b"\0") for page in pages)
            path.write_bytes(data[: facts.st_size])


def files_in(folder: Path) -> Iterator[Path]:
    """Yield every file below a folder."""
    return (path for path in sorted(folder.rglob("*")) if path.is_file())
