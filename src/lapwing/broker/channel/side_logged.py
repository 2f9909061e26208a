"""Messages that a channel has copied to its side log, so that they pin no segment of the topic's log."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from lapwing import kernel
from lapwing.log.segments.attributes import decode_headers
from lapwing.log.side.sequence_map import SequenceMap

if TYPE_CHECKING:
    from lapwing.broker.keeper.storage import Store
    from lapwing.log.side.sidelog import MessageStore


class SideLogged:
    """The side log of one channel; it is made when the first message is copied to it."""

    __slots__ = ("_channel", "_side", "_store", "copied_below", "sequences")

    def __init__(self, store: Store, channel: str) -> None:
        self.sequences = SequenceMap(0)  # what is here; always the same object
        self.copied_below = 0  # every pending message below is here
        self._store = store
        self._channel = channel
        self._side: MessageStore | None = None

    @property
    def damaged(self) -> bool:
        """Whether parts of it could not be read when it was opened."""
        return self._side is not None and self._side.damaged

    def open(self) -> None:
        """Find what was copied before a restart. Raises `WriteFailed` or `ReadFailed`.

        Messages beyond the end of the log, which a power loss has cut, are dropped: others get their sequences.
        """
        if self._store.has_side_log(self._channel):
            self._side = self._store.side_log(self._channel)
            self._side.drop([sequence for sequence in self._side.sequences() if sequence >= self._store.log.end])
            self._side.flush()
            for sequence in sorted(self._side.sequences()):
                self.sequences.set(sequence)

    def keep(self, frames: Iterable[tuple[int, bytes]]) -> None:
        """Copy messages, each with its frame, which has its headers. Raises `WriteFailed`: the segment stays."""
        if self._side is None:
            self._side = self._store.side_log(self._channel)
        kept = []
        for sequence, frame in frames:
            self._side.put(sequence, frame)
            kept.append(sequence)
        self._side.flush()
        for sequence in kept:
            self.sequences.set(sequence)

    def frame(self, sequence: int) -> bytes:
        """Return the frame of one of `sequences`. Raises `CorruptChunk` or `ReadFailed`."""
        return kernel.strip_headers(self.headed_frame(sequence))[0]

    def headed_frame(self, sequence: int) -> bytes:
        """Return the same with the headers of the message, if it has some."""
        assert self._side is not None
        return self._side.frame(sequence)

    def headers(self, sequence: int) -> dict[str, str]:
        """Return the headers of one of `sequences`."""
        text = kernel.strip_headers(self.headed_frame(sequence))[1]
        return decode_headers(text) if text else {}

    def leave(self, sequences: Iterable[int]) -> None:
        """Drop messages that are finished."""
        if self._side is None or not self.sequences:
            return
        self._side.drop([sequence for sequence in sequences if self.sequences.pop(sequence) is not None])

    def leave_all(self, *, keep: Collection[int] = ()) -> None:
        """Drop all messages but those of `keep`: they are finished."""
        if keep or self._side is None:
            self.leave([sequence for sequence in self.sequences if sequence not in keep])
        else:
            self.sequences.clear()
            self._side.drop_all()

    def flush(self) -> None:
        """Write which messages were dropped, so that no copy is found after a crash. Raises `WriteFailed`."""
        if self._side is not None:
            self._side.flush()

    def need_from(self, sequence: int) -> None:
        """Note that messages from `sequence` on are pending that may not have been so."""
        self.copied_below = min(self.copied_below, sequence)

    def notice(self, sequences: Iterable[int]) -> None:
        """Note that messages are pending that may not have been so: they may need their segment again."""
        if self.copied_below and any(each < self.copied_below and each not in self.sequences for each in sequences):
            self.copied_below = 0
