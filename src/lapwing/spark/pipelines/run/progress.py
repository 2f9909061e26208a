"""The progress of a running pipeline: one record for the terminal, for a file and for the brokers."""

import json
import logging
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from lapwing.errors import LapwingError
from lapwing.spark.brokers.http import BrokerAway, call
from lapwing.spark.options import BrokerAccess

logger = logging.getLogger(__name__)

_MOST_TOPICS: Final = 500  # that are shown: a status has a size
_ENDED: Final = ("finished", "stopped", "failed")


@dataclass(frozen=True)
class PipelineProgress:
    """The record that `nsqadmin`, `lapwing top`, `lapwing check` and `lapwing pipeline status` show."""

    name: str
    kind: str
    topics: tuple[str, ...]
    channel: str
    state: str = "starting"  # starting, running, stopping, finished, stopped, failed
    batch_id: int = -1
    input_rate: float = 0.0  # messages/s
    processed_rate: float = 0.0  # messages/s while a batch is worked on
    batch_ms: int = 0
    worked_ms: int = 0  # time of all batches that had messages
    lag: int | None = None  # messages that are published and not read
    rows_in: int = 0
    rows_out: int | None = None
    rejected: int | None = None  # messages that could not be worked with, where the pipeline counts them
    late: int = 0  # rows that came after the watermark and were not counted, as Spark counts them: by group and task
    total: int | None = None  # messages that a bounded run will read
    updated_ms: int = 0
    batch_at_ms: int = 0  # when the last batch ended; 0: none has
    lands: tuple[str, ...] = ()  # where its rows go: a folder or an address, and `topic NAME`
    away: tuple[str, ...] = ()  # brokers that do not answer, each with the reason
    error: str = ""

    @property
    def ended(self) -> bool:
        return self.state in _ENDED

    def as_json(self) -> dict[str, Any]:
        """Return the record for the brokers and the status file."""
        return asdict(self)

    def line(self) -> str:
        """Return the record as a line for the terminal."""
        parts = [f"{self.name}: {self.state}"]
        if self.batch_id >= 0:
            out = "" if self.rows_out is None else f", out {self.rows_out:,}"
            parts.append(f"batch {self.batch_id} in {self.batch_ms} ms")
            late = f", late {self.late:,}" if self.late else ""
            late += f", rejected {self.rejected:,}" if self.rejected else ""
            parts.append(f"in {self.rows_in:,}{out}{late}")
            parts.append(self._rates())
        if self.lag is not None:
            parts.append(f"lag {self.lag:,}")
        if self.away:
            parts.append(f"waits for {'; '.join(self.away)}")
        return " | ".join(parts)

    def _rates(self) -> str:
        if not self.ended:
            return f"{self.input_rate:,.0f} msg/s in, {self.processed_rate:,.0f} msg/s worked"
        average = self.rows_in * 1000 / self.worked_ms if self.worked_ms else 0.0
        return f"{average:,.0f} msg/s on average"


def from_spark(before: PipelineProgress, told: Mapping[str, Any]) -> PipelineProgress:
    """Return the record after Spark's report of a query's last batch, or of an idle query."""
    sources = told.get("sources") or []
    rows = _read(sources)
    durations = told.get("durationMs", {})
    ran = not durations or "addBatch" in durations  # else it is idle, and the number that of a batch to come
    fresh = ran and int(told["batchId"]) != before.batch_id
    batch_ms = int(told.get("batchDuration") or durations.get("triggerExecution") or 0) if ran else before.batch_ms
    return replace(
        before,
        topics=_topics(sources) or before.topics,
        batch_id=int(told["batchId"]) if ran else before.batch_id,
        input_rate=_number(told.get("inputRowsPerSecond")),
        processed_rate=_number(told.get("processedRowsPerSecond")),
        batch_ms=batch_ms,
        worked_ms=before.worked_ms + (batch_ms if fresh and rows else 0),
        lag=lag(sources),
        rows_in=before.rows_in + (rows if fresh else 0),
        late=before.late + (_late(told) if fresh else 0),
        batch_at_ms=now_ms() if fresh else before.batch_at_ms,
    )


