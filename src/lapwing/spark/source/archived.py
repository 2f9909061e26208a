"""Archived logs: the table of an archive as the older part of the brokers' logs.

Of a log that a broker still has, the archive holds the sequences that its batches have reached, and the broker has
the rest. A log that no broker has any more (its topic was deleted or created again, its node is gone) is one that
has ended: it gets a node number of its own in the offsets of a query, so that its place is kept apart.
"""

import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from lapwing.errors import ConfigError, LapwingError
from lapwing.spark.source.blocks import fields_of, filled
from lapwing.spark.source.offsets import ENDED_LOG, HeldLog, LogRange
from lapwing.spark.tables.delta import Log, Part, archive_table, parts_of, reached, read_note

_ROWS: Final = 20_000  # of one batch that is handed to Spark
_KEYS: Final = ["node", "log_id", "sequence"]


@dataclass(frozen=True, slots=True)
class Extent:
    """The messages of one log in one file."""

    path: str
    first: int
    last: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ArchivedLog:
    """The part of one log that the archive holds: sequences [first, until)."""

    first: int
    until: int
    bytes: int
    extents: tuple[Extent, ...]


class Archive:
    """An archive of this machine, or of a file system that is mounted here."""

    def __init__(self, place: str) -> None:
        self._root = place
        try:
            self._table = archive_table(place)
        except ConfigError as error:
            raise LapwingError(f"option archive: {error}") from error
        self._version = -1
        self._ends: dict[Log, int] = {}
        self._extents: dict[Log, list[Extent]] = {}
        self._mixed: dict[str, list[tuple[Log, Extent]]] = {}  # files with several logs, by path: they never change
        self._lock = threading.Lock()

    def logs(self, topic: str | None = None) -> dict[Log, ArchivedLog]:
        """Return every archived log (of a topic) at this moment."""
        with self._lock:
            self._look()
            extents = {log: found for log, found in self._extents.items() if topic is None or log[0] == topic}
        return {
            log: ArchivedLog(
                first=min(each.first for each in found),
                until=max(self._ends.get(log, 0), max(each.last for each in found) + 1),
                bytes=sum(each.bytes for each in found),
                extents=tuple(sorted(found, key=lambda each: each.first)),
            )
            for log, found in extents.items()
        }

    def topics(self) -> list[str]:
        """Return the topics that were there when the logs were asked for last."""
        return sorted({topic for topic, _, _ in self._extents})

    def dataset(self, topic: str) -> Any:
        """Return the rows of a topic as an Arrow dataset: those that were there when the logs were asked for last."""
        return self._table.to_pyarrow_dataset(file_pruning_predicate=[("topic", "=", topic)])

    def _look(self) -> None:
        """Take in the newest version of the table."""
        self._table.update_incremental()
        if self._table.version() == self._version:
            return
        note = read_note(self._table)
        self._ends = {(name, node, log_id): end for name, node, log_id, end in note.ended} | reached(note.until)
        self._extents = {}
        for part in parts_of(self._table):
            for log, extent in self._logs_of(part):
                self._extents.setdefault(log, []).append(extent)
        self._version = self._table.version()

    def _logs_of(self, part: Part) -> list[tuple[Log, Extent]]:
        """Return the logs of a file: by the bounds of its columns where it is of one log, else by its rows."""
        topic, low, high = part.partition["topic"] or "", part.lowest, part.highest
        if all(name in low for name in _KEYS) and all(low[name] == high[name] for name in ("node", "log_id")):
            extent = Extent(part.path, low["sequence"], high["sequence"], part.bytes)
            return [((topic, low["node"], low["log_id"]), extent)]
        if part.path not in self._mixed:
            place = os.path.join(self._root, part.path)
            found = _by_columns(parquet.read_table(place, columns=_KEYS, partitioning=None), place)
            self._mixed[part.path] = [
                ((topic, node, log_id), Extent(part.path, first, last, size))
                for (node, log_id), (first, last, size) in found.items()
            ]
        return self._mixed[part.path]

    def rows(self, part: LogRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Return the archived messages of a range in order, each once."""
        return iter(self._read(part, schema).to_batches(max_chunksize=_ROWS))

    def _read(self, part: LogRange, schema: pa.Schema) -> pa.Table:
        """Return all rows at once, in order."""
        log = part.topic, real_node(part.node), part.log_id
        held = self.logs(part.topic).get(log)
        columns = sorted({*schema.names, *_KEYS, *(["body"] if "fields" in schema.names else [])} - {"topic", "fields"})
        tables = []
        for extent in () if held is None else held.extents:
            if extent.first < part.stop and extent.last >= part.start:
                within = [("node", "=", log[1]), ("log_id", "=", part.log_id)]
                within += [("sequence", ">=", part.start), ("sequence", "<", part.stop)]
                place = os.path.join(self._root, extent.path)
                tables.append(parquet.read_table(place, columns=columns, filters=within, partitioning=None))
        if not tables:
            return schema.empty_table()
        rows = pa.concat_tables(tables, promote_options="permissive")
        rows = rows.take(pc.sort_indices(rows.column("sequence")))
        if len(pc.unique(rows.column("sequence"))) != len(rows):
            raise LapwingError(f"{part}: the archive {self._root} has messages twice; `lapwing pipeline verify`")
        made = {
            "topic": lambda: pa.repeat(pa.scalar(part.topic, pa.string()), len(rows)),
            "fields": lambda: fields_of(rows.column("body")),
            "headers": lambda: filled(rows.column("headers")),
        }
        found = [
            made[name]() if name in made else rows.column(name).cast(schema.field(name).type) for name in schema.names
        ]
        return pa.Table.from_arrays(found, schema=schema)

    def sequence_at(self, log: Log, moment: int) -> int | None:
        """Return the first archived sequence of a log at or after a time (ns), if there is one."""
        held = self.logs(log[0]).get(log)
        earliest: int | None = None
        since = pa.scalar(moment // 1000, pa.timestamp("us", tz="UTC"))
        for extent in () if held is None else held.extents:
            if earliest is not None and extent.first > earliest:
                break
            within = [("node", "=", log[1]), ("log_id", "=", log[2]), ("timestamp", ">=", since)]
            place = os.path.join(self._root, extent.path)
            found = parquet.read_table(place, columns=["sequence"], filters=within, partitioning=None)
            if len(found):
                first = int(pc.min(found.column("sequence")).as_py())
                earliest = first if earliest is None else min(earliest, first)
        return earliest


@cache
def archive_at(place: str) -> Archive:
    """Return the archive at a path: one a process, as it remembers the footers of files."""
    return Archive(place)


def ended_node(node: int, log_id: str) -> int:
    """Return the number under which offsets keep a log that has ended, apart from the node's present one."""
    digest = int.from_bytes(hashlib.sha256(log_id.encode()).digest()[:5], "big")
    return (digest + 1) * ENDED_LOG + node


def real_node(node: int) -> int:
    """Return the node that a log is or was of."""
    return node % ENDED_LOG


def add_archive(
    holdings: dict[str, dict[int, HeldLog]], place: str, wanted: Any, at: int | None = None
) -> dict[str, dict[int, HeldLog]]:
    """Return what brokers and archive hold together. `wanted` chooses topics, `at` is a time in ns to look for.

    The brokers have to be asked before: the archive only grows, and what a broker has deleted since is there.
    """
    archive = archive_at(place)
    merged = {topic: dict(nodes) for topic, nodes in holdings.items()}
    for (topic, node, log_id), found in archive.logs().items():
        if not wanted(topic):
            continue
        live = holdings.get(topic, {}).get(node)
        span = found.first, found.until
        if live is None or live.log_id != log_id:
            held = HeldLog(log_id, found.first, found.until, found.bytes, cursor=found.until, archived=span)
            if at is not None:
                held = replace(held, at=archive.sequence_at((topic, node, log_id), at))
            merged.setdefault(topic, {})[ended_node(node, log_id)] = held
            continue
        held = replace(
            live, first=min(live.first, found.first), bytes=live.bytes + found.bytes, kept=live.first,
            archived=(found.first, min(found.until, live.next)),
        )  # fmt: skip
        if at is not None and (live.at is None or live.at <= live.first):
            earlier = archive.sequence_at((topic, node, log_id), at)
            held = replace(held, at=earlier if earlier is not None else live.at)
        merged[topic][node] = held
    return merged


def _by_columns(rows: pa.Table, place: str) -> dict[tuple[int, str], tuple[int, int, int]]:
    size = os.path.getsize(place)
    figures = [("sequence", name) for name in ("min", "max", "count")]
    found = rows.group_by(["node", "log_id"]).aggregate(figures)
    return {
        (row["node"], row["log_id"]): (
            row["sequence_min"], row["sequence_max"], size * row["sequence_count"] // max(len(rows), 1)
        )
        for row in found.to_pylist()
    }  # fmt: skip
