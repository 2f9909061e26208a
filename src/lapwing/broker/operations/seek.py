"""Move a channel's cursor for people: where to, what that would do, and how it is undone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from lapwing import durations
from lapwing.broker.settings import times
from lapwing.broker.topic.skips import Bookmark, Run, Runs, count_of, gaps, runs_of, union
from lapwing.errors import OutOfRange, SettingRefused
from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.topic.topic import Topic

EXPECTED: Final = 'to: "earliest", "latest", "bookmark", {"sequence": n}, {"time": "..."} or {"back": "2h"} expected'
_NO_TIME: Final = 'to: time: a time such as "2030-01-31T12:00:00Z" or Unix seconds expected; or use {"back": "2h"}'
_MOST_RUNS: Final = 10_000  # of messages that a bookmark keeps apart


@dataclass(frozen=True, slots=True)
class SeekPlan:
    """The effect of a seek: `again` messages come again, `skipped` ones do not come any more."""

    cursor: int  # before
    sequence: int  # where the cursor goes
    again: int
    skipped: int


def target_of(channel: Channel, to: Any, *, now: int) -> int:
    """Return the sequence that `to` means. Raises `SettingRefused`, or `OutOfRange` for what the log does not hold."""
    return target_in(channel.topic, to, channel.bookmark, now=now)


def target_in(topic: Topic, to: Any, bookmark: Bookmark | None = None, *, now: int) -> int:
    """Return the sequence of a topic that `to` means for a channel with this bookmark. Raises as `target_of` does."""
    log = topic.log
    if to == "earliest":
        return log.first
    if to == "latest":
        return topic.fanned_out
    if to == "bookmark":
        if bookmark is None:
            raise SettingRefused("to: the channel has no bookmark: it was never moved by a seek")
        return max(bookmark.cursor, log.first)
    if not isinstance(to, dict) or len(to) != 1:
        raise SettingRefused(EXPECTED)
    ((kind, value),) = to.items()
    if kind == "sequence" and isinstance(value, int) and not isinstance(value, bool):
        if not log.first <= value <= log.end:
            raise OutOfRange(f"sequence {value} is not in the log, which holds {log.first} to {log.end}")
        return value
    if kind == "time":
        try:
            moment = times.parse(value)
        except ValueError as error:
            raise SettingRefused(_NO_TIME) from error
        return log.at_time(moment)
    if kind == "back" and isinstance(value, str):
        try:
            span = durations.parse(value)
            if span < 0:
                raise ValueError("it would skip all messages")
        except ValueError as error:
            raise SettingRefused(f'to: back: a duration such as "2h" expected, not "{value[:80]}"') from error
        return log.at_time(now + topic.skew - span)
    raise SettingRefused(EXPECTED)


def plan(channel: Channel, sequence: int) -> SeekPlan:
    """Return what moving the cursor to `sequence` would do."""
    channel.pass_over()
    topic, cursor = channel.topic, channel.cursor
    sequence = min(max(sequence, topic.log.first), topic.fanned_out)
    unfinished = _unfinished(channel)
    if sequence >= cursor:
        skipped = [(start, min(stop, sequence)) for start, stop in unfinished if start < sequence]
        return SeekPlan(cursor, sequence, 0, count_of(skipped))
    copied = runs_of(each for each in channel.ledger.sequences() if each in channel.side_logged.sequences)
    kept = [(max(start, sequence), stop) for start, stop in copied if stop > sequence]
    after = union(kept, _live(topic, gaps(sequence, topic.fanned_out, topic.emptied.since(sequence))))
    return _compare(cursor, sequence, unfinished, after)


def _unfinished(channel: Channel) -> list[Run]:
    """Return the messages that a channel is to deliver, now or later, without those that were deleted."""
    unfinished = runs_of(each for each in channel.ledger.sequences() if not channel.is_gone(each))
    fresh = gaps(channel.cursor, channel.topic.fanned_out, channel.ahead.runs)
    return union(unfinished, _live(channel.topic, fresh))


def _live(topic: Topic, runs: list[Run]) -> list[Run]:
    deleted = topic.deleted
    return [live for run in runs for live in deleted.live(*run)] if deleted else runs


def _compare(cursor: int, sequence: int, unfinished: list[Run], after: list[Run]) -> SeekPlan:
    both = count_of(union(unfinished, after))
    return SeekPlan(cursor, sequence, both - count_of(unfinished), both - count_of(after))


def seek(channel: Channel, sequence: int, *, now: int) -> SeekPlan:
    """Move the cursor and keep a bookmark of where it was; return what that did."""
    found = plan(channel, sequence)
    runs = runs_of(each for each in channel.ledger.sequences() if each < channel.cursor)
    bookmark = _bookmark(channel.cursor, runs, found.sequence, channel.finished_runs())
    channel.seek(found.sequence, back=True)
    channel.bookmark = bookmark
    return found


def preview(channel: Channel, to: Any, *, now: int) -> SeekPlan:
    """Return what a seek to `to` would do. Raises as `target_of` does."""
    target = target_of(channel, to, now=now)
    if to != "bookmark" or channel.bookmark is None:
        return plan(channel, target)
    return _plan_undo(channel, channel.bookmark, _finished_since(channel, channel.bookmark))


def seek_bookmark(channel: Channel, *, now: int) -> SeekPlan:
    """Undo the last seek: what was finished before it, or since, stays finished. Raises `SettingRefused`.

    Dead letters that were returned since stay in the channel. Messages that were deferred wait as long as they would
    have.
    """
    bookmark = channel.bookmark
    if bookmark is None:
        raise SettingRefused("to: the channel has no bookmark: it was never moved by a seek")
    since = _finished_since(channel, bookmark)
    found = _plan_undo(channel, bookmark, since)
    back = [each for run in bookmark.unfinished for each in range(*run) if each not in since]
    back = sorted({*back, *_kept(channel, bookmark)})
    dues = _dues(channel, back)
    copied = channel.side_logged.sequences
    frames = [(each, frame) for each in back if each in copied and (frame := channel.frame(each)) is not None]
    seek(channel, bookmark.cursor, now=now)
    for each in channel.ledger.sequences():
        if each in since:  # it was published deferred, and the seek found it in the log again
            channel.ledger.drop(each)
    since.drop_below(channel.cursor)
    channel.finish_ahead(since.runs)
    if lost := [(each, frame) for each, frame in frames if each not in copied]:
        channel.side_logged.keep(lost)  # the log no longer has them, and the seek dropped the copies
    channel.ahead.merge(runs_of(each for each in back if each >= channel.cursor and each in copied))
    channel.take_back([each for each in back if each < channel.cursor or each in copied], now=now, dues=dues)
    channel.pass_over()
    return found


def note_returned(channel: Channel, sequences: Iterable[int]) -> None:
    """Have messages that the channel takes back in the bookmark, too: undoing the last seek must not lose them."""
    bookmark = channel.bookmark
    if bookmark is None:
        return
    returned = runs_of(sequences)
    below = runs_of(each for run in returned for each in range(*run) if bookmark.target <= each < bookmark.cursor)
    finished = [part for run in bookmark.finished for part in gaps(*run, returned)]
    channel.bookmark = _bookmark(bookmark.cursor, union(bookmark.unfinished, below), bookmark.target, finished)


def _bookmark(cursor: int, unfinished: list[Run], target: int, finished: Sequence[Run]) -> Bookmark:
    if len(unfinished) > _MOST_RUNS:  # then all from the first of them on comes again
        cursor, unfinished = unfinished[0][0], []
    return Bookmark(cursor, tuple(unfinished), target, tuple(finished[:_MOST_RUNS]))


def _kept(channel: Channel, bookmark: Bookmark) -> list[int]:
    """Return the pending messages that going back to the bookmark must keep, and that it does not name.

    The seek finished all below its target: those are here because they were returned since. Of those beyond the
    bookmark, the log does not have the ones in the side log, or has them with another body.
    """
    copied, finished = channel.side_logged.sequences, Runs(bookmark.finished)
    return [
        each
        for each in channel.ledger.sequences()
        if each < bookmark.target or (each >= bookmark.cursor and each in copied and each not in finished)
    ]


def _finished_since(channel: Channel, bookmark: Bookmark) -> Runs:
    """Return the messages from the target of the last seek on that were finished before it or since."""
    channel.pass_over()
    finished = gaps(bookmark.target, channel.cursor, runs_of(channel.ledger.sequences()))
    return Runs([*finished, *channel.finished_runs(), *bookmark.finished])


def _plan_undo(channel: Channel, bookmark: Bookmark, since: Runs) -> SeekPlan:
    """Return what going back to the bookmark does: compare what is unfinished now with what will be."""
    topic = channel.topic
    cursor = min(max(bookmark.cursor, topic.log.first), topic.fanned_out)
    gone = union(since.runs, topic.emptied.since(cursor))
    kept = [(max(start, topic.log.first), min(stop, cursor)) for start, stop in bookmark.unfinished]
    named = Runs(bookmark.unfinished)
    aside = runs_of(each for each in channel.ledger.sequences() if each < topic.log.first and each in named)
    below = [part for run in union(kept, aside) for part in gaps(*run, since.runs)]
    below = union(_live(topic, below), runs_of(each for each in _kept(channel, bookmark) if not channel.is_gone(each)))
    after = union(below, _live(topic, gaps(cursor, topic.fanned_out, gone)))
    return _compare(channel.cursor, cursor, _unfinished(channel), after)


def _dues(channel: Channel, sequences: list[int]) -> dict[int, int]:
    """Return when messages that are deferred, or were published so and are not ready, are due. Raises `ReadFailed`."""
    if not sequences:
        return {}
    skips = channel.find_skips(max(sequences[0], channel.topic.log.first))
    there = set(channel.ledger.sequences())
    dues = {start: due for start, _, due in skips if due is not None and start not in there}
    return dues | {each: due for each in sequences if (due := channel.ledger.deferred.due(each)) is not None}
