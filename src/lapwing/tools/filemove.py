"""Move a finished file to another directory, also on another filesystem, without overwriting or losing anything.

The old file stays until the new one is complete and synced. A kill in between leaves the old file, and at worst an
empty new file or a hidden `.part` file.
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
_NOT_BY_LINK: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP})  # another filesystem, or no hard links


def move(source: Path, target: Path) -> None:
    """Move the file. Raises `FileExistsError` if the target exists."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NOT_BY_LINK:
            raise
        _copy(source, target)
    sync_directory(target.parent)
    os.unlink(source)


def _copy(source: Path, target: Path) -> None:
    if target.exists():  # checked again below; this avoids the work
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    fd, part = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with open(fd, "wb") as writing, open(source, "rb") as reading:
            shutil.copyfileobj(reading, writing, _BLOCK)
            writing.flush()
            os.fchmod(fd, stat.S_IMODE(os.fstat(reading.fileno()).st_mode))
            os.fsync(fd)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))  # reserves the name
        os.replace(part, target)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
        raise


def sync_directory(path: Path) -> None:
    """Sync a directory, so that the names in it are safe."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
