"""What a channel has set aside: copies of messages that are long unfinished, so that they pin no segment of the log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lapwing.broker.topic import Topic
    from lapwing.log.sidelog import SideLog


class SideLogged:
    """The side log of one channel, which is there only when something was ever set aside."""

    __slots__ = ("_channel", "_side", "_topic", "sequences")

    def __init__(self, topic: Topic, channel: str) -> None:
        self.sequences: set[int] = set()  # what is here; always the same set
        self._topic = topic
        self._channel = channel
        self._side: SideLog | None = None

    def open(self) -> None:
        """Find what was set aside before a restart; raises `WriteFailed`.

        What lies beyond the log's end, which a power loss has cut, is dropped at once: other messages get its place.
        """
        if self._topic.has_side_log(self._channel):
            self._side = self._topic.side_log(self._channel)
            self._side.drop([sequence for sequence in self._side.sequences() if sequence >= self._topic.log.end])
            self._side.flush()
            self.sequences.update(self._side.sequences())

    def keep(self, frames: Iterable[tuple[int, bytes]]) -> None:
        """Set messages aside, each with its frame. Raises `WriteFailed`: they then still need their segment."""
        if self._side is None:
            self._side = self._topic.side_log(self._channel)
        kept = []
        for sequence, frame in frames:
            self._side.put(sequence, frame)
            kept.append(sequence)
        self._side.flush()
        self.sequences.update(kept)

    def frame(self, sequence: int) -> bytes:
        """The frame of one of `sequences`; raises `CorruptChunk`."""
        assert self._side is not None
        return self._side.frame(sequence)

    def leave(self, sequences: Iterable[int]) -> None:
        """Let go of what is done with."""
        gone = self.sequences.intersection(sequences)
        if gone and self._side is not None:
            self._side.drop(gone)
            self.sequences -= gone
