"""lapwing remote: look into remote logs, write data paths to them, and get data paths back."""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

from lapwing import ids
from lapwing.cli.administer import Yes, confirm
from lapwing.cli.commands import Argument, Group, Option
from lapwing.cli.log import boot, held_data_path
from lapwing.cli.shared import Json
from lapwing.errors import ConfigError, LapwingError, NotReleased, RemoteDamaged

if TYPE_CHECKING:
    from lapwing.log.remote.image import Image
    from lapwing.log.remote.record import Record
    from lapwing.log.remote.remote_log import RemoteLog

app = Group(
    "remote",
    """Keep a copy of a data path outside of its machine: in an object store, in PostgreSQL or in a folder.

    URL is s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, postgresql://USER@HOST/DATABASE?table=NAME or
    file:///FOLDER. Object stores take keys, region and endpoint from the environment (AWS_ACCESS_KEY_ID,
    AWS_ENDPOINT_URL and so on). All but folders need pip install 'lapwing[replicated]'.""",
    example="lapwing remote upload s3://backups/nsqd-1 /var/lib/nsqd",
)

Url = Annotated[str, Argument(metavar="URL", help="The remote log; see `lapwing remote --help`.")]
DataPathArgument = Annotated[str, Argument(metavar="DATA_PATH", help="The data path of an nsqd that is stopped.")]
NewFolder = Annotated[str, Argument(metavar="FOLDER", help="The new data path; it must be empty, or not be there.")]

_OBJECTS: Final = ("records", "slices", "checkpoints", "claims")


