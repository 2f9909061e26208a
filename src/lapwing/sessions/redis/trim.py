"""Cut a stream down to a length or an id, and delete entries with regard to what groups need of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from lapwing.sessions.redis.stream import Stream
from lapwing.wire.resp.parse_writes import References, Trim

NODE: Final = 100  # entries that `~` deletes together, as Redis does
_LIMIT: Final = 100 * NODE  # entries that one command with `~` deletes unless it has a LIMIT


def trim(stream: Stream, asked: Trim, *, unread: bool, now: int) -> int:
    """Delete the oldest entries; return how many.

    Without a word about references, entries that a group has not finished are kept, unless `unread` is true or the
    stream is to be empty: MAXLEN 0 is an order, as DEL is.
    """
    empty = asked.max_length == 0 and not asked.approximate
    references = asked.references or (References.KEEPREF if unread or empty else References.ACKED)
    log = stream.log
    if asked.min_id is not None:
        stop = stream.from_id(asked.min_id)
        most = stream.count(log.first, stop)
    else:
        stop, most = log.end, stream.length - (asked.max_length or 0)
    if asked.approximate:
        limit = _LIMIT if asked.limit is None else asked.limit or most
        if most < stream.length or most > limit:  # else the last node goes too, however many it has
            most = min(most, limit) // NODE * NODE
    if most <= 0:
        return 0
    count = 0
    for start, end in _candidates(stream, log.first, stop, references):
        end = min(end, start + most - count)
        count += stream.topic.delete(start, end)
        if references is References.DELREF:
            release(stream, range(start, end), now=now)
        if count >= most:
            break
    return count


def _candidates(stream: Stream, start: int, stop: int, references: References) -> Iterator[tuple[int, int]]:
    """Yield the runs of entries in [start, stop) that may be deleted, in order; safe against deleting them."""
    runs = list(stream.topic.deleted.live(start, stop))
    if references is not References.ACKED or not stream.topic.channels:
        yield from runs
        return
    needed = Needed(stream)
    for begin, end in runs:
        yield from needed.free(begin, min(end, needed.cursor))


class Needed:
    """The entries that a group has not read, or not finished."""

    def __init__(self, stream: Stream) -> None:
        channels = stream.topic.channels.values()
        self.cursor = min((channel.cursor for channel in channels), default=stream.log.end)
        unfinished = {each for channel in channels for each in channel.ledger.sequences()}
        self._pending = sorted(each for each in unfinished if each < self.cursor)

    def __contains__(self, sequence: int) -> bool:
        return sequence >= self.cursor or sequence in self._pending

    def free(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the runs of [start, stop) that nobody has pending."""
        for sequence in self._pending:
            if sequence >= stop:
                break
            if sequence >= start:
                if sequence > start:
                    yield start, sequence
                start = sequence + 1
        if start < stop:
            yield start, stop


def release(stream: Stream, sequences: Iterable[int], *, now: int) -> None:
    """Take entries out of everything that groups have pending."""
    wanted = list(sequences)
    for channel in stream.topic.channels.values():
        channel.finish(wanted, now=now)
