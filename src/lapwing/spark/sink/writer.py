"""Rows become messages: staged by the executors, published by the driver's commit, once."""

import json
import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from lapwing.errors import LapwingError
from lapwing.spark._pyspark_4_0 import DataSourceStreamArrowWriter
from lapwing.spark.brokers.directory import Directory
from lapwing.spark.brokers.http import BrokerAway, BrokerRefused, call, patiently
from lapwing.spark.options import SinkOptions
from lapwing.spark.sink.home import sink_home

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from lapwing.spark.sink.batches import Batch

logger = logging.getLogger(__name__)

# the first batch of a query may have no tasks, and so leave nothing at a broker; the next one has some
_KNOWN_FROM: Final = 2
_TEXT: Final = (StringType, BinaryType)
_NUMBER: Final = (ShortType, IntegerType, LongType)
_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "body": _TEXT,
    "topic": (StringType,),
    "headers": (MapType, StringType),
    "defer_ms": _NUMBER,
    "key": _TEXT,
}


class BadColumns(LapwingError):
    """Columns that cannot be written."""


@dataclass
class StagedRows(WriterCommitMessage):
    """The rows that one task has left at a broker."""

    address: str
    sink: str
    batch: int
    key: str
    parts: int
    count: int
    topics: set[str]


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Raises `BadColumns` that names what is wrong."""
    for field in schema.fields:
        allowed = _TYPES.get(field.name)
        if allowed is None:
            raise BadColumns(f"unknown column {field.name}; a message is made of {', '.join(_TYPES)}")
        if not isinstance(field.dataType, allowed):
            wanted = " or ".join(kind.typeName() for kind in allowed)
            raise BadColumns(f"column {field.name} is {field.dataType.simpleString()}, {wanted} expected")
        if isinstance(field.dataType, MapType) and not (
            isinstance(field.dataType.keyType, StringType) and isinstance(field.dataType.valueType, StringType)
        ):
            raise BadColumns(f"column headers is {field.dataType.simpleString()}, map<string,string> expected")
        if options.mode == "atleastonce" and field.name in ("headers", "key"):
            raise BadColumns(f"column {field.name} needs mode=exactlyonce; plain NSQ servers know no headers")
    if "body" not in schema.names:
        raise BadColumns("the column body is missing")
    if options.topic is None and "topic" not in schema.names:
        raise BadColumns("neither an option nor a column names the topic")


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("lapwing").mode("append")`: all of the rows, or none."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        check_columns(schema, options)
        if overwrite:
            raise BadColumns('a topic cannot be overwritten; use .mode("append")')
        self._options = options
        self._sink = options.sink or f"job-{uuid.uuid4().hex}"
        self._batch = options.batch or 0
        self._address = ""
        if options.mode == "exactlyonce":  # one for all tasks, though brokers may join or leave meanwhile
            new = options.sink is None and options.access.nsqd  # no broker has anything of it
            self._address = new[0] if new else sink_home(options.access, self._sink, self._batch)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        if self._options.mode == "atleastonce":
            return send(iterator, self._options)
        return stage(iterator, self._options, self._address, self._sink, self._batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(messages, self._options, noted=self._options.sink is not None)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(messages, self._options)


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("lapwing")`: every micro-batch once, under the query's id and the batch's number."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        if self._options.mode == "atleastonce":
            return send(iterator, self._options)
        task = TaskContext.get()
        query = task.getLocalProperty("sql.streaming.queryId") if task else None
        batch = task.getLocalProperty("streaming.sql.batchId") if task else None
        if query is None or batch is None:
            raise LapwingError("Spark does not name the query and batch; nothing can be written once only")
        sink, number = f"query-{query}", int(batch)
        options = self._options
        address = sink_home(
            options.access, sink, number, known_from=_KNOWN_FROM, accept_doubles=options.accept_doubles
        )
        return stage(iterator, self._options, address, sink, number)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit(messages, self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        abort(messages, self._options)


def stage(rows: "Iterator[pa.RecordBatch]", options: SinkOptions, address: str, sink: str, batch: int) -> StagedRows:
    """Leave a task's rows at the broker of the batch; nothing of it can be seen until the commit."""
    from lapwing.spark.sink.batches import batches

    task = TaskContext.get()
    partition = task.partitionId() if task else 0
    # of its own for every attempt: a task that is thought dead may still be writing
    key = f"{partition}-{task.attemptNumber() if task else 0}-{uuid.uuid4().hex[:12]}"
    staged = StagedRows(address, sink, batch, key, 0, 0, set())
    for record_batch in rows:
        for part in batches(record_batch, options.topic, options.batch_bytes):
            _stage_part(part, staged, options, partition)
            staged.parts += 1
            staged.count += part.count
            staged.topics.add(part.topic)
    return staged


def _stage_part(part: "Batch", staged: StagedRows, options: SinkOptions, partition: int) -> None:
    parameters: dict[str, str | int | list[str]] = {
        "sink": staged.sink,
        "batch": staged.batch,
        "key": staged.key,
        "part": staged.parts,
        "topic": part.topic,
    }
    what = f"topic {part.topic}, batch {staged.batch}, task {partition}, at {staged.address}"
    body, access = part.staged(), options.access
    try:
        patiently(what, lambda: call(staged.address, access, "POST", "/stage", parameters, body), access)
    except BrokerRefused as error:
        raise refusal(what, error, staged.count) from error


