"""Delete the segments of a topic's log that no channel needs and that are not kept for replay."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.broker.topic.skips import gaps
from lapwing.log.segments.retention import RetentionLimits

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.settings.options import Options
    from lapwing.broker.topic.topic import Topic

_BLOCK: Final = 1 << 20
_LARGE: Final = 32 << 20  # bytes in memory at which an ephemeral topic does not wait for the next trim


def trim(topic: Topic, options: Options, *, now: int) -> bool:
    """Delete segments that no channel needs; copy messages to a side log where they alone pin a segment.

    Return whether all of that is done: many messages are copied in several calls. Raises `LogError`.
    """
    log = topic.log
    needed = topic.fanned_out
    if topic.effective.keep == "trimmed":
        needed = min(needed, topic.deleted.jump(log.first))
    moved, done = False, True
    for channel in topic.channels.values():
        low = channel.needed_from()
        if channel.ephemeral and _is_stalled(channel):
            _copy_backlog(channel)
        edge = log.segment_start(channel.cursor)
        if low < edge:
            done &= channel.copy_aside(edge)
            low = channel.needed_from()
            moved = True
        needed = min(needed, low)
    if not done:
        return False  # segments are deleted when everything is copied
    if moved:
        topic.checkpoint()  # before the segment is deleted: a copy that no journal knows of would look finished
    # of two clocks that disagree the earlier one: what is deleted too soon does not come back
    log.release(needed, now=now + min(topic.skew, 0), limits=_retention(topic, options, now))
    topic.deleted.forget_below(log.first)
    return True


def trim_large(topic: Topic, options: Options, *, now: int) -> None:
    """Trim an ephemeral topic at once that takes much memory. Raises `LogError`."""
    if topic.log.bytes > max(_LARGE, topic.trimmed_bytes):
        trim(topic, options, now=now)
        topic.trimmed_bytes = 2 * topic.log.bytes


def _is_stalled(channel: Channel) -> bool:
    """Return whether an ephemeral channel keeps segments that it has not been reading."""
    topic, cursor = channel.topic, channel.cursor
    log = topic.log
    if log.segment_start(cursor) >= log.segment_start(log.end):
        return False
    # in memory, while it drops more than it keeps; on disk, wherever it does not read the newest segment
    return not topic.ephemeral or 2 * channel.ahead.count > topic.fanned_out - cursor


def _retention(topic: Topic, options: Options, now: int) -> RetentionLimits:
    """Return what the log keeps although no channel needs it.

    A start reads message-ids of the window from there, and looks there for parts of a batch that a crash interrupts.
    """
    settings = topic.effective
    read = (None if topic.dedup is None else topic.dedup.oldest(now=now), topic.staged_from)
    return RetentionLimits(
        settings.retention_bytes,
        settings.retention_age,
        options.min_free_bytes,
        settings.retention_count,
        since=min((sequence for sequence in read if sequence is not None), default=None),
    )


def _copy_backlog(channel: Channel) -> None:
    """Copy what an ephemeral channel has not delivered yet: a stalled one then keeps nothing of its topic's log.

    The cursor moves to the end of what the topic has handed over; the order of deliveries stays. Raises `LogError`.
    """
    topic = channel.topic
    start, stop = max(channel.cursor, topic.log.first), topic.fanned_out
    found: list[tuple[int, bytes]] = []
    for run in gaps(start, stop, channel.ahead.runs):
        for first, _, frames in topic.log.blocks(*run, _BLOCK):
            positions, _ = kernel.scan_frames(frames, 0, len(frames))
            spans = enumerate(pairwise(positions), first)
            found += [(sequence, bytes(frames[at:after])) for sequence, (at, after) in spans]
    channel.side_logged.keep(found)
    channel.ledger.ready.merge([sequence for sequence, _ in found])
    channel.ledger.attempts.update((sequence, 0) for sequence, _ in found)
    channel.ahead.clear()
    channel.reader.seek(stop)
