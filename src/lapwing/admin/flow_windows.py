"""Turn the windows of the flow pipeline into points of a chart: pure.

A window counts what happened to one topic, or to one channel of it, on one node, in some seconds. One that is published
again takes the place of the one before, however late it comes; nodes are added up; and a long range becomes few
points, each of which covers all windows that began in its step.
"""

import json
import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

from lapwing import names

NUMBERS: Final = (
    "messages", "bytes", "delivered", "requeued", "timed_out", "depth", "in_flight", "deferred",
    "p50_ms", "p95_ms", "p99_ms",
)  # fmt: skip
LONGEST: Final = 86_400.0  # seconds of a window; more is a mistake
AHEAD: Final = 300.0  # seconds that the clocks of a cluster may be apart
OPEN: Final = 90.0  # seconds in which windows may still be published
MOST_POINTS: Final = 180


@dataclass(frozen=True, slots=True)
class FlowRange:
    """The span of a chart, and the seconds of one point."""

    name: str
    span: int
    step: int
    finer: tuple[int, ...] = (10, 20, 30, 60, 120, 300, 600, 1200)  # shorter steps, while there is little to show

    def begin(self, now: float) -> int:
        """Return the start of the first step."""
        return step_of(now - self.span, self.step)

    def step_of(self, at: float) -> int:
        """Return the start of the step that contains `at`."""
        return step_of(at, self.step)


def step_of(at: float, step: int) -> int:
    """Return the start of the step that contains `at`."""
    return math.floor(at / step) * step


RANGES: Final = (FlowRange("6h", 21_600, 120), FlowRange("24h", 86_400, 480), FlowRange("7d", 604_800, 3600))


@dataclass(frozen=True, slots=True)
class FlowWindow:
    """One row of the pipeline."""

    start: int  # Unix seconds
    end: int
    topic: str
    channel: str  # empty: the topic itself
    node: int
    published: float  # Unix seconds
    numbers: "array[float]"  # as in `NUMBERS`


@dataclass(frozen=True, slots=True)
class FlowPoint:
    """One step of a chart. None: not known."""

    at: int  # Unix seconds, where the step begins
    into: float | None = None  # messages published a second
    out: float | None = None  # deliveries a second
    bytes_in: float | None = None  # bytes published a second
    size: float | None = None  # bytes of a message, on average
    waiting: float | None = None  # in the topic itself, at most
    depth: float | None = None  # in channels, at most
    in_flight: float | None = None
    deferred: float | None = None
    requeued: float | None = None  # share of deliveries
    timed_out: float | None = None
    p50: float | None = None  # seconds from publish to finish
    p95: float | None = None
    p99: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """Return the point as the API shows it."""
        fields = {"in" if name == "into" else name: getattr(self, name) for name in self.__slots__}
        return {name: round(value, 6) if isinstance(value, float) else value for name, value in fields.items()}


def parse(body: bytes, published: float) -> FlowWindow | None:
    """Parse a message of the pipeline's topic; None for a message that is no window."""
    try:
        fields = json.loads(body)
        if not isinstance(fields, dict):
            return None
        start, end = _moment(fields["window_start"]), _moment(fields["window_end"])
        topic, channel, node = fields["topic"], fields.get("channel") or "", fields.get("node") or 0
        numbers = array("d", (_number(fields.get(name)) for name in NUMBERS))
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None
    if not (isinstance(topic, str) and names.valid(topic) and isinstance(channel, str) and isinstance(node, int)):
        return None
    if not 0 < end - start <= LONGEST or start > published + AHEAD:
        return None
    return FlowWindow(start, end, topic, channel, node, published, numbers)


def _moment(text: str) -> int:
    at = datetime.fromisoformat(text)
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) and value > 0 else 0.0


Rows = dict[tuple[int, int], tuple[float, "array[float]"]]  # (start, node): published, numbers


