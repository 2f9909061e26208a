"""Publishes to one topic, and FINs of one channel, of many connections in the same round: one call, without a parser.

Publishes are taken as one batch. That concerns connections that have published to the topic before, and send nothing
but whole publishes to it again. FINs concern connections that send nothing but whole FINs. Everything else goes to the
connection, as do all publishes where the topic does not take a batch unseen. The topic that was published to last is
written to, and its publishers are answered, where the bytes are received (`log_tails`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

from lapwing import kernel
from lapwing.net.polled import Finishes, LogTail, PolledTransport, Publishes
from lapwing.nsqd.log_tails import LogTails, TailRun

if TYPE_CHECKING:
    from lapwing.broker.channel import Channel
    from lapwing.broker.topic import Topic
    from lapwing.errors import LapwingError
    from lapwing.nsqd.run_connection import RunConnection
    from lapwing.wire.nsq.limits import Limits

Sender = tuple[PolledTransport, int, int]  # a connection, with its messages and commands


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
            connection = cast("RunConnection", transport.get_protocol())
            if error is not None:
                connection.publish_failed(self._word, error)
            else:
                connection.published(self._topic, messages, commands, self._now)


class FinishRuns:
    """The channels that connections consume."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._runs: WeakKeyDictionary[Channel, _FinishRun] = WeakKeyDictionary()

    def finishes(self, channel: Channel) -> Finishes:
        """Return the place for FINs of the messages of a channel."""
        run = self._runs.get(channel)
        if run is None:
            run = self._runs[channel] = _FinishRun(self._now)
        return run.finishes


class _FinishRun:
    """The FINs of one channel."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.finishes = Finishes(self._take)
        self._now = now

    def _take(self) -> None:
        """Carry out what this round has brought."""
        pieces, senders = self.finishes.take()
        now = self._now()
        for (transport, _, _), block in zip(senders, pieces, strict=True):
            cast("RunConnection", transport.get_protocol()).finished(block, now)
