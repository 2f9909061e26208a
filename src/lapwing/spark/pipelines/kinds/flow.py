"""Message flow: rates, sizes, latency and failures per topic and channel, in windows. Spark has no part in it.

A topic's log knows what was published, but only a broker knows what its channels deliver. So while this pipeline runs,
it reads every broker's `/stats` once a second, adds up what has changed since the last time, and publishes each window
at the broker that it is of. A second in which nobody looked is not made up: the next sample covers it.
"""

import json
import logging
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from statistics import median
from typing import Any, Final

from lapwing.errors import LapwingError
from lapwing.spark.brokers.directory import Directory, ask_all
from lapwing.spark.brokers.http import BrokerAway, call
from lapwing.spark.pipelines.kinds.messages import access
from lapwing.spark.pipelines.run.progress import PipelineProgress, now_ms
from lapwing.spark.pipelines.settings.kind_settings import OWN_TOPICS, FlowSettings
from lapwing.wire.nsq.commands import batch

logger = logging.getLogger(__name__)

_SUMS: Final = ("messages", "bytes", "delivered", "requeued", "timed_out")
_MOST: Final = ("depth", "in_flight", "deferred", "clients", "p95_ms", "p99_ms")


class FlowJob:
    """Samples the brokers and publishes windows, in a thread of its own, until it is stopped."""

    def __init__(self, settings: FlowSettings, progress: PipelineProgress, *, once: bool = False) -> None:
        """Begin to sample; with `once` only look at the brokers, as there is never anything to catch up with."""
        self._settings = settings
        self._access = access(settings)
        self._directory = Directory(self._access)
        self._brokers: dict[str, BrokerFlow] = {}
        self._away: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self.sample if once else self._run, name="flow", daemon=True)
        self.progress = replace(progress, state="running", rows_out=0)
        self._thread.start()

    def look(self) -> PipelineProgress:
        """Return how it is doing now."""
        if not self.progress.ended:
            ended = not self._thread.is_alive()
            sent = sum(broker.sent for broker in list(self._brokers.values()))
            asked = self._over.is_set()
            state = ("stopped" if asked else "finished") if ended else "stopping" if asked else "running"
            self.progress = replace(self.progress, state=state, rows_out=sent, updated_ms=now_ms())
        return self.progress

    def stop(self, *, at_once: bool) -> None:
        """End it; windows that are not over are lost."""
        self._over.set()
        if at_once:
            self._thread.join(10.0)

    def _run(self) -> None:
        while not self._over.wait(self._settings.every):
            self.sample()

    def sample(self) -> None:
        """Read and publish once; a broker that is away is read again the next time."""
        try:
            addresses = self._directory.find()
        except BrokerAway as error:
            self._missed("nsqlookupd", error)
            return
        for address, answer in ask_all(addresses, self._sample):
            if isinstance(answer, Exception):
                self._missed(address, answer)
            else:
                self._away.discard(address)

    def _missed(self, address: str, error: Exception) -> None:
        if address not in self._away:
            logger.warning("no samples from %s: %s", address, error)
        self._away.add(address)

    def _sample(self, address: str) -> None:
        flow = self._brokers.get(address)
        if flow is None:
            offsets = call(address, self._access, "GET", "/log/offsets", {"topic": self._settings.to})
            flow = self._brokers[address] = BrokerFlow(offsets["node_id"], self._settings.window)
        stats = call(address, self._access, "GET", "/stats", {"format": "json", "include_clients": "false"})
        flow.add(stats, now=time.time())
        flow.unsent += flow.finished(now=time.time())
        if flow.unsent:
            body = batch(json.dumps(row, separators=(",", ":")).encode() for row in flow.unsent)
            call(address, self._access, "POST", "/mpub", {"topic": self._settings.to, "binary": "true"}, body)
            flow.sent += len(flow.unsent)
            flow.unsent.clear()
            self._pass_over(address)

    def _pass_over(self, address: str) -> None:
        """Move a channel to the end of the windows: they are there to be looked up, and nobody has to consume them.

        How long they stay is then up to the broker's retention; without any channel they would stay for ever.
        """
        topic = self._settings.to
        try:
            for held in call(address, self._access, "GET", "/log/offsets", {"topic": topic})["topics"]:
                place = {"log_id": held["log_id"], "sequence": held["next"], "create": "true"}
                where = {"topic": topic, "channel": self._settings.name, **place}
                call(address, self._access, "POST", "/channel/commit", where)
        except LapwingError as error:
            logger.info("%s: the channel %s/%s stays behind: %s", address, topic, self._settings.name, error)


