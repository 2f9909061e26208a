"""Move messages that channels give up to their dead-letter topics.

The mover holds such messages without a deadline and publishes them: a crash before that makes them ready again, a crash
after it leaves a copy that the next start recognises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from lapwing import kernel
from lapwing.broker.failures import dead_letters
from lapwing.broker.failures.dead_letter_link import DeadLetterMark
from lapwing.broker.settings import times
from lapwing.broker.topic import batch
from lapwing.broker.topic.receipt import CallReceipt
from lapwing.broker.topic.skips import Run, runs_of
from lapwing.errors import LapwingError, LogError
from lapwing.log.log import Extra, TopicLog
from lapwing.log.segments.attributes import encode_headers
from lapwing.log.segments.segment import time_of

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.failures.failures import Failure
    from lapwing.broker.topic.topic import Topic

_ROOM: Final = 1000  # messages that wait to be moved at most before channels wait with giving up more
_SHARE: Final = 500  # of them of one channel
_BATCH_BYTES: Final = 4 << 20
_NEAR: Final = 500  # sequences between two messages whose headers are read together

_READ: Final = 256 * 1024  # bytes of the log read at a time

_CauseKey = tuple["Failure", str, str, int]  # what is known of a failed message, its error, consumer and deliveries

_ID: Final = slice(18, 34)  # of a frame
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})  # the headers of most messages


class DeadLetterMover:
    """The mover of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.waiting: dict[Channel, deque[tuple[int, str]]] = {}  # and who held each message last; for reading only
        self._refused: dict[Channel, str] = {}  # why the last move of a channel failed
        self._unsettled: dict[str, list[int]] = {}  # by log: where batches begin that are not written yet

    def room(self, channel: Channel) -> int:
        """Return how many messages a channel may give up before others have been moved."""
        if not self.waiting:
            return _SHARE
        left = min(_ROOM - sum(map(len, self.waiting.values())), _SHARE - len(self.waiting.get(channel, ())))
        return max(left, 0)

    def problems(self) -> list[str]:
        """Return why dead letters cannot be moved, for health."""
        return [
            f"dead letters of {channel.topic.name}/{channel.name} wait: {reason}"
            for channel, reason in self._refused.items()
            if not channel.exiting and channel.ledger.failures.doomed()
        ]

    def settled_end(self, log: TopicLog) -> int:
        """Return the end of the letters in a log whose messages are finished in their channels.

        Letters beyond are not for anybody yet: their messages are still in their channels.
        """
        return min(self._unsettled.get(log.identity, ()), default=log.end)

    def add(self, channel: Channel, consumers: Mapping[int, str]) -> None:
        """Take messages of a channel, which the mover of its `pending` holds, with the names of who held them last."""
        self.waiting.setdefault(channel, deque()).extend(consumers.items())

    # --- moving ------------------------------------------------------------------------------------------------

    def publish(self, now: int, *, most: int) -> int:
        """Append up to `most` messages to the dead-letter topics; the turn writes them. Return how many were tried.

        Channels take turns: one with messages left is the last of the next call.
        """
        tried = 0
        for channel in list(self.waiting):
            if tried >= most:
                break
            waiting = self.waiting.pop(channel)
            if channel.exiting:
                continue
            batch = _next(channel, waiting, most - tried)
            tried += len(batch)
            try:
                moved = self._publish(channel, batch, now)
            except Exception as error:  # of this channel alone, whatever it is
                self._refuse(channel, list(batch), error, now)
                moved = set(batch)
            waiting.extendleft(each for each in reversed(batch.items()) if each[0] not in moved)
            if waiting:
                waiting.extend(self.waiting.pop(channel, ()))
                self.waiting[channel] = waiting
        return tried

    def _publish(self, channel: Channel, consumers: Mapping[int, str], now: int) -> set[int]:
        """Append a batch of one channel; return the messages that are dealt with."""
        target = self.dead_topic(channel.dead_topic, now=now)
        self._agree(channel, target, now)
        kept = _headers(channel, consumers)
        headers = _LetterHeaders(channel, self._broker.node_name, at=now + self._broker.skew)
        causes: dict[_CauseKey, bytes] = {}
        failures, attempts, deleted = channel.ledger.failures, channel.ledger.attempts, channel.topic.deleted
        done: set[int] = set()
        moved: list[int] = []
        bodies: list[bytes] = []
        rows: list[bytes] = []  # of the extras, as text
        size, first = 0, target.log.next
        for sequence, frame in _frames(channel, consumers):
            if size > _BATCH_BYTES:
                break
            done.add(sequence)
            own = kept.get(sequence, _NOTHING)
            if "dead-id" in own:  # it is a dead letter itself
                channel.retry_letter(sequence, now=now)
                continue
            if frame is None or (deleted and channel.is_gone(sequence)):
                channel.finish([sequence], now=now)  # it was deleted, or is lost to a corrupt chunk, which was reported
                continue
            key = failures.get(sequence), failures.error(sequence), consumers[sequence], attempts.get(sequence, 1)
            cause = causes.get(key)
            if cause is None:
                cause = causes[key] = headers.of_cause(*key)
            text = headers.encode(sequence, frame[_ID], cause, published=_shown(time_of(frame)), kept=own)
            rows.append(b"[%d,0,%b]" % (first + len(bodies), text))
            bodies.append(frame[kernel.HEAD :])
            moved.append(sequence)
            size += len(frame)
        if moved:
            receipt = CallReceipt(partial(self._settle, channel, target, moved))
            target.append(batch.of_broker(target, bodies, b",".join(rows), now=now), receipt, now=now)
            channel.dead_link().unsettled.append((target.log.identity, first))
            self._unsettled.setdefault(target.log.identity, []).append(first)
        return done

    def dead_topic(self, name: str, *, now: int) -> Topic:
        """Return a dead-letter topic with its channel, both created if there are none. Raises `LapwingError`."""
        topic = self._broker.topic(name)
        topic.create_channel(dead_letters.CHANNEL, now=now)
        return topic

    def _settle(
        self, channel: Channel, target: Topic, moved: list[int], first: int, error: LapwingError | None
    ) -> None:
        """Finish messages whose copies are written, from `first` on; or have them wait."""
        log, now = target.log.identity, self._broker.now
        channel.dead_link().unsettled.remove((log, first))
        self._unsettled[log].remove(first)
        if not self._unsettled[log]:
            del self._unsettled[log]
        if error is not None:
            self._refuse(channel, moved, error, now)
            return
        self._refused.pop(channel, None)
        if not channel.exiting:
            channel.finish_given_up(moved, now=now)

    def _refuse(self, channel: Channel, sequences: list[int], error: Exception, now: int) -> None:
        """Have messages wait with the longest delay, as their dead-letter topic does not take them."""
        if channel not in self._refused:
            self._broker.report(
                f"channel {channel.topic.name}/{channel.name}: dead-letter topic {channel.dead_topic} refuses "
                f"messages: {error}; they are moved when it takes them again"
            )
        self._refused[channel] = str(error)
        channel.refuse(sequences, now=now)

    # --- agreeing with the dead-letter topic -------------------------------------------------------------------

    def _agree(self, channel: Channel, target: Topic, now: int) -> None:
        """Note in the journal where the copies of a channel begin, before the first one is made. Raises `LogError`."""
        link, log = channel.dead_link(), target.log.identity
        if channel.ephemeral or (link.mark is not None and (link.mark.topic, link.mark.log) == (target.name, log)):
            return
        link.mark = DeadLetterMark(target.name, log, target.log.next)
        channel.save(now=now)

    def update_mark(self, channel: Channel) -> None:
        """Note how far a channel agrees with its dead-letter topic, as the journal is written now."""
        link = channel.dead
        if link is None or link.mark is None:
            return
        mark, target = link.mark, self._broker.topics.get(link.mark.topic)
        if target is not None and target.log.identity == mark.log:
            mark.next = min((first for log, first in link.unsettled if log == mark.log), default=target.log.end)

    def recognise(self, channel: Channel, *, now: int) -> None:
        """Finish messages whose copy was written before a crash, and move the others that were given up."""
        for sequence in self._copied(channel):
            channel.finish_copied(sequence, now=now)
        ledger = channel.ledger
        doomed = [each for each in ledger.failures.doomed() if ledger.ready.remove(each)]
        if doomed:
            channel.resume(doomed, now=now)

    def _copied(self, channel: Channel) -> Iterator[int]:
        mark = channel.dead.mark if channel.dead is not None else None
        target = self._broker.find(mark.topic) if mark is not None else None
        if mark is None or target is None or target.log.identity != mark.log:
            return
        source = channel.topic
        for extra in target.log.extras(max(mark.next, target.log.first), target.log.end):
            get = extra.headers.get
            if (get("dead-topic"), get("dead-channel"), get("dead-log")) == (
                source.name, channel.name, source.log.identity,
            ):  # fmt: skip
                sequence = source.sequence_of(get("dead-id", "").encode())
                if sequence >= 0 and _is_copy(channel, sequence, target.log, extra):
                    yield sequence


