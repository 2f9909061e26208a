"""A trace of what a program does to the files of a folder, and what a power loss at any point of it may leave.

Two models. "strict": a file holds what it held at its last fsync, and a folder the names it had at its own. "ordered",
as ext4: names change in order, up to the last fsync of anything or beyond; content that was not synced is there or not,
of each file for itself.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lapwing.log.disk import Disk

SEGMENT = (".log", ".idx", ".aux")
Names = dict[str, "Inode | None"]  # path -> file, None: a folder


@dataclass(eq=False)
class Inode:
    """A file: its content, and what of it was synced."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


class Trace:
    """Records the calls of `lapwing.log.disk` on what lies in `root`, each as a step that can be done again."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = os.fspath(root)
        self.steps: list[tuple[str, Callable[[Model], None]]] = []
        self._paths: dict[int, str] = {}  # inode -> path
        self._before = {
            os.fspath(path): path.read_bytes() if path.is_file() else None for path in sorted(root.rglob("*"))
        }
        for path in self._before:
            self._paths[os.stat(path).st_ino] = path
        for name in ("open", "pwrite", "fsync", "truncate", "rename", "unlink", "rmdir", "mkdir"):
            monkeypatch.setattr(Disk, name, staticmethod(getattr(self, "_" + name)))

    def models(self, upto: int) -> Iterator[tuple[str, dict[str, bytes | None]]]:
        """Yield what may be left after `upto` steps: a name, and the content of each path (None: a folder)."""
        model = Model(self._before)
        for _, step in self.steps[:upto]:
            step(model)
        yield from model.left()

    def points(
        self, chance: Random | None = None, most: int | None = None
    ) -> Iterator[tuple[int, str, dict[str, bytes | None]]]:
        """Yield what may be left after every step, or after `most` steps that `chance` takes: the number of steps, the
        name of the model, and the content of each path.
        """
        steps = len(self.steps) + 1
        wanted = set(range(steps) if chance is None or most is None else chance.sample(range(steps), min(most, steps)))
        model = Model(self._before)
        for upto in range(steps):
            if upto:
                self.steps[upto - 1][1](model)
            if upto in wanted:
                yield from ((upto, name, left) for name, left in model.left())

    def mark(self, name: str) -> int:
        """Note that something happened here; return the number of steps so far."""
        self.steps.append((name, lambda model: None))
        return len(self.steps)

    def _add(self, name: str, step: Callable[["Model"], None]) -> None:
        self.steps.append((name, step))

    def _path(self, fd: int) -> str | None:
        return self._paths.get(os.fstat(fd).st_ino)

    def _open(self, path: str, flags: int, mode: int = 0o600) -> int:
        new = flags & os.O_CREAT and not os.path.exists(path)
        fd = os.open(path, flags, mode)
        if new and path.startswith(self._root):
            self._paths[os.fstat(fd).st_ino] = path
            self._add(f"create {path}", lambda model: model.create(path))
        return fd

    def _pwrite(self, fd: int, data: Any, offset: int) -> int:
        written = os.pwrite(fd, data, offset)
        path, kept = self._path(fd), bytes(data)[:written]
        if path is not None:
            self._add(f"write {path}", lambda model: model.write(path, kept, offset))
        return written

    def _truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)
        path = self._path(fd)
        if path is not None:
            self._add(f"truncate {path}", lambda model: model.truncate(path, size))

    def _fsync(self, fd: int) -> None:
        path = self._path(fd)
        if os.readlink(f"/proc/self/fd/{fd}") == self._root:
            path = self._root
        if path is not None:
            self._add(f"fsync {path}", lambda model: model.fsync(path))

    def _rename(self, source: str, target: str) -> None:
        os.replace(source, target)
        self._paths[os.stat(target).st_ino] = target
        self._add(f"rename {target}", lambda model: model.rename(source, target))

    def _unlink(self, path: str) -> None:
        os.unlink(path)
        self._add(f"unlink {path}", lambda model: model.remove(path))

    def _rmdir(self, path: str) -> None:
        os.rmdir(path)
        self._add(f"rmdir {path}", lambda model: model.remove(path))

    def _mkdir(self, path: str, mode: int = 0o700) -> None:
        os.mkdir(path, mode)
        self._paths[os.stat(path).st_ino] = path
        self._add(f"mkdir {path}", lambda model: model.mkdir(path))


class Model:
    """The disk after some steps."""

    def __init__(self, before: dict[str, bytes | None]) -> None:
        self.names: Names = {
            path: None if content is None else Inode(bytearray(content), content) for path, content in before.items()
        }
        self.synced_names: Names = dict(self.names)  # strict
        self.ordered_names: Names = dict(self.names)  # as of the last fsync of anything

    def _file(self, path: str) -> Inode:
        inode = self.names[path]
        assert inode is not None
        return inode

    def create(self, path: str) -> None:
        self.names[path] = Inode()

    def mkdir(self, path: str) -> None:
        self.names[path] = None

    def write(self, path: str, data: bytes, offset: int) -> None:
        content = self._file(path).content
        content.extend(bytes(max(offset - len(content), 0)))
        content[offset : offset + len(data)] = data

    def truncate(self, path: str, size: int) -> None:
        content = self._file(path).content
        content.extend(bytes(max(size - len(content), 0)))
        del content[size:]

    def rename(self, source: str, target: str) -> None:
        moved = {target + path[len(source) :]: path for path in self.names if (path + "/").startswith(source + "/")}
        for path in [path for path in self.names if (path + "/").startswith(target + "/")]:
            del self.names[path]
        for new, old in moved.items():
            self.names[new] = self.names.pop(old)

    def remove(self, path: str) -> None:
        self.names.pop(path, None)

    def fsync(self, path: str) -> None:
        self.ordered_names = dict(self.names)
        inode = self.names.get(path)
        if inode is not None:
            inode.synced = bytes(inode.content)
            return
        inside = {name for name in {*self.names, *self.synced_names} if os.path.dirname(name) == path}
        for name in inside:
            if name in self.names:
                self.synced_names[name] = self.names[name]
            else:
                del self.synced_names[name]

    def left(self) -> Iterator[tuple[str, dict[str, bytes | None]]]:
        """Yield what may be left, by the models."""
        yield "strict", self._content(self.synced_names, _synced)
        yield "ordered", self._content(self.ordered_names, _synced)
        yield "ordered, names first", self._content(self.names, _synced)
        yield "ordered, half", self._content(self.names, _half)
        yield "ordered, zeros", self._content(self.names, _zeros)
        yield "ordered, all but segments", self._content(self.names, _synced, but=lambda path: path[-4:] not in SEGMENT)
        yield "ordered, segments", self._content(self.names, _synced, but=lambda path: path[-4:] in SEGMENT)
        yield "ordered, index", self._content(self.names, _synced, but=lambda path: path.endswith(".idx"))
        yield "ordered, all but index", self._content(self.names, _synced, but=lambda path: not path.endswith(".idx"))
        yield "all", self._content(self.names, _all)

    @staticmethod
    def _content(
        names: Names, content: Callable[[Inode], bytes], *, but: Callable[[str], bool] = lambda path: False
    ) -> dict[str, bytes | None]:
        kept: dict[str, bytes | None] = {}
        for path in sorted(names):  # folders come before what is in them
            if os.path.dirname(path) in kept or not any(path.startswith(other + "/") for other in names):
                inode = names[path]
                kept[path] = None if inode is None else _all(inode) if but(path) else content(inode)
        return kept


def _synced(inode: Inode) -> bytes:
    return inode.synced


def _all(inode: Inode) -> bytes:
    return bytes(inode.content)


def _half(inode: Inode) -> bytes:
    """Return the synced content and half of what was appended to it since."""
    size = (len(inode.synced) + len(inode.content)) // 2
    return inode.synced + bytes(inode.content[len(inode.synced) : size])


def _zeros(inode: Inode) -> bytes:
    """Return the synced content, as long as the file was."""
    return inode.synced[: len(inode.content)].ljust(len(inode.content), b"\0")


def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the disk where only the order of calls matters."""
    monkeypatch.setattr(Disk, "fsync", staticmethod(lambda fd: None))


def restore(left: dict[str, bytes | None], source: Path, target: Path) -> None:
    """Make `target` a folder that holds what a power loss left of `source`."""
    target.mkdir()
    for path, content in left.items():
        place = target / os.path.relpath(path, source)
        if not place.parent.is_dir():
            continue  # its folder is lost
        if content is None:
            place.mkdir(exist_ok=True)
        else:
            place.write_bytes(content)
