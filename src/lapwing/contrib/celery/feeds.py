"""Subscriptions of a consumer, and which of them are asked for messages while it has room for some."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any, Final

from lapwing.client.options import ClientOptions
from lapwing.contrib.celery.nodes import Node
from lapwing.contrib.celery.sockets import NsqSocket
from lapwing.wire.nsq.commands import Cls, Rdy, Rej, Req, Sub

_SETTLE: Final = 0.003  # s without a message after which a queue counts as empty
_TURN: Final = 0.1  # s for which one queue is asked before the others
_UNLIMITED: Final = 500  # messages that a consumer without a prefetch limit gets ahead


class Feed:
    """A subscription: one channel on one nsqd, on a connection of its own."""

    def __init__(self, node: Node, topic: str, channel: str, queue: str, level: int, options: ClientOptions) -> None:
        self.node = node
        self.queue = queue
        self.level = level  # of priority, 0 first
        self.about = f"{topic}/{channel}"
        self.bound = False  # to an exchange, so that messages are chosen by their keys
        self.window = 0
        self.in_flight: set[bytes] = set()
        self.active = False  # there is a consumer
        self.socket = NsqSocket(node.address, options)
        self.socket.send(Sub(topic, channel).encode())
        self.socket.response(options.read_timeout)

    def ask(self, window: int) -> None:
        """Let nsqd have up to `window` messages in flight here."""
        if window != self.window:
            self.window = window
            self.socket.send(Rdy(window).encode())

    def finish(self, message_id: bytes) -> None:
        """Answer: done."""
        self.in_flight.discard(message_id)
        self.socket.send(b"FIN %b\n" % message_id)

    def fail(self, message_id: bytes, error: str) -> None:
        """Answer: it failed; delivered again, or a dead letter after `max_attempts`."""
        self.in_flight.discard(message_id)
        self.socket.send(Req(message_id, 0, error=error).encode())

    def release(self, message_id: bytes, delay: float = 0.0) -> None:
        """Answer: not now, and no failure."""
        self.in_flight.discard(message_id)
        self.socket.send(Req(message_id, math.ceil(delay * 1000) * 1_000_000, free=True).encode())

    def reject(self, message_id: bytes, reason: str) -> None:
        """Answer: never again; a dead letter."""
        self.in_flight.discard(message_id)
        self.socket.send(Rej.of(message_id, reason).encode())

    def close(self) -> None:
        """Leave the channel, in order."""
        self.socket.send(Cls().encode())
        self.socket.close()


class Windows:
    """Share the room of a consumer among its feeds.

    A worker with one queue asks for all that it has room for, as every client of NSQ does. With several, the one that
    comes first by priority is asked first, then the one that was served longest ago; the next one is asked once those
    before it turn out to be empty. So no worker holds messages that it has no room for, and none of its queues waits
    for long.
    """

    def __init__(self) -> None:
        self._stops: list[list[Feed]] = []  # feeds that are asked together, in the order in which they are asked
        self._asked = 0  # of the stops
        self._since = 0.0  # when the last one was asked, or the last message came
        self._round_at = 0.0
        self._served: dict[Any, float] = {}
        self._room = 0

    def arrange(self, feeds: Iterable[Feed]) -> None:
        """Share the room among these feeds from now on."""
        groups: dict[tuple[int, str], list[Feed]] = {}
        for feed in feeds:
            if feed.active:
                groups.setdefault((feed.level, feed.queue), []).append(feed)
        for stop in self._stops:
            for feed in stop:
                if not feed.active:
                    feed.ask(0)
        order = sorted(groups, key=lambda group: (group[0], self._served.get(group, 0.0)))
        self._stops = [groups[group] for group in order]
        self._asked = 0

    def received(self, feed: Feed) -> None:
        """Note that a message has come."""
        self._since = self._served[feed.level, feed.queue] = time.monotonic()

    def before_answer(self) -> None:
        """Let nsqd send nothing for the room that an answer makes, if it is the turn of another queue."""
        if len(self._stops) < 2 or time.monotonic() - self._round_at < _TURN:
            return
        self._begin_round()

    def _begin_round(self) -> None:
        self._round_at = time.monotonic()
        for stop in self._stops:
            for feed in stop:
                feed.ask(0)
        self._stops.sort(key=lambda stop: (stop[0].level, self._served.get((stop[0].level, stop[0].queue), 0.0)))
        self._asked = 0

    def share(self, room: float) -> float | None:
        """Ask for as many messages as there is room for. Return in how many seconds to call this again, if at all."""
        if not self._stops:
            return None
        free = _UNLIMITED if math.isinf(room) else max(0, int(room))
        if len(self._stops) == 1:
            for feed in self._stops[0]:
                feed.ask(_window(feed, free))
            return None
        if free and not self._room:  # the first room since there was none
            self._asked = 0
        self._room = free
        if not free:
            self._hold()
            return None
        now = time.monotonic()
        if not self._asked or (self._asked < len(self._stops) and now - self._since >= _SETTLE):
            self._asked += 1
            self._since = now
        for stop in self._stops[: self._asked]:
            for feed in stop:
                feed.ask(_window(feed, free))
        return _SETTLE if self._asked < len(self._stops) or now - self._since < _SETTLE else None

    def _hold(self) -> None:
        """Keep what is in flight; the queues that come first by priority may replace it as it is answered."""
        first = self._stops[0][0].level
        for stop in self._stops:
            for feed in stop:
                feed.ask(len(feed.in_flight) if feed.level == first else 0)


def _window(feed: Feed, free: int) -> int:
    """Return what a feed is asked for; one that is empty in steps, so that not every message changes it."""
    if feed.in_flight or free < 2:
        return len(feed.in_flight) + free
    return 1 << (free.bit_length() - 1)
