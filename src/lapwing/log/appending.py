"""The part that all logs share: messages are appended, and count when they are flushed."""

from collections.abc import Sequence

from lapwing import kernel
from lapwing.log.segments.attributes import Extra, Rows, RowText

Frames = bytes  # back to back, as consumers get them; a name of its own, as logs have an attribute `bytes`


class Appending(kernel.Tail):
    """The end of a log, with the rows of what was appended and is not flushed."""

    __slots__ = ("_pending_rows",)

    def __init__(self) -> None:
        super().__init__()
        self._pending_rows: list[Rows] = []

    @property
    def pending(self) -> bool:
        """Whether something was appended and not yet flushed."""
        return bool(self.fresh)

    def append(
        self, frames: Frames, count: int, *, now: int, extras: Sequence[Extra] = (), rows: RowText = b""
    ) -> int:
        """Take a batch of frames that carry the ids from `next` on; the first sequence. Nothing is written yet.

        Extras come as they are, or as the text of their `rows`.
        """
        first = self.next
        self.add(frames, count, count > 1)
        if rows:
            self._pending_rows.append(Rows(first, first + count - 1, rows))
        elif extras:
            self._pending_rows.append(Rows.of(extras))
        return first

    def forget(self) -> None:
        """Drop what was appended and is not written, with what lies beside it."""
        super().forget()
        self._pending_rows.clear()


def frame_at(frames: bytes, number: int) -> bytes:
    """Return one of several frames, by its number."""
    whole = len(frames)
    _, at = kernel.take_frames(frames, 0, whole, number, whole)
    _, after = kernel.take_frames(frames, at, whole, 1, whole)
    return frames[at:after]