def _read(sources: list[Mapping[str, Any]]) -> int:
    """Return the messages that a batch read. Spark counts those twice that a plan reads twice; offsets do not."""
    return sum(
        _distance(before, place)
        for before, place in _places(sources, "startOffset", "endOffset")
        if before is not None  # a log that is new enters where it is, and is read from the next batch on
    )


def _late(told: Mapping[str, Any]) -> int:
    """Rows that operators with state have left out because the watermark had passed them."""
    return sum(int(each.get("numRowsDroppedByWatermark") or 0) for each in told.get("stateOperators") or ())


def _topics(sources: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the topics that are really read, where a pattern chooses them."""
    found = sorted({topic for source in sources[:1] for topic in _offsets(source.get("endOffset"))})
    return tuple(found[:_MOST_TOPICS])


def lag(sources: list[Mapping[str, Any]]) -> int | None:
    """Return the messages between where a query is and where its logs end."""
    behind = [_distance(here, end) for here, end in _places(sources, "endOffset", "latestOffset")]
    return sum(behind) if behind else None


def _places(sources: list[Mapping[str, Any]], since: str, until: str) -> Iterator[tuple[Any, Any]]:
    """Yield the place in each log of the later offsets, after that in the earlier ones (None where they lack it)."""
    for source in sources[:1]:
        earlier = _offsets(source.get(since))
        for topic, nodes in _offsets(source.get(until)).items():
            for node, place in nodes.items():
                yield earlier.get(topic, {}).get(node), place


def _distance(before: Any, place: Any) -> int:
    same = before is not None and before["log_id"] == place["log_id"]
    return max(int(place["sequence"]) - (int(before["sequence"]) if same else 0), 0)


def _offsets(value: Any) -> dict[str, Any]:
    found = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
    return {topic: nodes for topic, nodes in found.items() if topic[0] != "#"} if isinstance(found, dict) else {}


def _number(value: Any) -> float:
    """Return the value as a float; Spark writes NaN and infinity as words."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return round(number, 1) if number == number and abs(number) != float("inf") else 0.0


class ProgressReporter:
    """Reports the progress of a pipeline to brokers, from a thread of its own: a broker that is away delays nobody."""

    def __init__(self, addresses: tuple[str, ...], access: BrokerAccess) -> None:
        self._addresses = addresses
        self._access = access
        self._news: queue.SimpleQueue[PipelineProgress | None] = queue.SimpleQueue()
        self._away: dict[str, str] = {}
        self._refusing: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._thread.start()

    @property
    def away(self) -> tuple[str, ...]:
        """The brokers that did not answer the last report, each with the reason."""
        return tuple(self._away[address] for address in sorted(self._away))

    def send(self, progress: PipelineProgress) -> None:
        """Send a record soon; an older one that still waits is not sent any more."""
        self._news.put(progress)

    def close(self) -> None:
        """Send what waits, for a moment at most."""
        self._news.put(None)
        self._thread.join(3.0)

    def _run(self) -> None:
        unsent: PipelineProgress | None = None
        while (progress := self._news.get()) is not None:
            unsent = progress
            if self._news.empty():
                self._send(progress)
                unsent = None
        if unsent is not None:
            self._send(unsent)

    def _send(self, progress: PipelineProgress) -> None:
        body = json.dumps(progress.as_json()).encode()
        for address in self._addresses:
            try:
                call(address, self._access, "POST", f"/pipelines/{progress.name}", body=body)
                self._away.pop(address, None)
            except BrokerAway as error:
                self._away[address] = str(error)
            except LapwingError as error:
                if address not in self._refusing:
                    logger.info("%s cannot show the progress of %s: %s", address, progress.name, error)
                self._refusing.add(address)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
