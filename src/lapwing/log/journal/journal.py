"""The journal of a topic: the state of its channels, saved in small records and folded when it is read."""

import contextlib
import errno
import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from lapwing.errors import LogError, WriteFailed
from lapwing.log import records
from lapwing.log.disk import File, OpenFiles
from lapwing.log.journal import entries
from lapwing.log.journal.entries import NotUnderstood
from lapwing.log.journal.state import (
    ChannelFold,
    ChannelState,
    FailureState,
    HeldRun,
    HolderState,
    JournalFold,
    JournalState,
    Run,
)  # fmt: skip
from lapwing.log.records import RecordFile

__all__ = ["ChannelState", "FailureState", "HeldRun", "HolderState", "Journal", "JournalState"]

PackedJournal = tuple[()] | tuple[tuple[int, bool], int, tuple[tuple[object, int], ...]]

_COMPACT_BYTES: Final = 1 << 20
_COMPACT_RATIO: Final = 4
_NEXT_STEP: Final = "start the version of lapwing that wrote it, or stop nsqd and move the file elsewhere"


@functools.lru_cache(maxsize=256)
def shared(packed: PackedJournal) -> PackedJournal:
    """Return one object for all that are equal: the journals of topics that are hardly used are."""
    return packed


class Journal:
    """The journal of one topic. `notes` names what `load` had to skip.

    What is saved is written by the next `flush`, as one record: after a crash all of it is there or nothing.
    """

    __slots__ = (
        "_entries", "_file", "_latest", "_live", "_read", "_sync", "_syncing", "_version", "damaged", "notes",
        "on_flush", "path", "sync_wanted",
    )  # fmt: skip

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        files: OpenFiles | None = None,
        sync: bool = False,
        packed: PackedJournal = (),
    ) -> None:
        """`packed` is what `pack` returned of the journal, if it was packed."""
        self.path = os.path.join(os.fspath(directory), "journal")
        self.notes: list[str] = []
        self._file = RecordFile(File(self.path, OpenFiles() if files is None else files))
        self._sync = sync  # at compaction; after a lost append some messages are delivered again
        self.sync_wanted = False  # whether what is flushed has to survive a power loss
        self._syncing = False  # whether the sync that was begun last is of this file too
        self._read = False
        self._version = 1  # that of the file
        self.damaged = False  # whether more than a torn write at its end was found in it
        self._entries: list[bytes] = []  # in order
        self.on_flush: Callable[[bytes], object] | None = None  # called with the entries of each record that is written
        self._latest: dict[object, bytes] = {}  # entries that a later one of the same key replaces, before the flush
        self._live: dict[object, int] = {}  # bytes that a rewrite would need, by what they are about
        if packed:
            known, self._version, live = packed
            self._file.resume(known)
            self._live = dict(live)
            self._read = True

    def pack(self) -> PackedJournal | None:
        """Return what is known of the file, and give its descriptor back; None where something is to be written.

        A new object that gets it is as this one, without reading the file again.
        """
        known = self._file.known
        unwritten = self._entries or self._latest or self.sync_wanted
        if known is None or unwritten or self.notes or self.damaged:
            return None
        self._file.file.close()
        if not self._read:
            return ()
        live = tuple((key, size) for key, size in self._live.items() if size)
        return shared((known, self._version, live))

    def load(self, *, end: int | None = None) -> JournalState:
        """Return everything the journal knows. A damaged record is skipped, a torn one at the end cut off.

        `end` is where the topic's log ends: what the journal knows of messages beyond it is dropped for good, but for
        cursors, which the caller saves again.

        Behind a damaged record a channel has again whatever may have been deferred in it. A copy of the file is kept
        then (`damaged` is set), and the caller has to save what it makes of the state and call `compact`. Raises
        `LogError`, and leaves the file as it is, when the disk does not return it or another version of lapwing wrote
        something that this one does not know.
        """
        folded = self._fold()
        cut = end is not None and folded.cut(end)
        state = folded.state()
        if self.damaged:
            self._keep_copy()
            with contextlib.suppress(OSError):
                state.written = os.stat(self.path).st_mtime_ns
        if cut and not self.compact(folded):
            raise LogError(f"{self.path}: knows of messages that the log has lost, and cannot be written: make room")
        return state

    def snapshot(self) -> bytes:
        """Return the entries that amount to what is in the file, as one record has them. Raises `LogError`."""
        return b"".join(_encoded(self._fold()))

    # --- saving ------------------------------------------------------------------------------------------------

    def progress(
        self, channel: str, cursor: int, unfinished: Sequence[Run], attempts: Mapping[int, int]
    ) -> None:
        """Save a channel's cursor and what is unfinished below it; replaces what was saved before."""
        self._latest["progress", channel] = entries.progress(channel, cursor, unfinished, attempts)

    def deferred(self, channel: str, added: Iterable[tuple[int, int, int]], removed: Iterable[int]) -> None:
        """Save messages that began to wait, as (sequence, due, attempts), and messages that wait no more."""
        entry, grown = entries.deferred(channel, added, removed)
        self._add(("deferred", channel), entry, grown * entries.DEFERRED_BYTES)

    def holder(self, channel: str, name: str, state: HolderState) -> None:
        """Save a named holder and what it holds; replaces what was saved before."""
        self._latest["holder", channel, name] = entries.holder(channel, name, state)

    def drop_holder(self, channel: str, name: str) -> None:
        """Save that a named holder is deleted."""
        self._latest.pop(("holder", channel, name), None)
        self._live.pop(("holder", channel, name), None)
        self._entries.append(entries.unheld(channel, name))

    def failures(
        self, channel: str, added: Collection[tuple[int, FailureState]], removed: Iterable[int]
    ) -> None:
        """Save the failures of some messages, and that others have none any more."""
        entry, grown = entries.failed(channel, added, removed)
        self._add(("failed", channel), entry, grown * entries.FAILED_BYTES)

    def note(self, channel: str, key: str, value: bytes) -> None:
        """Save something of a channel under a key, or of the topic if `channel` is empty; empty bytes remove it.

        It replaces what was saved before. Where bytes of the journal are damaged, no note from before the damage is
        loaded.
        """
        self._latest["note", channel, key] = entries.note(channel, key, value)

    def forget(self, channel: str) -> None:
        """Save that a channel is deleted, with all that was saved of it."""
        for key in [key for key in (*self._latest, *self._live) if isinstance(key, tuple) and key[1] == channel]:
            self._latest.pop(key, None)
            self._live.pop(key, None)
        self._entries.append(entries.forget(channel))

    def fanned_out(self, sequence: int) -> None:
        """Save up to where messages were handed to channels."""
        self._latest["fanned"] = entries.place("fanned", sequence)

    def emptied(self, runs: Sequence[Run]) -> None:
        """Save the runs that no channel gets, as the topic dropped them; replaces what was saved before."""
        self._latest["emptied"] = entries.runs("emptied", runs)

    def deleted(self, runs: Sequence[Run]) -> None:
        """Save that the messages of `runs` are deleted, beside those that were before."""
        self._add("deleted", entries.runs("deleted", runs), len(runs) * entries.RUN_BYTES)

    def trimmed(self, sequence: int) -> None:
        """Save that everything below `sequence` is trimmed."""
        self._latest["trimmed"] = entries.place("trimmed", sequence)

    def _add(self, key: object, entry: bytes, grown: int) -> None:
        self._entries.append(entry)
        self._live[key] = max(0, self._live.get(key, 0) + grown)

    def flush(self, *, sync: bool = False) -> None:
        """Write what was saved since the last time, as one record; with `sync`, so that it survives a power loss.

        Raises `WriteFailed`; the next flush then writes all of it.
        """
        if not self._latest and not self._entries:
            return
        if not self._read:
            self._fold()
        if self._file.doubtful:
            self._write_again()
        begin = [entries.version()] if self._version < entries.VERSION or not self._file.size else []
        payload = b"".join([*begin, *self._entries, *self._latest.values()])
        self._file.append(records.encode(payload), sync=sync)
        if self.on_flush is not None:
            self.on_flush(payload)
        self._version = entries.VERSION
        self._live.update((key, len(entry)) for key, entry in self._latest.items())
        self._latest.clear()
        self._entries.clear()
        if self._file.size > _COMPACT_BYTES and self._file.size > _COMPACT_RATIO * sum(self._live.values()):
            self.compact()

    def want_sync(self) -> None:
        """Have the next sync of the topic sync the journal too."""
        self.sync_wanted = True

    def begin_sync(self) -> Callable[[], None] | None:
        """Return a call that syncs what is flushed, for any thread; None unless `sync_wanted` is set."""
        self._syncing, self.sync_wanted = self.sync_wanted, False
        if not self._syncing:
            return None
        try:
            if self._file.doubtful:
                self._write_again()
            return self._file.begin_sync()
        except (OSError, WriteFailed) as error:
            failure = OSError(error.errno, str(error))

        def fail() -> None:
            raise failure

        return fail

    def finish_sync(self, error: OSError | None) -> None:
        """Note how that call ended; after an error the next sync writes the file again."""
        if error is not None and self._syncing:  # else there may be no file yet
            self.sync_wanted = True
        self._syncing = False

    def _write_again(self) -> None:
        """Write the whole file again after a sync of it failed: the disk may lack what was appended before.

        Raises `WriteFailed`.
        """
        try:
            self._file.cut()
            self._file.replace([records.encode(b"".join(_encoded(self._fold())))], sync=True)
        except OSError as error:
            raise WriteFailed(self.path, 0, error) from error
        except LogError as error:
            raise WriteFailed(self.path, 0, OSError(errno.EIO, str(error))) from error
        self._version = entries.VERSION

    def close(self) -> None:
        """Write what is unwritten and give the descriptor back."""
        try:
            self.flush()
        finally:
            self._file.file.close()

    def abandon(self) -> None:
        """Give the descriptor back; what is unwritten is not wanted any more."""
        self._file.file.close()

    # --- the file ----------------------------------------------------------------------------------------------

    def _fold(self) -> JournalFold:
        folded = JournalFold()
        damaged = False
        for begin, payload, end in self._file.read():
            if payload is None:
                self.notes.append(f"{self.path}: offset {begin}: skipped {end - begin} damaged bytes")
                damaged |= not begin or end < self._file.file.size()
                folded.lose(all_before=not begin)
                continue
            try:
                entries.apply(payload, folded)
            except NotUnderstood as error:
                raise LogError(f"{self.path}: offset {begin}: {error}; {_NEXT_STEP}") from error
        self._read = True
        self.damaged = damaged
        self._version = folded.version
        folded.settle()
        self._live = dict(_live_bytes(folded))
        return folded

    def _keep_copy(self) -> None:
        """Keep a copy of a damaged file, as the file will be written over."""
        disk, copy = self._file.file.table.disk, self.path + ".damaged"
        try:
            disk.replace(copy, [disk.read(self.path)], sync=False)
            self.notes.append(f"{self.path}: damaged; a copy of it is kept as {copy}")
        except OSError as error:
            self.notes.append(f"{self.path}: damaged, and could not be copied: {error}")

    def compact(self, folded: JournalFold | None = None) -> bool:
        """Write the state alone, that of the file or `folded`, to a new file, which takes the old one's place.

        Return whether that worked; on error the old file stays.
        """
        try:
            whole = b"".join(_encoded(self._fold() if folded is None else folded))
            self._file.replace([records.encode(whole)], sync=self._sync)
        except (OSError, LogError) as error:
            self.notes.append(f"{self.path}: could not be compacted: {error}")
            return False
        self._version = entries.VERSION
        return True


