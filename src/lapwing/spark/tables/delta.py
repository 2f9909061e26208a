"""Delta tables to which a query adds its batches, each once: the output of every pipeline that writes a table.

Spark's executors write Parquet files into a folder that no reader looks into, and they are moved to their places in the
table. One commit of the Delta log then adds them, together with the transaction (query, batch): a batch that is
repeated after a crash finds its transaction in the log. All pipelines share a second transaction, so that of two that
commit at the same time one fails. What a crash leaves behind is no part of the table; `vacuum` deletes it.
"""

import json
import logging
import math
import time
import uuid
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from lapwing.errors import ConfigError, LapwingError
from lapwing.spark.files import Files, LocalFiles, open_files
from lapwing.spark.pipelines.run.context import RunContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

_STAGING: Final = "_staging"
_NOTE: Final = "lapwing"  # the key of our note in the commits of the Delta log
_EVERYBODY: Final = "lapwing"  # the transaction that all pipelines share
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_VACUUM_SECONDS: Final = 86_400.0
_LOOKED_AT: Final = 50  # commits that are searched for our note at once
_LONGEST_BOUND: Final = 64  # characters
_SMALL: Final = 8  # a file below this part of the size that is aimed at is small

# types that hold all values of another one; the table is written again with them
_WIDER: Final[dict[str, tuple[str, ...]]] = {
    "byte": ("short", "integer", "long", "float", "double"), "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"), "float": ("double",),
}  # fmt: skip

Log = tuple[str, int, str]  # topic, node, identity of the log


@dataclass(slots=True)
class TableNote:
    """A note in each commit of ours, beside its files: the batch, and the logs that were read up to it."""

    query: str = ""
    number: int = -1  # of commits with this note
    until: dict[str, Any] = field(default_factory=dict)  # the source's offsets at the end of the batch
    ended: list[list[Any]] = field(default_factory=list)  # logs that are not read any more: [*log, sequence reached]
    began: list[list[Any]] = field(default_factory=list)  # [*log, sequence] of each log when a batch first had it
    scope: dict[str, Any] = field(default_factory=dict)  # the topics that the table is for: `topics` or `pattern`

    def after(self, query: str, until: dict[str, Any], written: set[str], scope: dict[str, Any]) -> "TableNote":
        """Return the note of the next batch, which has messages of the topics `written`."""
        now = reached(until)
        ended = [[*log, sequence] for log, sequence in reached(self.until).items() if log not in now]
        known = {tuple(each[:3]) for each in self.began}
        began = [[*log, sequence] for log, sequence in now.items() if log not in known and log[0] not in written]
        return TableNote(
            query, self.number + 1, until,
            ended=[each for each in [*self.ended, *ended] if tuple(each[:3]) not in now],
            began=[*self.began, *began], scope=scope,
        )  # fmt: skip


def reached(until: dict[str, Any]) -> dict[Log, int]:
    """Return the sequence that the offsets of a batch have reached in each log."""
    return {
        (topic, int(node), place["log_id"]): int(place["sequence"])
        for topic, nodes in until.items()
        for node, place in nodes.items()
    }


@dataclass(frozen=True)
class TableFormat:
    """The rules by which files are written, merged and deleted."""

    merge_after: int  # small files in one folder
    file_bytes: int  # size up to which files are merged
    history: float = 86_400.0  # s for which files that were merged away are kept
    compression: str = "snappy"
    writer: "Callable[[DataFrame], DataFrameWriter]" = lambda rows: rows.write  # how Spark writes the files


