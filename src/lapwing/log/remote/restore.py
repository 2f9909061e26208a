"""Write what a remote log holds to a new data path."""

import os
import shutil
from collections.abc import Callable
from typing import Final

from lapwing.errors import ConfigError, RemoteDamaged
from lapwing.log import records
from lapwing.log.datapath import TOPICS, folder
from lapwing.log.disk import DISK, MODE, OpenFiles
from lapwing.log.log import DiskLog, LogOptions
from lapwing.log.remote.image import Image, superseded
from lapwing.log.remote.record import (
    FileRemoved,
    FileWritten,
    JournalEntries,
    LogBegun,
    LogRemoved,
    Messages,
    SideRecords,
    SideRemoved,
)
from lapwing.log.remote.remote_log import RemoteLog
from lapwing.log.segments import reservation
from lapwing.log.segments.opening import write_identity
from lapwing.log.side.sidelog import side_path

UNFINISHED: Final = ".restoring"  # behind the name of a data path that is not whole yet
_TRIES: Final = 5

Report = Callable[[str, int], None]  # topic, bytes done


class _DataPathImage(Image):
    """Writes what is applied to files, with the means of the log itself."""

    def __init__(self, path: str, *, now: int, boot: int, report: Report) -> None:
        super().__init__()
        self.path = path
        self._now = now
        self._options = LogOptions(boot=boot)
        self._report = report
        self._open = OpenFiles(limit=64)
        self._logs: dict[str, DiskLog] = {}

    def close(self) -> None:
        """Write what is unwritten."""
        for log in self._logs.values():
            log.close()
        self._open.shut_all()

    def _begin(self, part: LogBegun) -> None:
        former = self._logs.pop(part.topic, None)
        if former is not None:
            former.destroy()
        directory = self._directory(part.topic)
        DISK.make_directory(directory, sync=False)
        write_identity(directory, part.log_id, part.node, self._now, DISK, sync=False)
        if part.first:
            self._leave_out(directory, None, part.first)
        self._logs[part.topic] = self._opened(directory, part.node)

    def _add(self, part: Messages) -> None:
        log = self._logs[part.topic]
        if part.frames:
            log.append(part.frames, part.count, now=self._now, rows=part.rows)
            log.flush()
        else:
            log.write_index()
            self._leave_out(log.directory, log, part.count)
            log.close()
            self._logs[part.topic] = self._opened(log.directory, log.node)
        self._report(part.topic, self.topics[part.topic].bytes)

    def _leave_out(self, directory: str, log: DiskLog | None, count: int) -> None:
        segments = list(log.segments) if log is not None else []
        options = self._options
        reservation.leave_out(directory, segments, count, self._open, options.merge_bytes, options.boot)

    def _opened(self, directory: str, node: int) -> DiskLog:
        return DiskLog(directory, node, options=self._options, files=self._open)

    def _add_entries(self, part: JournalEntries) -> None:
        self._append(os.path.join(self._directory(part.topic), "journal"), records.encode(part.entries))

    def _add_side(self, part: SideRecords) -> None:
        self._append(side_path(self._directory(part.topic), part.channel), part.records)

    def _append(self, path: str, data: bytes) -> None:
        DISK.make_directory(os.path.dirname(path), sync=False)
        fd = DISK.open(path, os.O_RDWR | os.O_CREAT, MODE)
        try:
            DISK.write(fd, data, os.fstat(fd).st_size)
        finally:
            DISK.close(fd)

    def _write(self, part: FileWritten) -> None:
        super()._write(part)
        path = os.path.join(self.path, *part.path.split("/"))
        DISK.make_directory(os.path.dirname(path), sync=False)
        DISK.replace(path, [part.content], sync=False)

    def _remove_side(self, part: SideRemoved) -> None:
        path = side_path(self._directory(part.topic), part.channel)
        if os.path.exists(path):
            DISK.unlink(path)

    def _remove(self, part: FileRemoved) -> None:
        super()._remove(part)
        path = os.path.join(self.path, *part.path.split("/"))
        if os.path.exists(path):
            DISK.unlink(path)

    def _remove_log(self, part: LogRemoved) -> None:
        self._logs.pop(part.topic).destroy()

    def _directory(self, topic: str) -> str:
        return os.path.join(self.path, TOPICS, folder(topic))


def restore(remote: RemoteLog, path: str, *, now: int, boot: int, report: Report) -> Image:
    """Make `path` a data path that holds what the remote log does, without claiming it; return what that is.

    It appears as a whole or not at all. Raises `ConfigError` if there is something at `path`, `RemoteDamaged` or
    `RemoteFailed`.
    """
    path = os.path.abspath(path)
    if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise ConfigError(f"{path} exists and is not empty: restore to a new folder")
    unfinished = path + UNFINISHED
    image = build(remote, unfinished, now=now, boot=boot, report=report)
    if os.path.isdir(path):
        os.rmdir(path)
    os.rename(unfinished, path)
    DISK.sync_directory(os.path.dirname(path))
    return image


def build(remote: RemoteLog, folder: str, *, now: int, boot: int, report: Report) -> Image:
    """Write what the remote log holds to `folder`, whatever was there; it survives a power loss. Raises as `restore`.

    It is tried again when the owner has made a checkpoint meanwhile.
    """
    tries = 0
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        DISK.make_directory(os.path.join(folder, TOPICS), sync=False)
        image = _DataPathImage(folder, now=now, boot=boot, report=report)
        try:
            try:
                image.load(remote)
            finally:
                image.close()
            break
        except RemoteDamaged:
            tries += 1
            shutil.rmtree(folder, ignore_errors=True)
            if tries == _TRIES or not superseded(image, remote):
                raise
    if image.last is None and image.checkpoint is None:
        shutil.rmtree(folder)
        raise ConfigError(f"{remote.engine.place}: there is no remote log")
    os.sync()  # what gets its name next is whole, also after a power loss
    return image
