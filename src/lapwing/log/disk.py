"""Every call that touches a file, in one place where tests can make it fail; and which files are open."""

import contextlib
import ctypes
import errno
import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from lapwing.errors import ReadFailed

MODE: Final = 0o600
FOLDER_MODE: Final = 0o700

_KEEP_SIZE: Final = 1


def _find_fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return the system's call to reserve room beyond a file's end, which Python does not offer."""
    call = getattr(ctypes.CDLL(None), "fallocate64", None)
    if call is None:
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    reserve: Callable[[int, int, int, int], int] = call
    return reserve


_FALLOCATE: Final = _find_fallocate()


class Disk:
    """The system's file calls. A test's twin overrides some of them to run out of space or to write short."""

    close = staticmethod(os.close)
    dup = staticmethod(os.dup)
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    fsync = staticmethod(os.fsync)
    truncate = staticmethod(os.ftruncate)
    rename = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)
    mkdir = staticmethod(os.mkdir)
    listdir = staticmethod(os.listdir)

    @staticmethod
    def open(path: str, flags: int, mode: int = MODE) -> int:
        """Return a descriptor of the file at `path`."""
        return os.open(path, flags, mode)

    @staticmethod
    def reserve(fd: int, offset: int, length: int) -> bool:
        """Set room aside for writes to come, which makes them cheaper and keeps a file in one piece; its size stays.

        Whether that worked: not every system and filesystem can.
        """
        return _FALLOCATE is not None and _FALLOCATE(fd, _KEEP_SIZE, offset, length) == 0

    @staticmethod
    def free(path: str) -> int:
        """Return how many bytes may still be written where `path` lies."""
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize

    def remove_tree(self, path: str) -> None:
        """Remove a directory with all that is in it."""
        for name in self.listdir(path):
            inner = os.path.join(path, name)
            if os.path.isdir(inner) and not os.path.islink(inner):
                self.remove_tree(inner)
            else:
                self.unlink(inner)
        self.rmdir(path)

    def make_directory(self, path: str, *, sync: bool) -> None:
        """Make a directory and those above it, unless they are there; with `sync` they survive a power loss."""
        missing = []
        above = os.path.abspath(path)
        while not os.path.isdir(above):
            missing.append(above)
            above = os.path.dirname(above)
        for folder in reversed(missing):  # os.makedirs would give those above the last the mode of the umask
            with contextlib.suppress(FileExistsError):
                self.mkdir(folder, FOLDER_MODE)
        for made in missing if sync else ():
            self.sync_directory(os.path.dirname(made))

    def sync_directory(self, path: str) -> None:
        """Make the names in `path` survive a power loss."""
        fd = self.open(path, os.O_RDONLY)
        try:
            self.fsync(fd)
        finally:
            self.close(fd)

    def read(self, path: str) -> bytes:
        """Return all of a file; raises `FileNotFoundError`."""
        fd = self.open(path, os.O_RDONLY)
        try:
            parts = []
            at, wanted = 0, os.fstat(fd).st_size + 1  # at once, and beyond its end: a long file is not joined again
            while part := self.pread(fd, wanted, at):
                parts.append(part)
                at += len(part)
                wanted = 1 << 16
            return parts[0] if len(parts) == 1 else b"".join(parts)
        finally:
            self.close(fd)

    def replace(self, path: str, parts: Iterable[bytes], *, sync: bool, sync_name: bool = True) -> None:
        """Make `parts` the content of `path`: wholly, or (when this raises) not at all.

        With `sync` the content survives a power loss, and so does its name unless `sync_name` is false. When only the
        sync of the name fails, this raises although the content is replaced.
        """
        temporary = self.prepare(path, parts, sync=sync)
        try:
            self.rename(temporary, path)
        except OSError:
            self.discard(temporary)
            raise
        if sync and sync_name:
            self.sync_directory(os.path.dirname(path))

    def append(self, path: str, data: bytes) -> None:
        """Write `data` at the end of a file that is there: wholly, or (when this raises) not at all."""
        fd = self.open(path, os.O_RDWR)
        try:
            before = os.fstat(fd).st_size
            try:
                self.write(fd, data, before)
            except OSError:
                self.truncate(fd, before)  # half of it would spoil what comes next
                raise
        finally:
            self.close(fd)

    def prepare(self, path: str, parts: Iterable[bytes], *, sync: bool) -> str:
        """Write `parts` to a new file beside `path`; return its path, which ends in `.tmp`. Raises `OSError`."""
        temporary = f"{path}.{os.urandom(4).hex()}.tmp"
        fd = self.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, MODE)
        try:
            try:
                at = 0
                for part in parts:
                    self.write(fd, part, at)
                    at += len(part)
                if sync:
                    self.fsync(fd)
            finally:
                self.close(fd)
        except BaseException:  # `parts` may be made from reads that fail
            self.discard(temporary)
            raise
        return temporary

    def discard(self, temporary: str) -> None:
        """Remove a file that `prepare` has written; a start removes it if that fails now."""
        with contextlib.suppress(OSError):
            self.unlink(temporary)

    def write(self, fd: int, data: bytes, offset: int) -> None:
        """Write all of `data` at `offset`, however many calls it takes; raises `OSError`."""
        written = self.pwrite(fd, data, offset)
        if written == len(data):
            return
        rest = memoryview(data)
        while True:
            rest = rest[written:]
            offset += written
            if not rest:
                return
            written = self.pwrite(fd, rest, offset)
            if written <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


DISK: Final = Disk()


def exists(path: str) -> bool:
    """Return whether there is something at `path`. Raises `OSError` when the disk does not answer.

    `os.path.exists` returns False then, and a file would be taken for missing that is only unreadable now.
    """
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


class File:
    """A file that is opened when needed; its descriptor may be taken away between two uses."""

    __slots__ = ("fd", "path", "table")

    def __init__(self, path: str, table: "OpenFiles") -> None:
        self.path = path
        self.table = table
        self.fd = -1

    def read(self, length: int, offset: int) -> bytes:
        """Return up to `length` bytes at `offset`; fewer only at the end of the file. Raises `ReadFailed`."""
        try:
            fd = self.table.reach(self)
            data = self.table.disk.pread(fd, length, offset)
            while len(data) < length:
                more = self.table.disk.pread(fd, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise ReadFailed(self.path, offset, error) from error
        return data

    def write(self, data: bytes, offset: int) -> None:
        """Write all of `data` at `offset`, creating the file when it is not there."""
        disk = self.table.disk
        fd = self.table.reach(self, create=True)
        if disk.pwrite(fd, data, offset) != len(data):
            disk.write(fd, data, offset)

    def reserve(self, offset: int, length: int) -> bool:
        """Set room aside for writes to come; whether that worked."""
        return self.table.disk.reserve(self.table.reach(self), offset, length)

    def truncate(self, size: int) -> None:
        """Make the file `size` bytes long; one of no bytes is created when it is not there."""
        self.table.disk.truncate(self.table.reach(self, create=not size), size)

    def size(self) -> int:
        """Return the length of the file; 0 when there is none. Raises `OSError`."""
        try:
            return os.fstat(self.fd).st_size if self.fd >= 0 else os.stat(self.path).st_size
        except FileNotFoundError:
            return 0

    def room(self) -> int:
        """Return the bytes that the file takes on disk, with those reserved beyond its end; 0 when there is none."""
        try:
            return os.stat(self.path).st_blocks * 512
        except FileNotFoundError:
            return 0

    def exists(self) -> bool:
        """Return whether there is such a file. Raises `OSError`."""
        return self.fd >= 0 or exists(self.path)

    def close(self) -> None:
        """Give the descriptor back; the next use opens the file again."""
        self.table.shut(self)

    def unlink(self) -> None:
        """Remove the file; no error when there is none."""
        self.close()
        with contextlib.suppress(FileNotFoundError):
            self.table.disk.unlink(self.path)


class Sheds(Protocol):
    """An owner of bytes in memory that it can read again."""

    def shed(self) -> None:
        """Drop them."""


class OpenFiles:
    """Resources that all logs of a process share: a bounded number of descriptors, and of bytes kept in memory.

    Least recently used goes first, in both. One table belongs to one thread.
    """

    def __init__(self, disk: Disk = DISK, *, limit: int = 512, cache_bytes: int = 32 << 20) -> None:
        self.disk = disk
        self.limit = limit
        self.cache_bytes = cache_bytes
        self._open: OrderedDict[File, None] = OrderedDict()
        self._kept: OrderedDict[int, tuple[weakref.ref[Sheds], int]] = OrderedDict()  # owner, bytes
        self._kept_bytes = 0

    def __len__(self) -> int:
        return len(self._open)

    def __del__(self) -> None:
        self.shut_all()  # logs that were dropped without being closed leave no descriptors behind

    def reach(self, file: File, *, create: bool = False) -> int:
        """Return the descriptor of `file`, opened (and with `create`, made) if need be; good until the next `reach`."""
        if file.fd >= 0:
            self._open.move_to_end(file)
            return file.fd
        while len(self._open) >= self.limit:
            self.shut(next(iter(self._open)))
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDWR
        try:
            file.fd = self.disk.open(file.path, flags, MODE)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._open:
                raise
            self.shut_all()  # sockets took the descriptors: make do with fewer
            file.fd = self.disk.open(file.path, flags, MODE)
        self._open[file] = None
        return file.fd

    def shut(self, file: File) -> None:
        """Close the descriptor of `file`, if it has one."""
        if file.fd >= 0:
            del self._open[file]
            fd, file.fd = file.fd, -1
            self.disk.close(fd)

    def shut_all(self) -> None:
        """Close every descriptor; what is reached again is opened again."""
        while self._open:
            self.shut(next(iter(self._open)))

    def keep(self, owner: Sheds, size: int) -> None:
        """Note that `owner` now keeps `size` bytes; when all keep too much, the longest unheard of sheds."""
        key = id(owner)
        known = self._kept.pop(key, None)
        if known is None:
            known = weakref.ref(owner, lambda _: self._forget(key)), 0
        self._kept_bytes += size - known[1]
        if not size:
            return
        self._kept[key] = known[0], size
        while self._kept_bytes > self.cache_bytes and len(self._kept) > 1:  # not who is just about to use it
            _, (oldest, kept) = self._kept.popitem(last=False)
            self._kept_bytes -= kept
            holder = oldest()
            if holder is not None:
                holder.shed()

    def _forget(self, key: int) -> None:
        """Forget an owner that was deleted with what it kept."""
        known = self._kept.pop(key, None)
        if known is not None:
            self._kept_bytes -= known[1]
