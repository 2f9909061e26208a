"""Bring a data path that no nsqd uses to a remote log, as a checkpoint of it."""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from lapwing.errors import LogError, RemoteError
from lapwing.log import records
from lapwing.log.catalog import FILE
from lapwing.log.datapath import PROBE, TOPICS, DataPath, unfold
from lapwing.log.disk import DISK, OpenFiles
from lapwing.log.journal.journal import Journal
from lapwing.log.log import DiskLog, LogOptions
from lapwing.log.offline.offline import QUARANTINE, topics_of
from lapwing.log.remote.image import Image, RemoteTopic
from lapwing.log.remote.marker import FILE as MARKER
from lapwing.log.remote.marker import Marker
from lapwing.log.remote.record import FileWritten, JournalEntries, LogBegun, Messages, Part, SideRecords, Stored
from lapwing.log.remote.remote_log import RemoteLog
from lapwing.log.resting_file import FILE as RESTING
from lapwing.log.segments.opening import SIDE, read_identity
from lapwing.records import dataclass

SLICE_BYTES: Final = 32 << 20  # of frames; a slice is one object of the engine
_SMALL: Final = 4 << 20  # a last slice of fewer bytes is replaced by one that has more
_BLOCK: Final = 1 << 20
_MEND: Final = "start nsqd once, which repairs it, then stop it and upload again"
_LEFT_OUT: Final = frozenset({TOPICS, QUARANTINE, RESTING, PROBE, MARKER, "nsq-imported", "lost+found"})

Report = Callable[[str, int, int], None]  # topic, bytes done, bytes to do


@dataclass(slots=True)
class Uploaded:
    """The result for a topic."""

    topic: str
    first: int
    end: int
    messages: int = 0  # that were written now; the others were there
    bytes: int = 0
    lost: int = 0  # messages that could not be served before, and still cannot


def upload(
    place: DataPath, remote: RemoteLog, *, now: int, boot: int, node: int, take_over: bool, report: Report
) -> list[Uploaded]:
    """Claim a remote log, make it hold what is in the data path, and release it.

    Slices that it has from the time before are used again. `node` is that of a remote log which is new, unless the data
    path has messages. Raises `RemoteError` for a remote log that holds something else, or something newer; nothing of
    it is changed then.
    """
    nodes = Counter(_identity(place.topic_dir(topic))[1] for topic in topics_of(place))
    remote.claim(nodes.most_common(1)[0][0] if nodes else node, now=now, take_over=take_over)
    image = Image(fetch=False)
    try:
        image.load(remote)
        parts, results = parts_of(place, remote, image, now=now, boot=boot, report=report)
        remote.make_checkpoint(parts, now=now)
    except BaseException:
        if remote.epoch and remote.unsettled is None:
            remote.release(now=now)
        raise
    epoch = remote.epoch
    remote.release(now=now)
    os.sync()  # the marker promises that nothing of the data path is missing
    Marker(remote.engine.place, epoch, "", remote.nonce).save(place.path)
    return results


def parts_of(
    place: DataPath, remote: RemoteLog, image: Image, *, now: int, boot: int, report: Report
) -> tuple[list[Part], list[Uploaded]]:
    """Return the parts of a checkpoint of a data path, and what was written for it. Raises as `upload`."""
    identities = {topic: _identity(place.topic_dir(topic)) for topic in topics_of(place)}
    ids = {known.log_id for known in image.topics.values()}
    if ids and not ids & {log_id for log_id, _ in identities.values()}:
        raise RemoteError(f"{remote.engine.place} holds another data path, of the topics {', '.join(image.topics)}")
    parts: list[Part] = []
    results = []
    for topic in identities:
        with _Topic(place, topic, image, remote, now, boot) as one:
            parts += one.parts(report)
            results.append(one.result)
    return [*parts, *_files(place)], results


def _identity(directory: str) -> tuple[str, int]:
    """Return the id and the node of a log. Raises `LogError`."""
    path = os.path.join(directory, "identity")
    try:
        return read_identity(path)
    except (OSError, ValueError) as error:
        raise LogError(f"{path}: {error}: {_MEND}") from error


