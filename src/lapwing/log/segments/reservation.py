"""Sequences that were given out and never written: after a crash none of them is given out again.

With durability "memory" messages are seen by consumers and readers before they are in a file. Before the first of
them is, a small file `ahead` keeps how many there can be at most; a clean stop, which writes them all, removes it. A
log that finds the file when it is opened continues behind all that may have been given out, in a segment of its own,
and what it left out is a quarantined range like any other. So a sequence, and an id, never means two things.
"""

import json
import os
from typing import Final

from lapwing.log.disk import OpenFiles
from lapwing.log.segments.index import QUARANTINED, Chunk
from lapwing.log.segments.segment import Segment

FILE: Final = "ahead"
_NOT_TOLD: Final = 1 << 24  # sequences to leave out when the file is there but cannot be understood


def reserve(directory: str, count: int, files: OpenFiles) -> None:
    """Write down that up to `count` sequences beyond the files' end may be given out; raises `OSError`."""
    text = json.dumps({"ahead": count}) + "\n"
    files.disk.replace(os.path.join(directory, FILE), [text.encode()], sync=False)


def clear(directory: str, files: OpenFiles) -> None:
    """Note that all that was given out is written: nothing is ahead any more; raises `OSError`."""
    files.disk.unlink(os.path.join(directory, FILE))


def ahead(directory: str, names: list[str], files: OpenFiles) -> int:
    """Return how many sequences beyond the files' end may be given out; `names` are those in the directory."""
    if FILE not in names:
        return 0
    try:
        count = int(json.loads(files.disk.read(os.path.join(directory, FILE)))["ahead"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return _NOT_TOLD
    return count if 0 <= count < 1 << 32 else _NOT_TOLD


def leave_out(
    directory: str, segments: list[Segment], count: int, files: OpenFiles, merge_bytes: int, boot: int
) -> range:
    """Begin a segment `count` sequences behind the last one; what is left out. Raises `OSError`.

    The name of the new file is what keeps the place: whatever is lost of the index, it is found again.
    """
    end = segments[-1].end if segments else 0
    segment = Segment(directory, end + count, files, merge_bytes, boot)
    segment.frames.truncate(0)
    segment.index.file.truncate(0)
    placeholder = segments.pop() if segments and not segments[-1].size else None
    if segments:
        last = segments[-1]
        gap = Chunk(last.end, last.size, last.newest, segment.first - last.end, 0, 0, QUARANTINED)
        last.index.add(gap)
        last.end, last.last = segment.first, None
    if placeholder is not None:
        placeholder.unlink()  # it held the place that the new one holds now
    segments.append(segment)
    return range(end, segment.first)
