"""The schedules of a data path: the file `schedules` with what was put, `schedules.progress` with how far each is.

What was put changes at the wish of a person and must not be lost. Progress is written from time to time and may be
old: the log has the messages that were published since.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

from lapwing import kernel
from lapwing.errors import CorruptChunk, LogError, WriteFailed
from lapwing.log.disk import DISK, Disk

FILE: Final = "schedules"
PROGRESS: Final = "schedules.progress"


class ScheduleFiles:
    """Both files; each is replaced as a whole."""

    def __init__(self, path: str, *, sync: bool, disk: Disk = DISK) -> None:
        self._folder = path
        self._sync = sync
        self._disk = disk

    def load(self) -> dict[str, Any]:
        """Return what was put, by name. Raises `LogError`."""
        return self._read(FILE)

    def save(self, schedules: dict[str, Any]) -> None:
        """Replace what was put. Raises `WriteFailed`."""
        self._write(FILE, schedules)

    def load_progress(self) -> dict[str, Any]:
        """Return how far each schedule is, by name. Raises `LogError`."""
        return self._read(PROGRESS)

    def save_progress(self, progress: dict[str, Any]) -> None:
        """Replace how far each schedule is. Raises `WriteFailed`."""
        self._write(PROGRESS, progress)

    def _read(self, name: str) -> dict[str, Any]:
        path = os.path.join(self._folder, name)
        try:
            data = self._disk.read(path)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise LogError(f"{path}: cannot be read: {error.strerror}") from error
        if kernel.crc32c(data[9:]) != _checksum(data):
            raise CorruptChunk(path, 0, f"{len(data)} bytes that do not match their checksum")
        found: dict[str, Any] = json.loads(data[9:])
        return found

    def _write(self, name: str, document: dict[str, Any]) -> None:
        path = os.path.join(self._folder, name)
        text = json.dumps(document).encode()
        try:
            self._disk.replace(path, [b"%08x\n" % kernel.crc32c(text), text], sync=self._sync)
        except OSError as error:
            raise WriteFailed(path, 0, error) from error


def _checksum(data: bytes) -> int:
    try:
        return int(data[:8], 16)
    except ValueError:
        return -1
