"""`/metrics`: the metrics of nsqd in Prometheus' text format."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import field
from itertools import chain
from math import nan
from typing import Any, Final, TypeVar

from lapwing.broker import stats
from lapwing.broker.broker import Broker
from lapwing.broker.schedules.schedules import Schedule
from lapwing.broker.stats import ChannelStats, HolderStats, TopicStats
from lapwing.broker.topic.cold import ColdChannel
from lapwing.errors import LogError
from lapwing.net.server import prometheus
from lapwing.net.server.answers import Answer, Refused, StreamedAnswer
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import OPEN, Route
from lapwing.nsqd.http.permissions import METRICS
from lapwing.nsqd.http.pipelines import Pipelines
from lapwing.nsqd.stats import memory
from lapwing.records import dataclass

T = TypeVar("T")
_Rows = tuple[tuple[str, str, str, Callable[[T], int]], ...]  # name, type, help, and the number of a topic or channel

_LINES: Final = 500  # samples written before others get their turn
_STEP: Final = 20  # topics counted before others get their turn
_SECOND: Final = 1_000_000_000
_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class FsyncTimes:
    """A histogram of the durations of fsyncs."""

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.total = 0.0  # seconds

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(_BOUNDS, seconds)] += 1
        self.total += seconds

    def samples(self) -> Iterable[tuple[str, dict[str, str], float]]:
        """Yield the suffix, labels and value of each line."""
        below = 0
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), self.counts, strict=True):
            below += count
            yield "_bucket", {"le": bound}, below
        yield "_sum", {}, self.total
        yield "_count", {}, below


async def count_topics(
    broker: Broker, now: Callable[[], int], names: Sequence[str], *, channel: str = "", clients: bool = False
) -> AsyncIterator[list[TopicStats]]:
    """Yield the statistics of topics, a few at a time, so that others get their turn."""
    for start in range(0, len(names), _STEP):
        counted: list[TopicStats] = []
        for name in names[start : start + _STEP]:
            counted += stats.topic_stats(broker, now=now(), topic=name, channel=channel, clients=clients) or ()
        yield counted
        await asyncio.sleep(0)


def _column(name: str, kind: str, text: str, labels: list[str], values: array[Any]) -> Iterator[str]:
    """Yield the lines of one metric, some at a time; nothing at all without a sample."""
    head = prometheus.head(name, kind, text)
    for start in range(0, len(labels), _LINES):
        pairs = zip(labels[start : start + _LINES], values[start : start + _LINES], strict=True)
        lines = "".join([f"{name}{label} {value!r}\n" for label, value in pairs if value == value])
        if lines:
            yield head + lines
            head = ""


class Columns:
    """The values of several metrics, as numbers, for the same labels."""

    def __init__(self, prefix: str, metrics: _Rows[Any]) -> None:
        self.labels: list[str] = []
        self._prefix = prefix
        self._metrics = metrics
        self._values: list[array[int]] = [array("q") for _ in metrics]

    def add(self, labels: dict[str, str], counted: object) -> None:
        """Count one topic or channel."""
        self.labels.append(prometheus.label_set(labels))
        for values, (_, _, _, number) in zip(self._values, self._metrics, strict=True):
            values.append(number(counted))

    def render(self) -> Iterator[str]:
        """Yield the lines of every metric, some at a time."""
        for values, (name, kind, text, _) in zip(self._values, self._metrics, strict=True):
            yield from _column(self._prefix + name, kind, text, self.labels, values)


@dataclass(slots=True)
class Family:
    """One metric with all its samples."""

    name: str
    kind: str
    help: str
    lines: list[str] = field(default_factory=list)

    def add(self, number: float, labels: dict[str, str] | None = None, suffix: str = "") -> None:
        self.lines.append(prometheus.line(self.name + suffix, labels or {}, number))

    def slices(self) -> Iterator[str]:
        """Yield the lines, some at a time; nothing at all without a sample."""
        if self.lines:
            yield prometheus.head(self.name, self.kind, self.help)
        for start in range(0, len(self.lines), _LINES):
            yield "".join(self.lines[start : start + _LINES])


_TOPIC: Final[_Rows[TopicStats]] = (
    ("depth", "gauge", "Messages that wait in the topic for a channel.", lambda topic: topic.depth),
    ("messages_total", "counter", "Messages published since start.", lambda topic: topic.message_count),
    ("bytes_total", "counter", "Bytes of message bodies published since start.", lambda topic: topic.message_bytes),
    ("dropped_total", "counter", "Messages that did not fit an ephemeral topic.", lambda topic: topic.dropped_count),
    ("duplicates_total", "counter", "Messages with a known message-id, not stored.", lambda topic: topic.duplicates),
    ("forgotten_ids_total", "counter", "Ids forgotten before their time.", lambda topic: topic.forgotten_ids),
    ("paused", "gauge", "1 while the topic is paused.", lambda topic: int(topic.paused)),
    ("log_bytes", "gauge", "Bytes that the topic's log holds on disk.", lambda topic: topic.log_bytes),
    ("log_first", "gauge", "First sequence that the log still holds.", lambda topic: topic.log_first),
    ("log_next", "gauge", "Sequence that the next message gets.", lambda topic: topic.log_next),
)
_CHANNEL: Final[_Rows[ChannelStats]] = (
    ("depth", "gauge", "Messages ready to be delivered.", lambda channel: channel.depth),
    ("in_flight", "gauge", "Messages that consumers hold.", lambda channel: channel.in_flight_count),
    ("deferred", "gauge", "Messages that wait for their time.", lambda channel: channel.deferred_count),
    ("messages_total", "counter", "Messages put into the channel since start.", lambda channel: channel.message_count),
    ("requeues_total", "counter", "Messages that consumers gave back.", lambda channel: channel.requeue_count),
    ("timeouts_total", "counter", "Messages whose time in flight ran out.", lambda channel: channel.timeout_count),
    ("dropped_total", "counter", "Messages that did not fit an ephemeral channel.", lambda each: each.dropped_count),
    ("discarded_total", "counter", "Messages left out for sampling consumers.", lambda each: each.discarded_count),
    ("failures_total", "counter", "Deliveries that went wrong.", lambda each: each.failures.failures),
    ("dead_total", "counter", "Messages that were given up.", lambda each: each.failures.dead),
    ("expired_total", "counter", "Messages that were too old to be delivered.", lambda each: each.failures.expired),
    ("lost_total", "counter", "Messages that were lost with the channel's side log.", lambda each: each.failures.lost),
    ("overflowed_total", "counter", "Messages that were too many to wait.", lambda each: each.failures.overflowed),
    ("throttled_total", "counter", "Times that deliveries waited for the rate.", lambda each: each.failures.throttled),
    ("claimed_total", "counter", "Messages that were taken from their holders.", lambda each: each.failures.claimed),
    ("redriven_total", "counter", "Dead letters that came back.", lambda each: each.failures.redriven),
    ("clients", "gauge", "Consumers that are connected.", lambda channel: channel.client_count),
    ("paused", "gauge", "1 while the channel is paused.", lambda channel: int(channel.paused)),
)

# NSQ's statsd keys as statsd_exporter maps them: Grafana's NSQ mixin and its alert rules read them
_NSQ_TOPIC: Final[_Rows[TopicStats]] = (
    ("message_count", "counter", "Messages published since start.", lambda topic: topic.message_count),
    ("message_bytes", "counter", "Bytes of bodies published since start.", lambda topic: topic.message_bytes),
    ("depth", "gauge", "Messages that wait in the topic.", lambda topic: topic.depth),
    ("backend_depth", "gauge", "Messages that wait in the topic on disk.", lambda topic: topic.backend_depth),
)
_NSQ_CHANNEL: Final[_Rows[ChannelStats]] = (
    ("message_count", "counter", "Messages put into the channel since start.", lambda each: each.message_count),
    ("depth", "gauge", "Messages ready to be delivered.", lambda each: each.depth),
    ("backend_depth", "gauge", "Messages that wait on disk.", lambda each: each.backend_depth),
    ("in_flight_count", "gauge", "Messages that consumers hold.", lambda each: each.in_flight_count),
    ("deferred_count", "gauge", "Messages that wait for their time.", lambda each: each.deferred_count),
    ("requeue_count", "counter", "Messages that consumers gave back.", lambda each: each.requeue_count),
    ("timeout_count", "counter", "Messages whose time in flight ran out.", lambda each: each.timeout_count),
    ("clients", "gauge", "Consumers that are connected.", lambda each: each.client_count),
)

HOLDER_GAUGES: Final[tuple[tuple[str, str, Callable[[HolderStats], float]], ...]] = (
    ("pending", "Messages that a named consumer holds.", lambda holder: holder.in_flight_count),
    ("oldest_pending_seconds", "Time since the oldest of them was delivered.", lambda each: each.oldest / _SECOND),
    ("idle_seconds", "Time since the last request of a named consumer.", lambda holder: holder.idle / _SECOND),
)


SCHEDULE_METRICS: Final[tuple[tuple[str, str, str, Callable[[Schedule], float]], ...]] = (
    ("published_total", "counter", "Messages that the schedule has published.", lambda each: each.published),
    ("missed_total", "counter", "Times that passed while nsqd could not publish.", lambda each: each.missed),
    ("failing", "gauge", "1 while the last attempt to publish was refused.", lambda each: float(bool(each.problem))),
)


REMOTE_METRICS: Final = (  # name, type, help, key of the figure, factor
    ("epoch", "gauge", "The epoch of the remote log that this node began.", "epoch", 1),
    ("index", "counter", "The number of the last record.", "index", 1),
    ("lag_seconds", "gauge", "How long the oldest change has waited for its record.", "lag_ms", 0.001),
    ("requests_total", "counter", "Requests to the engine.", "requests", 1),
    ("written_bytes_total", "counter", "Bytes written to the engine.", "bytes", 1),
    ("checkpoints_total", "counter", "Checkpoints that were made.", "checkpoints", 1),
)


class Metrics:
    """The route of the metrics; it reads the broker only when asked."""

    def __init__(
        self,
        broker: Broker,
        now: Callable[[], int],
        times: FsyncTimes,
        pauses: memory.GcPauses,
        pipelines: Pipelines,
        remote: Callable[[], dict[str, Any] | None],
        *,
        started: int,
    ) -> None:
        """`remote` returns the figures of the remote log, if there is one."""
        self._broker = broker
        self._now = now
        self._times = times
        self._pauses = pauses
        self._pipelines = pipelines
        self._remote = remote
        self._started = started

    def routes(self) -> list[Route]:
        access = OPEN if self._broker.options.stats_without_auth else METRICS
        return [Route("GET", "/metrics", self.respond, logged=False, access=access)]

    def respond(self, request: Request) -> Answer:
        """Return every metric, as a stream, so that others get their turn; with `names=nsq` under NSQ's names."""
        names = request.query.get("names", "lapwing")
        if names not in ("lapwing", "nsq"):
            raise Refused(400, "INVALID_NAMES")
        pieces = self.nsq_pieces() if names == "nsq" else self.pieces()
        return StreamedAnswer(200, content_type=prometheus.CONTENT_TYPE, pieces=pieces, nsq=False)

    async def nsq_pieces(self) -> AsyncIterator[bytes]:
        """Yield the figures that NSQ has, under the names that statsd_exporter makes of NSQ's keys."""
        for name, number in memory.figures(self._pauses).items():
            kind = "counter" if name == "gc_total_runs" else "gauge"
            yield prometheus.single(f"nsq_mem_{name}", kind, "As in NSQ's statsd figures.", number).encode()
        topics = Columns("nsq_topic_", _NSQ_TOPIC)
        channels = Columns("nsq_topic_channel_", _NSQ_CHANNEL)
        async for counted in count_topics(self._broker, self._now, sorted(self._broker.topics)):
            for topic in counted:
                topics.add({"topic": topic.name}, topic)
                for channel in topic.channels:
                    channels.add({"topic": topic.name, "channel": channel.name}, channel)
        for lines in chain(topics.render(), channels.render()):
            yield lines.encode()
            await asyncio.sleep(0)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the text, a few lines at a time.

        The samples of a metric must stand together, so every topic is counted before the first metric is written. Only
        numbers are kept until then: 100,000 topics would be 100 MB of text.
        """
        yield self._process().encode()
        topics = Columns("lapwing_topic_", _TOPIC)
        channels = Columns("lapwing_channel_", _CHANNEL)
        ages = array("d")  # seconds; not a number where it is not known
        latencies = _gauge("e2e_latency_seconds", "Time from publish to FIN, by quantile, over its window.")
        active = _gauge("active_consumer", "1 for the consumer that gets messages, where only one does.")
        blocked = _gauge("keys_blocked", "Keys whose messages wait for others of their key.")
        waiting = _gauge("waiting_for_key", "Messages that wait for others of their key to be finished.")
        stuck = _gauge("oldest_blocked_key_seconds", "How long the key is blocked that is so for longest.")
        holders = [Family(f"lapwing_consumer_{name}", "gauge", text) for name, text, _ in HOLDER_GAUGES]
        async for counted in count_topics(self._broker, self._now, sorted(self._broker.topics)):
            for topic in counted:
                topics.add({"topic": topic.name}, topic)
                _count_holders(topic, holders)
                for channel in topic.channels:
                    labels = {"topic": topic.name, "channel": channel.name}
                    channels.add(labels, channel)
                    ages.append(self._age(topic.name, channel.name))
                    if channel.active:
                        active.add(1, labels | {"consumer": channel.active})
                    if channel.blocked is not None:
                        blocked.add(channel.blocked.count, labels)
                        waiting.add(channel.blocked.waiting, labels)
                        stuck.add(channel.blocked.oldest_ns / _SECOND, labels)
                    for quantile, nanoseconds in channel.latency.percentiles or ():
                        latencies.add(nanoseconds / _SECOND, labels | {"quantile": str(quantile)})
        age = ("lapwing_channel_oldest_message_age_seconds", "gauge", "Age of the oldest message that is not finished.")
        aged = _column(*age, channels.labels, ages)
        held = chain.from_iterable(each.slices() for each in [active, blocked, waiting, stuck, *holders])
        piped = chain.from_iterable(each.slices() for each in self._of_pipelines())
        for lines in chain(topics.render(), channels.render(), aged, latencies.slices(), held, piped):
            yield lines.encode()
            await asyncio.sleep(0)

    def _of_pipelines(self) -> Iterator[Family]:
        for name, kind, text, samples in self._pipelines.samples():
            family = Family(name, kind, text)
            for labels, number in samples:
                family.add(number, labels)
            yield family

    def _of_schedules(self) -> Iterator[Family]:
        schedules = self._broker.schedules.all()
        for name, kind, text, count in SCHEDULE_METRICS if schedules else ():
            family = Family(f"lapwing_schedule_{name}", kind, text)
            for schedule in schedules:
                family.add(count(schedule), {"schedule": schedule.definition.name})
            yield family

    def _age(self, topic: str, channel: str) -> float:
        try:
            known = self._broker.topics[topic].channels[channel]
            if isinstance(known, ColdChannel) and not known.depth:
                return 0.0
            return stats.oldest_age(self._broker.existing_channel(topic, channel), now=self._now()) / _SECOND
        except LogError:
            return nan  # that part of the log is quarantined: nobody knows how old it is

    def _process(self) -> str:
        broker = self._broker
        single: tuple[tuple[str, str, str, float], ...] = (
            ("healthy", "gauge", "1 while nsqd is healthy, as /ping answers.", int(broker.health is None)),
            ("start_time_seconds", "gauge", "When the broker was started.", self._started / _SECOND),
            ("topics", "gauge", "Topics.", len(broker.topics)),
            ("channels", "gauge", "Channels.", sum(len(topic.channels) for topic in broker.topics.values())),
            ("clients", "gauge", "TCP connections.", len(broker.clients)),
            ("producers", "gauge", "TCP connections that have published.", len(stats.producers(broker))),
            ("gc_pause_max_seconds", "gauge", "Longest of the last collections.", self._pauses.percentile(1.0) / 1e6),
        )
        metrics = [prometheus.single(f"lapwing_{name}", kind, text, number) for name, kind, text, number in single]
        fsync = Family("lapwing_fsync_seconds", "histogram", "How long an fsync of a log took.")
        for suffix, labels, number in self._times.samples():
            fsync.add(number, labels, suffix)
        free = memory.free_disk(broker.options.data_path or ".")
        if free is not None:
            metrics.append(prometheus.single("lapwing_disk_free_bytes", "gauge", "Free space for the data path.", free))
        found = self._remote()
        if found is not None:
            for name, kind, text, key, scale in REMOTE_METRICS:
                metrics.append(prometheus.single(f"lapwing_remote_{name}", kind, text, float(found[key]) * scale))
            taken = int(found["problem"] is None and found["fenced"] is None)
            metrics.append(prometheus.single("lapwing_remote_up", "gauge", "1 while it takes records.", taken))
        own: tuple[tuple[str, str, str, float], ...] = (
            ("process_cpu_seconds_total", "counter", "Processor time used.", memory.cpu_seconds()),
            ("process_resident_memory_bytes", "gauge", "Physical memory held.", memory.resident()),
            ("process_open_fds", "gauge", "Open file descriptors.", memory.open_files()),
            ("process_max_fds", "gauge", "File descriptors that may be open.", memory.most_files()),
            ("process_start_time_seconds", "gauge", "When the process was started.", self._started / _SECOND),
        )
        scheduled = chain.from_iterable(each.slices() for each in self._of_schedules())
        return "".join([*metrics, *fsync.slices(), *scheduled, *(prometheus.single(*each) for each in own)])


def _gauge(name: str, text: str) -> Family:
    return Family(f"lapwing_channel_{name}", "gauge", text)


def _count_holders(topic: TopicStats, families: list[Family]) -> None:
    """Count the named consumers that hold something: others may be gone for good."""
    for channel in topic.channels:
        for holder in channel.holders:
            if holder.in_flight_count:
                labels = {"topic": topic.name, "channel": channel.name, "consumer": holder.name}
                for family, (_, _, count) in zip(families, HOLDER_GAUGES, strict=True):
                    family.add(count(holder), labels)
