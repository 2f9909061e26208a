"""The storage of topics: a log with a journal and side logs on disk, or a log in memory and nothing else."""

from __future__ import annotations

import contextlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from lapwing import names
from lapwing.errors import ReadFailed
from lapwing.log import resting_file
from lapwing.log.catalog import Catalog, TopicEntry
from lapwing.log.clock_file import ClockFile
from lapwing.log.datapath import DataPath
from lapwing.log.disk import OpenFiles, exists
from lapwing.log.journal.journal import Journal, PackedJournal
from lapwing.log.log import DiskLog, LogOptions, TopicLog
from lapwing.log.memory import MemoryLog
from lapwing.log.options import boot_number
from lapwing.log.resting_file import RestingFile, RestingTopic
from lapwing.log.side.sidelog import MessageStore, SideLog, side_path

_MANY: Final = 1000


class Store:
    """The storage of one topic. Where nothing else is written here, it is memory, which keeps nothing."""

    __slots__ = ("log",)

    def __init__(self, log: TopicLog) -> None:
        self.log = log

    @property
    def journal(self) -> Journal | None:
        """The journal of the topic; None where nothing is kept."""
        return None

    def rest(self) -> bool:
        """Take little memory until the next use; return False where something has to be written first."""
        return False  # what is in memory alone stays there

    @abstractmethod
    def side_log(self, channel: str) -> MessageStore:
        """Return the side log of a channel, made if there is none."""

    @abstractmethod
    def has_side_log(self, channel: str) -> bool:
        """Return whether the channel has one. Raises `ReadFailed`."""

    @abstractmethod
    def forget(self, channel: str) -> None:
        """Drop what is kept of a channel."""

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
    """The storage of all topics. Where nothing else is written here, it is memory, which keeps nothing."""

    catalog: Catalog

    @abstractmethod
    def open(self, name: str) -> Store:
        """Return the storage of the topic of that name, as it was left, or new."""

    def resting(self) -> Iterator[tuple[RestingTopic, Store]]:
        """Yield topics that the last process saved at rest and nobody has touched since, with their storage."""
        yield from ()

    def save_resting(self, topics: Iterable[tuple[str, Store, int]]) -> None:
        """Save topics at rest, by name and with the sequence up to which they are handed over, for a fast start."""

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

    __slots__ = ("_journal", "_packed", "_sides", "_sync")

    log: DiskLog

    def __init__(self, log: DiskLog, *, sync: bool, journal: PackedJournal = ()) -> None:
        super().__init__(log)
        self._journal: Journal | None = None  # while it is in use
        self._packed: PackedJournal = journal  # what is known of the journal else
        self._sync = sync
        self._sides: dict[str, SideLog] | None = None  # those in use, if any

    @property
    def journal(self) -> Journal:
        """The journal of the topic."""
        if self._journal is None:
            self._journal = Journal(self.log.directory, files=self.log.files, sync=self._sync)
            self._journal.resume(self._packed)
        return self._journal

    def rest(self) -> bool:
        """Take little memory until the next use; return False where something has to be written first."""
        if self._sides:
            return False
        if self._journal is not None:
            packed = self._journal.pack()
            if packed is None:
                return False
            self._journal, self._packed = None, packed
        self._sides = None
        return self.log.rest()

    @property
    def resting_journal(self) -> PackedJournal | None:
        """The state of a journal that is not in use; None while it is."""
        return self._packed if self._journal is None else None

    def side_log(self, channel: str) -> SideLog:
        """Return the side log of a channel, made if there is none."""
        if self._sides is None:
            self._sides = {}
        side = self._sides.get(channel)
        if side is None:
            log = self.log
            side = self._sides[channel] = SideLog(log.directory, channel, files=log.files, sync=self._sync)
        return side

    def has_side_log(self, channel: str) -> bool:
        """Return whether the channel has one. Raises `ReadFailed`."""
        path = side_path(self.log.directory, channel)
        try:
            return bool(self._sides and channel in self._sides) or exists(path)
        except OSError as error:
            raise ReadFailed(path, 0, error) from error

    def forget(self, channel: str) -> None:
        """Drop what is kept of a channel."""
        if not names.ephemeral(channel):
            self.journal.forget(channel)
        if self.has_side_log(channel):
            self.side_log(channel).destroy()
            if self._sides is not None:
                del self._sides[channel]

    def news(self) -> list[str]:
        """Return the notes of its files on damage and repairs since the last call."""
        found: list[str] = []
        sources: list[DiskLog | Journal | SideLog] = [] if self.log.rests else [self.log]
        sources += [] if self._journal is None else [self._journal]
        for source in (*sources, *(self._sides or {}).values()):
            notes = source.notes
            found += notes
            notes.clear()
        return found

    def begin_sync(self) -> Callable[[], None] | None:
        """Return a call that makes what is written survive a power loss, for any thread; None: nothing to do."""
        log = self.log.begin_sync() if self.log.unsynced else None
        jobs = [log, None if self._journal is None else self._journal.begin_sync()]
        wanted = [job for job in jobs if job is not None]
        if not wanted:
            return None

        def sync() -> None:
            for job in wanted:
                job()

        return sync

    def finish_sync(self, error: OSError | None) -> None:
        """Note how that call ended."""
        self.log.finish_sync(error)
        if self._journal is not None:
            self._journal.finish_sync(error)

    def close(self) -> None:
        """Write what is unwritten and give everything back; what cannot be written keeps nothing else from it."""
        with contextlib.ExitStack() as each:
            if not self.log.rests:
                each.callback(self.log.close)
            if self._journal is not None:
                each.callback(self._journal.close)
            for side in (self._sides or {}).values():
                each.callback(side.close)

    def destroy(self) -> None:
        """Remove all trace of the topic, which takes no room on the disk. Raises `WriteFailed`."""
        if self._journal is not None:
            self._journal.abandon()
        for side in (self._sides or {}).values():
            side.abandon()
        self.log.destroy()


