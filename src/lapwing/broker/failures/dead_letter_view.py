"""The dead letters of a topic that nobody has dealt with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.broker.failures.dead_filter import DeadFilter
from lapwing.broker.topic.cold import ColdChannel
from lapwing.broker.topic.skips import Run, each_gap, runs_of
from lapwing.errors import CorruptChunk, OutOfRange
from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel

_MOST_BYTES: Final = 4 << 20  # of bodies that are read at a time


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter."""

    sequence: int  # in the dead-letter topic
    headers: dict[str, str]
    body: bytes
    held: bool  # a consumer has it in flight


def waiting_runs(channel: Channel, start: int = 0) -> Iterator[Run]:
    """Yield the sequences of a channel that are neither finished nor deleted, as rising runs, about from `start` on."""
    begin = max(channel.cursor, channel.topic.log.first, start)
    fresh = each_gap(begin, channel.topic.fanned_out, channel.ahead.runs_from(begin))
    runs = merge(runs_of(channel.ledger.sequences()), fresh)
    deleted = channel.topic.deleted
    return (live for run in runs for live in deleted.live(*run)) if deleted else runs


def letters(
    channel: Channel, runs: Iterable[Run], *, after: int = -1, most: int, wanted: DeadFilter, enough: int = 0
) -> tuple[list[DeadLetter], int, int]:
    """Look at up to `most` letters of `runs` beyond the sequence `after`; a letter that cannot be read is left out.

    After a few large letters, or when `enough` are found (0: never), it looks at no more. Return those that are wanted,
    the sequence of the last one looked at (-1: there is none), and how many were looked at. Raises `ReadFailed`.
    """
    log = channel.topic.log
    chosen: list[Run] = []
    left = most
    for start, stop in runs:
        start = max(start, after + 1)
        if start < stop:
            stop = min(stop, start + left)
            chosen.append((start, stop))
            left -= stop - start
            if not left:
                break
    found: list[DeadLetter] = []
    looked = size = 0
    for start, stop in chosen:
        headers = {extra.sequence: extra.headers for extra in log.extras(max(start, log.first), stop)}
        for sequence in range(start, stop):
            letter = _letter(channel, sequence, headers.get(sequence, {}))
            looked += 1
            if letter is None:
                continue
            size += len(letter.body)
            if wanted.matches(sequence, letter.headers, letter.body):
                found.append(letter)
            if size > _MOST_BYTES or len(found) == enough > 0:
                return found, sequence, looked
    return found, chosen[-1][1] - 1 if chosen else -1, looked


def _letter(channel: Channel, sequence: int, headers: dict[str, str]) -> DeadLetter | None:
    side = channel.side_logged
    try:
        if sequence in side.sequences:  # the log may have it no more
            body, headers = side.frame(sequence)[kernel.HEAD :], side.headers(sequence)
        else:
            body = channel.topic.log.frame(sequence)[kernel.HEAD :]
    except (OutOfRange, CorruptChunk):
        return None
    return DeadLetter(sequence, headers, body, channel.ledger.holder_of(sequence) is not None)


def counted(channel: Channel | ColdChannel) -> int:
    """Return how many messages of a channel are not finished."""
    if isinstance(channel, ColdChannel):
        return channel.depth
    return channel.depth + channel.in_flight_count + len(channel.ledger.deferred)
