"""The storage of topics of which everything is also in a remote log: what is written is noted for the next record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from lapwing.broker.keeper.storage import ColdStore, DiskStorage, DiskStore
from lapwing.log.datapath import DataPath
from lapwing.log.journal.journal import PackedJournal
from lapwing.log.log import DiskLog, LogOptions
from lapwing.log.remote.changes import Changes
from lapwing.log.remote.record import JournalEntries, SideRecords, SideRemoved
from lapwing.log.replicated import ReplicatedLog
from lapwing.log.side.sidelog import SideLog


class ReplicatedStore(DiskStore):
    """One topic in its folder of the data path; what is written beside its log is noted."""

    __slots__ = ("_changes", "_topic")

    log: ReplicatedLog

    def __init__(
        self, topic: str, log: ReplicatedLog, changes: Changes, *, sync: bool, journal: PackedJournal = ()
    ) -> None:
        super().__init__(log, sync=sync, journal=journal)
        self._topic, self._changes = topic, changes
        log_id = log.identity
        self.journal.on_flush = lambda entries: changes.add(JournalEntries(topic, log_id, entries))

    @property
    def whole_log(self) -> DiskLog:
        """The log with everything that was published, also what no record has."""
        return self.log.disk_log

    @property
    def disk_log(self) -> DiskLog:
        """The log on the disk."""
        return self.log.disk_log

    def pack(self) -> ColdStore | None:
        """Return its state, of which `Storage.unpack` makes it again; None where something has to be written first."""
        return None if self.log.behind else super().pack()

    def side_log(self, channel: str) -> SideLog:
        """Return the side log of a channel, made if there is none."""
        side = super().side_log(channel)
        if side.on_flush is None:
            side.on_flush = partial(self._note_side, channel)
        return side

    def _note_side(self, channel: str, data: bytes) -> None:
        topic, log_id = self._topic, self.log.identity
        part = SideRecords(topic, log_id, channel, data) if data else SideRemoved(topic, log_id, channel)
        self._changes.add(part)

    def forget(self, channel: str) -> None:
        """Drop what is kept of a channel."""
        has_side = self.has_side_log(channel)
        super().forget(channel)
        if has_side:
            self._changes.add(SideRemoved(self._topic, self.log.identity, channel))

    def destroy(self) -> None:
        """Remove all trace of the topic, which takes no room on the disk. Raises `WriteFailed`."""
        super().destroy()
        self._changes.removed(self._topic, self.log.identity)


class ReplicatedStorage(DiskStorage):
    """All topics in a data path that nobody else may use meanwhile."""

    def __init__(
        self,
        path: DataPath,
        node: int,
        options: LogOptions,
        changes: Changes,
        *,
        now: Callable[[], int],
        report: Callable[[str], None],
        boot_id: str,
        open_files: int,
    ) -> None:
        disk = changes.disk(path.path)
        super().__init__(
            path, node, options, now=now, report=report, boot_id=boot_id, open_files=open_files, disk=disk
        )
        self._changes = changes

    def load_cold(self) -> Iterator[tuple[str, ColdStore, int]]:
        """Yield nothing: every log is opened, and compared with the remote one."""
        yield from ()

    def save_cold(self, topics: Sequence[tuple[str, ColdStore, int]]) -> None:
        """Save nothing."""
        super().save_cold(())

    def close(self) -> None:
        """Give files back; the data path is held until the remote log is released."""
        self._files.shut_all()

    def _store(self, name: str, log: DiskLog, journal: PackedJournal = ()) -> DiskStore:
        return ReplicatedStore(name, self._changes.open(name, log), self._changes, sync=False, journal=journal)
