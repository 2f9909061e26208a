"""Pipelines removed, reset and compacted, while they do not run."""

import shutil
from pathlib import Path
from typing import Any, Final

from lapwing.errors import ConfigError
from lapwing.spark.directory import Directory
from lapwing.spark.http import BrokerAway, BrokerRefused, call
from lapwing.spark.options import BrokerAccess
from lapwing.spark.pipelines.compact import MergeSettings, compact
from lapwing.spark.pipelines.files import LocalFiles, is_local
from lapwing.spark.pipelines.manifest_table import MANIFEST, ManifestTable
from lapwing.spark.pipelines.messages import access
from lapwing.spark.pipelines.pipeline_home import PipelineHome
from lapwing.spark.pipelines.pipeline_settings import PipelineSettings, StreamSettings
from lapwing.spark.pipelines.run_command import RunCommand, remembered
from lapwing.spark.pipelines.run_context import paths_of
from lapwing.spark.pipelines.spec import PipelineSpec

_FILE_BYTES: Final = 256 << 20
_ORDER: Final = ("node", "log_id", "sequence")


def remove(data: Path, name: str, *, keep_channel: bool = False) -> list[str]:
    """Delete a pipeline's folder and its channel on the brokers; return what was done, in words. Files are kept."""
    spec = _idle(data, name).specs[0]
    done = [] if keep_channel else _remove_from_brokers(spec)
    shutil.rmtree(data / name)
    done.append(f"deleted {data / name}")
    if out := paths_of(spec.settings, data).out:
        done.append(f"kept the files in {out}")
    return done


def _remove_from_brokers(spec: PipelineSpec) -> list[str]:
    """Delete the report and the channel of a pipeline; raises `ConfigError` unless every broker answers."""
    settings = spec.settings
    found = access(settings)
    done = []
    try:
        for address in Directory(found).find(departed=True):
            _ignoring_missing(lambda: call(address, found, "DELETE", f"/pipelines/{spec.name}"))  # noqa: B023
            for topic, channel in _channels(address, found, settings):
                where = {"topic": topic, "channel": channel}
                if _ignoring_missing(lambda: call(address, found, "POST", "/channel/delete", where)):  # noqa: B023
                    done.append(f"deleted the channel {topic}/{channel} at {address}")
    except BrokerAway as error:
        raise ConfigError(f"the channel cannot be deleted: {error}; --keep-channel leaves it there") from error
    return done


def _channels(address: str, found: BrokerAccess, settings: PipelineSettings) -> list[tuple[str, str]]:
    """Return the topics of a broker that the pipeline reads and has a channel on, with the channel."""
    if not isinstance(settings, StreamSettings):
        return []
    channel = settings.channel or settings.name
    question: dict[str, str | int | list[str]] = {"topic": list(settings.topics), "times": "false"}
    if found.secret:  # a permission may be for this channel alone
        question["channel"] = channel
    return sorted(
        (each["topic"], channel)
        for each in call(address, found, "GET", "/log/offsets", question)["topics"]
        if settings.reads(each["topic"]) and any(one["channel"] == channel for one in each["channels"])
    )


def _ignoring_missing(step: Any) -> bool:
    try:
        step()
    except BrokerRefused as error:
        if error.status != 404:
            raise
        return False
    return True


def reset(data: Path, name: str, *, with_output: bool = False) -> list[str]:
    """Delete a pipeline's checkpoint, so that it starts over; with `with_output` also the files it has written."""
    command = _idle(data, name)
    settings = command.specs[0].settings
    paths = paths_of(settings, data, command.checkpoint)
    if not is_local(paths.checkpoint):
        raise ConfigError(f"{paths.checkpoint} is not on this machine; delete it there")
    done = []
    out = paths.out
    if with_output and out:
        if not is_local(out):
            raise ConfigError(f"{out} is not on this machine; delete it there")
        if Path(out).exists():
            if not Path(out, MANIFEST).is_dir():
                raise ConfigError(f"{out} has no manifest, so no pipeline wrote it; delete it yourself")
            shutil.rmtree(out)
            done.append(f"deleted the files in {out}")
    shutil.rmtree(paths.checkpoint, ignore_errors=True)
    done.append(f"deleted the checkpoint {paths.checkpoint}; the next run of {name} starts over")
    if out and not with_output and Path(out, MANIFEST).is_dir():
        done.append(f"kept the files in {out}: an archive continues where they end, other kinds need --with-output")
    if getattr(settings, "store", "") == "jdbc" and not getattr(settings, "key", ()):
        done.append("kept the rows in the database; the next run refuses to add them again, and names the statements")
    return done


def compact_now(place: str) -> int:
    """Merge all small files of an archive or a table on this machine; return how many were merged."""
    if not is_local(place):
        raise ConfigError(f"{place} is not on this machine; the pipeline merges its files itself")
    files = LocalFiles(place)
    if not files.names(MANIFEST):
        raise ConfigError(f"{place} has no manifest, so it is no archive and no table of a pipeline")
    table = ManifestTable(files)
    table.open()
    try:
        settings = MergeSettings(2, _FILE_BYTES, _ORDER, _compression(table))
        merged = 0
        while more := compact(None, table, settings, all_due=True):
            merged += more
        return merged
    finally:
        table.close()


def _compression(table: ManifestTable) -> str:
    """Return how the newest file is compressed."""
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    for path in sorted(table.contents.parts, reverse=True):
        metadata = parquet.read_metadata(f"{table.root}/{path}")
        if metadata.num_row_groups:
            return str(metadata.row_group(0).column(0).compression).lower()
    return "snappy"


def _idle(data: Path, name: str) -> RunCommand:
    """Return the last command of a pipeline that does not run now; raises `ConfigError`."""
    if (pid := PipelineHome(data / name).running()) is not None:
        raise ConfigError(f"the pipeline {name} is running (process {pid}); `lapwing pipeline stop {name}` stops it")
    return remembered(data, name)
