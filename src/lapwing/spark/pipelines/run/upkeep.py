"""Pipelines removed, reset and compacted, while they do not run."""

import shutil
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from lapwing.errors import ConfigError
from lapwing.spark.brokers.directory import Directory
from lapwing.spark.brokers.http import BrokerAway, BrokerRefused, call
from lapwing.spark.files import is_local, plain_place
from lapwing.spark.options import BrokerAccess
from lapwing.spark.pipelines.kinds.messages import access
from lapwing.spark.pipelines.run.command import RunCommand, remembered
from lapwing.spark.pipelines.run.context import paths_of
from lapwing.spark.pipelines.run.home import PipelineHome
from lapwing.spark.pipelines.settings.kind_settings import PipelineSettings, StreamSettings
from lapwing.spark.pipelines.settings.spec import PipelineSpec
from lapwing.spark.tables.delta import open_table, optimize, parts_of, read_note, vacuum

_FILE_BYTES: Final = 256 << 20
_HISTORY_SECONDS: Final = 86_400.0


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
    """Return the topics of a broker that the pipeline has a channel on, with the channel."""
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
            if not _is_output(Path(out)):
                raise ConfigError(f"{out} holds no table of a pipeline; delete it yourself")
            shutil.rmtree(out)
            done.append(f"deleted the files in {out}")
    shutil.rmtree(paths.checkpoint, ignore_errors=True)
    done.append(f"deleted the checkpoint {paths.checkpoint}; the next run of {name} starts over")
    if out and not with_output and is_local(out) and _is_output(Path(out)):
        done.append(f"kept the files in {out}: an archive continues where they end, other kinds need --with-output")
    if getattr(settings, "store", "") == "jdbc" and not getattr(settings, "key", ()):
        done.append("kept the rows in the database; the next run refuses to add them again, and names the statements")
    return done


def _is_output(place: Path) -> bool:
    """Return whether a pipeline wrote a directory: a table, tables, or plain Parquet in folders by batch."""
    found = [place, *place.iterdir()]
    return any((each / "_delta_log").is_dir() or each.name.startswith("batch=") for each in found)


def compact_now(place: str) -> int:
    """Merge all small files of an archive or a table, and delete those not needed; return how many were merged."""
    table = open_table(plain_place(place))
    if table is None:
        raise ConfigError(f"{place} is no archive and no table of a pipeline")
    compression = "snappy"
    for part in parts_of(table)[-1:]:
        metadata = parquet.read_metadata(f"{plain_place(place)}/{part.path}")
        compression = str(metadata.row_group(0).column(0).compression)
    merged = optimize(table, compression, _FILE_BYTES, {}, read_note(table))
    table.update_incremental()
    vacuum(table, _HISTORY_SECONDS)
    return merged


def _idle(data: Path, name: str) -> RunCommand:
    """Return the last command of a pipeline that does not run now; raises `ConfigError`."""
    if (pid := PipelineHome(data / name).running()) is not None:
        raise ConfigError(f"the pipeline {name} is running (process {pid}); `lapwing pipeline stop {name}` stops it")
    return remembered(data, name)
