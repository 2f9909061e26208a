"""A remote log in a folder: of a mounted disk, or of this machine for a trial."""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from lapwing.errors import ConfigError, RemoteFailed
from lapwing.log.disk import DISK, Disk
from lapwing.log.remote.engines import CLAIMS

_SWEEPS: Final = 9  # of other processes, that creating a file withstands
_JOINED: Final = 32 << 10  # bytes; shorter parts are written together with others
_UNFINISHED: Final = ".tmp"  # how the names of files end that `Disk.prepare` has not finished


class Folder:
    """Objects are files. One is created by a hard link, which fails where there is a file of that name."""

    def __init__(self, path: str, *, disk: Disk = DISK) -> None:
        """Raise `ConfigError` if there is no such folder: a disk that is not mounted must not pass for an empty one."""
        self.path = os.path.abspath(path)
        self.place = f"file://{self.path}"
        self._disk = disk
        if not os.path.isdir(self.path):
            raise ConfigError(f"{self.place}: no such directory: make it first, on the disk that is to hold the log")

    @classmethod
    def of_url(cls, url: str) -> Self:
        """Return the engine of `file:///path`. Raises `ConfigError`."""
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/") or parts.query or parts.fragment:
            raise ConfigError(f"{url}: expected file:///FOLDER, with the whole path")
        return cls(unquote(parts.path))

    def create(self, name: str, *data: bytes) -> bool:
        """Create a file; it survives a power loss of the machine that has the disk, and so does its name."""
        path = self._path(name)
        try:
            for _ in range(_SWEEPS):
                try:
                    return self._link(path, data)
                except FileNotFoundError:  # the directory is not there, or another process has swept, see `delete`
                    if not os.path.isdir(os.path.dirname(path)):
                        self._make_directory(path)
            return self._link(path, data)
        except OSError as error:
            raise self._failed(name, error) from error

    def _link(self, path: str, data: Sequence[bytes]) -> bool:
        temporary = self._disk.prepare(path, _written(data), sync=True)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            self._disk.discard(temporary)
        self._disk.sync_directory(os.path.dirname(path))
        return True

    def _make_directory(self, path: str) -> None:
        """Make the directory of a file, but not the folder itself. Raises `OSError`.

        A log begins with a claim. A folder that has none, and yet is to take something else, is where a disk was
        mounted: what was written there would be hidden as soon as the disk is back.
        """
        os.stat(self.path)
        claims = self._path(CLAIMS)
        if os.path.dirname(path) != claims and not os.path.isdir(claims):
            raise FileNotFoundError(errno.ENOENT, f"there is no {CLAIMS} directory: is the disk mounted?")
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        self._disk.sync_directory(self.path)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file."""
        try:
            return self._disk.read(self._path(name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed(name, error) from error

    def find(self, prefix: str, after: str = "") -> Iterator[tuple[str, int]]:
        """Yield the files of a directory."""
        directory = self._path(prefix)
        try:
            names = sorted(self._disk.listdir(directory))
        except FileNotFoundError:
            names = []
        except OSError as error:
            raise self._failed(prefix, error) from error
        for entry in names:
            name = f"{prefix}/{entry}"
            if name <= after or entry.endswith(_UNFINISHED):
                continue
            try:
                yield name, os.stat(os.path.join(directory, entry)).st_size
            except FileNotFoundError:
                continue  # deleted meanwhile
            except OSError as error:
                raise self._failed(name, error) from error

    def delete(self, names: Sequence[str]) -> None:
        """Delete files, and what a crash left unfinished beside them; `create` writes a file again that it lost so."""
        try:
            for directory in {os.path.dirname(self._path(name)) for name in names}:
                found = self._disk.listdir(directory) if os.path.isdir(directory) else []
                for entry in found:
                    if entry.endswith(_UNFINISHED):
                        self._disk.discard(os.path.join(directory, entry))
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self._disk.unlink(self._path(name))
        except OSError as error:
            raise self._failed(names[0], error) from error

    def close(self) -> None:
        """Do nothing: no file stays open."""

    def _path(self, name: str) -> str:
        return os.path.join(self.path, *name.split("/"))

    def _failed(self, name: str, error: OSError) -> RemoteFailed:
        return RemoteFailed(f"{self.place}: {name}: {error.strerror or error}")


def _written(data: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the parts of an object as they are written: long ones as they are, without a copy."""
    short: list[bytes] = []
    for part in data:
        if len(part) < _JOINED:
            short.append(part)
            continue
        if short:
            yield b"".join(short)
            short = []
        yield part
    if short:
        yield b"".join(short)
