"""Become the owner of a remote log, with a data path that holds what it does.

A data path is kept if it is that of the last owner, and nothing of it can be missing: the owner has stopped cleanly,
or was killed while the machine kept running. What it had written and no record has was never acknowledged; as nobody
else has used its sequences, it may become part of the log. Any other data path is moved away, and the log restored.
"""

import contextlib
import os
import shutil
from collections.abc import Callable
from typing import Final

from lapwing.errors import ConfigError, LogError, RemoteError, RemoteFailed
from lapwing.log.catalog import FILE as CATALOG
from lapwing.log.datapath import TOPICS, DataPath
from lapwing.log.disk import DISK
from lapwing.log.options import boot_number
from lapwing.log.remote import marker as markers
from lapwing.log.remote.engines import Engine
from lapwing.log.remote.marker import Marker
from lapwing.log.remote.mirror import Mirror
from lapwing.log.remote.remote_log import RemoteLog
from lapwing.log.remote.restore import build
from lapwing.log.remote.upload import parts_of
from lapwing.log.resting_file import FILE as RESTING
from lapwing.log.staged import STAGING
from lapwing.records import dataclass

RESTORING: Final = ".restoring"  # the folder in a data path whose content is not whole yet
FENCED: Final = "fenced-"

_OURS: Final = frozenset({
    RESTORING, TOPICS, CATALOG, STAGING, markers.FILE, RESTING, "clock", "audit", "audit.1", "schedules",
    "schedules.progress",
})  # fmt: skip

Report = Callable[[str], None]


@dataclass(slots=True)
class Owned:
    """A remote log that this process owns, and the data path that holds the same."""

    remote: RemoteLog
    mirror: Mirror
    place: DataPath
    marker: Marker

    @property
    def ends(self) -> dict[str, tuple[str, int]]:
        """The identity and the end of each log, by topic."""
        return {topic: (known.log_id, known.end) for topic, known in self.mirror.topics.items()}

    def close_cleanly(self, nonce: str) -> None:
        """Note that the log was released by a record when the data path held the same. Raises `OSError`."""
        os.sync()  # first: the note promises that nothing of the data path is missing
        marker = self.marker
        Marker(marker.place, marker.epoch, marker.run, nonce).save(self.place.path)


def own(
    engine: Engine, path: str, *, node: int, owner: str, take_over: bool, now: int, boot: str, report: Report
) -> Owned:
    """Claim the remote log of an engine for a data path, which is made if need be.

    The order matters. The data path is locked first, so that no process uses it any more. Then the log is claimed: from
    there on a former owner cannot acknowledge anything. Only then it is read, as it cannot grow behind our back. The
    marker comes last: until it is there, the next start takes nothing in the data path for granted.

    Raises `ConfigError`, `LogError`, `OSError`, or `RemoteError`: `NotReleased` if somebody else may still own the log.
    """
    path = os.path.abspath(path or ".")
    if f"{engine.place}/".startswith(f"file://{path}/"):
        raise ConfigError(f"{engine.place} is inside of the data path {path}, and would be lost with it: name another")
    DISK.make_directory(path, sync=True)
    place = DataPath(path)
    try:
        return _own(engine, place, node, owner, take_over, now, boot, report)
    except BaseException:
        place.release()
        raise


def _own(
    engine: Engine, place: DataPath, node: int, owner: str, take_over: bool, now: int, boot: str, report: Report
) -> Owned:
    run = _run(place.path, boot)
    marker = markers.load(place.path)
    if marker is None and os.path.exists(os.path.join(place.path, RESTORING)):
        _wipe(place.path)  # a start was interrupted while it restored
    remote = RemoteLog(engine, owner=owner)
    former = remote.last()
    used = _is_used(place.path)
    if used and marker is not None and marker.place != engine.place:
        raise ConfigError(
            f"{place.path} belongs to the remote log {marker.place}, not to {engine.place}: start with that one, or "
            f"move it with `lapwing remote upload {engine.place} {place.path}`"
        )
    if used and marker is None and former is not None:
        raise ConfigError(
            f"{place.path} has data, and {engine.place} has a log of another data path: use an empty one to take over, "
            "or an empty place for this one"
        )
    if used and marker is not None and (former is None or former.epoch < marker.epoch):
        end = "is empty" if former is None else f"ends with epoch {former.epoch}"
        raise ConfigError(
            f"{place.path} is of epoch {marker.epoch} of {engine.place}, which {end}; is the disk mounted, and is it "
            f"the right store? To begin a new log in an empty one, delete {os.path.join(place.path, markers.FILE)}"
        )
    # the data path of the last owner, which is locked: so that process is gone. It is not known of a copy, whose
    # original may be in use, nor after a start of the machine, which may be another one with a copy of the disk
    here = used and marker is not None and bool(run) and marker.run == run
    last = here and marker is not None and former is not None and marker.epoch == former.epoch
    claim = remote.claim(node, now=now, take_over=take_over or last)
    try:
        mirror = Mirror()
        mirror.load(remote)
        assert mirror.last is not None
        before, previous = claim.epoch - 1, mirror.last.previous
        if former is None and used:
            report(f"writing {place.path} to {engine.place}, which is empty")
            mirror = _bring(place, remote, mirror, now, boot)
        elif used and marker is not None and marker.epoch == before and marker.clean == previous:
            report(f"{place.path} holds what {engine.place} does")
        elif here and marker is not None and marker.epoch == before:
            report(f"the last process was killed: comparing {place.path} with {engine.place}")
            try:
                mirror = _bring(place, remote, mirror, now, boot)
            except RemoteFailed:
                raise
            except (LogError, RemoteError) as error:
                report(f"{place.path} cannot be used: {error}")
                place = _restored(place, marker.epoch, remote, now, boot, report)
        elif used or before:
            place = _restored(place, marker.epoch if marker is not None else 0, remote, now, boot, report)
        made = Marker(engine.place, claim.epoch, _run(place.path, boot))
        made.save(place.path)
        shutil.rmtree(os.path.join(place.path, RESTORING), ignore_errors=True)
    except Exception as error:
        if not isinstance(error, RemoteFailed):
            _release(remote, now)  # nothing was acknowledged in this epoch
        raise
    return Owned(remote, mirror, place, made)


