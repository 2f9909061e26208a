"""Publishes of many connections to one topic that arrive in the same round: one batch, without a parser.

It concerns connections that have published to the topic before, and send nothing but whole publishes to it again.
Everything else goes to the connection, as does all of it where the topic does not take a batch unseen. The topic that
was published to last is written to, and its publishers are answered, where the bytes are received (`LogTail`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast
from weakref import WeakValueDictionary

from lapwing import kernel
from lapwing.net.polled import LogTail, PolledTransport, Publishes

if TYPE_CHECKING:
    from lapwing.broker.topic import Topic
    from lapwing.errors import LapwingError
    from lapwing.log.topiclog import DirectLog
    from lapwing.wire.nsq.limits import Limits

Sender = tuple[PolledTransport, int, int]  # a connection, with its messages and commands


class Publisher(Protocol):
    """A connection whose publishes were taken."""

    def published(self, topic: Topic, messages: int, commands: int, now: int) -> None:
        """Answer the commands."""

    def count_published(self, topic: str, messages: int, now: int) -> None:
        """Count publishes that were answered."""

    def publish_failed(self, word: str, error: LapwingError) -> None:
        """End the connection with this error."""


class PublishRuns:
    """The runs of all topics to which connections publish."""

    def __init__(self, limits: Limits, now: Callable[[], int], on_growth: Callable[[], None]) -> None:
        self._limits = limits
        self._now = now
        self._on_growth = on_growth  # called when a log was written to before the end of the turn
        self._runs: WeakValueDictionary[tuple[str, str], _PublishRun] = WeakValueDictionary()
        self._last: _PublishRun | None = None  # the run that took publishes last

    def publishes(self, topic: Topic, word: str) -> Publishes:
        """Return the place for publishes to a topic by this command."""
        run = self._runs.get((topic.name, word))
        if run is None or run.topic is not topic:
            run = self._runs[topic.name, word] = _PublishRun(topic, word, self._limits, self._now, self._note)
        return run.publishes

    def _note(self, run: _PublishRun) -> None:
        self._last = run

    def tail(self) -> LogTail | None:
        """Return the end of the log that was published to last, if it can be written to where bytes are received."""
        run = self._last
        if run is None:
            return None
        if not run.aim():
            self._last = None
            return None
        return run.tail

    def written(self) -> None:
        """Have the log know what was written to the tail."""
        run = self._last
        if run is not None and run.settle_tail():
            self._on_growth()


class _PublishRun:
    """The publishes to one topic by one command."""

    def __init__(
        self, topic: Topic, word: str, limits: Limits, now: Callable[[], int], note: Callable[[_PublishRun], None]
    ) -> None:
        self.topic = topic
        self.publishes = Publishes(
            f"{word} {topic.name}\n".encode(),
            self._take,
            max_count=limits.max_count,
            max_size=limits.max_message,
            max_body=limits.max_body,
            max_headers=kernel.MAX_HEADERS,
        )
        self.tail = LogTail(self.publishes)
        self._log: DirectLog | None = None  # where the tail points
        self._word = word
        self._now = now
        self._note = note

    def aim(self) -> bool:
        """Point the tail at the end of the topic's log; return False if that takes no publishes unseen."""
        topic = self.topic
        self._log = log = topic.direct_log()
        place = None if log is None else log.direct_place()
        if place is None:
            return False
        ahead = self._now() + topic.skew - time.monotonic_ns()
        self.tail.aim(*place, topic.id_base + topic.log.next, ahead, not topic.consumed)
        return True

    def settle_tail(self) -> bool:
        """Have the log know what was written to its end; return whether there was anything."""
        log, failed = self._log, self.tail.failed
        assert log is not None
        frames, count, senders = self.tail.take()
        now = self._now()
        if count:
            self.topic.adopt(log, frames, count, now=now)
        if failed:
            log.tear()
        messages: Counter[PolledTransport] = Counter()
        for transport, number in senders:
            messages[transport] += number
        for transport, number in messages.items():
            cast("Publisher", transport.get_protocol()).count_published(self.topic.name, number, now)
        return count > 0

    def _take(self) -> None:
        """Give the topic what this round has brought."""
        pieces, senders = self.publishes.take()
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        now = self._now()
        receipt = _RunReceipt(self.topic, self._word, senders, now)
        if self.topic.publish_run(data, self.publishes.line, receipt, now=now) is None:
            for (transport, _, _), piece in zip(senders, pieces, strict=True):
                transport.give(piece)
        elif not self._word.startswith("H"):  # headers lie in a file of their own
            self._note(self)


class _RunReceipt:
    """The answers to the publishes of one round."""

    __slots__ = ("_now", "_senders", "_topic", "_word")

    def __init__(self, topic: Topic, word: str, senders: list[Sender], now: int) -> None:
        self._topic = topic
        self._word = word
        self._senders = senders
        self._now = now

    def settle(self, sequence: int, error: LapwingError | None) -> None:
        """Answer every command OK, or end each conversation with the error."""
        for transport, messages, commands in self._senders:
            connection = cast("Publisher", transport.get_protocol())
            if error is not None:
                connection.publish_failed(self._word, error)
            else:
                connection.published(self._topic, messages, commands, self._now)
