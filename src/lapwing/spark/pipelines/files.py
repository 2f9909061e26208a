"""The few things a pipeline does with files itself: on this machine's disk, or wherever Spark can write."""

import contextlib
import ctypes
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from lapwing.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HERE: Final = -100  # AT_FDCWD
_EXCHANGE: Final = 2  # RENAME_EXCHANGE


class LocalFiles:
    """A directory of this machine; all paths are relative to it, with slashes."""

    def __init__(self, root: str | Path) -> None:
        self.root = str(Path(root).absolute())
        self._lock: int | None = None

    def _at(self, path: str) -> Path:
        return Path(self.root, path)

    def read(self, path: str) -> bytes:
        """Return all of a file; raises `FileNotFoundError`."""
        return self._at(path).read_bytes()

    def write(self, path: str, data: bytes, *, new: bool = False) -> None:
        """Make a file, whole or not at all; with `new` raises `FileExistsError` when there is one."""
        place = self._at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(f".{place.name}.{os.getpid()}.new")
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            if new:
                os.link(draft, place)  # unlike a rename it does not replace
            else:
                os.replace(draft, place)
        finally:
            draft.unlink(missing_ok=True)
        _sync_directory(place.parent)

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def names(self, path: str) -> list[str]:
        """Return what lies in a directory; nothing when there is none."""
        try:
            return sorted(os.listdir(self._at(path)))
        except FileNotFoundError:
            return []

    def walk(self, path: str) -> Iterator[tuple[str, int]]:
        """Yield every file below a directory with its size."""
        for folder, _, names in os.walk(self._at(path)):
            for name in names:
                found = Path(folder, name)
                yield str(found.relative_to(self.root)), found.stat().st_size

    def move(self, path: str, target: str) -> None:
        place = self._at(target)
        if not place.parent.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self._at(path), place)

    def exchange(self, folder: str, added: Mapping[str, str], removed: Set[str], draft: str) -> bool:
        """Put files (name: where it is now) in the place of others of a folder in one step; False: not possible here.

        `draft` is a free path to prepare the new folder at; the old one, with all its files, is left behind there.
        """
        if not folder:
            return False
        live, new = self._at(folder), self._at(draft)
        kept = set(self.names(folder)) - removed
        try:
            self.delete(draft)
            new.mkdir(parents=True)
            new.chmod(live.stat().st_mode)
            for name in kept - added.keys():
                os.link(live / name, new / name)
            for name, place in added.items():
                os.link(self._at(place), new / name)
            _sync_directory(new)
            if not _exchange(live, new):
                return False
        except OSError:  # no links or no exchange on this file system, or a directory inside
            return False
        for name in self.names(draft):
            if name not in kept and name not in removed:  # came in between, from somebody else
                os.replace(new / name, live / name)
        _sync_directory(live.parent)
        return True

    def delete(self, path: str) -> None:
        """Remove a file or a directory with all that is in it, if there is one."""
        place = self._at(path)
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)

    def sync(self, path: str) -> None:
        """Return once the file would survive a loss of power, as far as this is known here."""
        sync(self._at(path))

    def hold(self) -> None:
        """Keep others from writing here as long as this process lives."""
        self._at("_manifest").mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._at("_manifest/lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            raise ConfigError(f"{self.root}: another pipeline is writing here; stop it or choose another out") from None

    def release(self) -> None:
        """Let others write here."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class HadoopFiles:
    """The same on any file system that Spark knows, by its URL."""

    def __init__(self, root: str, spark: "SparkSession") -> None:
        self.root = root.rstrip("/")
        context: Any = spark.sparkContext
        self._gateway: Any = context._gateway
        self._hadoop = context._jvm.org.apache.hadoop.fs
        self._paths = self._hadoop.Path
        self._configuration = context._jsc.hadoopConfiguration()
        self._system = self._paths(self.root).getFileSystem(self._configuration)

    def _at(self, path: str) -> Any:
        return self._paths(f"{self.root}/{path}")

    def read(self, path: str) -> bytes:
        if not self.exists(path):
            raise FileNotFoundError(path)
        with contextlib.closing(self._system.open(self._at(path))) as stream:
            return bytes(stream.readAllBytes())

    def write(self, path: str, data: bytes, *, new: bool = False) -> None:
        if new and self.exists(path):
            raise FileExistsError(path)
        draft = self._at(f"{path}.{os.getpid()}.new")
        with contextlib.closing(self._system.create(draft, True)) as stream:
            stream.write(bytearray(data))
        if new:
            if not self._system.rename(draft, self._at(path)):
                raise FileExistsError(path)
            return
        # in one step where the file system can: a crash leaves the old file or the new one
        how = self._gateway.new_array(self._hadoop.Options.Rename, 1)
        how[0] = self._hadoop.Options.Rename.OVERWRITE
        context = self._hadoop.FileContext.getFileContext(self._system.getUri(), self._configuration)
        context.rename(self._system.makeQualified(draft), self._system.makeQualified(self._at(path)), how)

    def exists(self, path: str) -> bool:
        return bool(self._system.exists(self._at(path)))

    def names(self, path: str) -> list[str]:
        if not self.exists(path):
            return []
        return sorted(entry.getPath().getName() for entry in self._system.listStatus(self._at(path)))

    def walk(self, path: str) -> Iterator[tuple[str, int]]:
        if not self.exists(path):
            return
        base = self._system.makeQualified(self._paths(self.root)).toUri().getPath().rstrip("/") + "/"
        found = self._system.listFiles(self._at(path), True)
        while found.hasNext():
            entry = found.next()
            yield entry.getPath().toUri().getPath().removeprefix(base), entry.getLen()

    def move(self, path: str, target: str) -> None:
        self._system.mkdirs(self._at(target).getParent())
        if not self._system.rename(self._at(path), self._at(target)):
            raise OSError(f"{self.root}: {path} could not be moved to {target}")

    def exchange(self, folder: str, added: Mapping[str, str], removed: Set[str], draft: str) -> bool:
        """Return False: such file systems replace one file at most."""
        return False

    def delete(self, path: str) -> None:
        self._system.delete(self._at(path), True)

    def sync(self, path: str) -> None:
        """Do nothing: what was written and closed is as safe as this file system makes it."""

    def hold(self) -> None:
        """Do nothing: such file systems have no locks; two writers meet in the manifest, and the second one fails."""

    def release(self) -> None:
        """Do nothing."""


Files = LocalFiles | HadoopFiles


def is_local(place: str) -> bool:
    """Return whether a place is a path on this machine's disk."""
    return "://" not in place


def plain_place(place: str) -> str:
    """Return a place in its one form: a path from the root (also for `file:` URLs), or the URL of a file system."""
    if place.startswith("file:"):
        place = unquote(urlsplit(place).path)
    return place.rstrip("/") if not is_local(place) else os.path.abspath(os.path.expanduser(place))


def open_files(place: str, spark: "SparkSession | None" = None) -> Files:
    """Return the directory at a path or URL."""
    if is_local(place):
        return LocalFiles(place)
    if spark is None:
        raise ConfigError(f"{place} needs Spark to be read")
    return HadoopFiles(place, spark)


def check_writable(place: str) -> None:
    """Raises `ConfigError` when nothing can be written to a local place; others are seen when Spark writes there."""
    if not is_local(place):
        return
    try:
        Path(place).mkdir(parents=True, exist_ok=True)
        probe = Path(place, f".probe-{os.getpid()}")
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ConfigError(
            f"{place}: cannot write there: {error.strerror}; choose another place or give this user the right to write"
        ) from error


def _exchange(one: Path, other: Path) -> bool:
    """Let two paths change places in one step; False where the system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # of Linux; Python has no name for it
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _sync_directory(path: Path) -> None:
    with contextlib.suppress(OSError):  # some file systems refuse it, and then it is as good as it gets
        sync(path)


def sync(path: str | Path) -> None:
    """Sync a file or a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
