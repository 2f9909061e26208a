"""Parquet files to which a query adds its batches: the output of every pipeline that writes files."""

from typing import TYPE_CHECKING, Any

from lapwing.errors import ConfigError
from lapwing.spark.pipelines.compact import MergeSettings, compact
from lapwing.spark.pipelines.files import open_files
from lapwing.spark.pipelines.manifest_table import ManifestTable
from lapwing.spark.pipelines.run_context import RunContext

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class BatchTable(ManifestTable):
    """The table of one query; its small files are merged as batches are added."""

    def __init__(
        self, place: str, context: RunContext, merging: MergeSettings, *partitions: str,
        scope: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """`partitions` are the columns that files are divided by, `scope` the topics that the table is for."""
        super().__init__(open_files(place, context.spark), context.spark)
        self._checkpoint = context.checkpoint
        self._merging = merging
        self._partitions = partitions
        self._scope = scope

    def open(self, *, foreign: str = "", remedy: str = "") -> None:
        """Take the table for this process; raises `ConfigError`.

        `foreign` is the complaint about batches of another checkpoint, whose rows could come a second time; without
        it they are accepted. `remedy` is the advice where batches are missing that the checkpoint has finished;
        without it that is not checked.
        """
        super().open()
        began = "" if self._checkpoint.new else self._checkpoint.query()
        if foreign and self.contents.query not in ("", began):
            self.close()
            raise ConfigError(foreign)
        if began and remedy:
            self.check_has(began, self._checkpoint.finished, remedy)

    def add_rows(self, rows: "DataFrame", query: str, batch: int, until: dict[str, Any]) -> int:
        """Add a batch that ends at these offsets, and merge files if that is due; return how many rows it had."""

        def save(place: str) -> None:
            self._merging.writer(rows).partitionBy(*self._partitions).parquet(place)

        added = self.add(query, batch, until, save, scope=self._scope)
        compact(rows.sparkSession, self, self._merging)
        return added

    def finish(self) -> None:
        """Merge all files that are due."""
        compact(self._spark, self, self._merging, all_due=True)
