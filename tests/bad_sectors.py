"""A disk that cannot read some of its files."""

import errno
import os

import pytest

from lapwing.log.disk import Disk


class BadSectors:
    """Makes reading the files whose path ends so fail as a dying disk does, until it is healed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ending: str, number: int = errno.EIO) -> None:
        self.ending: str | None = ending
        self.number = number
        monkeypatch.setattr(Disk, "pread", staticmethod(self._pread))

    def _pread(self, fd: int, length: int, offset: int) -> bytes:
        if self.ending is not None and os.readlink(f"/proc/self/fd/{fd}").endswith(self.ending):
            raise OSError(self.number, os.strerror(self.number))
        return os.pread(fd, length, offset)

    def heal(self) -> None:
        """Have all files read again."""
        self.ending = None
