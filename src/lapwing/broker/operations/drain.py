"""Drain a node: it takes no new messages, and its consumers get the rest until it is empty or a deadline has passed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lapwing.broker.channel.holds import Hold
from lapwing.broker.failures.dead_letter_view import counted
from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.broker.broker import Broker
    from lapwing.broker.topic.cold import ColdTopic
    from lapwing.broker.topic.topic import Topic


@dataclass(frozen=True, slots=True)
class DrainProgress:
    """The progress of a drain."""

    state: str  # draining, empty, or expired: the deadline has passed
    since: int  # Unix ns
    deadline: int  # Unix ns; 0: none
    messages: int  # that are not finished
    topics: int  # that have some


class Drain:
    """A drain under way."""

    def __init__(self, broker: Broker, *, now: int, deadline: int) -> None:
        """Begin; `deadline` is a time of the broker's clock, 0 for none."""
        self._broker = broker
        self._since = now
        self._deadline = deadline
        self.expired = False
        self.empty_topics: set[str] = set()  # which nsqlookupd knows no more

    def look(self, now: int) -> None:
        """Withdraw topics that are empty from nsqlookupd; at the deadline all of them, and deliver nothing more."""
        broker = self._broker
        if self._deadline and now >= self._deadline and not self.expired:
            self.expired = True
            for each in broker.topics_in_use():
                for channel in each.channels.values():
                    channel.hold(Hold.DRAINED)
        for name, topic in broker.topics.items():
            gone = self.expired or not unfinished(topic)
            if gone and name not in self.empty_topics:
                self.empty_topics.add(name)
                self._announce(topic, created=False)
            elif not gone and name in self.empty_topics:  # a channel was moved back, or a dead letter came
                self.empty_topics.discard(name)
                self._announce(topic, created=True)

    def end(self) -> None:
        """Take messages again."""
        broker = self._broker
        for topic in broker.topics_in_use():
            topic.set_admission()
            for channel in topic.channels.values():
                channel.lift(Hold.DRAINED)
        for name in self.empty_topics & broker.topics.keys():
            self._announce(broker.topics[name], created=True)

    def _announce(self, topic: Topic | ColdTopic, *, created: bool) -> None:
        changes = self._broker.changes
        if created:
            changes.append(("topic", topic.name, None, True))
        for channel in topic.channels:
            changes.append(("channel", topic.name, channel, created))
        if not created:
            changes.append(("topic", topic.name, None, False))

    def progress(self, now: int) -> DrainProgress:
        """Return how far it has come."""
        left = [count for count in map(unfinished, self._broker.topics.values()) if count]
        skew = self._broker.skew
        return DrainProgress(
            state="empty" if not left else "expired" if self.expired else "draining",
            since=self._since + skew,
            deadline=self._deadline + skew if self._deadline else 0,
            messages=sum(left),
            topics=len(left),
        )


def unfinished(topic: Topic | ColdTopic) -> int:
    """Return how many messages of a topic some channel, or no channel yet, has still to deal with."""
    return topic.depth + sum(map(counted, topic.channels.values()))