class MemoryStore(Store):
    """One topic in memory."""

    __slots__ = ("_sides",)

    def __init__(self, node: int) -> None:
        super().__init__(MemoryLog(node))
        self._sides: dict[str, MessageStore] = {}

    def side_log(self, channel: str) -> MessageStore:
        """Return the side log of a channel, made if there is none."""
        return self._sides.setdefault(channel, MessageStore())

    def has_side_log(self, channel: str) -> bool:
        """Return whether the channel has one."""
        return channel in self._sides

    def forget(self, channel: str) -> None:
        """Drop what is kept of a channel."""
        self._sides.pop(channel, None)


class DiskStorage(Storage):
    """All topics in a data path, which nobody else may use meanwhile."""

    def __init__(
        self,
        path: str,
        node: int,
        options: LogOptions,
        *,
        now: Callable[[], int],
        report: Callable[[str], None],
        boot_id: str = "",
        open_files: int = 512,
    ) -> None:
        """`boot_id` names this run of the machine; without it logs write every index record before its frames.

        All logs together keep at most `open_files` files open.
        """
        self._place = DataPath(path)
        self._node = node
        self._options = replace(options, boot=boot_number(boot_id))
        self._now = now
        self._report = report
        self._files = OpenFiles(limit=open_files)
        self._on_corrupt = self._corrupt  # one object for all logs
        self.catalog = Catalog(self._place.path)
        self.clock_file = ClockFile(self._place.path)
        self.many = _MANY  # idle topics for which a faster start is prepared
        self._resting = RestingFile(self._place.path)

    def open(self, name: str) -> Store:
        """Return the storage of the topic of that name, as it was left, or new."""
        if names.ephemeral(name):
            return MemoryStore(self._node)
        directory = self._place.topic_dir(name)
        now, damaged = self._now(), self._on_corrupt
        log = DiskLog(directory, self._node, now=now, options=self._options, files=self._files, on_corrupt=damaged)
        log.name_directory(self._place.topics, name)
        store = DiskStore(log, sync=self._options.durability == "fsync")
        for note in store.news():
            self._report(note)
        return store

    def resting(self) -> Iterator[tuple[RestingTopic, Store]]:
        """Yield topics that the last process saved at rest and nobody has touched since, with their storage."""
        if self._options.durability == "memory":
            return
        for saved in self._resting.load(boot=self._options.boot):
            directory = self._place.topic_dir(saved.name)
            if resting_file.stamp(directory, saved.first, saved.end) == saved.files:
                node = self._node if saved.node == self._node else saved.node  # one object for all topics
                state = (node, saved.first, saved.end, saved.rows_end, saved.packed)
                log = DiskLog.resume_resting(state, self._options, self._files, self._on_corrupt)
                log.name_directory(self._place.topics, saved.name)
                yield saved, DiskStore(log, sync=self._options.durability == "fsync", journal=saved.journal)

    def save_resting(self, topics: Iterable[tuple[str, Store, int]]) -> None:
        """Save topics at rest, by name and with the sequence up to which they are handed over, for a fast start."""
        known = list(topics)
        try:
            if len(known) < self.many or not self._options.boot:
                self._resting.remove()
            else:
                found = (_resting_topic(name, store, fanned_out) for name, store, fanned_out in known)
                self._resting.save((each for each in found if each is not None), boot=self._options.boot)
        except OSError as error:
            self._report(f"the idle topics could not be saved for a faster start: {error}")

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


def _resting_topic(name: str, store: Store, fanned_out: int) -> RestingTopic | None:
    """Return what is saved of a topic at rest; None if it has to be opened by its files."""
    if not isinstance(store, DiskStore):
        return None
    state, journal = store.log.resting_state, store.resting_journal
    if state is None or journal is None:
        return None
    node, first, end, rows_end, packed = state
    files = resting_file.stamp(store.log.directory, first, end)
    if files is None:
        return None
    return RestingTopic(name, files, node, first, end, rows_end, packed, journal, fanned_out)


class MemoryStorage(Storage):
    """All topics in memory, ephemeral or not: for tests, and for a broker without a disk."""

    def __init__(self, node: int = 0) -> None:
        self._node = node
        self.catalog = _NoCatalog("")

    def open(self, name: str) -> Store:
        """Return a new topic."""
        return MemoryStore(self._node)


class _NoCatalog(Catalog):
    """A catalog that keeps nothing."""

    def load(self) -> list[TopicEntry]:
        return []

    def save(self, topics: Iterable[TopicEntry], policies: Mapping[str, Any] = MappingProxyType({})) -> None:
        return None
