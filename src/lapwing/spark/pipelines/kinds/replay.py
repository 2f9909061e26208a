"""Messages published again, out of an archive or a log.

The plan, which sequences of which logs, is made once and kept under the replay's id. It is worked off in chunks, and
every chunk is published under (id, number of the chunk), which a broker does once only. So a replay may be cancelled,
killed and started again at will: it continues where it was, and nothing is published twice.
"""

import hashlib
import json
import logging
import threading
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from lapwing.errors import ConfigError, LapwingError
from lapwing.spark.failures import compiling, complaint
from lapwing.spark.files import LocalFiles
from lapwing.spark.options import source_options
from lapwing.spark.pipelines.kinds import archive, publish
from lapwing.spark.pipelines.kinds.messages import read_options, sink_access
from lapwing.spark.pipelines.run import progress as records
from lapwing.spark.pipelines.run.context import RunContext, persisted
from lapwing.spark.pipelines.run.progress import PipelineProgress
from lapwing.spark.pipelines.settings.kind_settings import ReplaySettings
from lapwing.spark.session import activate
from lapwing.spark.source.offsets import each_log
from lapwing.spark.source.survey import survey
from lapwing.spark.tables.delta import archive_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_SHOWN: Final = 5  # messages that a dry run shows


@dataclass(frozen=True)
class ReplayRange:
    """Sequences [start, stop) of one log, of which `count` messages are wanted."""

    topic: str
    node: int
    log_id: str
    start: int
    stop: int
    count: int


@dataclass(frozen=True)
class ReplayPlan:
    """The chunks of a replay, and its progress."""

    id: str
    settings: dict[str, Any]  # those that must not change
    brokers: tuple[str, ...]  # published at these, in this order
    chunk: int
    stretches: tuple[ReplayRange, ...]
    done: int = 0  # chunks
    sent: int = 0  # messages of these chunks

    def chunks(self) -> list[ReplayRange]:
        """Return the stretches in pieces of at most `chunk` sequences, in order."""
        return [
            replace(each, start=start, stop=min(start + self.chunk, each.stop), count=0)
            for each in self.stretches
            for start in range(each.start, each.stop, self.chunk)
        ]

    @property
    def count(self) -> int:
        return sum(each.count for each in self.stretches)


class ReplayJob:
    """A replay that runs in a thread of its own."""

    def __init__(self, settings: ReplaySettings, context: RunContext, progress: PipelineProgress) -> None:
        self._settings = settings
        self._context = context
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._check()
        self._plan = make_plan(settings, context)
        left = self._plan.count - self._plan.sent
        self.progress = replace(progress, state="running", total=left, lag=left)
        if settings.dry_run:
            self._say()
            self.progress = replace(self.progress, state="finished", lag=None)
            return
        self._thread = threading.Thread(target=self._run, name="replay", daemon=True)
        self._thread.start()

    def look(self) -> PipelineProgress:
        """Return how it is doing now."""
        with self._lock:
            if not self.progress.ended:
                self.progress = replace(self.progress, updated_ms=records.now_ms())
            return self.progress

    def stop(self, *, at_once: bool) -> None:
        """End after the current chunk; there is no gain in ending sooner, as a chunk is published whole or not."""
        if self._stopping.is_set() or self.progress.ended:
            return
        self._stopping.set()
        self._tell(state="stopping")
        if at_once:
            self._thread.join(60.0)

    def _check(self) -> None:
        """Compile the filter and the body before anything is read; raises `ConfigError`."""
        rows = shaped(self._context.spark.createDataFrame([], archive.SCHEMA), self._settings)
        publish.messages(rows, self._settings.to or "none", self._settings.name)

    def _say(self) -> None:
        print(f"replay {self._plan.id}: {self._plan.count:,} messages to {self._settings.to or 'nowhere'}")
        for each in self._plan.stretches:
            print(f"  {each.topic} node {each.node}: {each.count:,} of sequences {each.start:,} .. {each.stop - 1:,}")
        if self._plan.stretches:
            rows = shaped(select(self._settings, self._context, self._plan.chunks()[0]), self._settings)
            for row in rows.limit(_SHOWN).collect():
                print(f"  {bytes(row.body)[:120].decode('utf-8', 'backslashreplace')}")

    def _run(self) -> None:
        try:
            activate(self._context.spark)
            self._work()
        except Exception as error:
            text = str(error) if isinstance(error, LapwingError) else complaint(error)
            self._tell(state="failed", error=text)

    def _work(self) -> None:
        chunks = self._plan.chunks()
        started = time.monotonic()
        sent = 0
        for number in range(self._plan.done, len(chunks)):
            if self._stopping.is_set():
                break
            began = time.monotonic()
            count = self._publish(chunks[number], number)
            self._plan = replace(self._plan, done=number + 1, sent=self._plan.sent + count)
            keep_plan(self._plan, self._context)
            sent += count
            elapsed = time.monotonic() - started
            self._tell(
                batch_id=number, batch_ms=round((time.monotonic() - began) * 1000), worked_ms=round(elapsed * 1000),
                rows_in=self.progress.rows_in + count, rows_out=(self.progress.rows_out or 0) + count,
                lag=max((self.progress.lag or 0) - count, 0), input_rate=round(sent / max(elapsed, 0.001), 1),
                processed_rate=round(count / max(time.monotonic() - began, 0.001), 1),
            )  # fmt: skip
            if self._settings.rate:
                self._stopping.wait(max(sent / self._settings.rate - (time.monotonic() - started), 0))
        done = self._plan.done == len(chunks)
        self._tell(state="finished" if done else "stopped", input_rate=0.0, processed_rate=0.0)

    def _publish(self, chunk: ReplayRange, number: int) -> int:
        """Publish one chunk, once; how many messages it had."""
        settings = self._settings
        chosen = shaped(select(settings, self._context, chunk), settings)
        with persisted(publish.messages(chosen, settings.to, settings.name)) as rows:
            if count := rows.count():
                sink = sink_access(settings, self._plan.brokers)
                publish.once(rows, sink, f"replay-{self._plan.id}", number)
            return count

    def _tell(self, **news: Any) -> None:
        with self._lock:
            self.progress = replace(self.progress, updated_ms=records.now_ms(), **news)


