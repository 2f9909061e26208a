"""Opening after a crash: cut the torn tail, mend the index, say what was done.

What was acknowledged is in the frames file, in whole frames with the ids that follow one another; the index can always
be made again from that. So nothing here trusts a length, and nothing whole is ever thrown away:

- frames without a record (the process died between the two writes) get one
- a torn frame at the end of the last segment is cut off
- a record that is damaged, or speaks of bytes that are not there, is dropped, and its frames are scanned
- bytes that are no frames, between frames that are, get a record that says "quarantined"
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from lapwing import kernel
from lapwing.log.index import QUARANTINED, RECORD, Chunk, decode
from lapwing.log.options import CHUNK_BYTES
from lapwing.log.segment import Segment, time_of

_PIECE: Final = 1 << 20
_MESSAGE_TYPE: Final = b"\x00\x00\x00\x02"
_HEX: Final = frozenset(b"0123456789abcdef")


@dataclass(slots=True)
class Findings:
    """What was found and done, in sentences for the operator."""

    notes: list[str] = field(default_factory=list)

    def say(self, path: str, offset: int, what: str) -> None:
        """Note something about a place in a file."""
        self.notes.append(f"{path}: offset {offset}: {what}")


def node_of(segment: Segment) -> int | None:
    """The node in the id of the segment's first frame; None when there is no whole one."""
    head = segment.frames.read(kernel.HEAD, 0) if segment.frames.size() else b""
    text = head[18:34]
    if len(text) < 16 or not _HEX.issuperset(text):
        return None
    return int(text, 16) >> 54


def open_segment(segment: Segment, *, node: int, following: int | None, findings: Findings) -> None:
    """Learn what `segment` holds; mend it where it is not as a clean stop leaves it.

    `following` is the first sequence of the next segment, None when this is the last one, to be appended to.
    """
    segment.size = segment.frames.size()
    if not _looks_clean(segment, following):
        _mend(segment, node, following, findings)
    if following is None:
        segment.extras.cut(segment.end)
        _check_last(segment, findings)
    else:
        segment.extras.size = segment.extras.file.size()


def rebuild_index(segment: Segment, *, node: int, findings: Findings) -> None:
    """Make the index of an open segment anew, keeping every record that is sound. The frames are not touched."""
    size, end = segment.size, segment.end
    chunks = list(_every_chunk(segment, node, end, findings))
    _replace_index(segment, chunks)
    segment.size, segment.end = size, end


def _looks_clean(segment: Segment, following: int | None) -> bool:
    """Whether first and last record fit the file, so that the rest can be left to whoever reads it."""
    size = segment.index.file.size()
    count, surplus = divmod(size, RECORD)
    if surplus or not count:
        return size == 0 and segment.size == 0 and following in (None, segment.first)
    first = decode(segment.index.file.read(RECORD, 0))
    last = decode(segment.index.file.read(RECORD, (count - 1) * RECORD)) if count > 1 else first
    if first is None or last is None or first.first != segment.first or first.offset != 0:
        return False
    if last.stop != segment.size or (following is not None and last.end != following):
        return False
    segment.index.count = count
    segment.end = last.end
    segment.newest = last.time
    return True


def _mend(segment: Segment, node: int, following: int | None, findings: Findings) -> None:
    """Cut and rebuild so that index and frames agree."""
    path = segment.index.file.path
    raw = segment.index.file.read(segment.index.file.size(), 0) if segment.index.file.size() else b""
    kept, sound = _sound_prefix(raw, segment)
    if following is None and sound:  # the common case: a crash between two writes
        last = kept[-1] if kept else None
        at, expected, newest = (last.stop, last.end, last.time) if last else (0, segment.first, 0)
        chunks = list(_scan(segment, node, at, segment.size, expected, newest, until=None, resync=False, findings=findings))
        if len(raw) > len(kept) * RECORD:
            findings.say(path, len(kept) * RECORD, f"dropped {len(raw) - len(kept) * RECORD} bytes of torn records")
        if chunks:
            count = sum(chunk.count for chunk in chunks)
            findings.say(segment.frames.path, at, f"found {count} whole messages that the index did not have")
        stop = chunks[-1].stop if chunks else at
        if stop < segment.size:
            findings.say(segment.frames.path, stop, f"cut off a torn tail of {segment.size - stop} bytes")
            segment.frames.truncate(stop)
            segment.size = stop
        _append_index(segment, len(kept), len(raw), chunks)
        return
    chunks = list(_every_chunk(segment, node, following, findings))
    if following is None:
        stop = chunks[-1].stop if chunks else 0
        if stop < segment.size:
            findings.say(segment.frames.path, stop, f"cut off a torn tail of {segment.size - stop} bytes")
            segment.frames.truncate(stop)
            segment.size = stop
    findings.say(path, 0, f"rebuilt the index: {len(chunks)} chunks")
    _replace_index(segment, chunks)


