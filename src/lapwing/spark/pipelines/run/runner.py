"""Runs pipelines: checks everything that can be checked, starts Spark once, and sees them through to their end."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from lapwing.errors import ConfigError, LapwingError
from lapwing.spark import _pyspark_4_1 as pyspark_41
from lapwing.spark.failures import analysis, complaint
from lapwing.spark.files import check_writable, is_local, open_files
from lapwing.spark.pipelines.kinds.messages import access, brokers
from lapwing.spark.pipelines.run import progress as records
from lapwing.spark.pipelines.run.checkpoint import Checkpoint
from lapwing.spark.pipelines.run.context import PreparedQuery, RunContext, paths_of
from lapwing.spark.pipelines.run.home import PipelineLock
from lapwing.spark.pipelines.run.progress import PipelineProgress, ProgressReporter
from lapwing.spark.pipelines.settings.kind_settings import ReplaySettings, StreamSettings
from lapwing.spark.pipelines.settings.spec import PipelineSpec
from lapwing.spark.session import activate, local_session, session_builder, warehouse
from lapwing.spark.source.losses import ADVICE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lapwing.spark.pipelines.kinds.replay import ReplayJob

logger = logging.getLogger(__name__)

SPARK_LOG: Final = "spark.log"  # in the folder of the first pipeline of a run
DATA: Final = Path("lapwing-data/pipelines")  # where pipelines keep checkpoints and status, by default

_LOOK_SECONDS: Final = 0.25
_STOPPING_SECONDS: Final = 0.02  # the pause between two batches is short
_PATIENT_BATCHES: Final = 2
_REPORT_SECONDS: Final = 1.0
_OTHERS_SECONDS: Final = 60.0
_NO_WORKER: Final = "Python worker failed to connect back"  # Spark waits 10 s for one to start, which is fixed
_STARTS: Final = 5  # of a query whose workers do not start in time: the machine is busy, and nothing else is wrong
_GONE: Final = "Spark's Java process has ended (killed, or short of memory?); start it again, it continues"

# what every session that runs pipelines has
_TRIES: Final = 4  # of a task
CONF: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.scheduler.mode": "FAIR",  # a large batch of one pipeline does not hold up the others
}
# what every query of a pipeline is started with
QUERY_CONF: Final = {
    "spark.sql.session.timeZone": "UTC",
    # up to so many partitions are written at once; without it Spark sorts every batch first
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    "spark.sql.streaming.noDataProgressEventInterval": "2000",
    # state of queries that have one is on disk: keys may be many and memory is not
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # smaller than Spark's old default, and with bounds by which readers can pass over files
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


@dataclass
class RunRequest:
    """A run as it was asked for."""

    data: Path
    once: bool = False
    checkpoint: str = ""
    master: str = "local[*]"
    conf: Mapping[str, str] = field(default_factory=dict)


Show = Callable[[PipelineProgress], None]
Job: TypeAlias = "StreamJob | ReplayJob"


class StreamJob:
    """A pipeline that is a streaming query."""

    def __init__(
        self, query: "StreamingQuery", prepared: PreparedQuery, context: RunContext, progress: PipelineProgress
    ) -> None:
        self._query = query
        self._prepared = prepared
        self._context = context
        self._stop_after: int | None = None
        self.progress = replace(progress, state="running")

    def look(self) -> PipelineProgress:
        """Return how it is doing now."""
        if self.progress.ended:
            return self.progress
        active = self._query.isActive
        latest = self._query.lastProgress
        if latest is not None:
            self._hear(_as_mapping(latest))
        self.progress = replace(
            self.progress, rows_out=self._context.rows_out, rejected=self._context.rejected, updated_ms=records.now_ms()
        )
        if not active:
            self._end()
        elif self._stop_after is not None:
            # best in the pause between two batches; without one, after the batch and at the risk of cutting the next
            between = not self._query.status["isTriggerActive"]
            if between or self.progress.batch_id > self._stop_after + _PATIENT_BATCHES:
                self._query.stop()
        return self.progress

    def _hear(self, latest: Mapping[str, Any]) -> None:
        """Take in Spark's reports, also of batches that came and went between two looks."""
        if int(latest["batchId"]) > self.progress.batch_id + 1:
            for each in map(_as_mapping, self._query.recentProgress):
                if self.progress.batch_id < int(each["batchId"]) < int(latest["batchId"]):
                    self.progress = records.from_spark(self.progress, each)
        self.progress = records.from_spark(self.progress, latest)

    def replaces(self, job: "StreamJob") -> None:
        """Count from where a job of the same pipeline has ended."""
        before = job.progress
        self._context.rows_out, self._context.rejected = before.rows_out, before.rejected
        self.progress = replace(
            self.progress, rows_in=before.rows_in, late=before.late, worked_ms=before.worked_ms, topics=before.topics
        )

    def stop(self, *, at_once: bool) -> None:
        """End it, after its batch or at once."""
        if self._stop_after is None and not self.progress.ended:
            self._stop_after = self.progress.batch_id
            self.progress = replace(self.progress, state="stopping")
        if at_once:
            self._query.stop()

    def _end(self) -> None:
        error = self._query.exception()
        state = "failed" if error is not None else "finished" if self._stop_after is None else "stopped"
        text = self._complaint(error) if error is not None else ""
        try:
            if error is None:
                self._prepared.finish()
        except LapwingError as failure:
            state, text = "failed", str(failure)
        lag = None if state == "failed" else self.progress.lag  # messages come, and nobody counts them
        self.progress = replace(self.progress, state=state, error=text, lag=lag, input_rate=0.0, processed_rate=0.0)

    def _complaint(self, error: BaseException) -> str:
        """Return one line, which names the command to continue with where messages were lost."""
        home = self._context.paths.home.path
        data = "" if home.parent == DATA.absolute() else f" --data {home.parent}"
        resume = f" (`lapwing pipeline resume {home.name} --accept-loss{data}` continues from here)"
        return complaint(error).replace(ADVICE, resume)


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else json.loads(value.json)


