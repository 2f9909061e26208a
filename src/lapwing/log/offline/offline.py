"""Looking into a data path that no broker uses: verify it, repair it, get the messages out.

Each is a generator of what it found, so that the caller can show progress; only `repair` changes anything.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import zip_longest
from typing import Any, Final

from lapwing import kernel
from lapwing.errors import LogError, NoSuchTopic, ReadFailed
from lapwing.log.catalog import Catalog, ChannelEntry, TopicEntry
from lapwing.log.datapath import DataPath, unfold
from lapwing.log.disk import DISK, Disk, File, OpenFiles
from lapwing.log.journal.journal import Journal
from lapwing.log.log import DiskLog, LogOptions
from lapwing.log.records import encode, stream
from lapwing.log.segments import recovery
from lapwing.log.segments.attributes import Extra
from lapwing.log.segments.index import QUARANTINED, RECORD, UNVERIFIED, Chunk
from lapwing.log.segments.opening import read_identity, segment_firsts
from lapwing.log.segments.salvage import node_of
from lapwing.log.segments.segment import Segment
from lapwing.log.side.sidelog import SideLog
from lapwing.records import dataclass

QUARANTINE: Final = "quarantine"  # folder of the data path where bytes that were set aside are kept


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of reading a topic."""

    topic: str
    done: int  # bytes of frames
    total: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as a clean stop leaves it."""

    topic: str
    path: str
    offset: int
    what: str
    lost: int = 0  # messages that cannot be served because of it


@dataclass(frozen=True, slots=True)
class Repair:
    """Something that was put right, or could not be."""

    topic: str
    what: str
    done: bool = True


@dataclass(slots=True)
class Summary:
    """The content of a topic."""

    topic: str
    log_id: str
    node: int
    first: int = 0
    next: int = 0
    segments: int = 0
    bytes: int = 0
    messages: int = 0  # that can be served
    quarantined: int = 0  # messages known to be lost, and set aside
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Block:
    """Messages that were read and are sound."""

    topic: str
    first: int
    frames: bytes
    extras: list[Extra]


Event = Progress | Problem | Repair | Summary | Block


class ReadOnlyDisk(Disk):
    """A disk on which nothing is changed, whatever anybody tries."""

    @staticmethod
    def open(path: str, flags: int, mode: int = 0) -> int:
        return os.open(path, os.O_RDONLY)


def topics_of(place: DataPath, chosen: Sequence[str] = ()) -> list[str]:
    """Return the topics of a data path, or of them those that were `chosen`; raises `NoSuchTopic`."""
    found = [name for entry in _entries(place.path) if (name := unfold(entry)) is not None]
    for name in chosen:
        if name not in found:
            raise NoSuchTopic(f"{place.path}: no topic {name} (there is: {', '.join(found) or 'none'})")
    return [name for name in found if not chosen or name in chosen]


def _entries(path: str) -> list[str]:
    topics = os.path.join(path, "topics")
    return sorted(os.listdir(topics)) if os.path.isdir(topics) else []


# --- verify ----------------------------------------------------------------------------------------------------


def verify(place: DataPath, chosen: Sequence[str] = (), *, boot: int = 0) -> Iterator[Event]:
    """Read everything and compare it with its checksums; ends each topic with its `Summary`.

    `boot` names this run of the machine, in which a process that was killed may have left frames without a record.
    """
    if not chosen:
        yield from _verify_catalog(place)
    for topic in topics_of(place, chosen):
        yield from _walk(place, topic, boot, by_form=False, want_frames=False)


def _verify_catalog(place: DataPath) -> Iterator[Event]:
    catalog = Catalog(place.path)
    try:
        known = {entry.name for entry in catalog.load()}
    except LogError as error:
        yield Problem("", catalog.file, 0, str(error))
        return
    for warning in catalog.warnings:
        yield Problem("", catalog.file, 0, warning)
    if known:
        for topic in topics_of(place):
            if topic not in known:
                yield Problem(topic, place.topic_dir(topic), 0, "the catalog does not know this topic")


def _walk(place: DataPath, topic: str, boot: int, *, by_form: bool, want_frames: bool) -> Iterator[Event]:
    """Read a topic from its first byte to its last: problems, sound blocks if wanted, progress, and a summary."""
    directory = place.topic_dir(topic)
    files = OpenFiles(ReadOnlyDisk(), limit=16)
    firsts = segment_firsts(os.listdir(directory))
    segments = [Segment(directory, first, files, 0, boot) for first in firsts]
    total = sum(segment.frames.size() for segment in segments)
    summary = Summary(topic, *_identity(directory), segments=len(segments), bytes=total)
    summary.first = summary.next = firsts[0] if firsts else 0
    try:
        for event in _walk_files(topic, directory, segments, summary, files, by_form, want_frames):
            if isinstance(event, Problem):
                summary.problems.append(event)
            yield event
    finally:
        files.shut_all()
    yield summary


def _walk_files(
    topic: str, directory: str, segments: list[Segment], summary: Summary, files: OpenFiles, by_form: bool,
    want_frames: bool,
) -> Iterator[Event]:  # fmt: skip
    if summary.node < 0:
        found = (node_of(segment.frames) for segment in segments)
        summary.node = next((node for node in found if node is not None), 0)
        yield Problem(topic, os.path.join(directory, "identity"), 0, "missing or not readable")
    done = 0
    for segment, following in zip_longest(segments, [each.first for each in segments[1:]]):
        yield from _readable(topic, _walk_segment(topic, segment, summary, following, by_form, want_frames, done))
        done += segment.size
    yield from _readable(topic, _verify_records(topic, directory, files))


def _readable(topic: str, events: Iterator[Event]) -> Iterator[Event]:
    """Yield `events` up to the first read that fails, then a problem in place of the rest."""
    try:
        yield from events
    except ReadFailed as error:
        yield Problem(topic, error.path, error.offset, f"{error}; the rest of it was not looked at")


def _identity(directory: str) -> tuple[str, int]:
    try:
        return read_identity(os.path.join(directory, "identity"))
    except (OSError, ValueError):
        return "", -1


def _walk_segment(
    topic: str, segment: Segment, summary: Summary, following: int | None, by_form: bool, want_frames: bool, done: int
) -> Iterator[Event]:
    """Read a segment that `done` bytes of frames stand before."""
    segment.size = segment.frames.size()
    segment.extras.size = segment.extras.file.size()
    problems: list[Problem] = []

    def note(path: str, offset: int, what: str) -> None:
        if path != segment.frames.path:  # what is wrong with the frames is reported chunk by chunk
            problems.append(Problem(topic, path, offset, what))

    known = {chunk.offset: chunk.flags for _, _, chunk in segment.index.each() if chunk is not None}
    stop = 0
    for chunk in recovery.every_chunk(segment, summary.node, following, note, by_form=by_form):
        yield from problems
        problems.clear()
        yield from _walk_chunk(topic, segment, chunk, summary, known, want_frames)
        stop, segment.end = chunk.stop, chunk.end
        yield Progress(topic, done + stop, summary.bytes)
    yield from problems
    if stop < segment.size:
        yield Problem(topic, segment.frames.path, stop, f"{segment.size - stop} bytes that are no whole message")
    summary.next = max(summary.next, segment.end)


def _walk_chunk(
    topic: str, segment: Segment, chunk: Chunk, summary: Summary, known: dict[int, int], want_frames: bool
) -> Iterator[Event]:
    path = segment.frames.path
    span = f"messages {chunk.first} to {chunk.end - 1}"
    if chunk.flags & UNVERIFIED and chunk.offset not in known:
        what = f"{span}: no checksum covers them (lapwing log repair --unverified serves them)"
        yield Problem(topic, path, chunk.offset, what, chunk.count)
        return
    if chunk.flags & QUARANTINED:
        if known.get(chunk.offset, 0) & QUARANTINED:
            summary.quarantined += chunk.count
        else:
            what = "of a chunk that is not all there" if chunk.offset in known else "that are no message"
            yield Problem(topic, path, chunk.offset, f"{chunk.length} bytes {what}: {span}", chunk.count)
        return
    try:
        frames = segment.frames.read(chunk.length, chunk.offset)
    except ReadFailed as error:
        yield Problem(topic, path, chunk.offset, f"{error}: {span}", chunk.count)
        return
    if len(frames) != chunk.length or kernel.crc32c(frames) != chunk.crc:
        yield Problem(topic, path, chunk.offset, f"checksum is not {chunk.crc:08x}: {span}", chunk.count)
        return
    if chunk.offset not in known:
        yield Problem(topic, path, chunk.offset, f"{chunk.count} messages that the index does not have")
    if not _ids_fit(frames, chunk, summary.node):
        yield Problem(topic, path, chunk.offset, f"ids are not those of {span}")
    summary.messages += chunk.count
    if want_frames:
        damage: list[Problem] = []

        def on_damage(where: str, offset: int, length: int) -> None:
            damage.append(Problem(topic, where, offset, f"{length} damaged bytes of headers and deferrals"))

        carried = segment.extras.read(chunk.first, chunk.end, on_damage)
        yield from damage
        yield Block(topic, chunk.first, frames, carried)


def _ids_fit(frames: bytes, chunk: Chunk, node: int) -> bool:
    positions, _ = kernel.scan_frames(frames, 0, len(frames))
    if not 0 < len(positions) - 1 == chunk.count:
        return False
    base, last = node << 54, positions[-2]
    ends = (b"%016x" % (base + chunk.first), b"%016x" % (base + chunk.end - 1))
    return (frames[18 : kernel.HEAD], frames[last + 18 : last + kernel.HEAD]) == ends


def _verify_records(topic: str, directory: str, files: OpenFiles) -> Iterator[Event]:
    """Extras, journal and side logs: every record against its checksum."""
    paths = [os.path.join(directory, name) for name in sorted(os.listdir(directory)) if name.endswith(".aux")]
    paths.append(os.path.join(directory, "journal"))
    side = os.path.join(directory, "side")
    paths += [os.path.join(side, name) for name in sorted(os.listdir(side))] if os.path.isdir(side) else []
    for path in paths:
        file = File(path, files)
        for begin, payload, end in stream(file, 0, file.size()):
            if payload is None:
                yield Problem(topic, path, begin, f"{end - begin} damaged bytes")


# --- export ----------------------------------------------------------------------------------------------------


def export(
    place: DataPath,
    chosen: Sequence[str] = (),
    *,
    start: int = 0,
    stop: int = 1 << 62,
    boot: int = 0,
    unverified: bool = False,
) -> Iterator[Event]:
    """Yield every message that can be read, of sequences [start, stop), as `Block`s; and what could not be.

    With `unverified`, also messages that no checksum covers.
    """
    for topic in topics_of(place, chosen):
        for event in _walk(place, topic, boot, by_form=unverified, want_frames=True):
            if isinstance(event, Block):
                cut = _cut(event, start, stop)
                if cut is not None:
                    yield cut
            else:
                yield event


def _cut(block: Block, start: int, stop: int) -> Block | None:
    positions, _ = kernel.scan_frames(block.frames, 0, len(block.frames))
    begin = max(0, start - block.first)
    end = min(len(positions) - 1, stop - block.first)
    if begin >= end:
        return None
    extras = [extra for extra in block.extras if start <= extra.sequence < stop]
    return Block(block.topic, block.first + begin, block.frames[positions[begin] : positions[end]], extras)


def messages(block: Block) -> Iterator[dict[str, Any]]:
    """Yield the messages of a block as plain values: sequence, id, timestamp, attempts, body, headers, defer."""
    decoded, _ = kernel.decode_messages(block.frames, 0, len(block.frames))
    carried = {extra.sequence: extra for extra in block.extras}
    for sequence, (timestamp, attempts, identity, body) in enumerate(decoded, block.first):
        extra = carried.get(sequence)
        yield {
            "topic": block.topic,
            "sequence": sequence,
            "id": identity.decode("ascii"),
            "timestamp": timestamp,
            "attempts": attempts,
            "body": body,
            "headers": extra.headers if extra else {},
            "defer": extra.defer if extra else 0,
        }


# --- repair ----------------------------------------------------------------------------------------------------


def repair(
    place: DataPath,
    chosen: Sequence[str] = (),
    *,
    unreadable: bool = False,
    unverified: bool = False,
    boot: int = 0,
) -> Iterator[Event]:
    """Put right what can be: what opening mends, and chunks that do not match their checksum are set aside.

    The bytes of such a chunk are copied to the data path's folder `quarantine` first; its index record is then marked
    as quarantined, and its neighbours are served as before. A chunk that the disk does not return is left alone, as it
    may be sound, unless `unreadable` asks to set it aside as well. With `unverified`, messages that no checksum covers,
    and that were set aside for that, are served again.
    """
    if not chosen:
        yield from _repair_catalog(place)
    for topic in topics_of(place, chosen):
        try:
            yield from _repair(place, topic, LogOptions(boot=boot), unreadable, unverified)
        except LogError as error:
            yield Repair(topic, f"{error}; the rest of the topic was left as it is", done=False)


def _repair_catalog(place: DataPath) -> Iterator[Event]:
    """Write a catalog that cannot be read again, from the topics and journals that are there."""
    catalog = Catalog(place.path)
    try:
        catalog.load()
    except LogError as error:
        topics = []
        for topic in topics_of(place):
            try:
                channels = Journal(place.topic_dir(topic)).load().channels
            except LogError as unread:
                yield Repair(topic, f"{unread}; the new catalog has no channels of the topic", done=False)
                channels = {}
            topics.append(TopicEntry(topic, channels=[ChannelEntry(name) for name in sorted(channels)]))
        catalog.set_aside()
        catalog.save(topics)
        yield Repair("", f"{error}: made again from what is there, without pauses and settings")


def _repair(
    place: DataPath, topic: str, options: LogOptions, unreadable: bool, unverified: bool
) -> Iterator[Event]:
    directory = place.topic_dir(topic)
    yield from _repair_extras(topic, directory)
    log = DiskLog(directory, 0, options=options, by_form=unverified)
    try:
        total, done = log.bytes, 0
        for segment in log.segments:
            if not recovery.sound_index(segment):
                log.rebuild(segment, by_form=unverified)
            yield from (Repair(topic, note) for note in log.notes)
            log.notes.clear()
            number = stop = 0
            while number < segment.index.count:
                try:
                    chunks, frames, problem = segment.read(number, 1 << 20)
                except ReadFailed as error:
                    chunks = segment.run(number, 0)
                    yield _not_returned(topic, segment, chunks[0], number, error, unreadable)
                else:
                    if unverified and chunks[0].flags & UNVERIFIED:
                        yield _serve_again(topic, segment, chunks[0], number)
                    elif frames is None and not chunks[0].flags & QUARANTINED:
                        yield _set_aside(place, topic, segment, chunks[0], number, problem)
                number += len(chunks)
                stop = chunks[-1].stop
                yield Progress(topic, done + stop, total)
            done += segment.size
            if stop < segment.size:
                yield _cut_off(place, topic, segment, stop)
        yield from (Repair(topic, note) for note in log.notes)
        yield from _repair_journals(topic, directory)
    finally:
        log.close()


def _not_returned(
    topic: str, segment: Segment, chunk: Chunk, number: int, error: ReadFailed, unreadable: bool
) -> Event:
    """Report a chunk that the disk does not return; set it aside, without a copy, if that was asked for."""
    span = f"{error}: offset {chunk.offset}: messages {chunk.first} to {chunk.end - 1}"
    if not unreadable:
        return Repair(topic, f"{span} left as they are: try again, or set them aside with --unreadable", done=False)
    chunk.flags |= QUARANTINED
    try:
        segment.index.file.write(chunk.encode(), number * RECORD)
    except OSError as failed:
        return Repair(topic, f"{span} could not be set aside: {failed}", done=False)
    return Repair(topic, f"{span} set aside, without a copy")


def _serve_again(topic: str, segment: Segment, chunk: Chunk, number: int) -> Event:
    """Have a chunk served that was set aside as no checksum covered it, if it is as it was then."""
    span = f"{segment.frames.path}: offset {chunk.offset}: messages {chunk.first} to {chunk.end - 1}"
    try:
        if kernel.crc32c(segment.frames.read(chunk.length, chunk.offset)) != chunk.crc:
            return Repair(topic, f"{span} have changed since they were set aside", done=False)
        chunk.flags = 0
        segment.index.file.write(chunk.encode(), number * RECORD)
    except (OSError, LogError) as error:
        return Repair(topic, f"{span} could not be brought back: {error}", done=False)
    return Repair(topic, f"{span} are served again, though no checksum covered them")


def _set_aside(place: DataPath, topic: str, segment: Segment, chunk: Chunk, number: int, problem: str) -> Event:
    span = f"{segment.frames.path}: offset {chunk.offset}: messages {chunk.first} to {chunk.end - 1}"
    try:
        copy = _copy(place, topic, segment, chunk.offset, chunk.length)
        chunk.flags |= QUARANTINED
        segment.index.file.write(chunk.encode(), number * RECORD)
    except OSError as error:
        return Repair(topic, f"{span} could not be set aside: {error}", done=False)
    return Repair(topic, f"{span} set aside to {copy}: {problem}")


def _cut_off(place: DataPath, topic: str, segment: Segment, offset: int) -> Event:
    """Take away what stands behind the last message of a segment and before the next one."""
    span = f"{segment.frames.path}: offset {offset}: {segment.size - offset} bytes that are no message"
    try:
        copy = _copy(place, topic, segment, offset, segment.size - offset)
        segment.frames.truncate(offset)
    except OSError as error:
        return Repair(topic, f"{span} could not be set aside: {error}", done=False)
    segment.size = offset
    return Repair(topic, f"{span} set aside to {copy}")


def _copy(place: DataPath, topic: str, segment: Segment, offset: int, length: int) -> str:
    """Keep bytes of a segment in the folder `quarantine`; where. Raises `OSError`."""
    folder = os.path.join(place.path, QUARANTINE, os.path.basename(place.topic_dir(topic)))
    DISK.make_directory(folder, sync=False)
    copy = os.path.join(folder, f"{segment.name}-{offset}.frames")
    DISK.replace(copy, [segment.frames.read(length, offset)], sync=True)
    return copy


def _repair_extras(topic: str, directory: str) -> Iterator[Event]:
    """Headers and deferrals are rewritten without what is damaged among them."""
    files = OpenFiles()
    for name in sorted(os.listdir(directory)):
        if name.endswith(".aux"):
            file = File(os.path.join(directory, name), files)
            found = list(stream(file, 0, file.size()))
            damaged = sum(end - begin for begin, payload, end in found if payload is None)
            if damaged:
                DISK.replace(file.path, [encode(payload) for _, payload, _ in found if payload is not None], sync=True)
                yield Repair(topic, f"{file.path}: took out {damaged} damaged bytes of headers and deferrals")
    files.shut_all()


def _repair_journals(topic: str, directory: str) -> Iterator[Event]:
    """Journals and side logs are rewritten without what is damaged in them."""
    journal = Journal(directory)
    journal.load()
    notes = list(journal.notes)
    if notes:
        journal.compact()
    journal.close()
    side = os.path.join(directory, "side")
    for name in sorted(os.listdir(side)) if os.path.isdir(side) else ():
        channel = unfold(name, "c-")
        if channel is not None:
            log = SideLog(directory, channel)
            notes += log.notes
            if log.notes:
                log.compact()
            log.close()
    yield from (Repair(topic, note) for note in notes)