def refusal(what: str, error: BrokerRefused, before: int = 0) -> LapwingError:
    """Return the error for rows that a broker has refused."""
    index, size, limit = map(error.details.get, ("index", "size", "limit"))
    if isinstance(index, int):
        reasons = {
            "MSG_TOO_BIG": f"has a body of {size} bytes, the broker takes {limit}",
            "INVALID_DEFER": "has a defer_ms beyond the broker's --max-req-timeout",
            "INVALID_HEADERS": "has headers of more than 16 KiB, or a name of other than 1 to 64 lower-case characters",
        }
        return LapwingError(f"{what}: row {before + index} {reasons.get(error.code, f'is refused: {error}')}")
    remedy = ""
    if error.status == 404:
        remedy = "; a plain NSQ server cannot stage, mode=atleastonce writes to it"
    elif error.code == "BODY_TOO_BIG":
        remedy = "; a smaller batchBytes helps, or a larger --max-body-size of the broker"
    return LapwingError(f"{what}: {error}{remedy}")


def commit(messages: list[WriterCommitMessage | None], options: SinkOptions, *, noted: bool = True) -> None:
    """Publish what all tasks have staged; a second time does nothing.

    With `noted` also a batch without rows is committed: by it the sink's broker is found again.
    """
    staged = [message for message in messages if isinstance(message, StagedRows) and (noted or message.parts)]
    if not staged:
        return
    address, sink, batch = staged[0].address, staged[0].sink, staged[0].batch
    if others := {message.address for message in staged} - {address}:
        raise LapwingError(
            f"batch {batch} of {sink}: brokers joined or left while it was written, and its rows are at {address} and "
            f"{', '.join(sorted(others))}; nothing of it is published. Start the query again"
        )
    keys = [[message.key, message.parts] for message in staged if message.parts]
    order = json.dumps({"sink": sink, "batch": batch, "keys": keys}).encode()
    topics = sorted({topic for message in staged for topic in message.topics})
    what = f"topic {_some(topics)}, committing batch {batch} of {sink} at {address}"
    try:
        answer = patiently(
            what, lambda: call(address, options.access, "POST", "/stage/commit", body=order), options.access
        )
    except BrokerRefused as error:
        raise LapwingError(f"{what}: {error.details.get('reason', error)}") from error
    if answer["already"]:
        logger.warning("%s: it was published before; nothing was published twice", what)


def _some(topics: list[str], most: int = 5) -> str:
    """Return the topics by name, or the first of them."""
    more = f" and {len(topics) - most} more" if len(topics) > most else ""
    return ", ".join(topics[:most]) + more


def abort(messages: list[WriterCommitMessage | None], options: SinkOptions) -> None:
    """Drop what was staged; a broker that does not get the request drops it by itself."""
    for message in messages:
        if not isinstance(message, StagedRows):
            continue
        order = json.dumps({"sink": message.sink, "batch": message.batch, "keys": [message.key]}).encode()
        try:
            call(message.address, options.access, "POST", "/stage/abort", body=order)
        except (BrokerAway, BrokerRefused) as error:
            logger.warning("what was staged for batch %s stays until it is swept: %s", message.batch, error)


def send(rows: "Iterator[pa.RecordBatch]", options: SinkOptions) -> WriterCommitMessage:
    """Publish a task's rows at once, at the first broker that takes them: at least once."""
    from lapwing.spark.sink.batches import batches

    sent = 0
    addresses = patiently("finding brokers", lambda: Directory(options.access).find(), options.access)
    if not addresses:
        raise LapwingError("nsqlookupd knows of no broker")
    task = TaskContext.get()
    turn = task.partitionId() if task else 0
    for record_batch in rows:
        for part in batches(record_batch, options.topic, options.batch_bytes):
            turn = _send_part(part, addresses, turn, options, sent)
            sent += part.count
    return WriterCommitMessage()


def _send_part(part: "Batch", addresses: list[str], turn: int, options: SinkOptions, before: int) -> int:
    """Try the brokers in turn, beginning with the last one that worked; the one that took it."""
    access = options.access
    what = f"topic {part.topic}, {part.count} messages"

    def publish() -> int:
        failures = []
        for offset in range(len(addresses)):
            address = addresses[(turn + offset) % len(addresses)]
            try:
                _publish(part, address, options)
                return turn + offset
            except BrokerAway as error:
                failures.append(str(error))
        raise BrokerAway("no broker took it", "; ".join(failures))

    try:
        return patiently(what, publish, access)
    except BrokerRefused as error:
        raise refusal(what, error, before) from error


def _publish(part: "Batch", address: str, options: SinkOptions) -> None:
    if not part.extras:
        call(address, options.access, "POST", "/mpub", {"topic": part.topic, "binary": "true"}, part.body)
        return
    delays = {index: defer for index, defer, _ in part.extras}
    at = 4
    for index in range(part.count):
        size = int.from_bytes(part.body[at : at + 4], "big")
        parameters: dict[str, str | int | list[str]] = {"topic": part.topic}
        if index in delays:
            parameters["defer"] = delays[index]
        call(address, options.access, "POST", "/pub", parameters, part.body[at + 4 : at + 4 + size])
        at += 4 + size
