"""Ranges of logs as Spark rows: what is planned beside the driver, and what executors stream from the brokers."""

import gc
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lapwing.errors import LapwingError
from lapwing.spark import offsets as o
from lapwing.spark.http import BrokerAway, BrokerRefused, Exchange, Pauses, call, patiently, target
from lapwing.spark.nodes import Survey, survey, wait_for_more
from lapwing.spark.offsets import EARLIEST, LATEST, Limit, Offsets, Range
from lapwing.spark.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from lapwing.spark.blocks import Block

logger = logging.getLogger(__name__)

TASK_BYTES: Final = 128 << 20  # a task larger than that is split even where nobody asked for more tasks


class DataLoss(LapwingError):
    """Messages that the query has not read are gone."""

    def __init__(self, losses: list[str]) -> None:
        super().__init__("; ".join(losses) + " (failOnDataLoss=false goes on with what is there)")


class Task(InputPartition):
    """What one executor reads."""

    def __init__(self, part: Range) -> None:
        super().__init__(part)
        self.part = part


class LogReader(DataSourceReader):
    """A batch read: all ranges are known before it starts."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = schema.fieldNames()

    def partitions(self) -> list[InputPartition]:
        """Tasks of similar size; what is "latest" is decided here, once per loaded DataFrame."""
        options = self._options
        found = _survey_all(options, options.starting_timestamp)
        if missing := [topic for topic in options.topics if topic not in found.holdings]:
            raise LapwingError(f"no broker has the topic {', '.join(missing)}")
        start = starting_offsets(options, found)
        end = self._ending(found)
        ranges, losses, _ = o.plan(start, end, found.holdings)
        report(losses, options)
        return tasks(ranges, found, options)

    def _ending(self, found: Survey) -> Offsets:
        if (moment := self._options.ending_timestamp) is not None:
            later = _survey_all(self._options, moment)
            return o.at_times(later.holdings, none_is_latest=True)
        if isinstance(self._options.ending, str):
            return o.everywhere(found.holdings, LATEST)
        return o.as_requested(self._options.ending, found.holdings)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_task(partition, self._options, self._columns)


class FirstBatch:
    """The first batch of a new query, in which nothing is read: it only writes down where the query begins.

    Spark asks for the initial offset more than once: before the first batch, when it plans it, and again when that
    batch was not finished and is done after a restart. What is "latest" by then would be the beginning, and the
    messages in between would be lost. A batch that ends where it begins can be done again at any time.
    """

    def __init__(self) -> None:
        self._initial: dict[str, Any] | None = None
        self._over = False

    def begin(self, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The initial offset: found once, and the same from then on."""
        if self._initial is None:
            self._initial = find()
        return self._initial

    def ends_at(self, start: dict[str, Any]) -> bool:
        """Whether the batch that begins at `start` is the first one, and so ends there too."""
        first = self._initial == start and not self._over
        self._over = True
        return first

    def is_planned(self) -> bool:
        """Whether what is being planned is a first batch that is done again, and so has no tasks."""
        return self._initial is not None and not self._over


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: it lives beside the driver as long as its query, and Spark calls it in series."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = schema.fieldNames()
        self._first = FirstBatch()
        self._new_query = False
        self._committed: dict[tuple[str, int], o.Position] = {}
        self._away: frozenset[str] = frozenset()
        self._missing: frozenset[tuple[str, int]] = frozenset()
        self._latest: Offsets = {}
        self._target: Offsets | None = None
        self._batch_at = time.monotonic()  # when a batch was last given out

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query starts; one that is restarted goes on from its checkpoint."""
        return self._first.begin(self._begin)

    def _begin(self) -> dict[str, Any]:
        self._new_query = True
        found = _survey_all(self._options, self._options.starting_timestamp)
        for topic in self._options.topics:
            if topic not in found.holdings:
                logger.warning("no broker has the topic %s yet; it will be read from its first message on", topic)
        start = starting_offsets(self._options, found)
        self._commit(start, found)
        return o.to_json(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What Spark hands back as the limit of every batch."""
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Everything that is there now is what this run will read."""
        self._target = o.everywhere(_survey_all(self._options).holdings, LATEST)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends. `start` is what the query has durably finished: the channel is moved there.

        With nothing to read, waits at the brokers for a while; Spark asks again after that.
        """
        if self._first.ends_at(start):
            return start
        position = o.from_json(start)
        found = self._look(position)
        self._commit(position, found)
        end = self._advance(position, found, limit)
        if end == position and self._target is None:
            wait_for_more(position, found.holdings, self._options.access, self._options.poll_seconds)
            found = self._look(position)
            end = self._advance(position, found, limit)
        if end != position:
            self._batch_at = time.monotonic()
        latest = o.everywhere(found.holdings, LATEST)
        self._latest = {
            topic: {**position.get(topic, {}), **latest.get(topic, {})} for topic in position.keys() | latest.keys()
        }
        return o.to_json(end)

    def _look(self, position: Offsets) -> Survey:
        """What the brokers hold now. Who is away is logged when that changes, and keeps its place meanwhile."""
        if self._target is not None:
            found = patiently("availableNow", lambda: self._reachable(position), self._options.access)
            self._miss(position, found)
            return found
        found = patiently("reading offsets", lambda: _someone(self._options), self._options.access)
        self._miss(position, found)
        if (away := frozenset(found.away)) != self._away:
            for address in away - self._away:
                logger.warning("%s is away, its messages wait: %s", address, found.away[address])
            for address in self._away - away:
                logger.warning("%s is back", address)
            self._away = away
        return found

    def _miss(self, position: Offsets, found: Survey) -> None:
        """Say once what the query stands in and nobody has now. Where the node itself says so, it is lost."""
        missing = o.missing(position, found.holdings)
        news, self._missing = sorted(missing - self._missing), missing
        report([_gone(position, topic, node) for topic, node in news if node in found.nodes], self._options)
        for topic, node in news:
            if node not in found.nodes and not found.away:
                logger.warning("topic %s, node %s: no broker that is known has it; its messages wait", topic, node)

    def _reachable(self, position: Offsets) -> Survey:
        """As above, but logs that this run has to finish must be there."""
        found = _someone(self._options)
        for topic, nodes in (self._target or {}).items():
            for node, goal in nodes.items():
                here = position.get(topic, {}).get(node)
                if node not in found.holdings.get(topic, {}) and here != goal:
                    raise BrokerAway(f"topic {topic}, node {node}", found.complaint() or "the node has no such topic")
        return found

    def _advance(self, position: Offsets, found: Survey, limit: ReadLimit) -> Offsets:
        allowed = Limit(
            messages=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            bytes=limit.max_bytes if isinstance(limit, ReadMaxBytes) else None,
        )
        end = o.advance(position, found.holdings, limit=allowed, target=self._target)
        if self._target is None and not self._enough(position, found):
            return position
        return end

    def _enough(self, position: Offsets, found: Survey) -> bool:
        """Whether as many wait as a batch should at least have, or the last batch was long ago."""
        if self._options.min_messages is None:
            return True
        if time.monotonic() - self._batch_at >= self._options.max_delay:
            return True
        return sum(o.backlog(position, found.holdings).values()) >= self._options.min_messages

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The ends of all logs, for the query's progress: lag is this minus endOffset."""
        return o.to_json(self._latest) if self._latest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks of one batch; also asked for a batch that is done again after a restart."""
        if self._first.is_planned():
            return []
        since, until = o.from_json(start), o.from_json(end)

        def planned() -> tuple[list[Range], list[str], Survey]:
            found = survey(self._options)
            ranges, losses, away = o.plan(since, until, found.holdings)
            losses += [f"{part}: the node no longer has the topic" for part in away if part.node in found.nodes]
            if away := [part for part in away if part.node not in found.nodes]:
                raise BrokerAway("; ".join(map(str, away)), found.complaint() or "no broker has it")
            return ranges, losses, found

        ranges, losses, found = patiently("planning a batch", planned, self._options.access)
        report(losses, self._options)
        return tasks(ranges, found, self._options)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_task(partition, self._options, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: this comes a batch late and never for the last one; `latestOffset` moves the channel."""

    def _commit(self, position: Offsets, found: Survey) -> None:
        """Move the channel to what the query has finished, on every node where that is news."""
        if self._options.channel is None:
            return
        for topic, nodes in position.items():
            for node, place in nodes.items():
                held = found.holdings.get(topic, {}).get(node)
                if held is None or held.log_id != place.log_id or self._committed.get((topic, node)) == place:
                    continue
                try:
                    commit(held.address, self._options, topic, place, back=self._new_query)
                except BrokerAway as error:
                    logger.warning("topic %s, node %s: the channel stays behind: %s", topic, node, error)
                    continue
                except BrokerRefused as error:
                    logger.warning("topic %s, node %s: the channel was not moved: %s", topic, node, error)
                self._committed[topic, node] = place
        self._new_query = False

    def __getstate__(self) -> Mapping[str, Any]:
        return {"_options": self._options, "_columns": self._columns}  # all that `read` needs on an executor


