"""A file of lines in the data path that keeps its newest megabyte or two."""

from __future__ import annotations

import os
from typing import Final

from lapwing.log.disk import DISK

NAME: Final = "audit"
_LARGEST: Final = 1 << 20  # bytes of the file; then it takes the place of the one before, and a new one begins


class AuditFile:
    """Appends lines to `audit` in a folder, and reads the newest ones from it and from `audit.1`."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, NAME)
        self._before = f"{self._path}.1"

    def append(self, line: bytes) -> None:
        """Append a line, given without its end. Raises `OSError`."""
        fd = DISK.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            size = os.fstat(fd).st_size
            torn = size > 0 and DISK.pread(fd, 1, size - 1) != b"\n"  # by a crash: what is there ends here
            data = (b"\n" if torn else b"") + line + b"\n"
            DISK.pwrite(fd, data, size)
        finally:
            DISK.close(fd)
        if size + len(data) >= _LARGEST:
            DISK.rename(self._path, self._before)

    def newest(self, count: int) -> list[bytes]:
        """Return up to `count` lines, the newest first. Raises `OSError`."""
        lines: list[bytes] = []
        for path in (self._path, self._before):
            if len(lines) < count:
                try:
                    lines += reversed(DISK.read(path).splitlines())
                except FileNotFoundError:
                    continue
        return lines[:count]
