"""Cancel messages by the `message-id` that their publishers gave them: those that wait, deferred or not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.broker.channel.ledger import State
from lapwing.broker.topic.dedup import HEADER
from lapwing.broker.topic.skips import runs_of
from lapwing.errors import CorruptChunk, OutOfRange

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel

NOT_HERE: Final = "no message with this id waits here"
_STEP: Final = 1_000  # messages of the log, with 16 KiB of headers at most, that are looked at before others
_COPIES: Final = 50  # messages of the side log, which are read one by one

Found = Iterable[tuple[int, bytes]]  # sequence and id


class Cancellation:
    """Looks for messages of a channel by their ids, in steps so that others get their turn, and finishes them.

    What is in flight or on its way to the dead-letter topic is left alone. An id that several messages have means all
    of them.
    """

    def __init__(self, channel: Channel, message_ids: Collection[str], *, dry_run: bool = False) -> None:
        self.cancelled: dict[str, list[int]] = {}  # by id: the sequences of its messages
        self._refused: dict[str, str] = {}
        self._channel = channel
        self._wanted = {each.encode("utf-8", "surrogatepass"): each for each in message_ids}
        self._dry_run = dry_run
        self._pages = self._found()

    @property
    def refused(self) -> dict[str, str]:
        """The ids of which nothing was cancelled, with the reason."""
        missing = {each: NOT_HERE for each in self._wanted.values() if each not in self.cancelled}
        return missing | {each: reason for each, reason in self._refused.items() if each in missing}

    def step(self, *, now: int) -> bool:
        """Look at some more messages; return whether there are no more. Raises `ReadFailed`."""
        page = next(self._pages, None)
        if page is None:
            return True
        self._cancel([each for each in page if each[1] in self._wanted], now)
        return False

    def _found(self) -> Iterator[Found]:
        """Yield the ids of the messages that the channel may not have finished, a page at a time."""
        channel = self._channel
        log, copied = channel.topic.log, channel.side_logged.sequences
        for start in range(max(channel.needed_from(), log.first), log.end, _STEP):
            yield [each for each in kernel.message_ids(log.rows(start, start + _STEP)) if each[0] not in copied]
        copies = list(copied)  # now: a message may have been copied meanwhile, and none goes back to the log
        for at in range(0, len(copies), _COPIES):
            yield [(each, self._copied_id(each)) for each in copies[at : at + _COPIES]]

    def _copied_id(self, sequence: int) -> bytes:
        copied = self._channel.side_logged
        if sequence not in copied.sequences:
            return b""  # finished meanwhile
        try:
            return copied.headers(sequence).get(HEADER, "").encode("utf-8", "surrogatepass")
        except (OutOfRange, CorruptChunk):
            return b""

    def _cancel(self, found: list[tuple[int, bytes]], now: int) -> None:
        channel = self._channel
        pending: list[int] = []
        ahead: list[int] = []
        for sequence, encoded in found:
            message_id = self._wanted[encoded]
            state = channel.state_of(sequence)
            if sequence >= channel.topic.fanned_out:
                self._refused[message_id] = "the topic has not handed it to the channel yet, as it is paused"
            elif state is State.IN_FLIGHT:
                holder = channel.ledger.holder_of(sequence)
                self._refused[message_id] = f"in flight with {holder.name if holder is not None else 'a consumer'}"
            elif state is State.MOVING:
                self._refused[message_id] = "given up: it is becoming a dead letter"
            elif state is not State.FINISHED:
                (ahead if state is State.AHEAD else pending).append(sequence)
                self.cancelled.setdefault(message_id, []).append(sequence)
        if self._dry_run or not (pending or ahead):
            return
        channel.finish(pending, now=now)
        if ahead:
            channel.finish_ahead(runs_of(ahead))
        channel.counts.claimed += len(pending) + len(ahead)


