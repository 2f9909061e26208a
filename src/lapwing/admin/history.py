"""The figures of the cluster, each topic and each channel since the daemon started, as samples in rings.

Pure: the time is an argument, in seconds. Fresh samples are kept finely for the last half hour and one in a few
minutes for a day, in arrays of doubles, so that a thousand channels cost some 20 MB and no Graphite is needed.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lapwing import names
from lapwing.client.alarms import Age, Past
from lapwing.client.cluster import SUM, Json

FINE_AND_COARSE: Final = ((2.0, 900), (60.0, 1440))  # seconds a step, steps kept: the cluster
REMEMBERED: Final = 3600.0  # seconds that the past of deleted topics and channels is kept
SPARING: Final = ((10.0, 180), (300.0, 288))  # one of thousands of topics and channels

RATE_WINDOW: Final = 10.0  # seconds over which rates are averaged, however often the cluster is polled

Counts = dict[tuple[str, ...], tuple[float, float]]

CLUSTER_FIELDS: Final = ("in", "out", "waiting", "ready", "in_flight", "deferred", "oldest", "lag")
TOPIC_FIELDS: Final = ("in", "waiting", "backlog")
CHANNEL_FIELDS: Final = ("in", "out", "depth", "in_flight", "arrived", "floor")


class Ring:
    """The last samples that are at least `step` seconds apart. Of the field `lowest` the lowest value counts."""

    __slots__ = ("_capacity", "_lowest", "_passed", "_step", "columns", "times")

    def __init__(self, fields: int, step: float, capacity: int, *, lowest: int | None = None) -> None:
        self._step = step
        self._capacity = capacity
        self.times = array("d")  # of the samples, oldest first
        self.columns = [array("d") for _ in range(fields)]  # the values of each field, oldest first
        self._lowest = lowest
        self._passed = math.inf  # lowest value since the last sample that was kept

    def add(self, at: float, values: Sequence[float]) -> None:
        """Keep this sample, unless the last one is too recent."""
        if self.times and at - self.times[-1] < self._step * 0.9:
            if self._lowest is not None and values[self._lowest] < self._passed:
                self._passed = values[self._lowest]
            return
        self.times.append(at)
        for column, value in zip(self.columns, values, strict=True):
            column.append(value)
        if self._lowest is not None:
            if self._passed < values[self._lowest]:
                self.columns[self._lowest][-1] = self._passed
            self._passed = math.inf
        if len(self.times) > self._capacity * 5 // 4:  # in bulk: a shift per sample would cost more
            surplus = len(self.times) - self._capacity
            del self.times[:surplus]
            for column in self.columns:
                del column[:surplus]


class Track:
    """Several fields over time: fine steps for the last minutes, coarse steps for a day."""

    __slots__ = ("_rings", "fields")

    def __init__(self, fields: tuple[str, ...], steps: tuple[tuple[float, int], ...] = SPARING) -> None:
        self.fields = fields
        lowest = fields.index("floor") if "floor" in fields else None
        self._rings = [Ring(len(fields), step, capacity, lowest=lowest) for step, capacity in steps]

    def add(self, at: float, values: tuple[float, ...]) -> None:
        """Add a sample to every ring."""
        for ring in self._rings:
            ring.add(at, values)

    def points(self, field: str, *, since: float = 0.0) -> list[tuple[float, float]]:
        """Return (time, value) from `since` on: fine steps as far as they reach back, coarse steps before."""
        index = self.fields.index(field)
        fine, coarse = self._rings
        begin = fine.times[0] if fine.times else math.inf
        old = [(at, coarse.columns[index][i]) for i, at in enumerate(coarse.times) if since <= at < begin]
        first = bisect_left(fine.times, since)
        return old + list(zip(fine.times[first:], fine.columns[index][first:], strict=True))

    def last(self, field: str) -> float:
        """Return the newest value, 0 without any."""
        column = self._rings[0].columns[self.fields.index(field)]
        return column[-1] if column else 0.0

    def reached(self, field: str, value: float) -> float | None:
        """Return when a field that only grows reached `value`; None if that was before the first sample."""
        index = self.fields.index(field)
        for ring in self._rings:
            column = ring.columns[index]
            if column and column[0] <= value:
                return ring.times[min(bisect_left(column, value), len(column) - 1)]
        return None

    def begins(self) -> float | None:
        """Return the time of the oldest sample."""
        oldest = [ring.times[0] for ring in self._rings if ring.times]
        return min(oldest) if oldest else None

    def ends(self) -> float:
        """Return the time of the newest sample."""
        times = self._rings[0].times
        return times[-1] if times else 0.0

    def value_at(self, field: str, at: float) -> float | None:
        """Return the value at or before `at` from the fine steps; None if they do not reach so far back."""
        ring = self._rings[0]
        index = bisect_right(ring.times, at) - 1
        return ring.columns[self.fields.index(field)][index] if index >= 0 else None


@dataclass(slots=True)
class FlowRates:
    """The messages per second, averaged over `RATE_WINDOW`."""

    into: float = 0.0  # messages a second
    out: float = 0.0


class History(Past):
    """Keep samples of the cluster, and answer questions about the past."""

    def __init__(self) -> None:
        super().__init__({})
        self.cluster = Track(CLUSTER_FIELDS, FINE_AND_COARSE)
        self.topics: dict[str, Track] = defaultdict(lambda: Track(TOPIC_FIELDS))
        self.channels: dict[tuple[str, str], Track] = defaultdict(lambda: Track(CHANNEL_FIELDS))
        self.topic_flow: dict[str, FlowRates] = {}
        self.channel_flow: dict[tuple[str, str], FlowRates] = {}
        self.node_flow: dict[str, float] = {}
        self.part_flow: dict[tuple[str, ...], float] = {}  # (topic, node): published, (topic, channel, node): finished
        self._samples: deque[tuple[float, Counts]] = deque()  # counter and backlog of each queue, the oldest first
        self._arrived: dict[tuple[str, str], float] = {}

    def sample(self, at: float, topics: Mapping[str, Json]) -> None:
        """Add the topics of this moment, as `cluster.topics_of_stats` returns them."""
        self._keep_window(at)
        rated = bool(self._samples)  # the first sample has no rates yet
        counts: Counts = {}
        self.node_flow = {}
        self.part_flow = {}
        flow_in = flow_out = 0.0
        waiting = ready = in_flight = deferred = 0
        for name, topic in topics.items():
            own = names.own(name)  # sampled like the others, but not counted in the sums
            into = out = 0.0
            for part in topic["nodes"]:
                key = (name, part["node"])
                counts[key] = part["message_count"], 0
                rate, _ = self._rates(key, part["message_count"], 0, at)
                into += rate
                if rated:
                    self.part_flow[key] = rate
                    self.node_flow[part["node"]] = self.node_flow.get(part["node"], 0.0) + (0.0 if own else rate)
            backlog = 0
            for channel in topic["channels"]:
                backlog += channel["depth"]
                out += self._sample_channel(at, channel, counts, rated=rated)
            self.topic_flow[name] = FlowRates(into)
            if rated:
                self.topics[name].add(at, (into, topic["depth"], backlog))
            if own:
                continue
            flow_in += into
            flow_out += out
            waiting += topic["depth"]
            ready += backlog
            in_flight += sum(channel["in_flight_count"] for channel in topic["channels"])
            deferred += sum(channel["deferred_count"] for channel in topic["channels"])
        self._samples.append((at, counts))
        self._forget(at, topics)
        oldest, lag = self._worst(at, topics)
        if rated:
            self.cluster.add(at, (flow_in, flow_out, waiting, ready, in_flight, deferred, oldest, lag))

    def published(self, topic: Json) -> float:
        """Return the messages per second that are published to a topic: on its node, or over all of them."""
        if topic["node"] != SUM:
            return round(self.part_flow.get((topic["topic_name"], topic["node"]), 0.0), 2)
        flow = self.topic_flow.get(topic["topic_name"])
        return round(flow.into, 2) if flow else 0.0

    def finished(self, channel: Json) -> float:
        """Return the messages per second that leave a channel: on its node, or over all of them."""
        key = channel["topic_name"], channel["channel_name"]
        if channel["node"] != SUM:
            return round(self.part_flow.get((*key, channel["node"]), 0.0), 2)
        flow = self.channel_flow.get(key)
        return round(flow.out, 2) if flow else 0.0

    def _keep_window(self, now: float) -> None:
        """Drop samples, so that the oldest one is the newest that is at least `RATE_WINDOW` old."""
        while len(self._samples) > 1 and now - self._samples[1][0] >= RATE_WINDOW * 0.95:
            self._samples.popleft()

    def _sample_channel(self, at: float, channel: Json, counts: Counts, *, rated: bool) -> float:
        topic_and_name = (channel["topic_name"], channel["channel_name"])
        arrived = into = out = 0.0
        for part in channel["nodes"]:
            key = (*topic_and_name, part["node"])
            count, held = part["message_count"], part["depth"] + part["in_flight_count"] + part["deferred_count"]
            counts[key] = count, held
            arrived += self._arrived_since_last(key, count)
            came, went = self._rates(key, count, held, at)
            into += came
            out += went
            if rated:
                self.part_flow[key] = went
        total = self._arrived[topic_and_name] = self._arrived.get(topic_and_name, 0.0) + arrived
        self.channel_flow[topic_and_name] = FlowRates(into, out)
        depth = channel["depth"]
        self.channels[topic_and_name].add(at, (into, out, depth, channel["in_flight_count"], total, depth))
        return out

    def _arrived_since_last(self, key: tuple[str, ...], count: float) -> float:
        """Return the messages that arrived since the last sample; 0 for a new or restarted queue."""
        before = self._samples[-1][1].get(key) if self._samples else None
        return count - before[0] if before is not None and count >= before[0] else 0.0

    def _rates(self, key: tuple[str, ...], count: float, held: float, at: float) -> tuple[float, float]:
        """Return the messages per second that arrived and left; 0 for a new or restarted queue."""
        for index in (0, -1) if self._samples else ():
            since, counts = self._samples[index]
            before = counts.get(key)
            # a queue that was not there, or has restarted since: take the last sample instead
            if before is not None and count >= before[0] and at > since:
                arrived = count - before[0]
                return arrived / (at - since), max(0.0, arrived - (held - before[1])) / (at - since)
        return 0.0, 0.0

    def _forget(self, at: float, topics: Mapping[str, Json]) -> None:
        """Drop deleted topics and channels. Their past stays for an hour, as a node may only be unreachable."""
        alive = {(name, channel["channel_name"]) for name, topic in topics.items() for channel in topic["channels"]}
        for name in self.topics.keys() - topics.keys():
            self.topic_flow.pop(name, None)
            if at - self.topics[name].ends() > REMEMBERED:
                del self.topics[name]
        for key in self.channels.keys() - alive:
            self.channel_flow.pop(key, None)
            if at - self.channels[key].ends() > REMEMBERED:
                del self.channels[key]
                self._arrived.pop(key, None)

    def age(self, channel: Json, now: float) -> Age | None:
        """Return the age of the channel's oldest unfinished message, from the time when that many messages had arrived.

        An estimate that needs no more than counters, so it holds for any nsqd: exact for a queue that is worked off in
        order, and never older than what we have seen (`at_least`). None when nothing waits.
        """
        backlog = channel["depth"] + channel["in_flight_count"]
        if backlog <= 0:
            return None
        key = (channel["topic_name"], channel["channel_name"])
        track = self.channels.get(key)
        if track is None:
            return Age(0.0, at_least=True)
        since = track.reached("arrived", self._arrived.get(key, 0.0) - backlog + 1)
        if since is None:
            begins = track.begins()
            return Age(max(0.0, now - begins) if begins is not None else 0.0, at_least=True)
        return Age(max(0.0, now - since))

    def _worst(self, now: float, topics: Mapping[str, Json]) -> tuple[float, float]:
        oldest = lag = 0.0
        for topic in topics.values():
            for channel in topic["channels"] if not names.own(topic["topic_name"]) else ():
                if names.dead_letters(channel["topic_name"], channel["channel_name"]):
                    continue  # dead letters wait for somebody, and no consumer is late with them
                lag = max(lag, channel["depth"] + channel["in_flight_count"])
                age = self.age(channel, now)
                if age is not None:
                    oldest = max(oldest, age.seconds)
        return oldest, lag

    def growth(self, key: tuple[str, str], now: float, *, over: float) -> float | None:
        """Return by how much a channel's depth grew in the last `over` seconds; None if the history is shorter.

        The depth of a channel that is worked off in batches goes up and down. So the lowest depths of three thirds of
        the time are compared: each has to be above the one before, and together by half of all ups and downs.
        """
        track = self.channels.get(key)
        begin = track.value_at("depth", now - over) if track is not None else None
        if track is None or begin is None:
            return None
        floors = [math.inf] * 3
        for at, depth in track.points("floor", since=now - over):
            third = min(2, int((at - now + over) / over * 3))
            floors[third] = min(floors[third], depth)
        if not floors[0] < floors[1] < floors[2] < math.inf:
            return 0.0
        depths = [depth for _, depth in track.points("depth", since=now - over)]
        if floors[2] - floors[0] < (max(depths) - min(depths)) / 2:
            return 0.0
        return depths[-1] - begin

    def quiet(self, key: tuple[str, str], now: float, *, over: float) -> bool:
        """Return whether nothing left the channel in the last `over` seconds; False if the history is shorter."""
        track = self.channels.get(key)
        if track is None or track.value_at("out", now - over) is None:
            return False
        return not self.moving(key, now, over=over)

    def watched(self, key: tuple[str, str], now: float) -> float:
        """Return for how many seconds the channel has been sampled; infinity for one that never was."""
        track = self.channels.get(key)
        begin = track.begins() if track is not None else None
        return math.inf if begin is None else now - begin

    def moving(self, key: tuple[str, str], now: float, *, over: float) -> bool:
        """Return whether anything left the channel in the last `over` seconds, also without a consumer (Spark)."""
        track = self.channels.get(key)
        return track is not None and any(value > 0 for _, value in track.points("out", since=now - over))
