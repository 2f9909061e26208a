"""A query as Spark drives its source, without Spark: the same calls in the same order, and a checkpoint in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lapwing.spark.data_source import columns
from lapwing.spark.options import source_options
from lapwing.spark.source.stream_reader import LogStreamReader

Row = tuple[str, int, int, bytes]  # topic, node, sequence, body


class DrivenQuery:
    """Offsets are written down before a batch and committed after it, as Spark does; `restart` is a new process."""

    def __init__(self, brokers: Iterable[Any] = (), **options: str) -> None:
        addresses = ",".join(broker.address for broker in brokers)
        self.raw = {"startingOffsets": "earliest", "pollTimeout": "50ms", "retryTimeout": "1s", **options}
        if addresses:
            self.raw["nsqd"] = addresses
        if not {"topic", "topicPattern"} & self.raw.keys():
            self.raw["topic"] = "orders"
        self.rows: list[Row] = []  # all that was committed
        self.committed: dict[str, Any] | None = None
        self.planned: tuple[dict[str, Any], dict[str, Any]] | None = None
        self.reader = self._reader()

    def _reader(self) -> LogStreamReader:
        return LogStreamReader(source_options(self.raw, streaming=True), columns(self.raw))

    def restart(self, **options: str) -> None:
        """A new process goes on from the checkpoint; a batch that was begun will be done again."""
        self.raw |= options
        self.reader = self._reader()

    def batch(self) -> list[Row]:
        """One micro-batch; its rows."""
        if self.planned is None:
            start = self.reader.initialOffset() if self.committed is None else self.committed
            self.planned = start, self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        start, end = self.planned
        if start == end and self.committed is not None:  # Spark makes no batch of nothing
            self.planned = None
            return []
        found = self.read(start, end)
        self.rows += found
        self.committed, self.planned = end, None
        return found

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
        """Plan a batch and read its tasks."""
        found: list[Row] = []
        for task in self.reader.partitions(start, end):
            for each in self.reader.read(task):
                values = [each.column(name).to_pylist() for name in ("topic", "node", "sequence", "body")]
                found += zip(*values, strict=True)
        return found

    def catch_up(self) -> list[Row]:
        """Batches until one brings nothing; their rows."""
        before = len(self.rows)
        self.batch()
        while self.batch() or self.batch():  # one batch may only take in new logs
            pass
        return self.rows[before:]

    def bodies(self) -> list[bytes]:
        """The bodies of all rows, sorted; fails when a message came twice."""
        assert len({row[:3] for row in self.rows}) == len(self.rows), "a message came twice"
        return sorted(row[3] for row in self.rows)