def _someone(options: SourceOptions) -> Survey:
    """What the brokers hold; raises `BrokerAway` when there are brokers and none of them answers."""
    found = survey(options)
    if found.away and not found.holdings:
        raise BrokerAway("no broker answers", found.complaint())
    return found


def _survey_all(options: SourceOptions, at: int | None = None) -> Survey:
    """What all brokers hold. One that is away would be passed over in silence: it is waited for, and then an error."""

    def everyone() -> Survey:
        found = survey(options, at)
        if found.away and options.fail_on_data_loss:
            raise BrokerAway("not all brokers answer", found.complaint())
        return found

    found = patiently("reading offsets", everyone, options.access)
    for address, why in found.away.items():
        logger.warning("%s is away and passed over: %s", address, why)
    return found


def _gone(position: Offsets, topic: str, node: int) -> str:
    place = position[topic][node]
    return (
        f"topic {topic}, node {node}: the log {place.log_id} was read up to {place.sequence}, "
        "and now the node has no such topic; what else it held is gone"
    )


def starting_offsets(options: SourceOptions, found: Survey) -> Offsets:
    """Where the options say to start in the logs that are there."""
    if options.starting_timestamp is not None:
        return o.at_times(found.holdings, none_is_latest=options.none_is_latest)
    if options.starting == "channel":
        return o.at_cursors(found.holdings)
    if isinstance(options.starting, str):
        return o.everywhere(found.holdings, EARLIEST if options.starting == "earliest" else LATEST)
    return o.as_requested(options.starting, found.holdings)


