"""Samples of topics and channels, for charts of days: nsqadmin records them in a small topic of its own.

One message every five minutes holds the figures of that time. Of several nsqadmins the first records a step; all read
what any has recorded, from every nsqd, so charts outlive a restart of nsqadmin and the move to another machine.
"""

import asyncio
import json
import logging
import math
import random
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lapwing import names
from lapwing.admin.poller import Poller
from lapwing.client.cluster import Json, Node
from lapwing.client.cluster_view import ClusterView, finished
from lapwing.client.http import CallFailed, DaemonHttp
from lapwing.client.log_reader import LogPage, NoLog, TopicLogs

log = logging.getLogger("nsqadmin")

TOPIC: Final = "_lapwing_samples"
CHANNEL: Final = "read"  # stands at the end, so that nsqd deletes what is older than the topic's retention
KEPT: Final = 7 * 86_400  # seconds
EVERY: Final = 300  # seconds of a step
BUSIEST: Final = 100  # topics and channels in a sample
PAGE: Final = 200  # messages read at once
GAP: Final = 2.5  # steps without a sample, after which a line is broken
SECOND: Final = 1_000_000_000

TOPIC_FIELDS: Final = ("in", "waiting", "backlog")
CHANNEL_FIELDS: Final = (
    "in", "out", "depth", "in_flight", "deferred", "requeued", "timed_out", "p50", "p95", "p99"
)  # fmt: skip
SPANS: Final = {"6h": 21_600, "24h": 86_400, "7d": 604_800}  # of charts, in seconds

Key = tuple[str, str]  # topic and channel; an empty channel is the topic itself
Rows = dict[Key, list[float | None]]
Counts = dict[tuple[str, str, str], tuple[int, ...]]  # by topic, channel and node


def fields_of(key: Key) -> tuple[str, ...]:
    """Return the names of the figures in a row."""
    return CHANNEL_FIELDS if key[1] else TOPIC_FIELDS


class Samples:
    """The samples of the last days, by topic and channel: pure."""

    def __init__(self) -> None:
        self._rows: dict[Key, dict[int, array[float]]] = {}
        self.newest = 0  # the last step that was recorded
        self.version = 0  # changes with each sample

    def add(self, step: int, rows: Mapping[Key, Iterable[float | None]]) -> None:
        """Add the rows of a step; of a step that is recorded twice the last one counts."""
        for key, figures in rows.items():
            row = array("f", (math.nan if figure is None else figure for figure in figures))
            if len(row) == len(fields_of(key)):
                self._rows.setdefault(key, {})[step] = row
        self.newest = max(self.newest, step)
        self.version += 1

    def forget(self, *, before: int) -> None:
        """Drop the steps before that one."""
        for key, rows in list(self._rows.items()):
            for step in [step for step in rows if step < before]:
                del rows[step]
            if not rows:
                del self._rows[key]

    def points(self, key: Key, name: str, *, since: float) -> list[tuple[float, float | None]]:
        """Return the values of a figure by time, oldest first; None where they are unknown."""
        index = fields_of(key).index(name)
        found: list[tuple[float, float | None]] = []
        before = None
        for step, row in sorted(self._rows.get(key, {}).items()):
            if step * EVERY < since:
                continue
            if before is not None and step - before > GAP:
                found.append(((before + 1) * EVERY, None))
            value = row[index]
            found.append((step * EVERY, None if math.isnan(value) else round(value, 6)))
            before = step
        return found

    def has(self, key: Key) -> bool:
        """Return whether there is any sample of that topic or channel."""
        return key in self._rows


# ---- messages ----


def encode(step: int, rows: Rows) -> bytes:
    """Return the message of a step."""
    listed = [[*key, *(None if figure is None else round(figure, 6) for figure in row)] for key, row in rows.items()]
    return json.dumps({"step": step, "rows": listed}, separators=(",", ":")).encode()


def decode(body: bytes) -> tuple[int, Rows] | None:
    """Return the step and rows of a message; None if it is none of ours."""
    try:
        fields = json.loads(body)
        rows: Rows = {}
        for topic, channel, *figures in fields["rows"]:
            if not (names.valid(topic) and isinstance(channel, str)):
                return None
            rows[topic, channel] = [None if figure is None else float(figure) for figure in figures]
        return int(fields["step"]), rows
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


# ---- figures ----