@dataclass(slots=True)
class FlowWindows:
    """The windows of one range."""

    scale: FlowRange
    topics: dict[str, dict[str, Rows]] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)  # start and end of every window, of any topic
    sampled: set[int] = field(default_factory=set)  # steps of which some windows were left out
    count: int = 0

    def add(self, window: FlowWindow) -> None:
        """Add a window; of two with the same key the one published last counts."""
        rows = self.topics.setdefault(window.topic, {}).setdefault(window.channel, {})
        known = rows.get((window.start, window.node))
        if known is not None and known[0] > window.published:
            return
        self.count += known is None
        rows[window.start, window.node] = window.published, window.numbers
        self.seen[window.start] = max(window.end, self.seen.get(window.start, 0))

    def forget(self, *, before: int, most: int) -> None:
        """Drop windows that began before then, and the oldest beyond `most`."""
        self._drop({start for start in self.seen if start < before})
        while self.count > most and len(self.seen) > 1:
            first = self.scale.step_of(min(self.seen))
            self._drop({start for start in self.seen if start < first + self.scale.step})
        self.sampled = {step for step in self.sampled if step >= before}

    def _drop(self, starts: set[int]) -> None:
        if not starts:
            return
        for start in starts:
            self.seen.pop(start, None)
        for topic, channels in list(self.topics.items()):
            for channel, rows in list(channels.items()):
                gone = [key for key in rows if key[0] in starts]
                for key in gone:
                    del rows[key]
                self.count -= len(gone)
                if not rows:
                    del channels[channel]
            if not channels:
                del self.topics[topic]

    @property
    def step(self) -> int:
        """Seconds of a point: those of the range, or fewer if there is less to show and all of it was read."""
        known = self.newest - min(self.seen, default=0)
        longest = max((end - start for start, end in self.seen.items()), default=0)
        if self.sampled:
            return self.scale.step
        fits = (step for step in self.scale.finer if step >= longest and known <= step * MOST_POINTS)
        return min(next(fits, self.scale.step), self.scale.step)

    @property
    def newest(self) -> int:
        """The end of the last window; 0 without any."""
        return max(self.seen.values(), default=0)

    def points(self, topic: str, channel: str = "", *, now: float) -> list[FlowPoint]:
        """Return the points of a topic (all its channels together) or of one channel, oldest first.

        A step without any window has no numbers: the pipeline did not run, or nothing moved in the whole cluster. When
        it has only windows of others, nothing moved here.
        """
        if not self.seen:
            return []
        step = self.step
        channels = self.topics.get(topic, {})
        own = _fold((rows for name, rows in channels.items() if not name), step)
        worked = _fold((rows for name, rows in channels.items() if name and channel in ("", name)), step)
        seconds = self._seconds(step)
        over = step_of(now - OPEN - step, step)  # later steps may still get windows
        nothing = _Sums()
        return [
            _point(at, own.get(at, nothing), worked.get(at, nothing), seconds[at]) if at in seconds else FlowPoint(at)
            for at in range(min(seconds), max(over, max(seconds)) + 1, step)
        ]

    def _seconds(self, step: int) -> dict[int, float]:
        """Return the seconds that the windows of each step cover.

        All of the step, as a window in which nothing moved is not published; less where the range begins or ends
        within it, or only some of its windows were read.
        """
        read: dict[int, float] = {}
        for start, end in self.seen.items():
            at = step_of(start, step)
            read[at] = read.get(at, 0.0) + end - start
        first, newest = min(self.seen), self.newest
        for at, covered in read.items():
            if at not in self.sampled:
                read[at] = max(covered, min(at + step, newest) - max(at, first))
        return read


@dataclass(slots=True)
class _Sums:
    """The sums of several windows."""

    totals: list[float] = field(default_factory=lambda: [0.0] * 5)  # messages .. timed_out
    levels: list[float] = field(default_factory=lambda: [0.0] * 3)  # depth, in_flight, deferred: the highest
    half: float = 0.0  # p50 weighted by deliveries
    weight: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


def _fold(parts: Iterable[Rows], step: int) -> dict[int, _Sums]:
    """Return the sums by step: counts add up; levels add up within a window, and the highest window counts.

    A percentile cannot be computed from percentiles: the middle one is averaged, of the high ones the highest stands.
    """
    folded: dict[int, _Sums] = {}
    levels: dict[int, list[float]] = {}
    for (start, _), (_, numbers) in chain.from_iterable(rows.items() for rows in parts):
        sums = folded.setdefault(step_of(start, step), _Sums())
        for index in range(5):
            sums.totals[index] += numbers[index]
        level = levels.setdefault(start, [0.0, 0.0, 0.0])
        for index in range(3):
            level[index] += numbers[5 + index]
        p50, p95, p99 = numbers[8:]
        if p50 or p95 or p99:  # all 0: nsqd does not measure latency
            weight = max(numbers[2], 1.0)
            sums.half += p50 * weight
            sums.weight += weight
            sums.p95 = max(sums.p95, p95)
            sums.p99 = max(sums.p99, p99)
    for start, level in levels.items():
        highest = folded[step_of(start, step)].levels
        for index, value in enumerate(level):
            highest[index] = max(highest[index], value)
    return folded


def _point(at: int, own: _Sums, worked: _Sums, seconds: float) -> FlowPoint:
    messages, size = own.totals[0], own.totals[1]
    _, _, delivered, requeued, timed_out = worked.totals
    measured = worked.weight > 0
    return FlowPoint(
        at,
        into=messages / seconds,
        out=delivered / seconds,
        bytes_in=size / seconds,
        size=size / messages if messages else None,
        waiting=own.levels[0],
        depth=worked.levels[0],
        in_flight=worked.levels[1],
        deferred=worked.levels[2],
        requeued=min(requeued / delivered, 1.0) if delivered else None,
        timed_out=min(timed_out / delivered, 1.0) if delivered else None,
        p50=worked.half / worked.weight / 1000 if measured else None,
        p95=worked.p95 / 1000 if measured else None,
        p99=worked.p99 / 1000 if measured else None,
    )
