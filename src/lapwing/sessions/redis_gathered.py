"""Runs of plain XADDs that several clients send in one turn: a stream takes all of them in one call.

The cost of a client that adds one entry at a time is the work for each request. Here a request is only noted; at the
end of the turn all of them are framed, published and answered together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.errors import LapwingError
from lapwing.sessions.redis_replies import write_failed
from lapwing.wire.resp import ids, replies
from lapwing.wire.resp.ids import EntryId

if TYPE_CHECKING:
    from lapwing.sessions.redis_client_state import ClientState
    from lapwing.sessions.redis_stream import Stream

MOST: Final = 4096  # bytes of a run; a longer one gains nothing by waiting for others


class GatheredRuns:
    """The runs of XADDs to one stream that have come in this turn, and the receipt of their publish."""

    __slots__ = ("_blocks", "_counts", "_first", "_sessions", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._sessions: list[ClientState] = []
        self._blocks: list[bytes] = []
        self._counts: list[int] = []
        self._first: EntryId = ids.LEAST

    def add(self, session: ClientState, block: bytes, count: int) -> None:
        """Note a run of one client. None of its replies may wait: the reply is ready when the topic has written."""
        self._sessions.append(session)
        self._blocks.append(block)
        self._counts.append(count)

    def publish(self, now: int) -> int:
        """Add all entries, and return how many. If that is not possible, have each command carried out for itself."""
        for session in self._sessions:
            peer = session.peer
            peer.active, peer.command = now, "xadd"
        try:
            added = self.stream.add_run(b"".join(self._blocks), self, now=now)
        except LapwingError:
            added = None  # each command gets its own error
        if added is not None:
            self._first, count = added
            return count
        for session, block in zip(self._sessions, self._blocks, strict=True):
            session.carry_out_each(block, now)
        return 0

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        """Answer every client with its ids, or with the error once for each entry."""
        milliseconds, number = self._first
        line = replies.error(write_failed(error)) if error is not None else b""
        id_replies = kernel.id_replies
        for session, count in zip(self._sessions, self._counts, strict=True):
            session.replies.ready.append(line * count or id_replies(milliseconds, number, count))
            number += count