class _Topic:
    """A topic while it is brought to the remote log."""

    def __init__(self, place: DataPath, topic: str, image: Image, remote: RemoteLog, now: int, boot: int) -> None:
        self.topic, self.directory, self.remote, self.now = topic, place.topic_dir(topic), remote, now
        self.files = OpenFiles(limit=16)
        self.log = DiskLog(self.directory, 0, options=LogOptions(boot=boot), files=self.files)
        known = image.topics.get(topic)
        same = known is not None and known.log_id == self.log.identity
        self.stored = _usable(image.stored[topic], self.log.first) if same else []
        self.result = Uploaded(topic, self.log.first, self.log.end)
        if known is not None and same:
            self._check(known)

    def _check(self, known: RemoteTopic) -> None:
        if known.end > self.log.end:
            self.files.shut_all()
            raise RemoteError(
                f"{self.remote.engine.place} is newer than the data path: {self.topic} ends at {known.end} there and "
                f"at {self.log.end} here; restore it instead"
            )

    def __enter__(self) -> "_Topic":
        return self

    def __exit__(self, *error: object) -> None:
        self.log.close()
        self.files.shut_all()

    def parts(self, report: Report) -> Iterator[Part]:
        """Yield the topic's parts of a checkpoint, and write new slices. Raises `LogError` or `RemoteError`."""
        log_id = self.log.identity
        first = self.stored[0].first if self.stored else self.log.first
        yield LogBegun(self.topic, log_id, self.log.node, first)
        yield from self.stored
        yield from self._slices(report)
        if os.path.exists(os.path.join(self.directory, "journal")):
            journal = Journal(self.directory, files=self.files)
            entries = journal.snapshot()
            journal.abandon()
            if journal.damaged:  # only a start that meets the damage takes care of what may have been deferred in it
                raise LogError(f"{journal.path}: damaged: {_MEND}")
            yield JournalEntries(self.topic, log_id, entries)
        side = os.path.join(self.directory, SIDE)
        for name in sorted(os.listdir(side)) if os.path.isdir(side) else ():
            channel = unfold(name, "c-")
            if channel is not None:
                data = DISK.read(os.path.join(side, name))
                sound = [data[begin:end] for begin, payload, end in records.scan(data) if payload is not None]
                if sound:
                    yield SideRecords(self.topic, log_id, channel, b"".join(sound))

    def _slices(self, report: Report) -> Iterator[Stored]:
        log, result = self.log, self.result
        waiting: list[Messages] = []
        size = 0
        start = self.stored[-1].end if self.stored else log.first
        todo = log.bytes_from(start)
        for first, count, frames in log.blocks(start, log.end, _BLOCK):
            rows = log.rows(first, first + count) if frames else b""
            waiting.append(Messages(self.topic, log.identity, first, count, bytes(frames), rows))
            size += len(frames) + len(rows)
            result.bytes += len(frames)
            result.messages += count if frames else 0
            result.lost += 0 if frames else count
            if size >= SLICE_BYTES:
                yield self.remote.store(waiting, now=self.now)
                waiting, size = [], 0
                report(self.topic, result.bytes, todo)
        if waiting:
            yield self.remote.store(waiting, now=self.now)
            report(self.topic, result.bytes, todo)


def _usable(stored: list[Stored], first: int) -> list[Stored]:
    """Return the slices that follow one another and have something from `first` on; a small one at the end is not."""
    kept: list[Stored] = []
    for one in stored:
        if kept and kept[-1].end != one.first:
            break
        if one.end > first:
            kept.append(one)
    if kept and (kept[0].first > first or kept[-1].size < _SMALL):
        kept.pop()
    return kept if kept and kept[0].first <= first else []


def _files(place: DataPath) -> Iterator[FileWritten]:
    """Yield the small files of a data path: the catalog, the clock, staged batches, schedules."""
    for entry in sorted(os.listdir(place.path)):
        if entry in _LEFT_OUT or entry.startswith((f"{FILE}.", ".", "fenced-")) or ".diskqueue." in entry:
            continue
        whole = os.path.join(place.path, entry)
        if os.path.isfile(whole):
            paths = [whole]
        else:
            paths = sorted(os.path.join(folder, name) for folder, _, names in os.walk(whole) for name in names)
        for path in paths:
            if not path.endswith(".tmp"):
                yield FileWritten(os.path.relpath(path, place.path).replace(os.sep, "/"), DISK.read(path))
