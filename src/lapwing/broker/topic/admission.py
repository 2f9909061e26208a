"""Decide whether a topic takes a publish: the node drains or lacks memory, a channel is full, a body is too big."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from lapwing.errors import ChannelFull, Draining, MessageTooBig, NotReplicated, OutOfMemory

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel
    from lapwing.broker.topic.topic import Topic


class Admission:
    """The limits on publishes to one topic; a topic without limits has no such object."""

    __slots__ = ("_bounded", "_draining", "_memory_problem", "_remote_problem", "_topic", "max_msg_size")

    def __init__(
        self,
        topic: Topic,
        *,
        draining: bool,
        memory_problem: str | None,
        remote_problem: str | None,
        max_msg_size: int,
        bounded: Sequence[Channel],
    ) -> None:
        self.max_msg_size = max_msg_size  # bytes
        self._topic = topic
        self._draining = draining
        self._memory_problem = memory_problem
        self._remote_problem = remote_problem
        self._bounded = bounded  # channels that refuse what would be too much for them

    def largest(self) -> int:
        """Return the bytes of the largest message that the topic can ever take."""
        limits = [channel.effective.max_bytes for channel in self._bounded]
        return min([self.max_msg_size, *filter(None, limits)])

    def fitting(self, sizes: Sequence[int]) -> int:
        """Return how many of the first messages, of these bytes each, all channels have room for."""
        count, coming = len(sizes), self._topic.log.next - self._topic.fanned_out
        for channel in self._bounded:
            settings = channel.effective
            if settings.max_depth:
                count = min(count, max(settings.max_depth - channel.depth - coming, 0))
            if settings.max_bytes:
                totals = accumulate(sizes, initial=channel.waiting_bytes())
                count = min(count, max(sum(total <= settings.max_bytes for total in totals) - 1, 0))
        return count

    def check(self, count: int, size: int, largest: int) -> None:
        """Raise a `BrokerError` that names the reason if `count` messages of `size` bytes cannot be taken."""
        if self._draining:
            raise Draining
        if self._memory_problem is not None:
            raise OutOfMemory(self._memory_problem)
        if self._remote_problem is not None:
            raise NotReplicated(self._remote_problem)
        topic = self._topic
        if largest > self.max_msg_size:
            raise MessageTooBig(f"message of {largest} bytes: topic {topic.name} takes at most {self.max_msg_size}")
        coming = topic.log.next - topic.fanned_out + count
        for channel in self._bounded:
            settings = channel.effective
            waiting = channel.depth + coming
            if settings.max_depth and waiting > settings.max_depth:
                raise ChannelFull(
                    f"channel {channel.name} of topic {topic.name} is full: {waiting - count} messages wait, "
                    f"max_depth is {settings.max_depth}"
                )
            if settings.max_bytes and (held := channel.waiting_bytes()) + size > settings.max_bytes:
                raise ChannelFull(
                    f"channel {channel.name} of topic {topic.name} is full: {held} bytes wait, "
                    f"max_bytes is {settings.max_bytes}"
                )