class StoppedEarly(Exception):
    """The pipelines were asked to stop before Spark was there."""


class PipelineRun:
    """Some pipelines in one Spark session."""

    def __init__(self, specs: list[PipelineSpec], wanted: RunRequest) -> None:
        if len({spec.name for spec in specs}) != len(specs):
            raise ConfigError("two pipelines have the same name")
        if wanted.checkpoint and len(specs) > 1:
            raise ConfigError("--checkpoint is for one pipeline; run them one by one, or leave it out")
        self._specs = specs
        self._wanted = wanted
        self._paths = {spec.name: paths_of(spec.settings, wanted.data, wanted.checkpoint) for spec in specs}
        self._brokers: dict[str, tuple[str, ...]] = {}
        self._locks: dict[str, PipelineLock] = {}
        self._held = ExitStack()  # released at the end
        self._asked = threading.Event()
        self._at_once = threading.Event()
        self._reporters: dict[str, ProgressReporter] = {}
        self.jobs: list[Job] = []

    def check(self) -> None:
        """Find what is wrong before anything starts, and keep others from running the same; raises `ConfigError`."""
        for spec in self._specs:
            if isinstance(spec.settings, StreamSettings) and not pyspark_41.HAS_STREAMS:
                raise ConfigError(f"{spec.name}: {pyspark_41.NO_STREAMS}")
            paths = self._paths[spec.name]
            check_writable(str(paths.home.path))
            if paths.out:
                check_writable(paths.out)
            check_writable(paths.checkpoint)
            if is_local(paths.checkpoint) and isinstance(spec.settings, StreamSettings):
                Checkpoint(open_files(paths.checkpoint)).check(spec.settings)
            try:
                self._brokers[spec.name] = brokers(spec.settings)
            except ConfigError as error:
                raise ConfigError(spec.located(str(error))) from error
        with ExitStack() as stack:
            for spec in self._specs:
                lock = self._paths[spec.name].home.enter()
                stack.callback(lock.leave)
                self._locks[spec.name] = lock
            self._held = stack.pop_all()

    def ask_to_stop(self) -> None:
        """Stop after the current batches; asked a second time, at once. May be called by a signal handler."""
        if self._asked.is_set():
            self._at_once.set()
        self._asked.set()

    def session(self) -> "SparkSession":
        """Return the session for them, started now. The brokers are informed meanwhile that the pipelines start.

        Raises `StoppedEarly` when a signal has ended the start.
        """
        with self._announced():
            try:
                return self._session()
            except (LapwingError, OSError, KeyboardInterrupt) as error:  # Java got the signal, or Spark's own handler
                if self._asked.is_set() or isinstance(error, KeyboardInterrupt):
                    raise StoppedEarly from error
                raise

    @contextmanager
    def _announced(self) -> Iterator[None]:
        """Report every second that the pipelines start: Spark takes some 20 s, and their first queries a few more."""
        done = threading.Event()
        starting = [spec for spec in self._specs if spec.name in self._brokers]  # none for a preview

        def announce() -> None:
            while not done.is_set():
                for spec in starting:
                    self._reporter(spec).send(_beginning(spec, self._paths[spec.name].out))
                done.wait(_REPORT_SECONDS)

        thread = threading.Thread(target=announce, name="announce", daemon=True)
        thread.start()
        failed: dict[str, Any] = {}
        try:
            yield
        except StoppedEarly:
            failed = {"state": "stopped"}
            raise
        except LapwingError as error:
            failed = {"state": "failed", "error": str(error)}
            raise
        finally:
            done.set()
            thread.join()
            for spec in starting if failed else ():
                self._reporter(spec).send(replace(_beginning(spec, self._paths[spec.name].out), **failed))
                self._reporter(spec).close()

    def _reporter(self, spec: PipelineSpec) -> ProgressReporter:
        if spec.name not in self._reporters:
            self._reporters[spec.name] = ProgressReporter(self._brokers[spec.name], access(spec.settings))
        return self._reporters[spec.name]

    def _session(self) -> "SparkSession":
        jars = [jar for spec in self._specs for jar in getattr(spec.settings, "jars", ())]
        log = self._paths[self._specs[0].name].home.path / SPARK_LOG if self._locks else None  # none for a preview
        return start_session(self._wanted.master, self._wanted.conf, jars, log)

    def preview(self, spark: "SparkSession") -> Iterator[str]:
        """Yield lines that show what the pipelines would do; nothing is written. Raises `LapwingError`."""
        from pyspark.errors import PySparkException

        from lapwing.spark.pipelines.run.preview import preview

        for spec in self._specs:
            try:
                self._brokers[spec.name] = brokers(spec.settings)
                context = replace(self._context_of(spark, spec), dry_run=True)
                yield from preview(spec, context)
            except ConfigError as error:
                raise ConfigError(spec.located(str(error))) from error
            except (Py4JError, PySparkException) as error:
                raise LapwingError(f"{spec.name}: {complaint(error)}") from error

    def run(self, spark: "SparkSession", show: Show) -> bool:
        """See them through to their end; return whether all ended well. `show` is called at every change."""
        with self._held as stack:
            for spec in self._specs:
                stack.callback(_hold(spark, str(self._paths[spec.name].home.path / "spark.lock")))
            for spec in self._specs:
                stack.callback(self._reporter(spec).close)
            stack.callback(self._stop_all)
            with self._announced():
                for spec in self._specs:
                    try:
                        self.jobs.append(self._start(spark, spec))
                    except LapwingError as error:
                        failed = replace(_beginning(spec, self._paths[spec.name].out), state="failed", error=str(error))
                        self._locks[spec.name].write_status(failed.as_json())
                        raise
            try:
                self._watch(spark, show)
            except Py4JJavaError:
                raise  # it has answered, so it is there
            except (Py4JError, ConnectionError):
                self._lose(show)
        return all(job.progress.state != "failed" for job in self.jobs)

    def _stop_all(self) -> None:
        for job in self.jobs:
            if not job.progress.ended:
                job.stop(at_once=True)
                self._locks[job.progress.name].write_status(job.look().as_json())

    def _lose(self, show: Show) -> None:
        """Record that Spark is gone: with us, where all processes were ended, or by itself. Its batch is done again."""
        end: dict[str, Any] = {"state": "stopped"}
        if not self._asked.is_set():
            end = {"state": "failed", "error": _GONE, "lag": None}
        for job in self.jobs:
            if not job.progress.ended:
                job.progress = replace(job.progress, **end, input_rate=0.0, processed_rate=0.0)
                self._report(job.progress, show)

    def _report(self, progress: PipelineProgress, show: Show) -> None:
        """Write the status file, and show the progress on the brokers and on the terminal."""
        reporter = self._reporters[progress.name]
        if away := reporter.away:
            nobody = len(away) == len(self._brokers[progress.name])
            progress = replace(progress, away=away, lag=None if nobody else progress.lag)
        self._locks[progress.name].write_status(progress.as_json())
        reporter.send(progress)
        show(progress)

    def _start(self, spark: "SparkSession", spec: PipelineSpec) -> Job:
        from pyspark.errors import AnalysisException, ParseException

        settings = spec.settings
        progress = _beginning(spec, self._paths[spec.name].out)
        self._locks[spec.name].write_status(progress.as_json())
        context = self._context_of(spark, spec)
        if isinstance(settings, ReplaySettings):
            from lapwing.spark.pipelines.kinds.replay import ReplayJob

            return ReplayJob(settings, context, progress)
        try:
            module = import_module(f"lapwing.spark.pipelines.kinds.{settings.kind}")  # each kind has one of its name
            return self._started(module.build(settings, context), context, progress)
        except (AnalysisException, ParseException) as error:
            raise ConfigError(f"{spec.origin or spec.name}: {analysis(error)}") from error
        except ConfigError as error:
            raise ConfigError(spec.located(str(error))) from error

    def _context_of(self, spark: "SparkSession", spec: PipelineSpec) -> RunContext:
        paths = self._paths[spec.name]
        spark = spark.newSession()  # views and settings of its own
        for key, value in QUERY_CONF.items():
            spark.conf.set(key, value)
        checkpoint = Checkpoint(open_files(paths.checkpoint, spark))
        activate(spark)
        return RunContext(spark, paths, checkpoint, self._brokers[spec.name], spec.function)

    def _started(self, prepared: PreparedQuery, context: RunContext, progress: PipelineProgress) -> Job:
        writer = prepared.writer.option("checkpointLocation", context.paths.checkpoint).queryName(progress.name)
        if self._wanted.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{round(prepared.trigger * 1000)} milliseconds")
        context.spark.sparkContext.setLocalProperty("spark.scheduler.pool", progress.name)
        return StreamJob(writer.start(), prepared, context, progress)

    def _start_again(self, spark: "SparkSession", job: Job, starts: dict[str, int]) -> "Job | None":
        """Return a new job in the place of one whose workers did not start in time; None where that is no help."""
        name = job.progress.name
        starts[name] = starts.get(name, 1) + 1
        may = not self._asked.is_set() and isinstance(job, StreamJob) and starts[name] <= _STARTS
        if not may or job.progress.state != "failed" or _NO_WORKER not in job.progress.error:
            return None
        logger.warning("%s: this machine was too busy to start a worker in time; the query is started again", name)
        again = self._start(spark, next(spec for spec in self._specs if spec.name == name))
        if isinstance(again, StreamJob) and isinstance(job, StreamJob):
            again.replaces(job)
        return again

    def _watch(self, spark: "SparkSession", show: Show) -> None:
        next_report = 0.0
        ended: set[str] = set()
        starts: dict[str, int] = {}
        while len(ended) < len(self.jobs):
            if self._asked.is_set():
                for job in self.jobs:
                    job.stop(at_once=self._at_once.is_set())
            due = time.monotonic() >= next_report
            if due:
                next_report = time.monotonic() + _REPORT_SECONDS
            for index, job in enumerate(self.jobs):
                progress = job.look()
                if progress.name in ended or not (due or progress.ended):
                    continue
                if progress.ended and (again := self._start_again(spark, job, starts)) is not None:
                    self.jobs[index] = again
                    continue
                self._report(progress, show)
                if progress.ended:
                    ended.add(progress.name)
            if len(ended) < len(self.jobs):
                time.sleep(_STOPPING_SECONDS if self._asked.is_set() else _LOOK_SECONDS)


