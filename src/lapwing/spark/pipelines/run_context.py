"""What a pipeline stands on when it starts: its session, its checkpoint, its brokers, its place on disk."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lapwing.spark.pipelines import settings
from lapwing.spark.pipelines.checkpoint import Checkpoint
from lapwing.spark.pipelines.pipeline_home import PipelineHome
from lapwing.spark.session import activate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


@dataclass(frozen=True)
class PipelinePaths:
    """Where a pipeline keeps things."""

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
    once: bool
    rows_out: int | None = None  # counted by pipelines that can

    def told(self, rows: int) -> None:
        """Count rows that went out."""
        self.rows_out = (self.rows_out or 0) + rows

    def activate(self) -> None:
        """Make the session that of this thread, as it has to be for writes."""
        activate(self.spark)


def nothing() -> None:
    """What there is to do at the end where there is nothing."""


@dataclass
class PreparedQuery:
    """A query that is ready to start; `finish` is called after a run that ended well, `close` after any."""

    writer: "DataStreamWriter"
    trigger: float
    finish: Callable[[], Any] = nothing
    close: Callable[[], Any] = nothing


def paths_of(name: str, data: Path, *, checkpoint: str = "", out: str = "", files: bool = False) -> PipelinePaths:
    """Where the pipeline of this name keeps things: below `data`, unless something else is said.

    With `files` it also writes files; their default place is beside `data`, under the pipeline's name.
    """
    home = PipelineHome(data.absolute() / name)
    if checkpoint:
        checkpoint = settings.place(checkpoint)
    if files and not out:
        out = str(data.absolute().parent / name)
    return PipelinePaths(home, checkpoint or str(home.checkpoint.absolute()), "" if out == "none" else out)
