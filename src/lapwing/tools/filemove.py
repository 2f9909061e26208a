"""A finished file to another directory, be it on another filesystem; nothing is overwritten, and no byte is ever lost.

Until the new file is whole and safe, the old one stays. Whoever is killed meanwhile leaves it behind, and at the worst
also an empty new file, or a hidden `.part` beside it.
"""

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

_BLOCK: Final = 1 << 20
_NOT_BY_LINK: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP})  # elsewhere, or no hard links there


def move(source: Path, target: Path) -> None:
    """Give the file its new name and place. Raises `FileExistsError` where there is one already."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NOT_BY_LINK:
            raise
        _copy(source, target)
    sync_directory(target.parent)
    os.unlink(source)


def _copy(source: Path, target: Path) -> None:
    if target.exists():  # seen again below, but before the work
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    fd, part = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with open(fd, "wb") as writing, open(source, "rb") as reading:
            shutil.copyfileobj(reading, writing, _BLOCK)
            writing.flush()
            os.fchmod(fd, stat.S_IMODE(os.fstat(reading.fileno()).st_mode))
            os.fsync(fd)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))  # the name is ours
        os.replace(part, target)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


def sync_directory(path: Path) -> None:
    """Make the names in it safe."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
