"""Replies that are not there at once: of a publish, of a transaction that has one, and those too big for memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from lapwing import kernel
from lapwing.errors import LapwingError
from lapwing.records import dataclass
from lapwing.sessions.replies import Replies, Slot, nothing
from lapwing.wire.resp import ids, replies
from lapwing.wire.resp.ids import EntryId

SMALL: Final = 1 << 20  # bytes of a reply in pieces that is made as a whole before it is sent

_LONGEST_EXEC: Final = 64 << 20  # bytes that the reply to EXEC may have of replies that are otherwise sent in pieces
_TOO_LONG: Final = "ERR the replies of the transaction are too long: ask for less, or outside of the transaction"


@dataclass(slots=True)
class Streamed:
    """A reply in pieces, each made when the socket has room for it."""

    pieces: Iterator[bytes]


Reply = bytes | Slot | Streamed  # what a command is answered with, now or later


class AddedSlot(Slot):
    """The place of the replies to one or several XADDs, filled when the topic has written the entries."""

    __slots__ = ("_count", "_first", "on_failure")

    def __init__(self, parent: Replies) -> None:
        self._replies = parent  # as Slot does it, but for one call less: there is one per XADD
        self.answer = None
        self._first: EntryId = ids.LEAST
        self._count = 1
        self.on_failure: Callable[[], None] | None = None

    def expect(self, first: EntryId, count: int = 1) -> None:
        """Note the ids that the entries have if they are written."""
        self._first, self._count = first, count

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        """Answer the ids, or the error, once for each entry."""
        if error is None:
            milliseconds, number = self._first
            self.fill(kernel.id_replies(milliseconds, number, self._count))
        else:
            if self.on_failure is not None:
                self.on_failure()
            self.fill(replies.error(write_failed(error)) * self._count)


class SavedSlot(Slot):
    """The place of an OK, given when what the command did is saved."""

    __slots__ = ()

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        self.fill(replies.OK if error is None else replies.error(write_failed(error)))


class Transaction(Replies):
    """The replies to the commands of one EXEC: an array, sent once all of them are there."""

    __slots__ = ("_open", "_parts", "_size", "_slot")

    def __init__(self, slot: Slot) -> None:
        super().__init__(nothing)
        self._slot = slot
        self._parts: list[bytes | Slot] = []
        self._open = True
        self._size = 0  # bytes of the replies that were put together

    def take(self, reply: Reply) -> None:
        """Take the reply to the next command."""
        self._parts.append(self._whole(reply) if isinstance(reply, Streamed) else reply)

    def _whole(self, reply: Streamed) -> bytes:
        """Return a reply in one piece; an error if the transaction would take too much memory with it."""
        pieces: list[bytes] = []
        for piece in reply.pieces:
            pieces.append(piece)
            self._size += len(piece)
            if self._size > _LONGEST_EXEC:
                self._size -= sum(map(len, pieces))
                return replies.error(_TOO_LONG)
        return b"".join(pieces)

    def close(self) -> None:
        """Note that there are no more commands."""
        self._open = False
        self.advance()

    def advance(self) -> None:
        """Fill the place of EXEC if no reply is missing."""
        if self._open or self._slot.answer is not None:
            return
        answers = [part.answer if isinstance(part, Slot) else part for part in self._parts]
        done = [answer for answer in answers if answer is not None]
        if len(done) == len(answers):
            self._slot.fill(replies.array(done))


class Silence(Replies):
    """The sink of replies that the client does not want."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(nothing)

    def advance(self) -> None:
        """Send nothing."""


def write_failed(error: LapwingError) -> str:
    """Return the error line of an entry that could not be written."""
    return f"MISCONF Errors writing to the AOF file: {error}"