@app.command(example="lapwing remote upload s3://backups/nsqd-1 /var/lib/nsqd")
def upload(
    url: Url,
    place: DataPathArgument,
    take_over: Annotated[
        bool, Option("--take-over", help="Also if the last owner did not release it (default: refuse).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a data path to a remote log: messages, headers, channels with what they have finished, settings, schedules.

    What it has of the data path already is not written again. A remote log that holds another data path, or something
    newer than this one, is refused.
    """
    from lapwing.client.format import messages, size
    from lapwing.log.remote.upload import upload as write
    from lapwing.tools.terminal import progress_bars

    with held_data_path(place) as held, _remote(url) as remote, progress_bars(quiet=as_json, unit=size) as report:
        node = ids.default_node(socket.gethostname())
        try:
            found = write(
                held, remote, now=time.time_ns(), boot=boot(), node=node, take_over=take_over, report=report
            )
        except NotReleased as error:
            raise LapwingError(f"{error}; if that process is gone, repeat this with --take-over") from error
    if as_json:
        print(json.dumps({"topics": [asdict(each) for each in found]}, indent=2))
        return
    for each in found:
        lost = f", {messages(each.lost)} set aside before" if each.lost else ""
        print(f"{each.topic}: [{each.first}, {each.end}), {messages(each.messages)} written, {size(each.bytes)}{lost}")
    print(f"{remote.engine.place} has it")


@app.command(example="lapwing remote status s3://backups/nsqd-1 --json | jq .epoch")
def status(url: Url, as_json: Json = False) -> None:
    """Show who owns a remote log, how far it is, and its size. Exit code 2 if there is none."""
    from lapwing.client.format import size, utc_time

    with _remote(url) as remote:
        last, checkpoint = _last(remote), remote.checkpoint()
        sizes = {name: [length for _, length in remote.engine.find(name)] for name in _OBJECTS}
    facts: dict[str, Any] = {
        "place": remote.engine.place, "node": last.node, "epoch": last.epoch, "index": last.index,
        "owner": last.owner, "released": last.kind == "release", "time": last.time,
        "checkpoint": checkpoint and {"index": checkpoint.index, "time": checkpoint.time},
        "objects": {name: {"count": len(found), "bytes": sum(found)} for name, found in sizes.items()},
    }  # fmt: skip
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    owner = f"released by {last.owner}" if facts["released"] else f"owned by {last.owner}"
    print(f"{remote.engine.place}: {owner}, node {last.node}")
    print(f"epoch {last.epoch}, record {last.index} of {utc_time(last.time / 1e9)}")
    if checkpoint is not None:
        print(f"checkpoint at record {checkpoint.index} of {utc_time(checkpoint.time / 1e9)}")
    print(", ".join(f"{len(found)} {name} ({size(sum(found))})" for name, found in sizes.items()))


@app.command(example="lapwing remote verify s3://backups/nsqd-1")
def verify(url: Url, as_json: Json = False) -> None:
    """Read everything, compare it with its checksums, and look for what is missing.

    Exit code 1 if something is wrong.
    """
    from lapwing.log.remote.image import loaded

    with _remote(url) as remote:
        _last(remote)
        try:
            image = loaded(remote)
        except RemoteDamaged as error:
            if as_json:
                print(json.dumps({"ok": False, "problem": str(error), "topics": {}}, indent=2))
            else:
                print(error)
            sys.exit(1)
    _show(image, as_json)
    if not as_json:
        print("no problem found")


@app.command(example="lapwing remote restore s3://backups/nsqd-1 /var/lib/nsqd")
def restore(url: Url, folder: NewFolder, as_json: Json = False) -> None:
    """Make a data path of what a remote log holds, for nsqd to be started on. The remote log is not changed.

    The folder appears when it is whole.
    """
    from lapwing.client.format import size
    from lapwing.log.remote.restore import restore as write
    from lapwing.tools.terminal import progress_bars

    with _remote(url) as remote, progress_bars(quiet=as_json, unit=size) as report:
        _last(remote)
        total = sum(length for _, length in remote.engine.find("slices"))
        done: dict[str, int] = {}

        def progress(topic: str, bytes_done: int) -> None:
            done[topic] = bytes_done
            report("restoring", min(sum(done.values()), total), total)

        image = write(remote, folder, now=time.time_ns(), boot=boot(), report=progress)
    _show(image, as_json)
    if not as_json:
        print(f"{os.path.abspath(folder)} is a data path now: nsqd --data-path={os.path.abspath(folder)}")


@app.command(example="lapwing remote release s3://backups/nsqd-1")
def release(url: Url, yes: Yes = False, as_json: Json = False) -> None:
    """Release a remote log whose owner is gone, so that another process may claim it without --take-over.

    An owner that is not gone can write nothing more to it.
    """
    with _remote(url) as remote:
        last = _last(remote)
        if last.kind != "release":
            confirm(f"This will take {remote.engine.place} from {last.owner}. Continue?", yes=yes)
            remote.claim(last.node, now=time.time_ns(), take_over=True)
            remote.release(now=time.time_ns())
    if as_json:
        print(json.dumps({"released": last.kind != "release", "owner": last.owner}, indent=2))
    elif last.kind == "release":
        print(f"{remote.engine.place} was released by {last.owner} before")
    else:
        print(f"{remote.engine.place} is released")


@contextmanager
def _remote(url: str) -> "Iterator[RemoteLog]":
    """Yield a remote log, for this process. Raises `ConfigError`."""
    from lapwing.log.remote.engines import open_engine
    from lapwing.log.remote.remote_log import RemoteLog

    engine = open_engine(url)
    try:
        yield RemoteLog(engine, owner=f"{socket.gethostname()} (process {os.getpid()})")
    finally:
        engine.close()


def _last(remote: "RemoteLog") -> "Record":
    """Return the last record. Raises `ConfigError` when there is none."""
    last = remote.last()
    if last is None:
        raise ConfigError(f"{remote.engine.place}: there is no remote log")
    return last


def _show(image: "Image", as_json: bool) -> None:
    """Print what an image holds."""
    from lapwing.client.format import messages, size

    if as_json:
        topics = {name: asdict(topic) for name, topic in image.topics.items()}
        print(json.dumps({"ok": True, "topics": topics}, indent=2))
        return
    for name, topic in image.topics.items():
        lost = f", {messages(topic.lost)} set aside before" if topic.lost else ""
        print(f"{name}: [{topic.first}, {topic.end}), {messages(topic.messages)}, {size(topic.bytes)}{lost}")