def _is_copy(channel: Channel, sequence: int, log: TopicLog, extra: Extra) -> bool:
    """Return whether a dead letter is the copy of the message that the channel has at this sequence.

    After a power loss the headers of a letter may be there without the letter, or with one that no checksum covers; and
    a new message may have the sequence of the one that was copied and is lost.
    """
    try:
        letter = log.frame(extra.sequence)
        aside = sequence in channel.side_logged.sequences
        message = channel.side_logged.frame(sequence) if aside else channel.topic.log.frame(sequence)
    except LogError:
        return False
    published = times.show(time_of(message))
    return extra.headers.get("dead-published") == published and letter[kernel.HEAD :] == message[kernel.HEAD :]


def _next(channel: Channel, waiting: deque[tuple[int, str]], most: int) -> dict[int, str]:
    """Take up to `most` of the messages that wait and that were not finished meanwhile, and who held them last."""
    mover = channel.ledger.mover
    moving = mover.in_flight if mover is not None else {}
    batch: dict[int, str] = {}
    while waiting and len(batch) < most:
        sequence, consumer = waiting.popleft()
        if sequence in moving:
            batch[sequence] = consumer
    return batch


class _LetterHeaders:
    """The headers of the dead letters of one channel that are made at one time, as JSON.

    What letters share is encoded once, and numbers and times need no encoder: letters come by the thousand.
    """

    __slots__ = ("_shared",)

    def __init__(self, channel: Channel, node: str, *, at: int) -> None:
        """`node` is the name of this one, `at` the time, Unix ns."""
        shared = {
            "dead-topic": channel.topic.name,
            "dead-channel": channel.name,
            "dead-node": node,
            "dead-log": channel.topic.log.identity,
            "dead-at": times.show(at),
        }
        self._shared = encode_headers(shared)[1:-1]

    def of_cause(self, failure: Failure, error: str, consumer: str, deliveries: int) -> bytes:
        """Return the members that letters with the same cause share.

        `error` is the last that a consumer reported, and `consumer` held the message last.
        """
        text = b'%b,"dead-reason":"%b","dead-failures":"%d","dead-deliveries":"%d"' % (
            self._shared, failure.doom.encode(), failure.failures, deliveries,
        )  # fmt: skip
        if failure.first:
            text += b',"dead-first-failed":"%b"' % times.show(failure.first).encode()
        if failure.deaths:
            text += b',"dead-count":"%d"' % (failure.deaths + 1)
        named = {"dead-error": error, "dead-consumer": consumer}
        named = {name: value for name, value in named.items() if value}
        return b"%b,%b" % (text, encode_headers(named)[1:-1]) if named else text

    def encode(
        self, sequence: int, message_id: bytes, cause: bytes, *, published: bytes, kept: Mapping[str, str]
    ) -> bytes:
        """Return the headers of a letter; `cause` is of `of_cause`, and `kept` are those that the message had."""
        own = b'%b,"dead-sequence":"%d","dead-id":"%b","dead-published":"%b"' % (cause, sequence, message_id, published)
        if kept and (named := dead_letters.original(kept)):
            return b"{%b,%b}" % (encode_headers(named)[1:-1], own)
        return b"{%b}" % own


