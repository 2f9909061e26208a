"""The few things a pipeline does with files itself: on this machine's disk, or wherever Spark can write."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from lapwing.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

class LocalFiles:
    """A directory of this machine; all paths are relative to it, with slashes."""

    def __init__(self, root: str | Path) -> None:
        self.root = str(Path(root).absolute())

    def _at(self, path: str) -> Path:
        return Path(self.root, path)

    def read(self, path: str) -> bytes:
        """Return all of a file; raises `FileNotFoundError`."""
        return self._at(path).read_bytes()

    def write(self, path: str, data: bytes) -> None:
        """Make or replace a file, whole or not at all."""
        place = self._at(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(f".{place.name}.{os.getpid()}.new")
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
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

    def write(self, path: str, data: bytes) -> None:
        draft = self._at(f"{path}.{os.getpid()}.new")
        with contextlib.closing(self._system.create(draft, True)) as stream:
            stream.write(bytearray(data))
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

    def delete(self, path: str) -> None:
        self._system.delete(self._at(path), True)

    def sync(self, path: str) -> None:
        """Do nothing: what was written and closed is as safe as this file system makes it."""

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
