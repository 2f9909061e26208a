"""Open and remove a topic's directory: its identity, its segments, and what a crash left there half done."""

import contextlib
import json
import os
from typing import Final

from lapwing import kernel
from lapwing.errors import LogError, WriteFailed
from lapwing.log.disk import DISK, Disk, OpenFiles
from lapwing.log.options import LogOptions
from lapwing.log.segments import recovery, reservation
from lapwing.log.segments.salvage import node_of
from lapwing.log.segments.segment import DIGITS, Segment
from lapwing.names import ephemeral
from lapwing.records import dataclass

GONE: Final = "gone-"  # first letters of a directory's name while it is removed
NODES: Final = 1 << 10
SIDE: Final = "side"  # the folder of side logs
SEQUENCES: Final = 1 << 54  # so many an id has room for


@dataclass(frozen=True, slots=True)
class Opened:
    """The content of a log when it is opened."""

    identity: str
    node: int
    segments: list[Segment]
    lost: range  # sequences that may have been given out, and whose messages a crash took


def open_directory(
    directory: str,
    node: int,
    *,
    now: int,
    options: LogOptions,
    files: OpenFiles,
    notes: list[str],
    by_form: bool = False,
) -> Opened:
    """Return what the log in `directory` holds, mended; create it if there is none.

    What was done goes to `notes`. Raises `LogError` when the disk refuses.
    """
    known = os.path.isdir(directory)
    try:
        return _open(directory, node, now, options, files, notes, by_form)
    except (OSError, LogError) as error:
        if not known:
            with contextlib.suppress(OSError):  # an empty one would be a topic at the next start
                files.disk.rmdir(directory)
        if isinstance(error, LogError):
            raise
        raise LogError(f"{directory}: cannot be opened: {error}") from error


def remove_directory(directory: str, disk: Disk) -> None:
    """Remove the directory of a log and all in it. Raises `WriteFailed` and leaves it all.

    It is renamed first: a crash in between leaves nothing that looks like a topic, and the next start removes what
    could not be removed now. A reader finds nothing then, and not the files of a later log of the same name.
    """
    gone = os.path.join(os.path.dirname(directory), GONE + os.urandom(6).hex())
    try:
        disk.rename(directory, gone)
    except FileNotFoundError:
        return
    except OSError as error:
        raise WriteFailed(directory, 0, error) from error
    with contextlib.suppress(OSError):
        disk.remove_tree(gone)


def _open(
    directory: str, node: int, now: int, options: LogOptions, files: OpenFiles, notes: list[str], by_form: bool
) -> Opened:
    try:
        names = files.disk.listdir(directory)
    except FileNotFoundError:
        files.disk.make_directory(directory, sync=options.durability == "fsync")
        names = []
    firsts = segment_firsts(names)
    _sweep(directory, names, set(firsts), files, notes)
    segments = [Segment(directory, first, files, options.merge_bytes, options.boot) for first in firsts]
    known = _known_identity(directory, names, bool(segments), files, notes)
    if known is None:
        known = _make_identity(directory, node, now, segments, files, sync=options.durability == "fsync")

    def note(path: str, offset: int, what: str) -> None:
        notes.append(f"{path}: offset {offset}: {what}")

    reached = 0
    for place, segment in enumerate(segments):
        following = firsts[place + 1] if place + 1 < len(firsts) else None
        reached = recovery.open_segment(
            segment, node=known[1], following=following, by_form=by_form, note=note
        )
    ahead = reservation.ahead(directory, names, files)
    missing = ahead + (reached - segments[-1].end if segments else 0)
    lost = range(0)
    if missing:
        lost = reservation.leave_out(directory, segments, missing, files, options.merge_bytes, options.boot)
        notes.append(
            f"{directory}: was not closed cleanly: messages of the sequences {lost.start} to {lost.stop - 1} may have "
            f"been given out and are lost, new messages begin at {lost.stop}"
        )
    if ahead:
        reservation.clear(directory, files)
    return Opened(*known, segments, lost)


def _sweep(directory: str, names: list[str], firsts: set[int], files: OpenFiles, notes: list[str]) -> None:
    """Remove what a crash left half made or half deleted, and what ephemeral channels had set aside."""
    side = os.path.join(directory, SIDE)
    for name in files.disk.listdir(side) if SIDE in names else ():
        if ephemeral(name):
            files.disk.unlink(os.path.join(side, name))
    for name in names:
        orphan = _is_segment(name) and not name.endswith(".log") and int(name[:DIGITS]) not in firsts
        if orphan or name.endswith(".tmp"):
            path = os.path.join(directory, name)
            files.disk.unlink(path)
            notes.append(f"{path}: removed, as it belongs to no log")


def read_identity(path: str, disk: Disk = DISK) -> tuple[str, int]:
    """Return the id and the node in a file `identity`; raises `ValueError` or `OSError`."""
    try:
        known = json.loads(disk.read(path))
        identity, node, created = known["id"], known["node"], known.get("created")
        check = known.get("crc")  # which files of the first versions do not have
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not understood: {error}") from error
    if not isinstance(identity, str) or type(node) is not int or not 0 <= node < NODES:
        raise ValueError("not an id and a node")
    if check is not None and check != _check(identity, node, created):
        raise ValueError("does not match its checksum")
    return identity, node


def _check(identity: str, node: int, created: object) -> int:
    return kernel.crc32c(f"{identity} {node} {created}".encode())


def _known_identity(
    directory: str, names: list[str], used: bool, files: OpenFiles, notes: list[str]
) -> tuple[str, int] | None:
    path = os.path.join(directory, "identity")
    if "identity" in names:
        try:
            return read_identity(path, files.disk)
        except ValueError as error:
            notes.append(f"{path}: {error}: the log gets a new identity")
    elif used:
        notes.append(f"{path}: missing, the log gets a new identity")
    return None


def _make_identity(
    directory: str, node: int, now: int, segments: list[Segment], files: OpenFiles, *, sync: bool
) -> tuple[str, int]:
    """Make a new identity. The node is that of the messages that are there, if any are."""
    for segment in segments:
        found = node_of(segment.frames)
        if found is not None:
            node = found
            break
    identity = os.urandom(8).hex()
    write_identity(directory, identity, node, now, files.disk, sync=sync)
    return identity, node


def write_identity(directory: str, identity: str, node: int, now: int, disk: Disk, *, sync: bool) -> None:
    """Write the file `identity` of a log. Raises `OSError`."""
    text = json.dumps({"id": identity, "node": node, "created": now, "crc": _check(identity, node, now)}) + "\n"
    disk.replace(os.path.join(directory, "identity"), [text.encode()], sync=sync)


def segment_firsts(names: list[str]) -> list[int]:
    """Return the first sequences of the segments among the names of a directory, in order."""
    return sorted(int(name[:DIGITS]) for name in names if name.endswith(".log") and _is_segment(name))


def _is_segment(name: str) -> bool:
    digits, ending = name[:DIGITS], name[DIGITS:]
    if len(digits) < DIGITS or not digits.isdecimal() or not digits.isascii():
        return False
    return ending in (".log", ".idx", ".aux") and int(digits) < SEQUENCES
