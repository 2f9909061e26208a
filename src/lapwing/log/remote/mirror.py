"""The state that the records of a remote log amount to, as its owner keeps it to write checkpoints."""

from collections.abc import Iterator
from typing import Final

from lapwing.log.journal import journal
from lapwing.log.remote.image import Image
from lapwing.log.remote.record import (
    FileRemoved,
    FileStored,
    FileWritten,
    JournalEntries,
    LogBegun,
    LogRemoved,
    LogTrimmed,
    Messages,
    Part,
    Record,
    SideRecords,
    SideRemoved,
    Stored,
)
from lapwing.log.remote.remote_log import CheckpointWriter, RemoteLog
from lapwing.log.side import sidelog
from lapwing.records import dataclass

SLICE_BYTES: Final = 32 << 20  # of messages; a slice is one object of the engine
_LARGE: Final = 1 << 20  # bytes of messages of one log that leave the checkpoint for a slice
_SMALL: Final = 64 << 10  # the same where there are very many logs
_INLINE: Final = 64 << 20  # bytes of messages that stay in a checkpoint, about
_COMPACT: Final = 4  # entries are folded when there are so many times the bytes that they amounted to

Content = Stored | Messages


@dataclass(slots=True)
class _Entries:
    """Entries of a journal, as they came; folded now and then."""

    payloads: list[bytes]
    size: int = 0  # bytes
    folded: int = 4096  # bytes at the last time, or few

    def add(self, payload: bytes) -> bool:
        """Add some; return whether they are to be folded."""
        self.payloads.append(payload)
        self.size += len(payload)
        return self.size > _COMPACT * self.folded

    def replace(self, payload: bytes) -> None:
        """Have what all of them amount to instead."""
        self.payloads, self.size, self.folded = [payload], len(payload), max(len(payload), 4096)


@dataclass(slots=True)
class MirroredTopic:
    """A topic: its log, and what lies beside it."""

    begun: LogBegun
    content: list[Content]  # in order, without a hole
    journal: _Entries
    sides: dict[str, dict[int, bytes]]  # by channel: the records that its side log needs, by sequence


@dataclass(slots=True)
class Plan:
    """The state at one record, to be written as a checkpoint in another thread; nothing of it changes any more."""

    begun: list[LogBegun]
    content: dict[str, list[Content]]
    beside: list[Part]  # journals, side logs and files
    unused: list[str]  # slices that no record needs from there on


