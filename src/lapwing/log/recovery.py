"""Opening after a crash: cut the torn tail, mend the index, say what was done.

What was acknowledged is in the frames file, in whole frames whose ids follow one another; the index can always be made
again from that. So no length is believed, and nothing whole is ever thrown away:

- a write that was torn, which nobody was told had succeeded, is cut off: its record speaks of bytes that are not there
- frames that no record speaks of (the index is older, or lost) get one; a torn frame behind them is cut off
- a record that is damaged is dropped, and its frames are looked for
- bytes that are no frames, between frames that are, get a record that says "quarantined"
- so do frames of a chunk of which more is missing than a torn write leaves: their checksum is of no use any more
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from lapwing import kernel
from lapwing.log.index import CONTINUED, QUARANTINED, RECORD, Chunk, decode
from lapwing.log.salvage import Say, Stretch
from lapwing.log.segment import SPARE, Segment

_RECORDS_AT_ONCE: Final = 4096


def open_segment(segment: Segment, *, node: int, following: int | None, say: Say) -> int:
    """Learn what `segment` holds; mend it where it is not as a clean stop leaves it, and `say` what was done.

    `following` is the first sequence of the next segment, None when this is the last one, to be appended to.
    Only first and last record are looked at while they fit; whoever reads finds damage in between.

    Returns the sequence up to which messages are known to have been given out: beyond the end when some are missing.
    """
    segment.size = segment.frames.size()
    reached = 0
    if not _fits(segment, following):
        kept = _sound_records(segment)
        if following is None and kept is not None:
            count = segment.index.file.size() // RECORD
            if kept < count:
                reached = _undo_torn_write(segment, kept, count, node, say)
            else:
                _mend_tail(segment, kept, node, say)
        else:
            _rebuild(segment, node, following, say)
    if following is None:
        _finish_last(segment, say)
    else:
        segment.extras.size = segment.extras.file.size()
    return max(reached, segment.end)


def sound_index(segment: Segment) -> bool:
    """Whether every record of an open segment matches its checksum, and all together tell of every message."""
    at, expected = 0, segment.first
    for begin in range(0, segment.index.count, _RECORDS_AT_ONCE):
        most = min(_RECORDS_AT_ONCE, segment.index.count - begin)
        data = segment.index.file.read(most * RECORD, begin * RECORD)
        for place in range(0, most * RECORD, RECORD):
            chunk = decode(data, place)
            if chunk is None or chunk.first != expected or chunk.offset != at:
                return False
            at, expected = chunk.stop, chunk.end
    return at == segment.size and expected == segment.end


def rebuild_index(segment: Segment, *, node: int, say: Say) -> None:
    """Make the index of an open segment anew, keeping every record that is sound; the frames are not touched."""
    _replace_index(segment, every_chunk(segment, node, segment.end, say))


def _fits(segment: Segment, following: int | None) -> bool:
    """Whether the first and the last record fit the file; if so, learn from them."""
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
    """How many records are left when those at the end that are torn, or reach beyond the frames, are dropped.

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


def _mend_tail(segment: Segment, kept: int, node: int, say: Say) -> None:
    """Go on from the last sound record: give the whole frames behind it a record, and cut off the rest."""
    index = segment.index
    last = index.chunk(kept - 1) if kept else Chunk(segment.first, 0, 0, 0, 0, 0)
    stretch = Stretch(segment.frames, last.stop, segment.size, last.end, node << 54, last.time, resync=not kept)
    chunks = list(stretch.chunks(say))
    surplus = index.file.size() - kept * RECORD
    if surplus:
        say(index.file.path, kept * RECORD, f"dropped {surplus} bytes of torn records")
        index.file.truncate(kept * RECORD)
    index.count = kept
    if chunks:
        count = stretch.expected - last.end
        say(segment.frames.path, last.stop, f"found {count} whole messages that the index did not have")
        index.file.write(b"".join([chunk.encode() for chunk in chunks]), kept * RECORD)
        index.count += len(chunks)
    _cut(segment, stretch.at, say)
    _learn_end(segment, chunks[-1] if chunks else last)


def _undo_torn_write(segment: Segment, kept: int, count: int, node: int, say: Say) -> int:
    """Go back to before the last write, whose records are there but not its frames; up to where all was given out.

    Where even more is missing, the frames that are left of the chunk in question stay where they are, unserved.
    """
    index = segment.index
    begun = count - 1
    while begun and index.chunk(begun).flags & CONTINUED:
        begun -= 1
    torn = index.chunk(begun)
    base = torn.before()
    reached = 0
    if base.stop <= segment.size:
        whole, chunks = begun, [base] if base.length else []
        say(index.file.path, begun * RECORD, "the last write is not all there, and was not acknowledged")
        _cut(segment, base.stop, say)
        # the record that knows what was before goes last, and in place: this can be broken off anywhere and done again
        index.file.truncate((begun + 1) * RECORD)
    else:
        whole, reached = kept, index.chunk(count - 1).end
        chunks = list(_left_of(segment, index.chunk(kept), node, None, say))
    if chunks:
        index.file.write(b"".join([chunk.encode() for chunk in chunks]), whole * RECORD)
    index.count = whole + len(chunks)
    index.file.truncate(index.count * RECORD)
    last = index.chunk(index.count - 1) if index.count else Chunk(segment.first, 0, 0, 0, 0, 0)
    _cut(segment, last.stop, say)
    _learn_end(segment, last)
    return reached