def _sound_prefix(raw: bytes, segment: Segment) -> tuple[list[Chunk], bool]:
    """The last chunk record to go on from (at most one in the list's end), and whether the records before it can be kept.

    Only the end is looked at, as the rest may be large: records are dropped from the back while they are torn, damaged
    or speak of bytes that are not there.
    """
    count = len(raw) // RECORD
    if not count:
        return [], segment.size == 0 or len(raw) > 0 or _young(segment)
    head = decode(raw)
    if head is None or head.first != segment.first or head.offset != 0:
        return [], False
    chunks: list[Chunk] = []
    for number in range(count):
        chunk = decode(raw, number * RECORD)
        if chunk is None or chunk.stop > segment.size:
            rest_is_torn = number == count - 1 or all(
                (later := decode(raw, after * RECORD)) is None or later.stop > segment.size
                for after in range(number, count)
            )
            return chunks, rest_is_torn
        if chunks and (chunk.first != chunks[-1].end or chunk.offset != chunks[-1].stop):
            return chunks, False
        chunks.append(chunk)
    return chunks, True


def _young(segment: Segment) -> bool:
    """Whether the frames can be the first write of a segment, whose records had no time to be written."""
    return segment.index.file.size() == 0


def _every_chunk(segment: Segment, node: int, until: int | None, findings: Findings) -> Iterator[Chunk]:
    """Every sound record, and new ones for what lies between them."""
    file = segment.index.file
    count = file.size() // RECORD
    at, expected, newest = 0, segment.first, 0
    piece = 4096
    for begin in range(0, count, piece):
        data = file.read(min(piece, count - begin) * RECORD, begin * RECORD)
        for place in range(0, len(data), RECORD):
            chunk = decode(data, place)
            if chunk is None or chunk.offset < at or chunk.first < expected or chunk.stop > segment.size:
                findings.say(file.path, begin * RECORD + place, "dropped a record that is damaged or out of place")
                continue
            if not chunk.count or (chunk.first == expected) != (chunk.offset == at):
                findings.say(file.path, begin * RECORD + place, "dropped a record that does not fit its neighbours")
                continue
            if chunk.offset > at:
                for new in _scan(segment, node, at, chunk.offset, expected, newest, until=chunk.first, resync=True, findings=findings):
                    yield new
                    newest = new.time
            yield chunk
            at, expected, newest = chunk.stop, chunk.end, chunk.time
    yield from _scan(segment, node, at, segment.size, expected, newest, until=until, resync=True, findings=findings)


def _scan(
    segment: Segment,
    node: int,
    at: int,
    stop: int,
    expected: int,
    newest: int,
    *,
    until: int | None,
    resync: bool,
    findings: Findings,
) -> Iterator[Chunk]:
    """Chunks for the whole frames of [at, stop), whose first sequence should be `expected`.

    With `until`, the sequence that follows the region, what cannot be read is quarantined up to there. With `resync`,
    reading goes on behind a damaged place; without, the first such place is the end, as behind a torn write.
    """
    base = node << 54
    while at < stop:
        data = segment.frames.read(min(_PIECE, stop - at), at)
        if len(data) >= 4:
            wanted = 4 + int.from_bytes(data[:4], "big")
            if len(data) < wanted <= stop - at:
                data = segment.frames.read(wanted, at)
        positions, _ = kernel.scan_frames(data, 0, len(data))
        sound = _with_ids(data, positions, base + expected)
        if until is not None:
            sound = min(sound, until - expected)
        ended = at + positions[sound] == stop or (
            at + len(data) < stop and positions[sound] > len(data) // 2 and sound == len(positions) - 1
        )
        if not ended and sound and (resync and not _is_whole(segment, at + positions[sound], stop, base, expected + sound)):
            sound -= 1  # its length leads nowhere, so it may be the length that is wrong
        for begin, end in _pieces(positions, sound):
            frames = data[positions[begin] : positions[end]]
            newest = max(newest, time_of(frames))
            yield Chunk(expected, at + positions[begin], newest, end - begin, len(frames), kernel.crc32c(frames))
            expected += end - begin
        at += positions[sound]
        if at == stop or (sound and _is_whole(segment, at, stop, base, expected)):
            continue
        if not resync:
            return
        place, sequence = _next_sound(segment, at, stop, base, expected)
        if place is None:
            break
        findings.say(segment.frames.path, at, f"quarantined {place - at} bytes, messages {expected} to {sequence - 1}")
        yield Chunk(expected, at, newest, sequence - expected, place - at, 0, QUARANTINED)
        at, expected = place, sequence
    if until is not None and expected < until:
        findings.say(segment.frames.path, at, f"quarantined {stop - at} bytes, messages {expected} to {until - 1}")
        yield Chunk(expected, at, newest, until - expected, stop - at, 0, QUARANTINED)


