"""The directory that holds everything: who may use it, and where each topic lies in it."""

import contextlib
import errno
import fcntl
import os
import re
from typing import Final

from lapwing import names
from lapwing.errors import DataPathInUse, LogError
from lapwing.log.disk import DISK, exists
from lapwing.log.segments.opening import GONE

TOPICS: Final = "topics"
PROBE: Final = "nsqd.dat.probe"  # what a half written one is called, a start sweeps away
_UPPER: Final = re.compile(r"[A-Z]")
_ESCAPED: Final = re.compile(r"\+([a-z])")


def folder(name: str, prefix: str = "t-") -> str:
    """Return the name of a topic's folder, or with another prefix that of a channel's file.

    Upper-case letters are written "+x", so that no two names meet on a disk that ignores case; the prefix
    makes "." and ".." harmless.
    """
    return prefix + _UPPER.sub(lambda match: "+" + match[0].lower(), name)


def unfold(text: str, prefix: str = "t-") -> str | None:
    """Return the name whose `folder` this is; None when there is none."""
    name = _ESCAPED.sub(lambda match: match[1].upper(), text.removeprefix(prefix))
    return name if names.valid(name) and folder(name, prefix) == text else None


class DataPath:
    """A data path, held for this process alone until `release`.

    Raises `DataPathInUse`, naming the holder, when another process has it, and `LogError` when it is no directory.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path) or ".")
        self.topics = os.path.join(self.path, TOPICS)
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise LogError(f"failed to lock data-path: cannot open {self.path} - {error.strerror}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = _holder(self._fd)
            os.close(self._fd)
            named = f", process {holder}" if holder else ""
            raise DataPathInUse(
                f"failed to lock data-path: cannot flock directory {self.path} - resource temporarily unavailable"
                f" (possibly in use by another instance of nsqd{named})"
            ) from error

    def release(self) -> None:
        """Let others have the data path."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def try_writing(self, *, min_free: int) -> None:
        """Write a little and remove it again; raises `OSError` while the disk refuses, or has less than `min_free`."""
        path = os.path.join(self.path, PROBE)
        free = DISK.free(self.path)
        if free < min_free:
            raise OSError(errno.ENOSPC, f"{free} bytes free, {min_free} are to stay free")
        try:
            DISK.replace(path, [bytes(4096)], sync=False)
        finally:
            with contextlib.suppress(FileNotFoundError):
                DISK.unlink(path)

    def topic_dir(self, name: str) -> str:
        """Return the folder of a topic's log."""
        return os.path.join(self.topics, folder(name))

    def topics_on_disk(self) -> list[str]:
        """Return the topics that have a folder, known to the catalog or not; remove what a crash left half done."""
        for entry in os.listdir(self.path):
            if entry.startswith(("nsqd.dat.", "clock.", "resting.")) and entry.endswith(".tmp"):  # never finished
                DISK.unlink(os.path.join(self.path, entry))
        found = []
        for entry in sorted(os.listdir(self.topics)) if exists(self.topics) else ():
            if entry.startswith(GONE):
                with contextlib.suppress(OSError):  # no reason not to start; the next one tries again
                    DISK.remove_tree(os.path.join(self.topics, entry))
            elif (name := unfold(entry)) is not None:
                found.append(name)
        return found


def _holder(fd: int) -> int | None:
    """Return the process that holds the lock on a directory, as far as the system shows it."""
    facts = os.fstat(fd)
    place = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}:{facts.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            lines = [line.split() for line in locks]
    except OSError:
        return None
    held = [line for line in lines if "FLOCK" in line and "->" not in line]
    exact = [line for line in held if line[-3] == place]
    # some filesystems show another device number there than stat does: the inode alone is enough to name a suspect
    close = [line for line in held if line[-3].rpartition(":")[2] == str(facts.st_ino)]
    for line in exact or close:
        return int(line[-4])
    return None