@dataclass(slots=True)
class Meter:
    """Turns counters into rates between two looks at the cluster: pure."""

    _counts: Counts = field(default_factory=dict)
    _at: float = 0.0

    def rows(self, view: ClusterView) -> Rows:
        """Return the rows since the last call, the busiest; none the first time, as no rate is known then."""
        before, seconds = self._counts, view.at - self._at
        first, self._counts, self._at = not self._at, {}, view.at
        rows: Rows = {}
        for name, topic in view.users_topics().items():
            arrived = sum(self._changes(before, (name, ""), topic, lambda part: (part["message_count"],))[:1])
            backlog = sum(channel["depth"] for channel in topic["channels"])
            rows[name, ""] = [arrived / max(seconds, 1.0), topic["depth"], backlog]
            for channel in topic["channels"]:
                key = name, channel["channel_name"]
                rates = [change / max(seconds, 1.0) for change in self._changes(before, key, channel, _counted)]
                levels = [channel["depth"], channel["in_flight_count"], channel["deferred_count"]]
                rows[key] = [*rates[:2], *levels, *rates[2:], *_latency(channel)]
        busiest = sorted(rows.items(), key=lambda item: -sum(filter(None, item[1][:3])))[:BUSIEST]
        return {} if first or seconds <= 0 else dict(busiest)

    def _changes(self, before: Counts, key: Key, queue: Json, counted: Callable[[Json], tuple[int, ...]]) -> list[int]:
        """Return how much each counter has grown on all nodes; one that has shrunk began at 0 with a new nsqd."""
        grown: list[int] = []
        for part in queue["nodes"]:
            counts = self._counts[*key, part["node"]] = counted(part)
            then = before.get((*key, part["node"]), counts)
            changes = [now - past if counts[0] >= then[0] else now for now, past in zip(counts, then, strict=True)]
            grown = [sum(pair) for pair in zip(grown, changes, strict=True)] if grown else changes
        return [max(0, change) for change in grown] or [0] * 4


def _counted(channel: Json) -> tuple[int, ...]:
    return channel["message_count"], finished(channel), channel["requeue_count"], channel["timeout_count"]


def _latency(channel: Json) -> list[float | None]:
    """Return p50, p95 and p99 in seconds, where nsqd measures them. Over several nodes the high ones are the worst."""
    points = {point["quantile"]: point for point in channel["e2e_processing_latency"]["percentiles"] or ()}
    kinds = ((0.5, "average"), (0.95, "max"), (0.99, "max"))
    return [points[quantile][kind] / SECOND if quantile in points else None for quantile, kind in kinds]


# ---- the topic ----


class Recorder:
    """Reads the samples that any nsqadmin has recorded, and records those of the steps that no other has."""

    def __init__(
        self, http: DaemonHttp, poller: Poller, *, records: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self.samples = Samples()
        self._http = http
        self._logs = TopicLogs(http, TOPIC)
        self._poller = poller
        self._records = records
        self._clock = clock
        self._meter = Meter()
        self._read: dict[str, tuple[str, int]] = {}  # by contact of the nsqd: id of the log, next sequence

    async def run(self) -> None:
        """Read and record until cancelled."""
        while True:
            try:
                await self._poller.fresh()
                await self.turn()
            except Exception:  # a malformed answer must not stop the recording for good
                log.exception("samples could not be read or recorded")
            wait = EVERY - self._clock() % EVERY + random.uniform(0.1, 10.0) if self.samples.version else 10.0
            await asyncio.sleep(wait)

    async def turn(self) -> None:
        """Read what is new, and record the step that has just ended unless another nsqadmin has."""
        view, step = self._poller.cluster_view, int(self._clock() // EVERY)
        nodes = [state.node for state in view.reachable if state.lapwing]
        for node in nodes:
            try:
                await self._read_new(node)
            except (CallFailed, NoLog) as error:
                log.debug("no samples from %s: %s", node.name, error)
        self.samples.forget(before=step - KEPT // EVERY)
        rows = self._meter.rows(view)
        if not rows or not nodes or self.samples.newest >= step:
            return
        self.samples.add(step, rows)
        if self._records:
            try:
                await self._record(min(nodes, key=lambda node: node.name), encode(step, rows))
            except CallFailed as error:
                log.warning("a sample could not be recorded, and will be missing after a restart: %s", error)

    async def _read_new(self, node: Node) -> None:
        while True:
            page = await self._page(node)
            if page is None:
                return
            for message in page.messages:
                decoded = decode(message.body)
                if decoded is not None:
                    self.samples.add(*decoded)
            self._read[node.contact] = page.log_id, page.resume
            if page.resume >= page.next:
                return
            await asyncio.sleep(0)

    async def _page(self, node: Node) -> LogPage | None:
        """Return what follows the last page of the node's log; None without a log, or without anything new."""
        found = await self._logs.range_of(node)
        if found is None:
            return None
        log_id, begin = self._read.get(node.contact, ("", 0))
        if log_id != found.log_id:  # read for the first time, or created again
            return await self._logs.page_since(node, int((self._clock() - KEPT) * SECOND), limit=PAGE, headers=False)
        if begin >= found.next:
            return None
        return await self._logs.page(node, begin, limit=PAGE, log_id=log_id, headers=False)

    async def _record(self, node: Node, body: bytes) -> None:
        found = await self._logs.range_of(node)
        if found is None:
            await self._http.post(node.contact, "/topic/create", {"topic": TOPIC})
            await self._http.post(node.contact, "/channel/create", {"topic": TOPIC, "channel": CHANNEL})
            keep: Any = {"retention_age": f"{KEPT}s"}
            await self._http.call("PATCH", node.contact, "/topic/settings", {"topic": TOPIC}, document=keep)
        await self._http.post(node.contact, "/pub", {"topic": TOPIC}, body=body)
        found = await self._logs.range_of(node)
        if found is not None:
            place = {"topic": TOPIC, "channel": CHANNEL, "log_id": found.log_id, "sequence": str(found.next)}
            await self._http.post(node.contact, "/channel/commit", {**place, "create": "true"})
