"""Distribute max_in_flight over connections. Pure: the time and the random numbers are arguments.

Every change returns orders `(key, RDY)`, lower values first: sent in this order, the sum over all connections never
exceeds the limit.
"""

import enum
import random
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
RdyOrders = list[tuple[Key, int]]


class Mode(enum.Enum):
    """The number of messages that may be in flight."""

    NORMAL = "normal"  # all of max_in_flight
    HELD = "held"  # nothing: a backoff pause
    PROBING = "probing"  # one message, to see whether the handler has recovered


@dataclass(slots=True)
class Share:
    """The RDY of one connection."""

    cap: int  # max_rdy_count of its nsqd
    rdy: int
    rdy_set: float  # when RDY was last changed, s
    last_message: float  # s; set by the receiver


class RdyDistribution(Generic[Key]):
    """The RDY of every connection of one consumer."""

    def __init__(
        self,
        max_in_flight: int,
        *,
        low_rdy_idle: float = 10.0,
        low_rdy: float = 30.0,
        rng: random.Random | None = None,
    ) -> None:
        self.max_in_flight = max_in_flight
        self.mode = Mode.NORMAL
        self.shares: dict[Key, Share] = {}
        self._low_rdy_idle = low_rdy_idle
        self._low_rdy = low_rdy
        self._rng = rng or random.Random()

    def add(self, key: Key, *, cap: int, now: float) -> RdyOrders[Key]:
        """Add a connection."""
        self.shares[key] = Share(cap, 0, now, now)
        return self._settle(now)

    def remove(self, key: Key, *, now: float) -> RdyOrders[Key]:
        """Remove a connection; the others get its RDY at once."""
        share = self.shares.pop(key, None)
        if share is None:
            return []
        if self.mode is Mode.PROBING and share.rdy:
            return self.probe(now=now)
        return self._settle(now)

    def resize(self, max_in_flight: int, *, now: float) -> RdyOrders[Key]:
        """Change `max_in_flight`; 0 pauses everything."""
        self.max_in_flight = max_in_flight
        if self.mode is Mode.PROBING:
            if max_in_flight == 0:
                return self._order(dict.fromkeys(self.shares, 0), now)
            return [] if any(share.rdy for share in self.shares.values()) else self.probe(now=now)
        return self._settle(now)

    def hold(self, *, now: float) -> RdyOrders[Key]:
        """Set every RDY to 0 until `probe` or `release`."""
        self.mode = Mode.HELD
        return self._order(dict.fromkeys(self.shares, 0), now)

    def probe(self, *, now: float) -> RdyOrders[Key]:
        """Ask for one message from the connection that delivered last.

        NSQ chooses one at random and waits long if that has no messages; the last to deliver most likely has more.
        """
        latest = max((share.last_message for share in self.shares.values()), default=0.0)
        return self._probe([key for key, share in self.shares.items() if share.last_message == latest], now)

    def _probe(self, candidates: list[Key], now: float) -> RdyOrders[Key]:
        self.mode = Mode.PROBING
        wanted = dict.fromkeys(self.shares, 0)
        if candidates and self.max_in_flight:
            wanted[self._rng.choice(candidates)] = 1
        return self._order(wanted, now)

    def probe_elsewhere(self, patience: float, *, now: float) -> RdyOrders[Key]:
        """Probe another connection if the probed one has delivered nothing for `patience` seconds."""
        if self.mode is not Mode.PROBING:
            return []
        for share in self.shares.values():
            if share.rdy and (share.last_message >= share.rdy_set or now - share.rdy_set < patience):
                return []
        others = [key for key, share in self.shares.items() if not share.rdy]
        return self._probe(others or list(self.shares), now)

    def release(self, *, now: float) -> RdyOrders[Key]:
        """End a backoff."""
        self.mode = Mode.NORMAL
        return self._settle(now)

    def redistribute(self, *, now: float) -> RdyOrders[Key]:
        """Move RDY from idle connections to others, where there is not enough for all."""
        if self.mode is Mode.HELD:
            return []
        allowed = self.max_in_flight if self.mode is Mode.NORMAL else min(1, self.max_in_flight)
        if len(self.shares) <= allowed:
            return []
        wanted = {key: share.rdy for key, share in self.shares.items()}
        for key, share in self.shares.items():
            quiet = now - max(share.last_message, share.rdy_set)
            if share.rdy and (quiet >= self._low_rdy_idle or now - share.rdy_set >= self._low_rdy):
                wanted[key] = 0
                share.rdy_set = now  # chosen again below, it starts a new period
        spare = max(0, allowed - sum(wanted.values()))
        waiting = [key for key, rdy in wanted.items() if rdy == 0]
        for key in self._rng.sample(waiting, min(spare, len(waiting))):
            wanted[key] = 1
        return self._order(wanted, now)

    def _settle(self, now: float) -> RdyOrders[Key]:
        if self.mode is not Mode.NORMAL:
            return []
        count = len(self.shares)
        if count <= self.max_in_flight:
            each = self.max_in_flight // count if count else 0
            return self._order({key: min(each, share.cap) for key, share in self.shares.items()}, now)
        # more connections than max_in_flight: those with RDY keep it, the others get the rest
        by_turn = sorted(self.shares, key=lambda key: self.shares[key].rdy == 0)
        return self._order({key: int(place < self.max_in_flight) for place, key in enumerate(by_turn)}, now)

    def _order(self, wanted: dict[Key, int], now: float) -> RdyOrders[Key]:
        changed = [(key, rdy) for key, rdy in wanted.items() if rdy != self.shares[key].rdy]
        changed.sort(key=lambda order: order[1] > self.shares[order[0]].rdy)
        for key, rdy in changed:
            share = self.shares[key]
            share.rdy = rdy
            share.rdy_set = now
        return changed
