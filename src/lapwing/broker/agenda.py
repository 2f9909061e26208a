"""The agenda: channels by the time at which they have something to do, the next one first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lapwing.broker.channel.channel import Channel


class Agenda(list["tuple[int, int, Channel]"]):
    """A heap of channels, each with its deadline in ns; outdated entries stay until they come first."""

    def add(self, due: int, channel: Channel) -> None:
        """Have the channel's `scan` called at that time."""
        heappush(self, (due, id(channel), channel))

    def scan(self, now: int, *, most: int) -> bool:
        """Look at up to `most` channels with a deadline that has come; return whether more are due."""
        looked = 0
        while self and self[0][0] <= now and looked < most:
            due, _, channel = heappop(self)
            if channel.scheduled != due or channel.exiting:
                continue
            looked += 1
            channel.scan(now)
        return bool(looked) and bool(self) and self[0][0] <= now

    def next_due(self) -> int | None:
        """Return when `scan` has something to do; drop outdated entries before that."""
        while self and (self[0][2].scheduled != self[0][0] or self[0][2].exiting):
            heappop(self)
        return self[0][0] if self else None

    def drop_deleted(self) -> None:
        """Drop deleted channels: a deadline may be an hour away, and keeps all that they had."""
        self[:] = [entry for entry in self if not entry[2].exiting]
        heapify(self)