def folded(payloads: Iterable[bytes]) -> bytes:
    """Return the entries that amount to those of several records, as one record has them. Raises `NotUnderstood`."""
    whole = JournalFold()
    for payload in payloads:
        entries.apply(payload, whole)
    whole.settle()
    return b"".join(_encoded(whole))


def _encoded(folded: JournalFold) -> Iterator[bytes]:
    """Yield the entries that amount to `folded`."""
    yield entries.version()
    for name, one in folded.channels.items():
        yield from _encoded_channel(name, one)
    if folded.fanned_out is not None:
        yield entries.place("fanned", folded.fanned_out)
    if folded.emptied is not None:
        yield entries.runs("emptied", folded.emptied)
    if folded.deleted:
        yield entries.runs("deleted", folded.deleted)
    if folded.trimmed:
        yield entries.place("trimmed", folded.trimmed)
    for key, value in folded.notes.items():
        if value:
            yield entries.note("", key, value)


def _encoded_channel(name: str, one: ChannelFold) -> Iterator[bytes]:
    yield entries.progress(name, one.cursor, one.runs, one.attempts)
    if one.deferred:
        yield entries.deferred(name, ((sequence, *rest) for sequence, rest in one.deferred.items()), ())[0]
    for holder, state in one.holders.items():
        yield entries.holder(name, holder, state)
    if one.failures:
        yield entries.failed(name, one.failures.items(), ())[0]
    for key, value in one.notes.items():
        if value:
            yield entries.note(name, key, value)


def _live_bytes(folded: JournalFold) -> Iterator[tuple[object, int]]:
    """Yield about how many bytes each part of the state takes."""
    for name, one in folded.channels.items():
        yield ("progress", name), 64 + entries.RUN_BYTES * (len(one.runs) + len(one.tried) // 2)
        yield ("deferred", name), entries.DEFERRED_BYTES * len(one.deferred)
        yield ("failed", name), entries.FAILED_BYTES * len(one.failures)
        for holder, state in one.holders.items():
            yield ("holder", name, holder), 64 + 2 * entries.RUN_BYTES * len(state.runs)
        for key, value in one.notes.items():
            yield ("note", name, key), 16 + len(value)
    for key, value in folded.notes.items():
        yield ("note", "", key), 16 + len(value)
    yield "emptied", entries.RUN_BYTES * len(folded.emptied or ())
    yield "deleted", entries.RUN_BYTES * len(folded.deleted)
