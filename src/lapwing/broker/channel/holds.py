"""The reasons why a channel stands still: a set, so that nobody lifts the reason of another."""

from __future__ import annotations

from enum import Enum
from typing import Final

FOREVER: Final = 1 << 62  # ns


class Hold(Enum):
    """A reason why a channel delivers nothing."""

    PAUSED = "paused"  # an operator paused the channel
    PAUSED_UNTIL = "paused until"  # its setting `paused_until` has not come
    DRAINED = "drained"  # the deadline of the node's drain has passed
    DOUBTFUL = "doubtful journal"  # a damaged journal may have lost deferrals


class Holds(dict[Hold, int]):
    """The reasons that hold a channel, each with the time at which it ends, ns."""

    __slots__ = ()

    def at(self, now: int) -> bool:
        """Return whether any reason holds the channel at that time."""
        return any(until > now for until in self.values())

    def next_end(self) -> int | None:
        """Return when the next reason ends by itself."""
        return min((until for until in self.values() if until < FOREVER), default=None)

    def drop_ended(self, now: int) -> bool:
        """Drop the reasons that have ended; return whether there were any."""
        ended = [reason for reason, until in self.items() if until <= now]
        for reason in ended:
            del self[reason]
        return bool(ended)