def start_session(
    master: str, conf: Mapping[str, str], jars: Sequence[str] = (), log: Path | None = None
) -> "SparkSession":
    """Return the session for pipelines, the one of this process if there is one; raises `LapwingError`."""
    from pyspark.errors import PySparkException

    # no pipeline has tables, and Spark would make a folder for them in whatever directory this is
    conf = {**CONF, "spark.sql.warehouse.dir": str(warehouse()), **conf}
    if jars:
        conf["spark.jars"] = ",".join(filter(None, [conf.get("spark.jars", ""), *jars]))
    try:
        if master.startswith("local[") and "," not in master:
            # as on a cluster, a task that fails is tried again: one worker that did not start is no reason to stop
            return local_session("lapwing pipeline", cores=f"{master[6:-1]},{_TRIES}", conf=conf, log=log)
        return session_builder("lapwing pipeline", master=master, conf=conf, log=log).getOrCreate()
    except (Py4JError, PySparkException) as error:
        raise LapwingError(f"Spark does not start with --master {master}: {complaint(error)}") from error


def _hold(spark: "SparkSession", path: str) -> Callable[[], Any]:
    """Let Spark's JVM hold a lock, and return what releases it.

    When our process is killed, its JVM lives on for a moment and may still be at a batch; whoever starts the pipeline
    again waits here until it is gone.
    """
    context: Any = spark.sparkContext
    deadline = time.monotonic() + _OTHERS_SECONDS
    while True:
        file = context._jvm.java.io.RandomAccessFile(path, "rw")
        if file.getChannel().tryLock() is not None:
            return lambda: _let_go(file)
        file.close()
        if time.monotonic() > deadline:
            raise LapwingError(f"{path}: the Spark of an earlier run still holds it; end that Java process first")
        time.sleep(_LOOK_SECONDS)


def _let_go(file: Any) -> None:
    with suppress(Py4JError, ConnectionError):  # a JVM that is gone holds nothing
        file.close()


def _beginning(spec: PipelineSpec, out: str) -> PipelineProgress:
    settings = spec.settings
    channel = settings.channel or settings.name if isinstance(settings, StreamSettings) else ""
    to = getattr(settings, "to", "")
    lands = tuple(place for place in (out, f"topic {to}" if to else "") if place)
    return PipelineProgress(spec.name, settings.kind, _topics(spec), channel, lands=lands, updated_ms=records.now_ms())


def _topics(spec: PipelineSpec) -> tuple[str, ...]:
    settings = spec.settings
    if isinstance(settings, StreamSettings) and settings.pattern:
        return (settings.pattern,)
    found: tuple[str, ...] = getattr(settings, "topics", ())
    return found
