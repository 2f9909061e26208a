"""Small files of a table merged into larger ones."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from lapwing.spark.pipelines import manifest_table as tables
from lapwing.spark.pipelines.files import is_local
from lapwing.spark.pipelines.manifest_table import DataFile, ManifestTable
from lapwing.spark.pipelines.merge import DifferentColumns, merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MergeSettings:
    """The rules by which files are merged."""

    after: int  # small files in one folder
    file_bytes: int  # size up to which files are merged
    order: tuple[str, ...] = ()  # columns that the rows of a merged file are sorted by
    compression: str = "snappy"
    writer: "Callable[[DataFrame], DataFrameWriter]" = lambda rows: rows.write  # how the table's files are written


def compact(
    spark: "SparkSession | None", table: ManifestTable, merging: MergeSettings, *, all_due: bool = False
) -> int:
    """Merge the files of one folder that is due (of all that are, with `all_due`); return how many were merged.

    A folder is due when many small files have come together, and once more when its time is over.
    """
    merged = 0
    now = datetime.now(UTC)
    for folder, parts in sorted(tables.small(table.contents.parts.values(), merging.file_bytes // 2).items()):
        due = 2 if over(folder, now) else max(merging.after, 2)
        chosen = choose(parts, merging.file_bytes)
        if len(parts) < due or len(chosen) < 2:
            continue
        try:
            table.merge(chosen, partial(_save, spark, [f"{table.root}/{path}" for path in chosen], merging))
        except DifferentColumns as error:
            logger.info("%s: the files of %s are not merged: %s", table.root, folder, error)
            continue
        logger.info("%s: merged %s files of %s", table.root, len(chosen), folder)
        merged += len(chosen)
        if not all_due:
            break
    if all_due:
        table.tidy()
    return merged


def choose(parts: list[DataFile], limit: int) -> list[str]:
    """Return as many files, from the first on, as make one of at most `limit` bytes."""
    chosen: list[str] = []
    size = 0
    for part in parts:
        if chosen and size + part.bytes > limit:
            break
        chosen.append(part.path)
        size += part.bytes
    return chosen


def _save(spark: "SparkSession | None", sources: list[str], merging: MergeSettings, place: str) -> None:
    if is_local(place):
        os.makedirs(place)
        merge(sources, f"{place}/0.parquet", merging.order, merging.compression)
        return
    assert spark is not None
    rows = spark.read.parquet(*sources).coalesce(1)
    merging.writer(rows.sortWithinPartitions(*merging.order) if merging.order else rows).parquet(place)


def over(folder: str, now: datetime) -> bool:
    """Return whether the hour (or the day) of a folder is long over, so that hardly anything more will come."""
    values = dict(part.split("=", 1) for part in folder.split("/") if "=" in part)
    try:
        end = datetime.fromisoformat(values["date"]).replace(tzinfo=UTC)
        end += timedelta(hours=int(values["hour"]) + 1) if "hour" in values else timedelta(days=1)
    except (KeyError, ValueError):
        return False
    return now - end > timedelta(minutes=5)
