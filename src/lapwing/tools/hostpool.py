"""Choose the destination of the next message. Pure: time and random numbers are arguments."""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

FIRST_REST: Final = 30.0  # s that a destination is skipped after a failure
LONGEST_REST: Final = 900.0
EPSILON: Final = 0.3  # the share of messages that look for a better destination, at first
EPSILON_DECAY: Final = 0.9
LEAST_EPSILON: Final = 0.01
MEMORY: Final = 300.0  # s that response times are remembered
HALF_LIFE: Final = 60.0  # s after which a response time counts half


class RoundRobin:
    """Every destination in turn, starting with the second."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = list(hosts)
        self._turn = 0

    def choose(self, now: float) -> str:
        """Return the destination of the next message."""
        self._turn = (self._turn + 1) % len(self._hosts)
        return self._hosts[self._turn]

    def succeeded(self, host: str, seconds: float, now: float) -> None:
        """Take note of a message that took `seconds`; here speed does not matter."""

    def failed(self, host: str, now: float) -> None:
        """Take note of a failure; here failures do not matter."""


@dataclass(slots=True)
class _Health:
    rest: float = 0.0  # s; 0 while it is healthy
    back_at: float = 0.0
    times: deque[tuple[float, float]] = field(default_factory=deque)  # when, s of a response


class HostPool(RoundRobin):
    """Healthy destinations in turn; one that fails is skipped for a time, which grows with repeated failures."""

    def __init__(self, hosts: Sequence[str]) -> None:
        super().__init__(hosts)
        self._health = {host: _Health() for host in hosts}

    def choose(self, now: float) -> str:
        for step in range(len(self._hosts)):
            place = (self._turn + step) % len(self._hosts)
            host = self._hosts[place]
            health = self._health[host]
            if not health.rest or health.back_at <= now:
                self._turn = (place + 1) % len(self._hosts)
                if health.rest:  # one message tries it; others skip it until then
                    health.rest = min(health.rest * 2, LONGEST_REST)
                    health.back_at = now + health.rest
                return host
        for health in self._health.values():
            health.rest = 0.0  # all dead: one is as good as another
        return self.choose(now)

    def succeeded(self, host: str, seconds: float, now: float) -> None:
        self._health[host].rest = 0.0

    def failed(self, host: str, now: float) -> None:
        health = self._health[host]
        if not health.rest:
            health.rest = FIRST_REST
            health.back_at = now + FIRST_REST


class EpsilonGreedy(HostPool):
    """Mostly the fastest: weighted by speed, with a shrinking share that goes to all healthy destinations in turn."""

    def __init__(self, hosts: Sequence[str], rng: random.Random | None = None) -> None:
        super().__init__(hosts)
        self._rng = rng or random.Random()
        self._epsilon = EPSILON

    def choose(self, now: float) -> str:
        if self._rng.random() < self._epsilon:
            self._epsilon = max(LEAST_EPSILON, self._epsilon * EPSILON_DECAY)
            return super().choose(now)
        weights = {
            host: 1.0 / average
            for host in self._hosts
            if not self._health[host].rest and (average := self._average(host, now)) > 0
        }
        if not weights:
            return super().choose(now)
        return self._rng.choices(list(weights), list(weights.values()))[0]

    def succeeded(self, host: str, seconds: float, now: float) -> None:
        super().succeeded(host, seconds, now)
        self._health[host].times.append((now, seconds))

    def _average(self, host: str, now: float) -> float:
        times = self._health[host].times
        while times and (times[0][0] < now - MEMORY or len(times) > 1000):
            times.popleft()
        weight = total = 0.0
        for when, seconds in times:
            part = 0.5 ** ((now - when) / HALF_LIFE)
            weight += part
            total += part * seconds
        return max(total / weight, 1e-9) if weight else 0.0


_MODES: Final = {"round-robin": RoundRobin, "hostpool": HostPool, "epsilon-greedy": EpsilonGreedy}


def pool_of(mode: str, hosts: Sequence[str]) -> RoundRobin | None:
    """Return the strategy that `mode` names, or None."""
    return _MODES[mode](hosts) if mode in _MODES else None
