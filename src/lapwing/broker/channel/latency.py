"""Times of messages from publish to FIN, as percentiles over a moving window."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from lapwing.log.segments.segment import time_of

if TYPE_CHECKING:
    from lapwing.broker.settings.options import Options

SAMPLES: Final = 2048  # kept per half window; beyond that each sample represents several, chosen evenly
STAMPED: Final = 16  # messages of a delivery whose latency is measured; each represents its neighbours


class Latencies:
    """Two half windows of samples, of which the older is dropped in turn."""

    def __init__(self, options: Options) -> None:
        self.quantiles = options.e2e_processing_latency_percentiles
        self._half = max(options.e2e_processing_latency_window_time // 2, 1)
        self._random = Random(0)
        self._halves: list[list[int]] = [[], []]
        self._counts = [0, 0]
        self._began = 0
        # by sequence, of some messages in flight: when each was published (ns), and how many others it represents
        self.stamps: dict[int, tuple[int, int]] = {}

    def stamp(
        self, frames: bytes, positions: Sequence[int], run: Sequence[int], kept: Sequence[int], *, skew: int
    ) -> None:
        """Note when some messages of a delivery were published: those at the places `kept` of `run`.

        `skew` leads from the broker's time to that of the timestamps.
        """
        step = 1 + len(kept) // STAMPED
        for place in range(0, len(kept), step):
            index = kept[place]
            published = time_of(frames, positions[index])
            self.stamps[run[index]] = published - skew, min(step, len(kept) - place)

    def finished(self, sequence: int, *, now: int) -> None:
        """Record the latency of a message, if it was stamped."""
        stamp = self.stamps.pop(sequence, None)
        if stamp is not None:
            self.record(now - stamp[0], stamp[1], now=now)

    def record(self, latency: int, count: int = 1, *, now: int) -> None:
        """Record the time from publish to FIN, in ns, of one message that represents `count`."""
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
        """Return the samples of the window, in no order."""
        self._rotate(now)
        return self._halves[0] + self._halves[1]

    def count(self, *, now: int) -> int:
        """Return how many messages the window covers."""
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
    """Return each quantile with its value; 0 while there is no sample."""
    ordered = sorted(samples)
    return [(q, ordered[min(int(q * len(ordered)), len(ordered) - 1)] if ordered else 0) for q in quantiles]