def report(losses: list[str], options: SourceOptions) -> None:
    """Raise `DataLoss`, or log every loss where the user has said to go on."""
    if losses and options.fail_on_data_loss:
        raise DataLoss(losses)
    for loss in losses:
        logger.warning("data loss: %s", loss)


def tasks(ranges: list[Range], found: Survey, options: SourceOptions) -> list[InputPartition]:
    """What each executor reads."""
    parts = o.split(
        ranges,
        o.mean_sizes(found.holdings),
        min_partitions=options.min_partitions,
        max_messages=options.max_per_partition,
        max_bytes=TASK_BYTES,
    )
    return [Task(part) for part in parts]


def commit(address: str, options: SourceOptions, topic: str, place: o.Position, *, back: bool) -> None:
    """Move the channel on one broker, and make it where it is missing."""
    parameters: dict[str, str | int | list[str]] = {
        "topic": topic,
        "channel": options.channel or "",
        "log_id": place.log_id,
        "sequence": place.sequence,
        "create": "true",
    }
    if back:
        parameters["back"] = "true"
    call(address, options.access, "POST", "/channel/commit", parameters)


def read_task(partition: InputPartition, options: SourceOptions, columns: list[str]) -> "Iterator[pa.RecordBatch]":
    """The rows of one task, block by block as they come from the broker."""
    if isinstance(partition, Task):  # Spark gives a reader without any tasks one with nothing in it
        from lapwing.spark.blocks import arrow_schema, needs_positions, to_batch

        schema = arrow_schema(columns)
        _settle()
        for block in stream(partition.part, options, positions=needs_positions(columns)):
            yield to_batch(block, partition.part.topic, partition.part.node, schema)


@cache
def _settle() -> None:
    """Hide what this process has imported from the garbage collector, which Spark calls after each task."""
    gc.freeze()


def stream(part: Range, options: SourceOptions, *, positions: bool = True) -> Iterator["Block"]:
    """The blocks of a range, each message once; a connection that breaks is taken up again where it broke.

    Raises `BrokerAway` when the broker stays away, and `DataLoss` for what it no longer has or has quarantined; without
    `failOnDataLoss` that is logged and passed over.
    """
    from lapwing.spark.blocks import BadBlock, Elsewhere

    reached = part.start
    skip_lost = not options.fail_on_data_loss
    pauses = Pauses(options.access)
    files = options.local_files and not positions
    while reached < part.stop:
        try:
            for block in _attempt(part, reached, options, positions=positions, files=files):
                pauses.restart()
                if block.first != reached:
                    raise LapwingError(f"{part}: the broker sent {block.first} where {reached} was expected")
                reached += block.count
                if not block.quarantined:
                    yield block
                    continue
                lost = f"{part}: {block.count} messages from {block.first} on are damaged: {block.quarantined}"
                _lose(lost, skip=skip_lost)
            if reached < part.stop:
                raise BrokerAway(part.address, f"the answer ended at {reached}")
        except BrokerRefused as error:
            _lose(f"{part}: from {reached} on: {error}", skip=skip_lost, error=error)
            first = error.details.get("first")
            reached = min(first, part.stop) if isinstance(first, int) and first > reached else part.stop
        except Elsewhere as error:
            logger.debug("%s: from %s on through the network: %s", part, reached, error)
            files = False
        except BrokerAway as error:
            pauses.wait(f"{part}: broken off at {reached}", error)
        except BadBlock as error:
            raise LapwingError(f"{part}: at {reached} came what the range reader does not send: {error}") from error


def _attempt(part: Range, start: int, options: SourceOptions, *, positions: bool, files: bool) -> Iterator["Block"]:
    from lapwing.spark.blocks import read_blocks

    parameters: dict[str, str | int | list[str]] = {"topic": part.topic, "from": start, "to": part.stop}
    parameters |= {"log_id": part.log_id, "format": "raw"}
    parameters |= {"headers": str(options.headers).lower(), "positions": str(positions).lower()}
    if files:
        parameters["files"] = "true"
    path = target("/log/read", parameters)
    exchange = Exchange(part.address, options.access, "GET", path)
    try:
        yield from read_blocks(exchange.read, exchange.fill)
    finally:
        exchange.finish()


def _lose(what: str, *, skip: bool, error: Exception | None = None) -> None:
    if not skip:
        raise DataLoss([what]) from error
    logger.warning("data loss: %s", what)