class DeltaOutput:
    """The Delta table of one query."""

    def __init__(
        self, place: str, context: RunContext, form: TableFormat, *partitions: str, scope: dict[str, Any] | None = None
    ) -> None:
        """`partitions` are the columns that files are divided by, `scope` the topics that the table is for."""
        self._files = open_files(place, context.spark)
        self._spark = context.spark
        self._checkpoint = context.checkpoint
        self._form = form
        self._partitions = list(partitions)
        self._scope = scope or {}
        self._small: dict[tuple[str | None, ...], list[int]] = {}  # sizes of small files by partition
        self._vacuumed = time.monotonic()
        self._casts: dict[str, str] = {}  # columns that the table has with a wider type
        self.note = TableNote()
        self._delta: DeltaTable | None = None

    @property
    def root(self) -> str:
        return self._files.root

    @property
    def _table(self) -> DeltaTable:
        assert self._delta is not None, "the table is not open"
        return self._delta

    def open(self, schema: "StructType", *, foreign: str = "", remedy: str = "", setting: str = "schema") -> None:
        """Create the table, or fit it to the rows; raises `ConfigError`.

        `foreign` is the complaint about batches of another checkpoint, whose rows could come a second time; without
        it they are accepted. `remedy` is the advice where batches are missing that the checkpoint has finished;
        without it that is not checked. `setting` names the line to change where a type does not fit.
        """
        began = "" if self._checkpoint.new else self._checkpoint.query()
        self._delta = open_table(self.root)
        if self._delta is not None:
            self.note = read_note(self._delta)
        if foreign and self.note.query not in ("", began):
            raise ConfigError(foreign)
        if began and remedy:
            self._check_has(began, self._checkpoint.finished, remedy)
        try:
            wanted = Schema.from_json(schema.json())
        except Exception as error:  # of delta-rs, which has no class for it
            raise ConfigError(f"{setting}: a Delta table cannot have such columns: {error}") from error
        if self._delta is None:
            if not isinstance(self._files, LocalFiles) or not self._others():
                self._delta = DeltaTable.create(self.root, wanted, partition_by=self._partitions)
                return
            raise ConfigError(f"{self.root} holds other files and is no Delta table; choose another out")
        self._fit(wanted, setting)
        self._count_small()

    def _others(self) -> bool:
        return any(not name.startswith((".", "_")) for name in self._files.names(""))

    def _check_has(self, query: str, batch: int, remedy: str) -> None:
        """Raise `ConfigError` where batches that a query has finished are not here."""
        there = -1 if self._delta is None else self._last_batch(query)
        if self.note.query in ("", query) and there < batch:
            raise ConfigError(
                f"{self.root} has no batch after {there}, and its checkpoint has finished batch {batch}: messages in "
                f"between would be missing. Is the disk mounted, or were files moved? Bring them back, or {remedy}"
            )

    def _last_batch(self, query: str) -> int:
        found = self._table.transaction_version(query)
        return -1 if found is None else int(found)

    def has(self, query: str, batch: int) -> bool:
        """Return whether this batch of this query has been added."""
        return batch <= self._last_batch(query)

    def add(self, rows: "DataFrame", query: str, batch: int, until: dict[str, Any]) -> int:
        """Add a batch that ends at these offsets, and merge files if that is due; return how many rows it had."""
        staging = f"{_STAGING}/{query}"
        self._files.delete(staging)
        if self._casts:
            rows = rows.withColumns({name: rows[name].cast(kind) for name, kind in self._casts.items()})
        self._form.writer(rows).partitionBy(*self._partitions).parquet(f"{self.root}/{staging}")
        added = [each for each in self._moved(staging, f"{query[:8]}-{batch}") if each[1] > 0]
        self._files.delete(staging)
        topics = {str(action.partition_values.get("topic")) for action, _ in added}
        note = self.note.after(query, until, topics, self._scope)
        transactions = [Transaction(query, batch), Transaction(_EVERYBODY, note.number)]
        with self._committing():
            self._table.create_write_transaction(
                [action for action, _ in added], "append", self._table.schema(), self._partitions,
                commit_properties=_properties(note, transactions),
            )  # fmt: skip
        self.note = note
        for path in (f"_delta_log/{self._table.version():020}.json", "_delta_log"):
            self._files.sync(path)
        growing = set()
        for action, _ in added:
            partition = tuple(action.partition_values[name] for name in self._partitions)
            self._note_size(partition, action.size)
            growing.add(partition)
        self._merge(growing=growing)
        return sum(count for _, count in added)

    def _moved(self, staging: str, name: str) -> Iterator[tuple[AddAction, int]]:
        """Bring the staged files to their places, and yield what the log is to have of each, and its rows."""
        found = sorted((path, size) for path, size in self._files.walk(staging) if path.endswith(".parquet"))
        facts = _facts(self._files, [path for path, _ in found], self._spark)
        for index, (path, size) in enumerate(found):
            rows, stats = facts[path]
            folder = path.removeprefix(f"{staging}/").rpartition("/")[0]
            target = f"{folder}/{name}-{index}-{uuid.uuid4().hex[:8]}.parquet".lstrip("/")
            if rows:
                self._files.sync(path)
                self._files.move(path, target)
            values = dict(part.split("=", 1) for part in folder.split("/") if part)
            partition = {key: None if value == _NULL else unquote(value) for key, value in values.items()}
            now = time.time_ns() // 1_000_000
            yield AddAction(target, size, partition, now, True, json.dumps({"numRecords": rows, **stats})), rows

    @contextmanager
    def _committing(self) -> Iterator[None]:
        """Name the reason where a commit fails, and see its result afterwards."""
        try:
            yield
        except CommitFailedError as error:
            raise LapwingError(f"{self.root}: another pipeline writes here too; each needs its own place") from error
        except (DeltaError, OSError) as error:
            raise LapwingError(f"{self.root}: {str(error).splitlines()[0]}") from error
        self._table.update_incremental()

    # --- columns ---

    def _fit(self, wanted: Schema, setting: str) -> None:
        """Add columns that the table lacks and widen those that are too narrow; raises `ConfigError` for others."""
        held = {each.name: each for each in self._table.schema().fields}
        by_case = {name.lower(): name for name in held}
        added, widened = [], []
        for each in wanted.fields:
            name = by_case.get(each.name.lower())
            if name is None:
                added.append(each)
            elif name == each.name and _kind(each) == _kind(held[name]):
                continue
            elif name == each.name and _kind(each) in _narrower(_kind(held[name])):
                self._casts[name] = _kind(held[name])
            elif name == each.name and _kind(each) in _WIDER.get(_kind(held[name]), ()):
                widened.append(each)
            else:
                raise ConfigError(
                    f"{setting}: {each.name} is {_kind(each)}, and {name} is {_kind(held[name])} in the table "
                    f"{self.root}; give it the old name and type here, or another name"
                )
        for each in added:
            logger.warning("%s gets the column %s %s", self.root, each.name, _kind(each))
        with self._committing():
            if added:
                self._table.alter.add_columns(added)
        if widened:
            self._widen(widened)

    def _widen(self, widened: list[Field]) -> None:
        """Write the table again, with wider types in place of those that it has."""
        for each in widened:
            logger.warning("%s is written again, as column %s becomes %s", self.root, each.name, _kind(each))
        types = {each.name: each for each in widened}
        fields = [types.get(each.name, each) for each in self._table.schema().fields]
        target = pa.schema(Schema(fields).to_arrow())
        batches = self._table.to_pyarrow_dataset().scanner().to_batches()
        rows = pa.RecordBatchReader.from_batches(target, (batch.cast(target) for batch in batches))
        with self._committing():
            write_deltalake(
                self._table, rows, mode="overwrite", schema_mode="overwrite", partition_by=self._partitions,
                commit_properties=_properties(self.note),
            )  # fmt: skip

    # --- small files ---

    def _count_small(self) -> None:
        self._small.clear()
        for each in parts_of(self._table):
            self._note_size(tuple(each.partition.get(name) for name in self._partitions), each.bytes)

    def _note_size(self, partition: tuple[str | None, ...], size: int) -> None:
        if size < self._form.file_bytes // _SMALL:
            self._small.setdefault(partition, []).append(size)

    def _merge(self, *, growing: Container[tuple[str | None, ...]] = (), all_due: bool = False) -> int:
        """Merge the small files of one partition that is due, or of all that are; return how many were merged.

        A partition is due when many small files have come together, and once more when its time is over, unless it is
        one of those that are still `growing`.
        """
        merged = 0
        now = datetime.now(UTC)
        for partition, sizes in sorted(self._small.items(), key=lambda each: str(each[0])):
            values = dict(zip(self._partitions, partition, strict=True))
            done = partition not in growing and is_over(values, now)
            if len(sizes) < (2 if done else max(self._form.merge_after, 2)):
                continue
            # files that were merged before are larger than these together, and are left alone until the end
            target = self._form.file_bytes if done else sum(sizes) + 1
            merged += self._optimize(values, target)
            if not all_due:
                break
        if merged:
            self._count_small()
        if all_due or time.monotonic() - self._vacuumed > _VACUUM_SECONDS:
            self.vacuum()
        return merged

    def _optimize(self, partition: Mapping[str, str | None], target: int) -> int:
        with self._committing():
            return optimize(self._table, self._form.compression, target, partition, self.note)

    def vacuum(self) -> None:
        """Delete files that are no part of the table any more, or never became one."""
        self._vacuumed = time.monotonic()
        with self._committing():
            vacuum(self._table, self._form.history)

    def finish(self) -> None:
        """Merge all files that are due, and delete those that are not needed any more."""
        self._merge(all_due=True)