def _run(path: str, boot: str) -> str:
    """Return what names this directory in this run of the machine, and no copy of it; nothing if that is not known."""
    facts = os.stat(path)
    return f"{boot} {facts.st_dev}:{facts.st_ino}" if boot else ""


def _release(remote: RemoteLog, now: int) -> None:
    if remote.epoch and remote.unsettled is None:
        with contextlib.suppress(RemoteError):  # another error is about to be raised
            remote.release(now=now)


def _bring(place: DataPath, remote: RemoteLog, mirror: Mirror, now: int, boot: str) -> Mirror:
    """Make the remote log hold what is in the data path, which has everything that it has; return the new state."""
    parts, _ = parts_of(place, remote, mirror, now=now, boot=boot_number(boot), report=lambda topic, done, todo: None)
    remote.make_checkpoint(parts, now=now)
    mirror = Mirror()
    mirror.load(remote)
    return mirror


def _restored(place: DataPath, epoch: int, remote: RemoteLog, now: int, boot: str, report: Report) -> DataPath:
    """Return the data path with what the remote log holds; what was there is kept beside it."""
    path = place.path
    if _is_used(path):
        place = _moved_away(place, epoch, report)
    else:
        _wipe(path)
    report(f"restoring {path} from {remote.engine.place}")
    folder = os.path.join(path, RESTORING)
    image = build(remote, folder, now=now, boot=boot_number(boot), report=lambda topic, done: None)
    for entry in os.listdir(folder):
        os.rename(os.path.join(folder, entry), os.path.join(path, entry))
    DISK.sync_directory(path)
    messages = sum(topic.messages for topic in image.topics.values())
    report(f"restored {len(image.topics)} topics with {messages} messages")
    return place


def _moved_away(place: DataPath, epoch: int, report: Report) -> DataPath:
    """Rename a data path to `<path>.fenced-<epoch>`; return a new one. A mounted one is emptied into a folder of it.

    It may have messages that no record has: their sequences may belong to others by now, so nobody may see them.
    """
    path = place.path
    target = _free_name(f"{path}.{FENCED}{epoch}")
    try:
        os.rename(path, target)
    except OSError:  # it is a mount point, or what is above cannot be written to
        target = _free_name(os.path.join(path, f"{FENCED}{epoch}"))
        DISK.make_directory(target, sync=False)
        for entry in os.listdir(path):
            if not entry.startswith(FENCED) and entry != "lost+found":
                os.rename(os.path.join(path, entry), os.path.join(target, entry))
    else:
        place.release()
        DISK.make_directory(path, sync=True)
        place = DataPath(path)
    report(f"{path} is of epoch {epoch} and may have messages that were never acknowledged: it is kept as {target}")
    return place


def _free_name(path: str) -> str:
    """Return the path, or with a number if there is something of that name."""
    number, free = 1, path
    while os.path.lexists(free):
        number, free = number + 1, f"{path}.{number + 1}"
    return free


def _is_used(path: str) -> bool:
    """Return whether a data path holds anything of a broker."""
    topics = os.path.join(path, TOPICS)
    return os.path.exists(os.path.join(path, CATALOG)) or (os.path.isdir(topics) and bool(os.listdir(topics)))


def _wipe(path: str) -> None:
    """Remove what an interrupted start has left, and what a broker makes before it has anything; nothing else."""
    for entry in os.listdir(path):
        whole = os.path.join(path, entry)
        if entry not in _OURS:
            continue
        if os.path.isdir(whole) and not os.path.islink(whole):
            shutil.rmtree(whole)
        else:
            os.unlink(whole)
