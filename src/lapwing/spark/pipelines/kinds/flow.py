"""Message flow: rates, sizes, latency and failures per topic and channel, in windows.

A topic's log knows what was published, but only a broker knows what its channels deliver. So while this pipeline runs,
it reads every broker's `/stats` once a second and publishes what has changed since the last time into a topic of its
own on that same broker; the windows are a rollup of that topic. A second in which nobody looked is not made up: the
next sample covers it.
"""

import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from pyspark.sql import functions as F

from lapwing.spark.brokers.directory import Directory, ask_all
from lapwing.spark.brokers.http import BrokerAway, call
from lapwing.spark.options import BrokerAccess
from lapwing.spark.pipelines.kinds.messages import access, read_stream
from lapwing.spark.pipelines.kinds.parse import TIME
from lapwing.spark.pipelines.kinds.rollup import windows, write
from lapwing.spark.pipelines.run.context import PreparedQuery, RunContext
from lapwing.spark.pipelines.settings.kind_settings import OWN_TOPICS, FlowSettings
from lapwing.wire.nsq.commands import batch

logger = logging.getLogger(__name__)

SCHEMA: Final = (
    "at bigint, node int, topic string, channel string, seconds double, messages bigint, bytes bigint, "
    "delivered bigint, requeued bigint, timed_out bigint, depth bigint, in_flight bigint, deferred bigint, "
    "clients int, p50_ms double, p95_ms double, p99_ms double"
)

# per window, topic, channel (null: the topic itself) and node
VALUES: Final = {
    "messages": "sum(messages)",
    "bytes": "sum(bytes)",
    "delivered": "sum(delivered)",
    "requeued": "sum(requeued)",
    "timed_out": "sum(timed_out)",
    "failure_ratio": "if(sum(delivered) is null, null, "  # a topic itself delivers nothing
    "round(least(sum(requeued + timed_out) / greatest(sum(delivered), 1), 1.0), 4))",
    "message_bytes": "round(sum(bytes) / greatest(sum(messages), 1), 1)",
    "depth": "max(depth)",
    "in_flight": "max(in_flight)",
    "deferred": "max(deferred)",
    "clients": "max(clients)",
    "p50_ms": "percentile_approx(p50_ms, 0.5)",
    "p95_ms": "max(p95_ms)",
    "p99_ms": "max(p99_ms)",
}


def build(settings: FlowSettings, context: RunContext) -> PreparedQuery:
    """Return the query that makes windows of samples, and the thread that takes them."""
    found = access(settings)
    sampler = Sampler(found, settings.topics[0], settings.every)
    sampler.sample()  # so that the topic is there when the query starts
    frame = read_stream(context.spark, settings)
    rows = frame.select(F.from_json(F.col("body").cast("string"), SCHEMA).alias("_value")).select("_value.*")
    timed = rows.where("topic is not null").withColumn(TIME, F.timestamp_millis("at"))
    grouped = windows(
        timed, VALUES, window=settings.window, slide=settings.window, watermark=settings.watermark,
        by=("topic", "channel", "node"), name=settings.name,
    )  # fmt: skip
    rated = grouped.withColumn("rate", F.round(F.coalesce("delivered", "messages") / settings.window, 1))
    channel = settings.channel or settings.name
    passed_over = partial(pass_over, settings.to, channel, context.brokers, found)
    built = write(rated, settings, context, published=passed_over)
    close = built.close
    sampler.start()

    def end() -> None:
        sampler.stop()
        close()

    built.close = end
    return built


def pass_over(topic: str, channel: str, addresses: Sequence[str], found: BrokerAccess) -> None:
    """Move a channel to the end of the windows' topic: they are there to be looked up, and nobody has to consume them.

    How long they stay is then up to the broker's retention; without any channel they would stay for ever.
    """

    def move(address: str) -> int:
        answer = call(address, found, "GET", "/log/offsets", {"topic": topic})
        for held in answer["topics"]:
            place = {"topic": topic, "channel": channel, "log_id": held["log_id"], "sequence": held["next"]}
            call(address, found, "POST", "/channel/commit", {**place, "create": "true"})
        return len(answer["topics"])

    for address, answer in ask_all(addresses, move):
        if isinstance(answer, Exception):
            logger.info("%s: the channel %s/%s stays behind: %s", address, topic, channel, answer)


@dataclass
class Counters:
    """The counters of a broker when they were last read, so that only changes are counted."""

    before: dict[tuple[str, str | None], tuple[int, dict[str, int]]] = field(default_factory=dict)
    read_at: float = 0.0

    def samples(self, stats: dict[str, Any], node: int, *, now: float) -> Iterator[dict[str, Any]]:
        """Yield what has changed, per topic and per channel; nothing the first time, as nothing is known then.

        Where fewer messages have arrived than before, the broker was restarted: all that it counted is new.
        """
        first = not self.read_at
        seconds = now - self.read_at
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
                    about = {"at": int(now * 1000), "node": node, "seconds": round(seconds, 3)}
                    yield {**about, **sample, **changed}
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


class Sampler:
    """Reads the stats of all brokers again and again, and publishes what has changed."""

    def __init__(self, found: BrokerAccess, topic: str, every: float) -> None:
        self._access = found
        self._directory = Directory(found)
        self._topic = topic
        self._every = every
        self._counters: dict[str, Counters] = {}
        self._nodes: dict[str, int] = {}
        self._away: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow samples", daemon=True)

    def start(self) -> None:
        """Sample from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Sample no more."""
        self._over.set()
        self._thread.join(10.0)

    def _run(self) -> None:
        while not self._over.wait(self._every):
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

    def _sample(self, address: str) -> int:
        if address not in self._nodes:
            offsets = call(address, self._access, "GET", "/log/offsets", {"topic": self._topic})
            self._nodes[address] = offsets["node_id"]
            call(address, self._access, "POST", "/topic/create", {"topic": self._topic})
        stats = call(address, self._access, "GET", "/stats", {"format": "json", "include_clients": "false"})
        counters = self._counters.setdefault(address, Counters())
        samples = list(counters.samples(stats, self._nodes[address], now=time.time()))
        if samples:
            body = batch(json.dumps(sample, separators=(",", ":")).encode() for sample in samples)
            call(address, self._access, "POST", "/mpub", {"topic": self._topic, "binary": "true"}, body)
        return len(samples)