@dataclass(frozen=True, slots=True)
class Part:
    """A file of a table, and what the log knows of its columns."""

    path: str  # below the table's root
    rows: int
    bytes: int
    partition: Mapping[str, str | None]
    lowest: Mapping[str, Any]
    highest: Mapping[str, Any]


def open_table(place: str) -> DeltaTable | None:
    """Return the table at a path or URL, or None."""
    return DeltaTable(place) if DeltaTable.is_deltatable(place) else None


def read(spark: "SparkSession", place: str) -> "DataFrame":
    """Return a table as a DataFrame, as it is at this moment; Delta's jar is not needed. Raises `ConfigError`."""
    from pyspark.sql.types import StructType

    table = open_table(place)
    if table is None:
        raise ConfigError(f"{place} is no Delta table")
    schema = StructType.fromJson(json.loads(table.schema().to_json()))
    root = place.rstrip("/")
    paths = [f"{root}/{part.path}" for part in parts_of(table)]
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", root).parquet(*paths)


def archive_table(place: str) -> DeltaTable:
    """Return the table of an archive; raises `ConfigError` where none is."""
    found = open_table(place)
    if found is None or "log_id" not in {each.name for each in found.schema().fields}:
        raise ConfigError(f"{place}: no archive is there; `lapwing pipeline run archive` writes one, the first files "
                          "after some ten seconds")  # fmt: skip
    return found


