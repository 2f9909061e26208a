"""The changes of a data path since the last record: entries of journals, side logs, small files, logs that come and go.

Everything is noted after it is on the disk, in that order. What was noted up to a moment between two steps of the event
loop, with the messages that the logs have then, is what a process killed at that moment would have left on its disk. So
a record of all of it, and never of a part, leads from one such state to the next; and a take-over is a restart after a
kill.
"""

import os
from collections import deque
from collections.abc import Iterator

from lapwing.errors import LogError
from lapwing.log.datapath import TOPICS
from lapwing.log.disk import Disk
from lapwing.log.log import DiskLog
from lapwing.log.remote.record import (
    FileRemoved,
    FileWritten,
    JournalEntries,
    LogBegun,
    LogRemoved,
    Messages,
    Part,
    SideRecords,
    SideRemoved,
)
from lapwing.log.replicated import ReplicatedLog

_QUIET = frozenset({"clock"})  # files that no record is written for


class Changes:
    """Notes changes; `take` returns them. Files may be noted by any thread, everything else by the event loop's."""

    def __init__(self, known: dict[str, tuple[str, int]]) -> None:
        """`known` has the logs that the remote log has already, by topic: identity and end."""
        self.logs = {topic: log_id for topic, (log_id, _) in known.items()}
        self._ends = dict(known.values())
        self._parts: deque[Part] = deque()
        self._quiet: dict[str, FileWritten] = {}

    def __bool__(self) -> bool:
        """Return whether there is something to write."""
        return bool(self._parts)

    def open(self, topic: str, log: DiskLog) -> ReplicatedLog:
        """Return the log that everybody sees; a new one begins, for which `topic` may have had another.

        Raises `LogError` for one that has lost something.
        """
        if self.logs.get(topic) != log.identity:
            self.logs[topic] = log.identity
            self._parts.append(LogBegun(topic, log.identity, log.node, log.first))
            return ReplicatedLog(log, log.first)
        end = self._ends.pop(log.identity, log.end)
        if end > log.end:
            raise LogError(f"{log.directory} ends at {log.end}, and its remote log at {end}")
        return ReplicatedLog(log, end)

    def removed(self, topic: str, log_id: str) -> None:
        """Note that a topic was deleted."""
        if self.logs.get(topic) == log_id:
            del self.logs[topic]
            self._parts.append(LogRemoved(topic, log_id))

    def add(self, part: JournalEntries | SideRecords | SideRemoved) -> None:
        """Note what was written beside a log."""
        self._parts.append(part)

    def file(self, path: str, content: bytes) -> None:
        """Note the content of a file; `path` begins at the data path."""
        part = FileWritten(path, content)
        if path in _QUIET:
            self._quiet[path] = part
        else:
            self._parts.append(part)

    def file_removed(self, path: str) -> None:
        """Note that a file is gone."""
        self._parts.append(FileRemoved(path))

    def disk(self, path: str) -> Disk:
        """Return the disk for the small files of a data path."""
        return NotedDisk(path, self)

    def take(self) -> list[Part]:
        """Return what was noted, without what lies beside logs that were deleted since."""
        found: list[Part] = []
        while self._parts:
            found.append(self._parts.popleft())
        if not found:
            return []
        while self._quiet:
            found.append(self._quiet.popitem()[1])
        gone = {part.log_id for part in found if isinstance(part, LogRemoved)}
        if not gone:
            return found
        begun = {part.log_id for part in found if isinstance(part, LogBegun)}
        return [part for part in found if not _is_moot(part, gone, begun)]


def _is_moot(part: Part, gone: set[str], begun: set[str]) -> bool:
    """Return whether a part is of a log that is gone: what deletes it stays, unless it began among the same parts."""
    if isinstance(part, LogRemoved):
        return part.log_id in begun
    return isinstance(part, LogBegun | JournalEntries | SideRecords | SideRemoved) and part.log_id in gone


def fresh(topic: str, log: ReplicatedLog, block: int) -> Iterator[Messages]:
    """Yield the messages of a log that no record has. Raises `ReadFailed`."""
    for first, count, frames in log.unreplicated(block):
        rows = log.rows(first, first + count) if frames else b""
        whole = frames.obj if isinstance(frames.obj, bytes) and len(frames.obj) == len(frames) else bytes(frames)
        yield Messages(topic, log.identity, first, count, whole, rows)


class NotedDisk(Disk):
    """The disk, for the small files of a data path: whatever becomes of them is noted."""

    def __init__(self, path: str, changes: Changes) -> None:
        self._path = os.path.abspath(path)
        self._changes = changes

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]  # the other is static
        """Rename a file, and note the content that `target` has now."""
        super().rename(source, target)
        name = self._name(target)
        if name:
            self._changes.file(name, self.read(target))

    def append(self, path: str, data: bytes) -> None:
        """Append to a file, and note its content."""
        super().append(path, data)
        self._changes.file(self._name(path), self.read(path))

    def unlink(self, path: str) -> None:  # type: ignore[override]  # the other is static
        """Remove a file, and note that."""
        super().unlink(path)
        name = self._name(path)
        if name and not name.endswith(".tmp"):
            self._changes.file_removed(name)

    def _name(self, path: str) -> str:
        """Return the name of a file in the data path; nothing for one that lies elsewhere, or is of a topic."""
        name = os.path.relpath(os.path.abspath(path), self._path).replace(os.sep, "/")
        return "" if name.startswith(("../", f"{TOPICS}/")) else name
