"""Decide which segments may be deleted: by cursor, bytes, age and count, and when the disk fills."""

from collections.abc import Sequence

from lapwing.log.segments.segment import Segment
from lapwing.records import dataclass


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """The limits of what a topic keeps although no channel needs it; a limit of 0 does not count.

    Without a limit a segment is deleted as soon as no channel needs it; with several it stays while it is within all.
    """

    bytes: int = 0  # of the newest data, kept for replay
    age: int = 0  # ns; kept for replay while the segment's newest message is younger
    min_free_bytes: int = 0  # while the disk has less, what no channel needs goes even if wanted, oldest first
    count: int = 0  # of the newest messages, kept for replay
    since: int | None = None  # the sequence from which on all is kept, whatever the limits are; None: no such

    @property
    def keeps(self) -> bool:
        """Whether anything is kept that no channel needs."""
        return bool(self.bytes or self.age or self.count) or self.since is not None


def expendable(
    closed: Sequence[Segment],
    *,
    active_bytes: int,
    needed: int,
    now: int,
    limits: RetentionLimits,
    free: int | None,
    end: int = 0,
) -> int:
    """Return how many of the `closed` segments, oldest first, may be deleted.

    No segment that holds `needed` or a later sequence is among them. `free` is the disk's free space, None when it does
    not matter; `end` is the end of the log.
    """
    kept = active_bytes + sum(segment.size for segment in closed)
    newest = _written_by(closed)
    for gone, segment in enumerate(closed):
        if segment.end > needed:
            return gone
        short = free is not None and free < limits.min_free_bytes
        if not short and _wanted(newest[gone], kept, segment.end, end, now, limits):
            return gone
        kept -= segment.size
        if free is not None:
            free += segment.size
    return len(closed)


def _written_by(closed: Sequence[Segment]) -> list[int]:
    """Return when each segment was written at the latest: none after one behind it, whatever a wrong clock stamped."""
    times: list[int] = []
    latest = 1 << 63
    for segment in reversed(closed):
        if segment.newest:  # one without messages shows nothing of those before
            latest = min(latest, segment.newest)
        times.append(latest if segment.newest else 0)
    return times[::-1]


def _wanted(newest: int, kept: int, stop: int, end: int, now: int, limits: RetentionLimits) -> bool:
    if limits.since is not None and stop > limits.since:
        return True
    if not (limits.bytes or limits.age or limits.count):
        return False
    if limits.bytes and kept > limits.bytes:
        return False
    if limits.count and end - stop >= limits.count:
        return False
    return not limits.age or newest >= now - limits.age
