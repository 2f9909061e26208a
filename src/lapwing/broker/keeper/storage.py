"""The storage of topics: a log with a journal and side logs on disk, or a log in memory and nothing else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lapwing import names
from lapwing.errors import ReadFailed
from lapwing.log import resting_file
from lapwing.log.catalog import Catalog, TopicEntry
from lapwing.log.clock_file import ClockFile
from lapwing.log.cold import ColdLog
from lapwing.log.datapath import DataPath
from lapwing.log.disk import DISK, Disk, OpenFiles, exists
from lapwing.log.journal.journal import Journal, PackedJournal
from lapwing.log.log import DiskLog, LogOptions, TopicLog
from lapwing.log.memory import MemoryLog
from lapwing.log.options import boot_number
from lapwing.log.resting_file import RestingFile, RestingTopic
from lapwing.log.schedule_files import ScheduleFiles
from lapwing.log.side.sidelog import MessageStore, SideLog, side_path

if TYPE_CHECKING:
    from lapwing.log.replicated import ReplicatedLog

_MANY: Final = 1000


class ColdStore(NamedTuple):
    """The storage of a topic that is not used."""

    log: ColdLog
    journal: PackedJournal


class Store:
    """The storage of one topic in memory, of which nothing is kept."""

    __slots__ = ("_sides", "log")

    def __init__(self, log: TopicLog) -> None:
        self.log = log
        self._sides: dict[str, Any] = {}  # side logs in use, by channel

    @property
    def journal(self) -> Journal | None:
        """The journal of the topic; None where nothing is kept."""
        return None

    @property
    def whole_log(self) -> TopicLog:
        """The log with everything that was published, also what nobody may see yet."""
        return self.log

    def pack(self) -> ColdStore | None:
        """Return its state, of which `Storage.unpack` makes it again; None where it is in use, or is memory."""
        return None

    def side_log(self, channel: str) -> MessageStore:
        """Return the side log of a channel, made if there is none."""
        side: MessageStore = self._sides.setdefault(channel, MessageStore())
        return side

    def has_side_log(self, channel: str) -> bool:
        """Return whether the channel has one. Raises `ReadFailed`."""
        return channel in self._sides

    def forget(self, channel: str) -> None:
        """Drop what is kept of a channel."""
        self._sides.pop(channel, None)

    def news(self) -> list[str]:
        """Return the notes of its files on damage and repairs since the last call."""
        return []

    def begin_sync(self) -> Callable[[], None] | None:
        """Return a call that makes what is written survive a power loss, for any thread; None: nothing to do."""
        return None

    def finish_sync(self, error: OSError | None) -> None:
        """Note how that call ended."""

    def close(self) -> None:
        """Write what is unwritten and give everything back."""
        self.log.close()

    def destroy(self) -> None:
        """Remove all trace of the topic."""
        self.log.destroy()


class Storage:
    """All topics in memory, ephemeral or not: for tests, and for a broker without a disk."""

    catalog: Catalog
    schedule_files: ScheduleFiles | None = None

    def __init__(self, node: int = 0) -> None:
        self._node = node
        self.catalog = _NoCatalog("")

    def open(self, name: str) -> Store:
        """Return the storage of the topic of that name, as it was left, or new."""
        return Store(MemoryLog(self._node))

    def unpack(self, name: str, cold: ColdStore) -> Store:
        """Return the storage of a topic that was packed."""
        raise ValueError(f"topic {name} is in memory alone, which is not packed")

    def load_cold(self) -> Iterator[tuple[str, ColdStore, int]]:
        """Yield topics that the last process saved and nobody has touched since: name, storage, `fanned_out`."""
        yield from ()

    def save_cold(self, topics: Sequence[tuple[str, ColdStore, int]]) -> None:
        """Save topics that are not used, as `load_cold` returns them, for a fast start."""

    def names_on_disk(self) -> list[str]:
        """Return the topics that something is kept of, in the catalog or not."""
        return []

    def try_writing(self) -> None:
        """Find out whether it takes anything at the moment; raises `OSError`."""

    def try_reading(self, path: str, offset: int) -> None:
        """Read a little of a file at an offset. Raises `OSError` while the disk does not return it."""

    def close(self) -> None:
        """Release what others may use then."""


class DiskStore(Store):
    """One topic in its folder of the data path."""

    __slots__ = ("_sync", "journal")

    log: DiskLog | ReplicatedLog
    journal: Journal

    def __init__(self, log: DiskLog | ReplicatedLog, *, sync: bool, journal: PackedJournal = ()) -> None:
        super().__init__(log)
        self.journal = Journal(log.directory, files=log.files, sync=sync, packed=journal)
        self._sync = sync

    @property
    def disk_log(self) -> DiskLog:
        """The log on the disk."""
        assert isinstance(self.log, DiskLog)
        return self.log

    def pack(self) -> ColdStore | None:
        """Return its state, of which `Storage.unpack` makes it again; None where something has to be written first."""
        journal = None if self._sides else self.journal.pack()
        log = None if journal is None else self.disk_log.pack()
        return None if journal is None or log is None else ColdStore(log, journal)

    def side_log(self, channel: str) -> SideLog:
        """Return the side log of a channel, made if there is none."""
        side: SideLog | None = self._sides.get(channel)
        if side is None:
            log = self.log
            side = self._sides[channel] = SideLog(log.directory, channel, files=log.files, sync=self._sync)
        return side

    def has_side_log(self, channel: str) -> bool:
        """Return whether the channel has one. Raises `ReadFailed`."""
        path = side_path(self.log.directory, channel)
        try:
            return channel in self._sides or exists(path)
        except OSError as error:
            raise ReadFailed(path, 0, error) from error

    def forget(self, channel: str) -> None:
        """Drop what is kept of a channel."""
        if not names.ephemeral(channel):
            self.journal.forget(channel)
        if self.has_side_log(channel):
            self.side_log(channel).destroy()
            del self._sides[channel]

    def news(self) -> list[str]:
        """Return the notes of its files on damage and repairs since the last call."""
        found: list[str] = []
        for notes in (self.disk_log.notes, self.journal.notes, *(side.notes for side in self._sides.values())):
            found += notes
            notes.clear()
        return found

    def begin_sync(self) -> Callable[[], None] | None:
        """Return a call that makes what is written survive a power loss, for any thread; None: nothing to do."""
        wanted = [job for job in (self.log.begin_sync(), self.journal.begin_sync()) if job is not None]
        if not wanted:
            return None

        def sync() -> None:
            with contextlib.ExitStack() as each:  # each ends what it has open, also where another one fails
                for job in reversed(wanted):
                    each.callback(job)

        return sync

    def finish_sync(self, error: OSError | None) -> None:
        """Note how that call ended."""
        self.log.finish_sync(error)
        self.journal.finish_sync(error)

    def close(self) -> None:
        """Write what is unwritten and give everything back; what cannot be written keeps nothing else from it."""
        with contextlib.ExitStack() as each:
            each.callback(self.log.close)
            each.callback(self.journal.close)
            for side in self._sides.values():
                each.callback(side.close)

    def destroy(self) -> None:
        """Remove all trace of the topic, which takes no room on the disk. Raises `WriteFailed`."""
        self.journal.abandon()
        for side in self._sides.values():
            side.abandon()
        self.log.destroy()


class DiskStorage(Storage):
    """All topics in a data path, which nobody else may use meanwhile."""

    def __init__(
        self,
        path: str | DataPath,
        node: int,
        options: LogOptions,
        *,
        now: Callable[[], int],
        report: Callable[[str], None],
        boot_id: str = "",
        open_files: int = 512,
        disk: Disk = DISK,
    ) -> None:
        """`boot_id` names this run of the machine; without it logs write every index record before its frames.

        All logs together keep at most `open_files` files open. `disk` is for the small files.
        """
        super().__init__(node)
        self._place = path if isinstance(path, DataPath) else DataPath(path)
        self.disk = disk
        self._options = replace(options, boot=boot_number(boot_id))
        self._now = now
        self._report = report
        self._files = OpenFiles(limit=open_files)
        self._on_corrupt = self._corrupt  # one object for all logs
        self.catalog = Catalog(self._place.path, disk=disk)
        self.clock_file = ClockFile(self._place.path, disk=disk)
        self.schedule_files = ScheduleFiles(self._place.path, sync=options.durability == "fsync", disk=disk)
        self.many = _MANY  # idle topics for which a faster start is prepared
        self._resting = RestingFile(self._place.path)

    def open(self, name: str) -> Store:
        """Return the storage of the topic of that name, as it was left, or new."""
        if names.ephemeral(name):
            return super().open(name)
        directory = self._place.topic_dir(name)
        now, damaged = self._now(), self._on_corrupt
        log = DiskLog(directory, self._node, now=now, options=self._options, files=self._files, on_corrupt=damaged)
        store = self._store(name, log)
        for note in store.news():
            self._report(note)
        return store

    def unpack(self, name: str, cold: ColdStore) -> Store:
        """Return the storage of a topic that was packed, without a look at its files."""
        log = DiskLog.unpack(cold.log, self._place.topic_dir(name), self._options, self._files, self._on_corrupt)
        return self._store(name, log, cold.journal)

    def _store(self, name: str, log: DiskLog, journal: PackedJournal = ()) -> DiskStore:
        return DiskStore(log, sync=self._options.durability == "fsync", journal=journal)

    def load_cold(self) -> Iterator[tuple[str, ColdStore, int]]:
        """Yield topics that the last process saved and nobody has touched since: name, storage, `fanned_out`."""
        if self._options.durability == "memory":
            return
        for saved in self._resting.load(boot=self._options.boot):
            if resting_file.stamp(self._place.topic_dir(saved.name), saved.first, saved.end) == saved.files:
                node = self._node if saved.node == self._node else saved.node  # one object for all topics
                log = ColdLog(node, saved.first, saved.end, saved.rows_end, saved.packed)
                yield saved.name, ColdStore(log, saved.journal), saved.fanned_out

    def save_cold(self, topics: Sequence[tuple[str, ColdStore, int]]) -> None:
        """Save topics that are not used, as `load_cold` returns them, for a fast start."""
        try:
            if len(topics) < self.many or not self._options.boot:
                self._resting.remove()
            else:
                found = (self._resting_topic(*topic) for topic in topics)
                self._resting.save((each for each in found if each is not None), boot=self._options.boot)
        except OSError as error:
            self._report(f"the idle topics could not be saved for a faster start: {error}")

    def _resting_topic(self, name: str, cold: ColdStore, fanned_out: int) -> RestingTopic | None:
        """Return what is saved of a topic; None if it has to be opened by its files."""
        log, journal = cold
        files = resting_file.stamp(self._place.topic_dir(name), log.first, log.end)
        if files is None or not log.has_one_segment:
            return None
        return RestingTopic(name, files, *log, journal, fanned_out)

    def names_on_disk(self) -> list[str]:
        """Return the topics that have a folder, in the catalog or not."""
        return self._place.topics_on_disk()

    def try_writing(self) -> None:
        """Find out whether the disk takes anything at the moment; raises `OSError`."""
        self._place.try_writing(min_free=self._options.min_free_bytes)

    def try_reading(self, path: str, offset: int) -> None:
        """Read a little of a file at an offset. Raises `OSError` while the disk does not return it."""
        disk = self._files.disk
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile: there is nothing left to read
            fd = disk.open(path, os.O_RDONLY)
            try:
                disk.pread(fd, 1, offset)
            finally:
                disk.close(fd)

    def close(self) -> None:
        """Release the lock on the data path."""
        self._files.shut_all()
        self._place.release()

    def _corrupt(self, path: str, offset: int, first: int, count: int) -> None:
        self._report(f"{path}: corrupt chunk at offset {offset}: messages {first} to {first + count - 1} are set aside")


class _NoCatalog(Catalog):
    """A catalog that keeps nothing."""

    def load(self) -> list[TopicEntry]:
        return []

    def save(self, topics: Iterable[TopicEntry], policies: Mapping[str, Any] = MappingProxyType({})) -> None:
        return None
