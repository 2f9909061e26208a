"""The base of a pipeline when it starts: its session, its checkpoint, its brokers, its place on disk."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapwing.spark.pipelines.run.checkpoint import Checkpoint
from lapwing.spark.pipelines.run.home import PipelineHome
from lapwing.spark.pipelines.settings.kind_settings import PipelineSettings
from lapwing.spark.pipelines.settings.values import place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class PipelinePaths:
    """The places where a pipeline keeps things."""

    home: PipelineHome
    checkpoint: str  # a path, or a URL that Spark understands
    out: str  # "" where nothing is written to files


@dataclass
class RunContext:
    """All that a pipeline needs beside its settings."""

    spark: "SparkSession"
    paths: PipelinePaths
    checkpoint: Checkpoint
    brokers: tuple[str, ...]
    function: Callable[[Any], Any] | None = None  # of a pipeline that is written in Python
    rows_out: int | None = None  # counted by pipelines that can
    rejected: int | None = None
    dry_run: bool = False  # nothing is noted for later runs

    def count_out(self, rows: int) -> None:
        """Count rows that went out."""
        self.rows_out = (self.rows_out or 0) + rows

    def count_rejected(self, rows: int) -> None:
        """Count messages that were rejected."""
        self.rejected = (self.rejected or 0) + rows


@contextmanager
def persisted(rows: "DataFrame") -> Iterator["DataFrame"]:
    """Give rows that Spark keeps while several steps read them, and does not compute again."""
    kept = rows.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def nothing() -> None:
    """Do nothing at the end."""


@dataclass
class PreparedQuery:
    """A query that is ready to start; `finish` is called after a run that ended well."""

    writer: "DataStreamWriter"
    trigger: float
    finish: Callable[[], Any] = nothing


def paths_of(settings: PipelineSettings, data: Path, checkpoint: str = "") -> PipelinePaths:
    """Return where a pipeline keeps things: below `data`, unless the settings or `checkpoint` name another place.

    The default place of the files that it writes is beside `data`, under the pipeline's name.
    """
    home = PipelineHome(data.absolute() / settings.name)
    writes_files = hasattr(settings, "out") and getattr(settings, "store", "delta") != "jdbc"
    return PipelinePaths(
        home,
        place(checkpoint) if checkpoint else str(home.checkpoint.absolute()),
        (getattr(settings, "out", "") or str(data.absolute().parent / settings.name)) if writes_files else "",
    )
