"""Open a segment after a crash: cut the torn tail, mend the index, report what was done.

The frames file holds what was acknowledged, in whole frames whose ids follow one another. No length is believed, and
nothing whole is thrown away:

- a write that was torn, and was never acknowledged, is cut off: its record covers bytes that are not there
- frames without a record get one, when they were written in this run of the machine: the index is written later than
  the frames, and a process that is killed leaves the page cache whole; a torn frame behind them is cut off
- frames without a record from another run, or another machine, are set aside: they look sound, but a power loss may
  have left holes in their bodies; `lapwing log repair --unverified` brings them back
- a record that is damaged is dropped, and its frames count as frames without a record
- bytes that are no frames, between frames that are, get a record that marks them as quarantined
- so do frames of a chunk of which more is missing than a torn write leaves: their checksum is of no use any more
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from lapwing import kernel
from lapwing.log.segments.index import CONTINUED, QUARANTINED, RECORD, UNVERIFIED, Chunk, decode
from lapwing.log.segments.salvage import Note, Stretch
from lapwing.log.segments.segment import SPARE, Segment

_RECORDS_AT_ONCE: Final = 4096


def open_segment(segment: Segment, *, node: int, following: int | None, by_form: bool, note: Note) -> int:
    """Learn what `segment` holds; mend it where it is not as a clean stop leaves it, and `note` what was done.

    `following` is the first sequence of the next segment, None when this is the last one, to be appended to. With
    `by_form` frames without a record are always served. Only the first and the last record are looked at while they
    fit; damage in between is found by readers.

    Returns the sequence up to which messages are known to have been given out: beyond the end when some are missing.
    """
    segment.size = segment.frames.size()
    reached = 0
    if not _fits(segment, following):
        kept = _sound_records(segment)
        if following is None and kept is not None:
            count = segment.index.file.size() // RECORD
            if kept < count:
                reached = _undo_torn_write(segment, kept, count, node, note)
            else:
                _mend_tail(segment, kept, node, by_form, note)
        else:
            _rebuild(segment, node, following, by_form, note)
    if following is None:
        _finish_last(segment, note)
    else:
        segment.extras.size = segment.extras.file.size()
    return max(reached, segment.end)


def trusts(segment: Segment, before: Chunk) -> bool:
    """Return whether frames behind `before` that have no record were written in this run of the machine."""
    return bool(segment.boot) and before.boot == segment.boot


def sound_index(segment: Segment) -> bool:
    """Return whether every record of an open segment matches its checksum, and all together cover every message."""
    at, expected = 0, segment.first
    for _, _, chunk in segment.index.each():
        if chunk is None or chunk.first != expected or chunk.offset != at:
            return False
        at, expected = chunk.stop, chunk.end
    return at == segment.size and expected == segment.end


def rebuild_index(segment: Segment, *, node: int, note: Note, by_form: bool = False) -> None:
    """Write the index of an open segment again, with every record that is sound; the frames are not touched."""
    segment.write_index()
    _replace_index(segment, every_chunk(segment, node, segment.end, note, by_form=by_form))


def _fits(segment: Segment, following: int | None) -> bool:
    """Return whether the first and the last record fit the file; if so, learn from them."""
    count, surplus = divmod(segment.index.file.size(), RECORD)
    if surplus or not count:
        return not surplus and not segment.size and following is None
    first = decode(segment.index.file.read(RECORD, 0))
    last = decode(segment.index.file.read(RECORD, (count - 1) * RECORD)) if count > 1 else first
    if first is None or last is None or first.first != segment.first or first.offset != 0:
        return False
    if last.stop != segment.size or (following is not None and last.end != following):
        return False
    segment.index.count = count
    _learn_end(segment, last)
    return True


def _sound_records(segment: Segment) -> int | None:
    """Return how many records are left without those at the end that are torn, or reach beyond the frames.

    None when that is no way to mend it: the index is missing, of another segment, or damaged rather than torn.
    """
    count = segment.index.file.size() // RECORD
    if not count:
        return 0 if segment.index.file.exists() else None
    first = decode(segment.index.file.read(RECORD, 0))
    if first is None or first.first != segment.first or first.offset != 0:
        return None
    while count:
        chunk = decode(segment.index.file.read(RECORD, (count - 1) * RECORD))
        if chunk is None:
            return None
        if chunk.stop <= segment.size:
            break
        count -= 1
    return count


def _mend_tail(segment: Segment, kept: int, node: int, by_form: bool, note: Note) -> None:
    """Give the whole frames behind the last sound record a record, and cut off the rest."""
    index = segment.index
    index.count = kept
    last = index.chunk(kept - 1) if kept else Chunk(segment.first, 0, 0, 0, 0, 0)
    stretch = _behind(segment, last, segment.size, None, node, by_form)
    stretch.resync = not kept or not stretch.trusted
    chunks = list(stretch.chunks(note))
    surplus = index.file.size() - kept * RECORD
    if surplus:
        note(index.file.path, kept * RECORD, f"dropped {surplus} bytes of torn records")
        index.file.truncate(kept * RECORD)
    if chunks:
        count = stretch.expected - last.end
        if stretch.trusted:
            note(segment.frames.path, last.stop, f"found {count} whole messages that the index did not have")
        index.recent = chunks  # written with the next checkpoint: opening needs no room on the disk
        index.count += len(chunks)
        index.unwritten = len(chunks)
    _cut(segment, stretch.at, note)
    _learn_end(segment, chunks[-1] if chunks else last)


def _undo_torn_write(segment: Segment, kept: int, count: int, node: int, note: Note) -> int:
    """Go back to before the last write, whose records are there but not its frames; return where all was given out.

    After a power loss the record may have covered acknowledged messages: the frames that are left of them stay where
    they are, unserved, and so they do where even more is missing.
    """
    index = segment.index
    index.count = count
    begun = count - 1
    while begun and index.chunk(begun).flags & CONTINUED:
        begun -= 1
    torn = index.chunk(begun)
    base = torn.before()
    reached = 0
    if base.stop <= segment.size and torn.boot and not trusts(segment, torn):
        whole, chunks = begun, list(_left_of(segment, torn, node, None, note, unverified=True))
    elif base.stop <= segment.size:
        whole, chunks = begun, [base] if base.length else []
        note(index.file.path, begun * RECORD, "the last write is not all there, and was not acknowledged")
        _cut(segment, base.stop, note)
        # the record that knows what was before goes last, and in place: this can be broken off anywhere and done again
        index.file.truncate((begun + 1) * RECORD)
    else:
        whole, reached = kept, index.chunk(count - 1).end
        chunks = list(_left_of(segment, index.chunk(kept), node, None, note))
    if chunks:
        index.file.write(b"".join([chunk.encode() for chunk in chunks]), whole * RECORD)
    index.count = whole + len(chunks)
    index.file.truncate(index.count * RECORD)
    last = index.chunk(index.count - 1) if index.count else Chunk(segment.first, 0, 0, 0, 0, 0)
    _cut(segment, last.stop, note)
    _learn_end(segment, last)
    return reached


def _left_of(
    segment: Segment, chunk: Chunk, node: int, until: int | None, note: Note, *, unverified: bool = False
) -> Iterator[Chunk]:
    """Yield the chunks to make of one that is not all there: what it was before, if that is, then quarantine.

    Of the last segment (`until` is None) only whole frames stay, as the next ones are to follow them.
    """
    known = chunk.before()
    if known.length and known.stop <= segment.size:
        yield known
    else:
        known.count = known.length = 0
    count, stop = chunk.count - known.count, segment.size
    if until is None:
        stretch = Stretch(segment.frames, known.stop, segment.size, known.end, node << 54, resync=False)
        list(stretch.chunks(note))
        count, stop = stretch.expected - known.end, stretch.at
    if count:
        what = f"messages {known.end} to {known.end + count - 1}: not all of their chunk is there, quarantined"
        note(segment.frames.path, known.stop, what)
        flags = QUARANTINED | UNVERIFIED if unverified else QUARANTINED
        crc = kernel.crc32c(segment.frames.read(stop - known.stop, known.stop)) if unverified else 0
        yield Chunk(known.end, known.stop, chunk.time, count, stop - known.stop, crc, flags)


def _rebuild(segment: Segment, node: int, following: int | None, by_form: bool, note: Note) -> None:
    last = _replace_index(segment, every_chunk(segment, node, following, note, by_form=by_form))
    note(segment.index.file.path, 0, f"rebuilt the index: {segment.index.count} chunks")
    if following is None:
        _cut(segment, last.stop, note)


def every_chunk(
    segment: Segment, node: int, until: int | None, note: Note, *, by_form: bool = False
) -> Iterator[Chunk]:
    """Yield every chunk of a segment whose size is known: those of its sound records, and those found between them.

    `until` is the sequence that follows the segment, None when nothing does. Nothing is written.
    """
    known = Chunk(segment.first, 0, 0, 0, 0, 0)  # all before its end was yielded
    damaged: list[bytes] = []  # records since then
    for place, record, chunk in segment.index.each():
        if chunk is not None and until is not None and chunk.end > until:
            chunk = chunk.before()  # of a write that failed
        if chunk is None or not _follows(chunk, known, segment.size, until):
            note(segment.index.file.path, place, "dropped a record that is damaged or out of place")
            damaged.append(record)
            continue
        if chunk.offset > known.stop or chunk.first > known.end:
            stretch = _behind(segment, known, chunk.offset, chunk.first, node, by_form)
            yield from _without_record(stretch, damaged, note)
        damaged.clear()
        for known in [chunk] if chunk.stop <= segment.size else _left_of(segment, chunk, node, until, note):
            yield known
    yield from _without_record(_behind(segment, known, segment.size, until, node, by_form), damaged, note)


def _without_record(stretch: Stretch, damaged: list[bytes], note: Note) -> Iterator[Chunk]:
    """Yield the chunks of a stretch, first those that the damaged records still verify."""
    for record in damaged:
        chunk = None if stretch.trusted else stretch.verified(record)
        if chunk is not None:
            yield chunk
    yield from stretch.chunks(note)


def _follows(chunk: Chunk, known: Chunk, size: int, until: int | None) -> bool:
    """Return whether a record can follow what is known; its end may be missing."""
    return (
        chunk.count > 0
        and chunk.offset >= known.stop
        and chunk.first >= known.end
        and (chunk.stop <= size or chunk.offset < size)
        and (until is None or chunk.end <= until)
    )


def _behind(
    segment: Segment, known: Chunk, stop: int, until: int | None, node: int, by_form: bool
) -> Stretch:
    """Return the stretch of frames without a record that follows a known chunk."""
    stretch = Stretch(segment.frames, known.stop, stop, known.end, node << 54, known.time, until)
    stretch.trusted = by_form or trusts(segment, known)
    stretch.boot = segment.boot if stretch.trusted else 0
    return stretch


def _cut(segment: Segment, size: int, note: Note) -> None:
    if size < segment.size:
        note(segment.frames.path, size, f"cut off a torn tail of {segment.size - size} bytes")
        segment.frames.truncate(size)
        segment.size = size


def _replace_index(segment: Segment, chunks: Iterator[Chunk]) -> Chunk:
    """Make `chunks` the index, in one step; the last of them."""
    index = segment.index
    last = Chunk(segment.first, 0, 0, 0, 0, 0)
    count = 0

    def parts() -> Iterator[bytes]:
        nonlocal count, last
        while some := list(islice(chunks, _RECORDS_AT_ONCE)):
            count += len(some)
            last = some[-1]
            yield b"".join([chunk.encode() for chunk in some])

    index.file.table.disk.replace(index.file.path, parts(), sync=False)
    index.file.close()  # it is the descriptor of the file that is no more
    index.count = count
    index.recent.clear()
    index.unwritten = 0
    _learn_end(segment, last)
    return last


def _learn_end(segment: Segment, last: Chunk) -> None:
    segment.end, segment.newest = last.end, last.time


def _finish_last(segment: Segment, note: Note) -> None:
    """Prepare the segment that is appended to: it has no extras of messages to come, and its last chunk is verified."""
    if segment.frames.room() > segment.size + SPARE:
        segment.frames.truncate(segment.size)  # to its own length: gives back what a killed process had reserved
    cut = segment.extras.cut(segment.end)
    if cut:
        note(segment.extras.file.path, segment.extras.size, f"cut off {cut} bytes that belong to no message")
    for chunk in segment.index.recent:
        chunk.attributes = segment.extras.size
    if segment.index.count:
        _set_aside_without_attributes(segment, note)
        chunks, frames, problem = segment.read(segment.index.count - 1, 0)
        if frames is not None:
            segment.last = chunks[0]
            if not segment.index.recent:
                segment.last.recorded()
                segment.index.recent = [segment.last]
        elif problem != "quarantined" and not _keep_sound_part(segment, chunks[0], note):
            note(segment.frames.path, chunks[0].offset, f"the last chunk will not be served: {problem}")


def _set_aside_without_attributes(segment: Segment, note: Note) -> None:
    """Serve no message that a power loss has left without its deferral and headers."""
    index = segment.index
    number = index.count - 1
    chunk = index.chunk(number)
    if trusts(segment, chunk):
        return
    while chunk.attributes > segment.extras.size and not chunk.flags & QUARANTINED:
        chunk.flags |= QUARANTINED | UNVERIFIED
        index.file.write(chunk.encode(), number * RECORD)
        what = f"messages {chunk.first} to {chunk.end - 1}: their deferrals and headers are not there, set aside"
        note(segment.frames.path, chunk.offset, what)
        number -= 1
        if number < 0:
            return
        chunk = index.chunk(number)


def _keep_sound_part(segment: Segment, chunk: Chunk, note: Note) -> bool:
    """Serve, of a last chunk that does not match its checksum, what was there before, if that does; return whether.

    A power loss may leave a file that is as long as it should be, without the bytes that were written last.
    """
    before = chunk.before()
    frames = segment.frames.read(before.length, before.offset)
    if not before.length or before.length == chunk.length or kernel.crc32c(frames) != before.crc:
        return False
    rest = Chunk(before.end, before.stop, chunk.time, chunk.count - before.count, chunk.length - before.length, 0)
    rest.flags = QUARANTINED
    segment.index.file.write(before.encode() + rest.encode(), (segment.index.count - 1) * RECORD)
    segment.index.count += 1
    note(segment.frames.path, rest.offset, f"messages {rest.first} to {rest.end - 1} do not match: quarantined")
    return True