class Mirror(Image):
    """The state that all records amount to; slices by their names.

    It is changed by the thread that appends, with each record that exists. `upto` is where each log ends.
    """

    def __init__(self) -> None:
        super().__init__(fetch=False)
        self.mirrored: dict[str, MirroredTopic] = {}
        self.contents: dict[str, FileWritten | FileStored] = {}
        self.unused: list[str] = []  # slices that nothing names any more
        self._trusted = False

    def appended(self, record: Record, remote: RemoteLog) -> None:
        """Apply a record that this process has appended: what it holds was not read from anywhere."""
        self._trusted = True
        for part in record.parts:
            self._apply(part, remote)
        self.last = record

    def _check(self, part: Messages) -> None:
        if not self._trusted:
            super()._check(part)
            return
        known = self._topic(part)
        assert part.first == known.end, f"{part.topic}: {part.first} follows {known.end}"
        known.end += part.count

    # --- what records do to it ---------------------------------------------------------------------------------

    def _begin(self, part: LogBegun) -> None:
        self._drop(part.topic)
        self.mirrored[part.topic] = MirroredTopic(part, [], _Entries([]), {})

    def _add(self, part: Messages) -> None:
        self.mirrored[part.topic].content.append(part)

    def _add_stored(self, part: Stored, remote: RemoteLog) -> None:
        super()._add_stored(part, remote)
        self.mirrored[part.topic].content.append(part)

    def _add_entries(self, part: JournalEntries) -> None:
        entries = self.mirrored[part.topic].journal
        if entries.add(part.entries):
            entries.replace(journal.folded(entries.payloads))

    def _add_side(self, part: SideRecords) -> None:
        sidelog.apply(part.records, self.mirrored[part.topic].sides.setdefault(part.channel, {}))

    def _remove_side(self, part: SideRemoved) -> None:
        self.mirrored[part.topic].sides.pop(part.channel, None)

    def _write(self, part: FileWritten) -> None:
        super()._write(part)
        self._forget_file(part.path)
        self.contents[part.path] = part

    def _store(self, part: FileStored) -> None:
        super()._store(part)
        self._forget_file(part.path)
        self.contents[part.path] = part

    def _remove(self, part: FileRemoved) -> None:
        super()._remove(part)
        self._forget_file(part.path)

    def _forget_file(self, path: str) -> None:
        former = self.contents.pop(path, None)
        if isinstance(former, FileStored):
            self.unused.append(former.name)

    def _trim(self, part: LogTrimmed) -> None:
        known = self.mirrored[part.topic]
        kept = [each for each in known.content if end_of(each) > part.first]
        self.unused += [each.name for each in known.content if isinstance(each, Stored) and each.end <= part.first]
        first = kept[0].first if kept else self.topics[part.topic].end
        known.content = kept
        known.begun = LogBegun(part.topic, part.log_id, known.begun.node, first)

    def _remove_log(self, part: LogRemoved) -> None:
        self._drop(part.topic)

    def _drop(self, topic: str) -> None:
        former = self.mirrored.pop(topic, None)
        if former is not None:
            self.unused += [each.name for each in former.content if isinstance(each, Stored)]

    # --- checkpoints -------------------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Return the state as it is, and the slices that are not in it any more."""
        unused, self.unused = self.unused, []
        beside: list[Part] = list(self.contents.values())
        for topic, known in self.mirrored.items():
            log_id = known.begun.log_id
            if known.journal.payloads:
                beside.append(JournalEntries(topic, log_id, b"".join(known.journal.payloads)))
            for channel, side in known.sides.items():
                beside.append(SideRecords(topic, log_id, channel, b"".join(side.values())))
        return Plan(
            [known.begun for known in self.mirrored.values()],
            {topic: list(known.content) for topic, known in self.mirrored.items()},
            beside,
            unused,
        )

    def moved(self, stored: list[Stored]) -> None:
        """Note that messages are in slices now, which a checkpoint names."""
        for new in stored:
            known = self.mirrored.get(new.topic)
            same = known is not None and known.begun.log_id == new.log_id
            content = known.content if known is not None and same else []
            inside = [each for each in content if new.first <= each.first and end_of(each) <= new.end]
            if known is None or not inside or end_of(inside[-1]) != new.end:
                self.unused.append(new.name)  # nobody needs the messages any more
                continue
            at = content.index(inside[0])
            known.content[at : at + len(inside)] = [new]
            if at == 0:
                known.begun = LogBegun(new.topic, new.log_id, known.begun.node, new.first)
            self.stored[new.topic] = [each for each in known.content if isinstance(each, Stored)]

    def names(self) -> set[str]:
        """Return the slices that are in use."""
        content = (each for known in self.mirrored.values() for each in known.content)
        stored = {each.name for each in content if isinstance(each, Stored)}
        return stored | {each.name for each in self.contents.values() if isinstance(each, FileStored)}


def end_of(content: Content) -> int:
    """Return where messages end."""
    return content.end if isinstance(content, Stored) else content.first + content.count


def write_plan(plan: Plan, writer: CheckpointWriter, *, now: int) -> tuple[list[Part], list[Stored]]:
    """Write messages as slices; return the parts of the checkpoint, and what was written. Raises `RemoteFailed`."""
    tails = {topic: _tail(content) for topic, content in plan.content.items()}
    many = sum(1 for tail in tails.values() if tail)
    large = min(max(_INLINE // max(many, 1), _SMALL), _LARGE)
    parts: list[Part] = []
    written: list[Stored] = []
    for begun in plan.begun:
        content = plan.content[begun.topic]
        parts.append(begun)
        for run in _runs(content):
            if isinstance(run, Stored):
                parts.append(run)
            elif sum(map(_size, run)) < large:
                parts += run
            else:
                for batch in _batches(run):
                    written.append(writer.store(batch, now=now))
                    parts.append(written[-1])
    return [*parts, *plan.beside], written


def _tail(content: list[Content]) -> bool:
    return bool(content) and isinstance(content[-1], Messages)


def _runs(content: list[Content]) -> Iterator[Stored | list[Messages]]:
    """Yield slices, and the runs of messages between them."""
    run: list[Messages] = []
    for each in content:
        if isinstance(each, Messages):
            run.append(each)
            continue
        if run:
            yield run
            run = []
        yield each
    if run:
        yield run


def _batches(run: list[Messages]) -> Iterator[list[Messages]]:
    """Yield messages as slices have them."""
    batch: list[Messages] = []
    size = 0
    for each in run:
        batch.append(each)
        size += _size(each)
        if size >= SLICE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _size(part: Messages) -> int:
    return len(part.frames) + len(part.rows)
