"""Opening after a crash: cut the torn tail, mend the index, say what was done.

What was acknowledged is in the frames file, in whole frames whose ids follow one another; the index can always be made
again from that. So no length is believed, and nothing whole is ever thrown away:

- frames without a record (the process died between the two writes) get one
- a torn frame at the end of the last segment is cut off
- a record that is damaged, or speaks of bytes that are not there, is dropped, and its frames are looked for
- bytes that are no frames, between frames that are, get a record that says "quarantined"
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from lapwing.log.index import RECORD, Chunk, decode
from lapwing.log.salvage import Stretch
from lapwing.log.segment import SPARE, Segment

_RECORDS_AT_ONCE: Final = 4096


class Findings:
    """What was found and done, as sentences for the operator, put into `notes`."""

    def __init__(self, notes: list[str]) -> None:
        self.notes = notes

    def say(self, path: str, offset: int, what: str) -> None:
        """Note something about a place in a file."""
        self.notes.append(f"{path}: offset {offset}: {what}")


def open_segment(segment: Segment, *, node: int, following: int | None, findings: Findings) -> None:
    """Learn what `segment` holds; mend it where it is not as a clean stop leaves it.

    `following` is the first sequence of the next segment, None when this is the last one, to be appended to.
    Only first and last record are looked at while they fit; whoever reads finds damage in between.
    """
    segment.size = segment.frames.size()
    if not _fits(segment, following):
        kept = _sound_records(segment)
        if following is None and kept is not None:
            _mend_tail(segment, kept, node, findings)
        else:
            _rebuild(segment, node, following, findings)
    if following is None:
        _finish_last(segment, findings)
    else:
        segment.extras.size = segment.extras.file.size()


def rebuild_index(segment: Segment, *, node: int, findings: Findings) -> None:
    """Make the index of an open segment anew, keeping every record that is sound; the frames are not touched."""
    _replace_index(segment, _every_chunk(segment, node, segment.end, findings))


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


def _mend_tail(segment: Segment, kept: int, node: int, findings: Findings) -> None:
    """Go on from the last sound record: give the whole frames behind it a record, and cut off the rest."""
    index = segment.index
    last = index.chunk(kept - 1) if kept else Chunk(segment.first, 0, 0, 0, 0, 0)
    stretch = Stretch(segment.frames, last.stop, segment.size, last.end, node << 54, last.time, resync=not kept)
    chunks = list(stretch.chunks(findings.say))
    surplus = index.file.size() - kept * RECORD
    if surplus:
        findings.say(index.file.path, kept * RECORD, f"dropped {surplus} bytes of torn records")
        index.file.truncate(kept * RECORD)
    index.count = kept
    if chunks:
        count = stretch.expected - last.end
        findings.say(segment.frames.path, last.stop, f"found {count} whole messages that the index did not have")
        index.file.write(b"".join([chunk.encode() for chunk in chunks]), kept * RECORD)
        index.count += len(chunks)
    _cut(segment, stretch.at, findings)
    _learn_end(segment, chunks[-1] if chunks else last)


def _rebuild(segment: Segment, node: int, following: int | None, findings: Findings) -> None:
    last = _replace_index(segment, _every_chunk(segment, node, following, findings))
    findings.say(segment.index.file.path, 0, f"made the index anew: {segment.index.count} chunks")
    if following is None:
        _cut(segment, last.stop, findings)


def _every_chunk(segment: Segment, node: int, until: int | None, findings: Findings) -> Iterator[Chunk]:
    """Every sound record, and new ones for what lies between them."""
    file = segment.index.file
    known = Chunk(segment.first, 0, 0, 0, 0, 0)  # up to its end all is told
    count = file.size() // RECORD
    for begin in range(0, count, _RECORDS_AT_ONCE):
        data = file.read(min(_RECORDS_AT_ONCE, count - begin) * RECORD, begin * RECORD)
        for place in range(0, len(data), RECORD):
            chunk = decode(data, place)
            if chunk is None or not _follows(chunk, known, segment.size, until):
                findings.say(file.path, begin * RECORD + place, "dropped a record that is damaged or out of place")
                continue
            if chunk.offset > known.stop or chunk.first > known.end:
                yield from _between(segment, node, known, chunk.offset, chunk.first, findings)
            yield chunk
            known = chunk
    yield from _between(segment, node, known, segment.size, until, findings)


def _follows(chunk: Chunk, known: Chunk, size: int, until: int | None) -> bool:
    """Whether a record can stand behind what is known."""
    return (
        chunk.count > 0
        and chunk.offset >= known.stop
        and chunk.first >= known.end
        and chunk.stop <= size
        and (until is None or chunk.end <= until)
    )


def _between(
    segment: Segment, node: int, known: Chunk, stop: int, until: int | None, findings: Findings
) -> Iterator[Chunk]:
    stretch = Stretch(segment.frames, known.stop, stop, known.end, node << 54, known.time, until)
    return stretch.chunks(findings.say)


def _cut(segment: Segment, size: int, findings: Findings) -> None:
    if size < segment.size:
        findings.say(segment.frames.path, size, f"cut off a torn tail of {segment.size - size} bytes")
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


def _finish_last(segment: Segment, findings: Findings) -> None:
    """What only the segment that is appended to needs: no extras of messages to come, and a look at the last chunk."""
    if segment.frames.room() > segment.size + SPARE:
        segment.frames.truncate(segment.size)  # to its own length: gives back what a killed process had reserved
    cut = segment.extras.cut(segment.end)
    if cut:
        findings.say(segment.extras.file.path, segment.extras.size, f"cut off {cut} bytes that belong to no message")
    if segment.index.count:
        chunks, frames, problem = segment.read(segment.index.count - 1, 0)
        if frames is not None:
            last = chunks[0]
            segment.last = (last.first, last.offset, last.count, last.length, last.crc)
        elif problem != "quarantined":
            findings.say(segment.frames.path, chunks[0].offset, f"the last chunk will not be served: {problem}")