def _left_of(segment: Segment, chunk: Chunk, node: int, until: int | None, say: Say) -> Iterator[Chunk]:
    """What to make of a chunk of which not all bytes are there: what it was before, if that is, then quarantine.

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
        list(stretch.chunks(say))
        count, stop = stretch.expected - known.end, stretch.at
    if count:
        what = f"messages {known.end} to {known.end + count - 1}: not all of their chunk is there, quarantined"
        say(segment.frames.path, known.stop, what)
        yield Chunk(known.end, known.stop, chunk.time, count, stop - known.stop, 0, QUARANTINED)


def _rebuild(segment: Segment, node: int, following: int | None, say: Say) -> None:
    last = _replace_index(segment, every_chunk(segment, node, following, say))
    say(segment.index.file.path, 0, f"made the index anew: {segment.index.count} chunks")
    if following is None:
        _cut(segment, last.stop, say)


def every_chunk(segment: Segment, node: int, until: int | None, say: Say) -> Iterator[Chunk]:
    """Every chunk of a segment whose size is known: as its sound records say, and found between those.

    `until` is the sequence that follows the segment, None when nothing does. Nothing is written.
    """
    file = segment.index.file
    known = Chunk(segment.first, 0, 0, 0, 0, 0)  # up to its end all is told
    count = file.size() // RECORD
    for begin in range(0, count, _RECORDS_AT_ONCE):
        data = file.read(min(_RECORDS_AT_ONCE, count - begin) * RECORD, begin * RECORD)
        for place in range(0, len(data), RECORD):
            chunk = decode(data, place)
            if chunk is not None and until is not None and chunk.end > until:
                chunk = chunk.before()  # of a write that failed
            if chunk is None or not _follows(chunk, known, segment.size, until):
                say(file.path, begin * RECORD + place, "dropped a record that is damaged or out of place")
                continue
            if chunk.offset > known.stop or chunk.first > known.end:
                yield from _between(segment, node, known, chunk.offset, chunk.first, say)
            for known in [chunk] if chunk.stop <= segment.size else _left_of(segment, chunk, node, until, say):
                yield known
    yield from _between(segment, node, known, segment.size, until, say)


def _follows(chunk: Chunk, known: Chunk, size: int, until: int | None) -> bool:
    """Whether a record can stand behind what is known; its end may be missing."""
    return (
        chunk.count > 0
        and chunk.offset >= known.stop
        and chunk.first >= known.end
        and (chunk.stop <= size or chunk.offset < size)
        and (until is None or chunk.end <= until)
    )


def _between(
    segment: Segment, node: int, known: Chunk, stop: int, until: int | None, say: Say
) -> Iterator[Chunk]:
    stretch = Stretch(segment.frames, known.stop, stop, known.end, node << 54, known.time, until)
    return stretch.chunks(say)


def _cut(segment: Segment, size: int, say: Say) -> None:
    if size < segment.size:
        say(segment.frames.path, size, f"cut off a torn tail of {segment.size - size} bytes")
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
    _learn_end(segment, last)
    return last


def _learn_end(segment: Segment, last: Chunk) -> None:
    segment.end, segment.newest = last.end, last.time


def _finish_last(segment: Segment, say: Say) -> None:
    """What only the segment that is appended to needs: no extras of messages to come, and a look at the last chunk."""
    if segment.frames.room() > segment.size + SPARE:
        segment.frames.truncate(segment.size)  # to its own length: gives back what a killed process had reserved
    cut = segment.extras.cut(segment.end)
    if cut:
        say(segment.extras.file.path, segment.extras.size, f"cut off {cut} bytes that belong to no message")
    if segment.index.count:
        chunks, frames, problem = segment.read(segment.index.count - 1, 0)
        if frames is not None:
            last = chunks[0]
            segment.last = (last.first, last.offset, last.count, last.length, last.crc)
        elif problem != "quarantined" and not _keep_sound_part(segment, chunks[0], say):
            say(segment.frames.path, chunks[0].offset, f"the last chunk will not be served: {problem}")


def _keep_sound_part(segment: Segment, chunk: Chunk, say: Say) -> bool:
    """Of a last chunk that does not match its checksum, serve what was there before the last write to it, if that does.

    A power loss may leave a file that is as long as it should be, and not what was written last. Whether it was so.
    """
    before = chunk.before()
    frames = segment.frames.read(before.length, before.offset)
    if not before.length or kernel.crc32c(frames) != before.crc:
        return False
    rest = Chunk(before.end, before.stop, chunk.time, chunk.count - before.count, chunk.length - before.length, 0)
    rest.flags = QUARANTINED
    segment.index.file.write(before.encode() + rest.encode(), (segment.index.count - 1) * RECORD)
    segment.index.count += 1
    say(segment.frames.path, rest.offset, f"messages {rest.first} to {rest.end - 1} do not match: quarantined")
    return True