def parts_of(table: DeltaTable) -> list[Part]:
    """Return the files of a table."""
    found = pa.table(table.get_add_actions(flatten=True))
    names = found.column_names
    ends = {kind: [name for name in names if name.startswith(f"{kind}.")] for kind in ("partition", "min", "max")}

    def values(row: dict[str, Any], kind: str) -> dict[str, Any]:
        return {name.removeprefix(f"{kind}."): row[name] for name in ends[kind] if row[name] is not None}

    return [
        Part(
            unquote(row["path"]),
            row["num_records"],
            row["size_bytes"],
            {name: str(value) for name, value in values(row, "partition").items()},
            values(row, "min"),
            values(row, "max"),
        )
        for row in found.to_pylist()
    ]


def read_note(table: DeltaTable) -> TableNote:
    """Return what the last commit of a pipeline has noted."""
    note = TableNote()
    for limit in (_LOOKED_AT, None):  # none of ours may be among the last commits
        found = next((commit[_NOTE] for commit in table.history(limit) if _NOTE in commit), None)
        if found is not None:
            note = TableNote(**json.loads(found))
            break
    last = table.transaction_version(_EVERYBODY)
    note.number = -1 if last is None else int(last)
    return note


def optimize(
    table: DeltaTable, compression: str, target: int, partition: Mapping[str, str | None], note: TableNote
) -> int:
    """Merge the files of a partition that are smaller than `target`; return how many were merged."""
    words: Any = compression.upper()
    found = table.optimize.compact(
        partition_filters=[(name, "=", value or "") for name, value in partition.items()] or None,
        target_size=target, max_concurrent_tasks=1, writer_properties=WriterProperties(compression=words),
        commit_properties=_properties(note),
    )  # fmt: skip
    if removed := int(found["numFilesRemoved"]):
        logger.info("%s: merged %s files of %s", table.table_uri, removed, dict(partition))
    return removed


