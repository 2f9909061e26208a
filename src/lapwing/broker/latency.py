"""How long messages take from publish to FIN, as percentiles over a moving window."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from lapwing.broker.options import Options

SAMPLES: Final = 2048  # kept per half window; beyond that each sample stands for several, chosen evenly


class Latencies:
    """Two half windows of samples, of which the older is thrown away in turn."""

    def __init__(self, options: Options) -> None:
        self.quantiles = options.e2e_processing_latency_percentiles
        self._half = max(options.e2e_processing_latency_window_time // 2, 1)
        self._random = Random(0)
        self._halves: list[list[int]] = [[], []]
        self._counts = [0, 0]
        self._began = 0

    def record(self, latency: int, count: int = 1, *, now: int) -> None:
        """Note the time from publish to FIN, in ns, of one message that stands for `count`."""
        self._rotate(now)
        self._counts[0] += count
        samples = self._halves[0]
        if len(samples) < SAMPLES:
            samples.append(latency)
        else:
            place = self._random.randrange(self._counts[0])
            if place < SAMPLES:
                samples[place] = latency

    def samples(self, *, now: int) -> list[int]:
        """What the window holds, in no order."""
        self._rotate(now)
        return self._halves[0] + self._halves[1]

    def count(self, *, now: int) -> int:
        """How many messages the window has seen."""
        self._rotate(now)
        return sum(self._counts)

    def _rotate(self, now: int) -> None:
        if now - self._began >= 2 * self._half:
            self._halves, self._counts, self._began = [[], []], [0, 0], now
        elif now - self._began >= self._half:
            self._halves = [[], self._halves[0]]
            self._counts = [0, self._counts[0]]
            self._began += self._half


def percentiles(samples: list[int], quantiles: tuple[float, ...]) -> list[tuple[float, int]]:
    """Each quantile with its value; 0 while there is no sample."""
    ordered = sorted(samples)
    return [(q, ordered[min(int(q * len(ordered)), len(ordered) - 1)] if ordered else 0) for q in quantiles]