class BrokerFlow:
    """The windows of one broker that are not over."""

    def __init__(self, node: int, window: float) -> None:
        self.sent = 0
        self.unsent: list[dict[str, Any]] = []  # windows that are over
        self._node = node
        self._seconds = window
        self._counters = Counters()
        self._windows: dict[tuple[float, str, str | None], list[dict[str, Any]]] = {}

    def add(self, stats: dict[str, Any], *, now: float) -> None:
        """Add what has changed since the last time to the window of this moment."""
        begin = math.floor(now / self._seconds) * self._seconds
        for sample in self._counters.samples(stats, now=now):
            self._windows.setdefault((begin, sample["topic"], sample["channel"]), []).append(sample)

    def finished(self, *, now: float) -> list[dict[str, Any]]:
        """Return the windows that are over, each once."""
        over = [key for key in self._windows if key[0] + self._seconds <= now]
        over.sort(key=lambda key: (key[0], key[1], key[2] or ""))
        return [self._row(*key, self._windows.pop(key)) for key in over]

    def _row(self, begin: float, topic: str, channel: str | None, samples: list[dict[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {name: sum(each[name] for each in samples) for name in _SUMS if name in samples[0]}
        for name in _MOST:
            if values := [each[name] for each in samples if name in each]:
                found[name] = max(values)
        if values := [each["p50_ms"] for each in samples if "p50_ms" in each]:
            found["p50_ms"] = median(values)
        if "messages" in found:
            found["message_bytes"] = round(found["bytes"] / max(found["messages"], 1), 1)
        if "delivered" in found:
            failed = found["requeued"] + found["timed_out"]
            found["failure_ratio"] = round(min(failed / max(found["delivered"], 1), 1.0), 4)
        ends = {"window_start": _moment(begin), "window_end": _moment(begin + self._seconds), "topic": topic}
        rate = round(found.get("delivered", found.get("messages", 0)) / self._seconds, 1)
        return {**ends, **({"channel": channel} if channel else {}), "node": self._node, **found, "rate": rate}


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class Counters:
    """The counters of a broker when they were last read, so that only changes are counted."""

    before: dict[tuple[str, str | None], tuple[int, dict[str, int]]] = field(default_factory=dict)
    read_at: float = 0.0

    def samples(self, stats: dict[str, Any], *, now: float) -> Iterator[dict[str, Any]]:
        """Yield what has changed, per topic and per channel; nothing the first time, as nothing is known then.

        Where fewer messages have arrived than before, the broker was restarted: all that it counted is new.
        """
        first = not self.read_at
        self.read_at = now
        after = {}
        for topic in stats.get("topics") or ():
            name = topic["topic_name"]
            if name.startswith(OWN_TOPICS):
                continue
            for key, sample, arrived, counts in _readings(topic):
                after[key] = arrived, counts
                if first:
                    continue
                before, then = self.before.get(key, (0, {}))
                then = then if arrived >= before else {}
                changed = {count: max(value - then.get(count, 0), 0) for count, value in counts.items()}
                if any(changed.values()) or sample["depth"] or sample.get("in_flight"):
                    yield {**sample, **changed}
        self.before = after


def _readings(topic: dict[str, Any]) -> Iterator[tuple[tuple[str, str | None], dict[str, Any], int, dict[str, int]]]:
    """(key, how it stands, messages that have arrived, counters) of a topic and of each of its channels."""
    name = topic["topic_name"]
    stands: dict[str, Any] = {"topic": name, "channel": None, "depth": topic["depth"]}
    arrived = topic["message_count"]
    yield (name, None), stands, arrived, {"messages": arrived, "bytes": topic["message_bytes"]}
    for channel in topic["channels"]:
        stands = {
            "topic": name,
            "channel": channel["channel_name"],
            "depth": channel["depth"],
            "in_flight": channel["in_flight_count"],
            "deferred": channel["deferred_count"],
            "clients": channel["client_count"],
            **_latency(channel.get("e2e_processing_latency") or {}),
        }
        # `message_count` is what was put into the channel. All but what waits in it was delivered, and once more for
        # each that came back. Below zero when a restarted broker began with messages: only differences count
        arrived = channel["message_count"]
        delivered = arrived - channel["depth"] - channel["deferred_count"]
        counts = {
            "delivered": delivered + channel["requeue_count"] + channel["timeout_count"],
            "requeued": channel["requeue_count"],
            "timed_out": channel["timeout_count"],
        }
        yield (name, channel["channel_name"]), stands, arrived, counts


def _latency(told: dict[str, Any]) -> dict[str, float]:
    """Percentiles of the time from publish to finish, in ms, where nsqd has --e2e-processing-latency-percentile."""
    found = {}
    for entry in told.get("percentiles") or ():
        name = {0.5: "p50_ms", 0.95: "p95_ms", 0.99: "p99_ms"}.get(entry["quantile"])
        if name:
            found[name] = entry["value"] / 1e6
    return found
