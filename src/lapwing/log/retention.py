"""Which segments may go: by cursor, by bytes, by age, and when the disk fills."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """What a topic keeps although nobody needs it; a limit of 0 says nothing.

    With neither limit a segment goes as soon as nobody needs it; with both it stays while it is within both.
    """

    bytes: int = 0  # of the newest data, kept for replay
    age: int = 0  # ns; kept for replay while the segment's newest message is younger
    min_free_bytes: int = 0  # while the disk has less, what nobody needs goes even if wanted, oldest first


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What the decision needs to know of one segment."""

    end: int  # the sequence after its last
    bytes: int
    newest: int  # ns, the time of its last chunk


def expendable(
    closed: Sequence[SegmentFacts],
    *,
    active_bytes: int,
    needed: int,
    now: int,
    limits: RetentionLimits,
    free: int | None,
) -> int:
    """How many of the `closed` segments, oldest first, may be deleted.

    None that holds `needed` or a later sequence ever is. `free` is the disk's free space, None when it does not matter.
    """
    kept = active_bytes + sum(segment.bytes for segment in closed)
    newest = _written_by(closed)
    for gone, segment in enumerate(closed):
        if segment.end > needed:
            return gone
        short = free is not None and free < limits.min_free_bytes
        if not short and _wanted(newest[gone], kept, now, limits):
            return gone
        kept -= segment.bytes
        if free is not None:
            free += segment.bytes
    return len(closed)


def _written_by(closed: Sequence[SegmentFacts]) -> list[int]:
    """When each segment was written at the latest: none after one behind it, whatever a wrong clock has stamped it."""
    times: list[int] = []
    latest = 1 << 63
    for segment in reversed(closed):
        if segment.newest:  # one without messages says nothing of those before
            latest = min(latest, segment.newest)
        times.append(latest if segment.newest else 0)
    return times[::-1]


def _wanted(newest: int, kept: int, now: int, limits: RetentionLimits) -> bool:
    if not limits.bytes and not limits.age:
        return False
    if limits.bytes and kept > limits.bytes:
        return False
    return not limits.age or newest >= now - limits.age
