"""The current file of one topic: open, write, sync, rotate and move it. Blocking; the time is an argument.

Written messages are safe only after `sync`, `rotate` or `close` has returned.
"""

import contextlib
import errno
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lapwing.tools.filemove import move, sync_directory
from lapwing.tools.filenames import Names

BUFFER: Final = 1 << 20
GZIP: Final = 31  # zlib's value for gzip
DIRECTORY_MODE: Final = 0o770
FILE_MODE: Final = 0o666


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules for ending and moving files."""

    output_dir: Path
    work_dir: Path
    gzip_level: int = 0  # 0: plain
    rotate_size: int = 0  # bytes; 0: off
    rotate_interval: float = 0.0  # s; 0: off
    skip_empty_files: bool = False

    @property
    def moves(self) -> bool:
        return self.work_dir != self.output_dir

    @property
    def revisions(self) -> bool:
        """Whether a name may need more than one file."""
        return bool(self.gzip_level) or self.rotate_size > 0 or self.rotate_interval > 0 or self.moves


class FileLog:
    """The file that messages of a topic are written to."""

    def __init__(self, names: Names, rules: Rules) -> None:
        self._names = names
        self._rules = rules
        self._fd = -1
        self._name = ""  # for the current time, with <REV>
        self._second = -1
        self._current = ""
        self._revision = 0
        self._relative = ""
        self._opened = 0.0
        self._size = 0  # uncompressed bytes, including those at opening
        self._buffer = bytearray()
        self._gzip: zlib._Compress | None = None

    @property
    def open(self) -> bool:
        return self._fd >= 0

    @property
    def path(self) -> Path:
        """The current file."""
        return self._rules.work_dir / self._relative

    def write(self, body: bytes, now: float) -> bool:
        """Write a message; return whether a new file was opened for it, with all earlier messages safe."""
        fresh = self._make_ready(now)
        data = body + b"\n"
        self._size += len(data)
        self._put(data)
        return fresh

    def tick(self, now: float) -> bool:
        """Open or rotate the file if the time asks for it; return whether anything changed."""
        if not self.open:
            return False if self._rules.skip_empty_files else self._make_ready(now)
        if not self._due(now):
            return False
        if self._rules.skip_empty_files:
            self.close()
            return True
        return self._make_ready(now)

    def sync(self) -> None:
        """Sync all written messages. A gzip member ends here, so that the file can be read."""
        if not self.open:
            return
        self._end_member()
        self._drain()
        with self._named():
            os.fsync(self._fd)

    def close(self) -> None:
        """Sync and close the file, and move it to the output directory."""
        if not self.open:
            return
        self.sync()
        os.close(self._fd)
        self._fd = -1
        if self._rules.moves:
            self._move()

    # -- opening

    def _make_ready(self, now: float) -> bool:
        name = self._name_at(now)
        if self.open and not self._due(now):
            return False
        again = name == self._name
        rotating = self.open
        self.close()
        self._revision = self._revision + (1 if rotating else 0) if again else 0
        self._name = name
        self._open(now)
        return True

    def _due(self, now: float) -> bool:
        rules = self._rules
        return (
            self._name_at(now) != self._name
            or (rules.rotate_interval > 0 and now - self._opened > rules.rotate_interval)
            or (rules.rotate_size > 0 and self._size > rules.rotate_size)
        )

    def _name_at(self, now: float) -> str:
        second = int(now)
        if second != self._second:  # no part of a name changes within a second
            self._second = second
            self._current = self._names.at(now)
        return self._current

    def _open(self, now: float) -> None:
        rules = self._rules
        must_be_new = rules.gzip_level > 0 or rules.rotate_interval > 0
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if must_be_new else os.O_APPEND)
        while True:
            self._relative = self._names.revision(self._name, self._revision)
            if rules.moves and (rules.output_dir / self._relative).exists():
                self._next_revision()
                continue
            _make_directory(self.path.parent)
            try:
                fd = os.open(self.path, flags, FILE_MODE)
            except FileExistsError:
                self._next_revision()
                continue
            size = os.fstat(fd).st_size
            if 0 < rules.rotate_size < size:
                os.close(fd)
                self._next_revision()
                continue
            break
        if not size:
            sync_directory(self.path.parent)  # otherwise a crash could lose the name, and so the file
        elif os.pread(fd, 1, size - 1) != b"\n":
            self._buffer += b"\n"  # a full disk or a crash tore the last line: the next must not be glued to it
        self._fd = fd
        self._size = size
        self._opened = now
        if rules.gzip_level:
            self._begin_member()  # ended by the first sync, messages or none: an empty file is no gzip file

    def _next_revision(self) -> None:
        if not self._names.revisions:
            raise FileExistsError(errno.EEXIST, "file exists, and its name has no <REV>", str(self.path))
        self._revision += 1

    # -- writing

    def _put(self, data: bytes) -> None:
        if self._rules.gzip_level:
            data = (self._gzip or self._begin_member()).compress(data)
        self._buffer += data
        if len(self._buffer) >= BUFFER:
            self._drain()

    def _begin_member(self) -> "zlib._Compress":
        self._gzip = zlib.compressobj(self._rules.gzip_level, zlib.DEFLATED, GZIP)
        return self._gzip

    def _end_member(self) -> None:
        if self._gzip is not None:
            self._buffer += self._gzip.flush(zlib.Z_FINISH)
            self._gzip = None

    def _drain(self) -> None:
        view = memoryview(self._buffer)
        done = 0
        with self._named():
            while done < len(view):
                done += os.write(self._fd, view[done:])
        view.release()
        self._buffer.clear()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Add the file name to an error."""
        try:
            yield
        except OSError as error:
            error.filename = str(self.path)
            raise

    # -- moving

    def _move(self) -> None:
        """Move the file to the output directory, with the first free revision."""
        source = self.path
        revision = self._revision
        while True:
            target = self._rules.output_dir / self._names.revision(self._name, revision)
            _make_directory(target.parent)
            try:
                move(source, target)
            except FileExistsError:
                revision += 1
                continue
            break
        self._revision = revision


def _make_directory(path: Path) -> None:
    if not path.is_dir():
        _make_directory(path.parent)  # one by one: `parents=True` would give those the default mode
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
