"""Logs that are written to where bytes are received: publishes of one message each do without a turn.

Only the log that was published to last is written to in this way. Everything that needs a look goes the ordinary way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lapwing.broker.topic import Topic
    from lapwing.log.log_writer import LogWriter
    from lapwing.net.polled import LogTail, PolledTransport


_MOST_IDLE: Final = 16  # rounds without a publish after which the log is left alone until the next one


class LogTails:
    """The log that was published to last."""

    def __init__(self) -> None:
        self._last: TailRun | None = None
        self._idle = 0  # rounds in which nothing was written to it

    def note(self, run: TailRun) -> None:
        """Note that a topic was published to, and that its next publishes may be written at once."""
        self._last, self._idle = run, 0

    def aimed(self) -> LogTail | None:
        """Return the end of the log, if it can be written to where bytes are received."""
        run = self._last
        if run is None:
            return None
        if not run.aim():
            self._last = None
            return None
        return run.tail

    def written(self) -> None:
        """Have the log know what was written to its end."""
        run = self._last
        if run is None:
            return
        if run.settle():
            self._idle = 0
        else:
            self._idle += 1
            if self._idle >= _MOST_IDLE:
                self._last = None  # aiming at it costs every round a little


class TailRun:
    """The publishes to one topic that are written and answered where they are received."""

    def __init__(self, topic: Topic, tail: LogTail, now: Callable[[], int]) -> None:
        self.topic = topic
        self.tail = tail
        self._now = now
        self._log: LogWriter | None = None  # where the tail points

    def _answered(self, messages: dict[PolledTransport, int], now: int) -> None:
        """Note which connections were answered, and how many messages of each, if the tail does not count them."""

    def aim(self) -> bool:
        """Point the tail at the end of the topic's log; return False if that takes no publishes unseen."""
        topic = self.topic
        self._log = log = topic.direct_log()
        place = None if log is None else log.direct_place()
        if place is None:
            return False
        now = self._now()
        ahead = now + topic.skew - time.monotonic_ns()
        self.tail.aim(*place, topic.id_base + topic.log.next, ahead, not topic.consumed, now)
        return True

    def settle(self) -> bool:
        """Have the log know what was written to its end; return whether there was anything."""
        log, failed = self._log, self.tail.failed
        assert log is not None
        frames, count, senders = self.tail.take()
        now = self._now()
        if count:
            self.topic.adopt(log, frames, count, now=now)
        if failed:
            log.tear()
        self._answered(senders, now)
        return count > 0