def shaped(rows: "DataFrame", settings: ReplaySettings) -> "DataFrame":
    """Return the messages that pass the filter, as they will be published; raises `ConfigError`."""
    rows = rows.withColumn("text", F.col("body").cast("string"))
    with compiling(f"{settings.name}: where"):
        wanted = rows.where(settings.where) if settings.where else rows
    with compiling(f"{settings.name}: select"):
        body = F.expr(settings.select or "body").cast("binary")
        found = wanted.select(body.alias("body"), "topic", "node", "sequence", "headers")
    headers = F.coalesce("headers", F.expr("cast(map() as map<string,string>)"))
    if settings.origin:
        origin = F.create_map(F.lit("origin"), F.concat_ws("/", "topic", "node", "sequence"))
        headers = F.map_concat(F.map_filter(headers, lambda key, _: key != "origin"), origin)
    # by sequence within one task, so that messages keep their order
    ordered = found.coalesce(1).sortWithinPartitions("topic", "node", "sequence")
    return ordered.where("body is not null and octet_length(body) > 0").select(
        "body", F.to_json(headers).alias("headers"), F.lit(settings.to or "none").alias("topic")
    )


def select(settings: ReplaySettings, context: RunContext, part: ReplayRange | None) -> "DataFrame":
    """Return the messages in question, or those of one stretch: columns of the archive."""
    if settings.archive:
        rows = archive.read(context.spark, settings.archive).where(F.col("topic").isin(*settings.topics))
        if part is not None:
            same_log = (F.col("topic") == part.topic) & (F.col("node") == part.node) & (F.col("log_id") == part.log_id)
            rows = rows.where(same_log & F.col("sequence").between(part.start, part.stop - 1))
    else:
        rows = _from_log(settings, context, part)
    if settings.since is not None:
        since = F.timestamp_millis(F.lit(settings.since))
        rows = rows.where(F.col("timestamp") >= since)
        if settings.archive:
            rows = rows.where(F.col("date") >= F.to_date(since))
    if settings.until is not None:
        until = F.timestamp_millis(F.lit(settings.until))
        rows = rows.where(F.col("timestamp") < until)
        if settings.archive:
            rows = rows.where(F.col("date") <= F.to_date(until))
    if settings.sequences is not None:
        low, high = settings.sequences
        rows = rows.where((F.col("sequence") >= low) & (F.col("sequence") < high))
    return rows