def _with_ids(data: bytes, positions: "list[int] | object", first_id: int) -> int:
    """How many of the frames carry the ids that they should."""
    ids, _, _, _, _, count = kernel.decode_columns(data, 0, len(data))
    if ids == b"".join([b"%016x" % (first_id + index) for index in range(count)]):
        return count
    for index in range(count):
        if ids[index * 16 : index * 16 + 16] != b"%016x" % (first_id + index):
            return index
    return count


def _is_whole(segment: Segment, at: int, stop: int, base: int, sequence: int) -> bool:
    """Whether a whole frame with that sequence lies at `at`."""
    head = segment.frames.read(min(kernel.HEAD, stop - at), at)
    return (
        len(head) == kernel.HEAD
        and 30 <= int.from_bytes(head[:4], "big") <= stop - at - 4
        and head[4:8] == _MESSAGE_TYPE
        and head[18:34] == b"%016x" % (base + sequence)
    )


def _next_sound(segment: Segment, at: int, stop: int, base: int, expected: int) -> tuple[int | None, int]:
    """The next place behind `at` where a whole frame begins, and its sequence.

    A frame inside a message's body could look the same, so the sequence must be one that the bytes skipped can account
    for: no lost frame was shorter than its head.
    """
    begin = at + 1
    while stop - begin >= kernel.HEAD:
        data = segment.frames.read(min(_PIECE, stop - begin), begin)
        found = data.find(_MESSAGE_TYPE, 4)
        while found >= 0 and found + 30 <= len(data):
            place = begin + found - 4
            text = data[found + 14 : found + 30]
            if _HEX.issuperset(text):
                sequence = int(text, 16) - base
                lost = sequence - expected
                if 1 <= lost <= (place - at) // kernel.HEAD + 1 and _is_whole(segment, place, stop, base, sequence):
                    return place, sequence
            found = data.find(_MESSAGE_TYPE, found + 1)
        begin += max(len(data) - kernel.HEAD, 1)
    return None, 0


def _pieces(positions: "object", count: int) -> Iterator[tuple[int, int]]:
    """Frames 0 to `count`, cut into runs of at most a chunk's length."""
    places: list[int] = list(positions)  # type: ignore[call-overload]
    begin = 0
    for end in range(1, count + 1):
        if end == count or places[end + 1] - places[begin] > CHUNK_BYTES:
            yield begin, end
            begin = end


def _append_index(segment: Segment, kept: int, known: int, chunks: list[Chunk]) -> None:
    """Put records for `chunks` behind the first `kept`, in place of whatever follows those."""
    index = segment.index
    index.count = kept
    if known > kept * RECORD:
        index.file.truncate(kept * RECORD)
    if chunks:
        index.append(b"".join(chunk.encode() for chunk in chunks))
        index.count += len(chunks)
    _learn_end(segment)


def _replace_index(segment: Segment, chunks: list[Chunk]) -> None:
    index = segment.index
    index.file.close()
    index.file.table.disk.replace(index.file.path, [chunk.encode() for chunk in chunks], sync=False)
    index.count = len(chunks)
    _learn_end(segment)


def _learn_end(segment: Segment) -> None:
    if segment.index.count:
        last = segment.index.chunk(segment.index.count - 1)
        segment.end, segment.newest = last.end, last.time
    else:
        segment.end = segment.first


def _check_last(segment: Segment, findings: Findings) -> None:
    """Say so when the last chunk does not match its checksum; whoever reads it will not be served it."""
    if segment.index.count:
        chunks, frames, problem = segment.read(segment.index.count - 1, 0)
        if frames is None:
            findings.say(segment.frames.path, chunks[0].offset, f"last chunk is bad: {problem}")
