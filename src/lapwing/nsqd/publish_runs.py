"""Publishes of many connections to one topic that arrive in the same round: one batch, without a parser.

It concerns connections that have published to the topic before, and send nothing but whole publishes to it again.
Everything else goes to the connection, as does all of it where the topic does not take a batch unseen. The topic that
was published to last is written to, and its publishers are answered, where the bytes are received (`log_tails`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast
from weakref import WeakValueDictionary

from lapwing import kernel
from lapwing.net.polled import LogTail, PolledTransport, Publishes
from lapwing.nsqd.log_tails import LogTails, TailRun

if TYPE_CHECKING:
    from lapwing.broker.topic import Topic
    from lapwing.errors import LapwingError
    from lapwing.wire.nsq.limits import Limits

Sender = tuple[PolledTransport, int, int]  # a connection, with its messages and commands


class Publisher(Protocol):
    """A connection whose publishes were taken."""

    def published(self, topic: Topic, messages: int, commands: int, now: int) -> None:
        """Answer the commands."""

    def publish_failed(self, word: str, error: LapwingError) -> None:
        """End the connection with this error."""


class PublishRuns:
    """The runs of all topics to which connections publish."""

    def __init__(self, limits: Limits, now: Callable[[], int], tails: LogTails) -> None:
        self._limits = limits
        self._now = now
        self._tails = tails
        self._runs: WeakValueDictionary[tuple[str, str], _PublishRun] = WeakValueDictionary()

    def publishes(self, topic: Topic, word: str) -> Publishes:
        """Return the place for publishes to a topic by this command."""
        run = self._runs.get((topic.name, word))
        if run is None or run.topic is not topic:
            run = self._runs[topic.name, word] = _PublishRun(topic, word, self._limits, self._now, self._tails)
        return run.publishes


class _PublishRun(TailRun):
    """The publishes to one topic by one command."""

    def __init__(self, topic: Topic, word: str, limits: Limits, now: Callable[[], int], tails: LogTails) -> None:
        self.publishes = Publishes(
            f"{word} {topic.name}\n".encode(),
            self._take,
            max_count=limits.max_count,
            max_size=limits.max_message,
            max_body=limits.max_body,
            max_headers=kernel.MAX_HEADERS,
        )
        super().__init__(topic, LogTail(self.publishes, topic.name), now)
        self._word = word
        self._tails = tails

    def _take(self) -> None:
        """Give the topic what this round has brought."""
        pieces, senders = self.publishes.take()
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        now = self._now()
        receipt = _RunReceipt(self.topic, self._word, senders, now)
        taken = self.topic.publish_run(data, self.publishes.line, receipt, now=now)
        if taken is None:
            for (transport, _, _), piece in zip(senders, pieces, strict=True):
                transport.give(piece)
        elif taken[0] == taken[1] and not self._word.startswith("H"):  # headers lie in a file of their own
            self._tails.note(self)


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