def vacuum(table: DeltaTable, seconds: float) -> None:
    """Delete the files that have been no part of the table for that long, also those that never became one."""
    hours = math.ceil(seconds / 3600)
    table.vacuum(retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=True)


def is_over(partition: Mapping[str, str | None], now: datetime) -> bool:
    """Return whether the hour (or the day) of a partition is long over, so that hardly anything more will come."""
    try:
        end = datetime.fromisoformat(partition["date"] or "").replace(tzinfo=UTC)
        end += timedelta(hours=int(partition["hour"] or "") + 1) if "hour" in partition else timedelta(days=1)
    except (KeyError, ValueError):
        return False
    return now - end > timedelta(minutes=5)


def _properties(note: TableNote, transactions: list[Transaction] | None = None) -> CommitProperties:
    return CommitProperties(custom_metadata={_NOTE: json.dumps(asdict(note))}, app_transactions=transactions)


def _kind(field: Field) -> str:
    """Return the type of a column as Delta's schemas write it."""
    found = json.loads(field.to_json())["type"]
    return found if isinstance(found, str) else json.dumps(found, sort_keys=True)


def _narrower(kind: str) -> tuple[str, ...]:
    return tuple(each for each, wider in _WIDER.items() if kind in wider)


def _facts(files: Files, paths: list[str], spark: "SparkSession") -> dict[str, tuple[int, dict[str, Any]]]:
    """Return the rows of each file and the bounds of its columns: by the footers of files on this machine's disk.

    Elsewhere Spark counts the rows, and nothing is known of columns.
    """
    if isinstance(files, LocalFiles):
        return {path: _footer(f"{files.root}/{path}") for path in paths}
    if not paths:
        return {}
    rows = spark.read.parquet(*(f"{files.root}/{path}" for path in paths))
    counted = rows.selectExpr("_metadata.file_path as path").groupBy("path").count().collect()
    found = {unquote(row["path"]): row["count"] for row in counted}
    return {path: (sum(n for full, n in found.items() if full.endswith(f"/{path}")), {}) for path in paths}


def _footer(path: str) -> tuple[int, dict[str, Any]]:
    """Return the rows of a Parquet file, and the bounds of its columns as Delta writes them."""
    metadata = parquet.read_metadata(path)
    bounds: dict[str, list[Any]] = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            found = column.statistics
            if "." not in column.path_in_schema and found is not None and found.has_min_max:
                bounds.setdefault(column.path_in_schema, []).append((found.min, found.max, found.null_count))
    kept = {
        name: (min(each[0] for each in some), max(each[1] for each in some), sum(each[2] or 0 for each in some))
        for name, some in bounds.items()
        if len(some) == metadata.num_row_groups and all(_is_plain(value) for each in some for value in each[:2])
    }
    return metadata.num_rows, {
        "minValues": {name: _written(low) for name, (low, _, _) in kept.items()},
        "maxValues": {name: _written(high) for name, (_, high, _) in kept.items()},
        "nullCount": {name: nulls for name, (_, _, nulls) in kept.items()},
    }


def _is_plain(value: Any) -> bool:
    """Return whether a bound is exact, and readers understand it."""
    if isinstance(value, str):
        return len(value) <= _LONGEST_BOUND
    return isinstance(value, int | date) and not isinstance(value, bool)


def _written(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return value.isoformat() if isinstance(value, date) else value