@lru_cache(64)
def _shown(nanoseconds: int) -> bytes:
    return times.show(nanoseconds).encode()


def _frames(channel: Channel, sequences: Iterable[int]) -> Iterator[tuple[int, bytes | None]]:
    """Yield messages with their frames, None for one that is lost, runs of the log in one read. Raises `ReadFailed`."""
    log, copied = channel.topic.log, channel.side_logged.sequences
    for start, stop in _runs_in_order(sequences):
        if stop - start == 1 or start < log.first or copied:
            for sequence in range(start, stop):
                yield sequence, channel.frame(sequence)
            continue
        for first, count, frames in log.blocks(start, stop, _READ):
            if not frames:
                for sequence in range(first, first + count):
                    yield sequence, channel.frame(sequence)
                continue
            block = bytes(frames)
            positions, _ = kernel.scan_frames(block, 0, len(block))
            for sequence, (at, after) in enumerate(pairwise(positions), first):
                yield sequence, block[at:after]


def _runs_in_order(sequences: Iterable[int]) -> Iterator[Run]:
    """Yield sequences as runs, in the order given."""
    start = stop = -1
    for sequence in sequences:
        if sequence != stop:
            if stop > start:
                yield start, stop
            start = sequence
        stop = sequence + 1
    if stop > start:
        yield start, stop


def _headers(channel: Channel, sequences: Iterable[int]) -> dict[int, dict[str, str]]:
    """Return the headers of messages that have some. Raises `ReadFailed`."""
    log = channel.topic.log
    found: dict[int, dict[str, str]] = {}
    near: list[Run] = []
    for start, stop in runs_of(sequence for sequence in sequences if sequence >= log.first):
        if near and start - near[-1][1] < _NEAR:
            near[-1] = (near[-1][0], stop)
        else:
            near.append((start, stop))
    copied = channel.side_logged.sequences
    for sequence in sequences:
        if sequence in copied and (headers := channel.side_logged.headers(sequence)):
            found[sequence] = headers
    for start, stop in near:
        found.update((extra.sequence, extra.headers) for extra in log.extras(start, stop) if extra.headers)
    return found


