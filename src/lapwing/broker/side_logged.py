"""Messages that a channel has copied to its side log, so that they pin no segment of the topic's log."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.broker.skips import gaps

if TYPE_CHECKING:
    from lapwing.broker.channel import Channel
    from lapwing.broker.topic import Topic
    from lapwing.log.sidelog import MessageStore

_BLOCK: Final = 1 << 20


class SideLogged:
    """The side log of one channel; it is made when the first message is copied to it."""

    __slots__ = ("_channel", "_side", "_topic", "sequences")

    def __init__(self, topic: Topic, channel: str) -> None:
        self.sequences: set[int] = set()  # what is here; always the same set
        self._topic = topic
        self._channel = channel
        self._side: MessageStore | None = None

    def open(self) -> None:
        """Find what was copied before a restart. Raises `WriteFailed` or `ReadFailed`.

        Messages beyond the end of the log, which a power loss has cut, are dropped: others get their sequences.
        """
        if self._topic.has_side_log(self._channel):
            self._side = self._topic.side_log(self._channel)
            self._side.drop([sequence for sequence in self._side.sequences() if sequence >= self._topic.log.end])
            self._side.flush()
            self.sequences.update(self._side.sequences())

    def keep(self, frames: Iterable[tuple[int, bytes]]) -> None:
        """Copy messages, each with its frame. Raises `WriteFailed`: they then still need their segment."""
        if self._side is None:
            self._side = self._topic.side_log(self._channel)
        kept = []
        for sequence, frame in frames:
            self._side.put(sequence, frame)
            kept.append(sequence)
        self._side.flush()
        self.sequences.update(kept)

    def frame(self, sequence: int) -> bytes:
        """Return the frame of one of `sequences`. Raises `CorruptChunk` or `ReadFailed`."""
        assert self._side is not None
        return self._side.frame(sequence)

    def leave(self, sequences: Iterable[int]) -> None:
        """Drop messages that are finished."""
        gone = self.sequences.intersection(sequences)
        if gone and self._side is not None:
            self._side.drop(gone)
            self.sequences -= gone


def set_backlog_aside(channel: Channel) -> None:
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
    channel.pending.requeued.merge([sequence for sequence, _ in found])
    channel.pending.attempts.update((sequence, 0) for sequence, _ in found)
    channel.ahead.clear()
    channel.reader.seek(stop)
