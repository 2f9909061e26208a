"""The file `resting` of a data path: what a node with very many topics knew of its idle ones when it stopped.

The next start takes a topic from here instead of opening its files, if none of them was touched since and the machine
has not been started again. A topic that does not fit is opened as always, so the file can be lost or damaged.

One line per topic: a checksum of the rest, and JSON of `RestingTopic`. The first line names the run of the machine.
"""

import base64
import contextlib
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from lapwing import kernel
from lapwing.log.disk import DISK, Disk
from lapwing.log.journal.journal import PackedJournal, shared

FILE: Final = "resting"
_VERSION: Final = 2
_BLOCK: Final = 1 << 20


class RestingTopic(NamedTuple):
    """A topic without channels, and whose log rests."""

    name: str
    files: list[int]  # that its files have when nobody has touched them
    node: int
    first: int
    end: int
    rows_end: int
    packed: bytes  # the log
    journal: PackedJournal
    fanned_out: int


class RestingFile:
    """The file, written by a clean stop."""

    def __init__(self, path: str, *, disk: Disk = DISK) -> None:
        self._file = os.path.join(path, FILE)
        self._disk = disk

    def save(self, topics: Iterable[RestingTopic], *, boot: int) -> None:
        """Save topics for the next process. Raises `OSError`."""
        self._disk.replace(self._file, _lines(topics, boot), sync=False)

    def remove(self) -> None:
        """Have the next process open all topics. Raises `OSError`."""
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(self._file)

    def load(self, *, boot: int) -> Iterator[RestingTopic]:
        """Yield the topics that were saved in this run of the machine, up to the first damage."""
        lines = self._lines()
        try:
            if not boot or _decode(next(lines)) != [_VERSION, boot]:
                return
            for line in lines:
                yield _topic(_decode(line))
        except (OSError, ValueError, TypeError, StopIteration):
            return

    def _lines(self) -> Iterator[bytes]:
        fd = self._disk.open(self._file, os.O_RDONLY)
        try:
            at, rest = 0, b""
            while data := self._disk.pread(fd, _BLOCK, at):
                at += len(data)
                *whole, rest = (rest + data).split(b"\n")
                yield from whole
        finally:
            self._disk.close(fd)


def stamp(directory: str, first: int, end: int) -> list[int] | None:
    """Return numbers that change with every change of a topic's files; None if it has side logs or cannot be read.

    The topic has one segment, or none.
    """
    name = os.path.join(directory, f"{first:020d}")
    numbers: list[int] = []
    try:
        for path in (directory, os.path.join(directory, "journal"), name + ".log", name + ".idx"):
            numbers += _facts(path)
        if os.path.lexists(os.path.join(directory, "side")) or (end > first and not numbers[6]):
            return None
    except OSError:
        return None
    return numbers


def _facts(path: str) -> tuple[int, int, int]:
    try:
        facts = os.stat(path)
    except FileNotFoundError:
        return 0, 0, 0
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def _lines(topics: Iterable[RestingTopic], boot: int) -> Iterator[bytes]:
    yield _encode([_VERSION, boot])
    for topic in topics:
        yield _encode(topic)


def _encode(value: object) -> bytes:
    text = json.dumps(value, separators=(",", ":"), default=_text).encode()
    return b"%08x%b\n" % (kernel.crc32c(text), text)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(line: bytes) -> Any:
    if kernel.crc32c(line[8:]) != int(line[:8], 16):
        raise ValueError("does not match its checksum")
    return json.loads(line[8:])


def _topic(fields: list[Any]) -> RestingTopic:
    topic = RestingTopic(*fields)
    journal: PackedJournal = ()
    if topic.journal:
        (size, unnamed), version, live = topic.journal
        pairs = tuple((tuple(key) if isinstance(key, list) else key, count) for key, count in live)
        journal = shared(((size, unnamed), version, pairs))
    return topic._replace(journal=journal, packed=base64.b64decode(fields[6], validate=True))