def _from_log(settings: ReplaySettings, context: RunContext, part: ReplayRange | None) -> "DataFrame":
    options = {**read_options(settings), "includeHeaders": "true"}
    if part is None:
        options["topic"] = ",".join(settings.topics)
        if settings.since is not None:
            options["startingTimestamp"] = str(settings.since)
            options["startingOffsetsByTimestampStrategy"] = "latest"
        if settings.until is not None:
            options["endingTimestamp"] = str(settings.until)
    else:
        options["topic"] = part.topic
        others = {str(node): -1 for topic, node in _logs(settings) if topic == part.topic}
        begin = {"log_id": part.log_id, "sequence": part.start}  # a log that was created again has other messages there
        options["startingOffsets"] = json.dumps({part.topic: {**others, str(part.node): begin}})
        options["endingOffsets"] = json.dumps({part.topic: {**others, str(part.node): part.stop}})
    rows = context.spark.read.format("lapwing").options(**options).load()
    return rows.withColumn("log_id", F.lit(""))


def _logs(settings: ReplaySettings) -> dict[tuple[str, int], str]:
    """Return the logs of the topics in question: their ids, by topic and node."""
    found = survey(source_options({**read_options(settings), "topic": ",".join(settings.topics)}, streaming=False))
    return {(topic, node): held.log_id for topic, node, held in each_log(found.holdings)}


def make_plan(settings: ReplaySettings, context: RunContext) -> ReplayPlan:
    """Return the plan of this replay: the one that was kept, or a new one. Raises `ConfigError`."""
    said = _lasting(settings)
    name = settings.id or hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]
    kept = load_plan(name, context)
    if kept is not None:
        if kept.settings != said:
            changed = sorted(key for key in said if said[key] != kept.settings.get(key))
            raise ConfigError(
                f"{settings.name}: the replay {name} was begun with another {', '.join(changed)}; "
                "change it back, or give this one an id of its own"
            )
        if kept.done == len(kept.chunks()):
            logger.warning("the replay %s is done; nothing is published again (another id would)", name)
        elif kept.done:
            logger.info("the replay %s continues at chunk %s of %s", name, kept.done, len(kept.chunks()))
        return kept
    try:
        if settings.archive:
            archive_table(settings.archive)
        logs = {} if settings.archive else _logs(settings)
    except LapwingError as error:
        raise ConfigError(f"{settings.name}: {error}") from error
    rows = select(settings, context, None).withColumn("text", F.col("body").cast("string"))
    if settings.where:
        rows = rows.where(settings.where)
    grouped = rows.groupBy("topic", "node", "log_id").agg(
        F.min("sequence").alias("start"), F.max("sequence").alias("last"), F.count("*").alias("count")
    )
    try:
        found = grouped.orderBy("topic", "node", "start").collect()
    except PySparkException as error:  # a topic that no broker has, a filter that fails on a message
        raise ConfigError(f"{settings.name}: {complaint(error)}") from error
    stretches = tuple(
        ReplayRange(
            row["topic"],
            row["node"],
            logs.get((row["topic"], row["node"]), row["log_id"]),
            row["start"],
            row["last"] + 1,
            row["count"],
        )
        for row in found
    )
    plan = ReplayPlan(name, said, context.brokers, chunk_size(settings, stretches), stretches)
    if not settings.dry_run:
        keep_plan(plan, context)
    return plan


def chunk_size(settings: ReplaySettings, stretches: tuple[ReplayRange, ...]) -> int:
    """Sequences of a chunk: as many as hold the messages of one chunk, or of one second, on average."""
    messages = min(settings.chunk, settings.rate) if settings.rate else settings.chunk
    wanted = sum(each.count for each in stretches)
    there = sum(each.stop - each.start for each in stretches)
    return max(messages * there // max(wanted, 1), 1)


_FREE: Final = ("name", "nsqd", "lookupd", "retry", "options", "id", "rate", "chunk", "dry_run")


def _lasting(settings: ReplaySettings) -> dict[str, Any]:
    """Return what makes it this replay: all but how it is carried out."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(settings)))
    return {key: value for key, value in found.items() if key not in _FREE}


def keep_plan(plan: ReplayPlan, context: RunContext) -> None:
    """Write the plan, and how far it has come, where the next run finds it."""
    LocalFiles(context.paths.home.path).write(f"replay-{plan.id}.json", json.dumps(asdict(plan)).encode())


def load_plan(name: str, context: RunContext) -> ReplayPlan | None:
    """Return the plan that was kept under this id, if one was."""
    try:
        found = json.loads(LocalFiles(context.paths.home.path).read(f"replay-{name}.json"))
    except FileNotFoundError:
        return None
    stretches = tuple(ReplayRange(**each) for each in found.pop("stretches"))
    return ReplayPlan(stretches=stretches, **{**found, "brokers": tuple(found["brokers"])})
