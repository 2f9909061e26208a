"""The files of staged batches: parts that wait for their commit, and which batches are published.

    staging/s-<sink>/
        ledger                  the last batch of this sink that was published: JSON
        intent                  the batch that is being published: JSON lines, see `write_intent` and `note`
        <batch, 20 digits>/     what is staged for a batch
            <key>.<part>        length and CRC-32C of what follows, JSON (topic, count, extras), the body of an MPUB

The ledger and every line of an intent carry a CRC-32C of the rest of their JSON; those of the first versions have none.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final

from lapwing import kernel
from lapwing.errors import CorruptChunk, LogError
from lapwing.log.datapath import folder, unfold
from lapwing.log.disk import DISK, Disk, exists
from lapwing.records import dataclass

STAGING: Final = "staging"
KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")

_HEAD: Final = struct.Struct("<III")  # bytes of JSON, bytes of the batch, CRC-32C of both
_PREFIX: Final = "s-"
_UNKNOWN: Final = "what was published is not known; to begin again, remove the folder of the sink"


@dataclass(slots=True)
class Part:
    """A staged piece: messages for one topic, with what some of them carry beside their bodies."""

    topic: str
    count: int
    extras: list[tuple[int, int, dict[str, str]]]  # index, deferral in ns, headers
    batch: bytes  # the body of an MPUB


@dataclass(slots=True)
class Intent:
    """A batch that is being published: its parts in order, and where each that was begun was about to go."""

    batch: int
    parts: list[tuple[str, int]]  # key, number
    begun: dict[int, dict[str, Any]] = field(default_factory=dict)  # by index in `parts`: topic, log_id, next, now


class StagedFiles:
    """The staging directory of a data path. With `sync` nothing is reported written that a power loss could take."""

    def __init__(self, data_path: str, *, sync: bool, disk: Disk = DISK) -> None:
        self._root = os.path.join(data_path, STAGING)
        self._sync = sync
        self._disk = disk
        self._doubtful: set[str] = set()  # intents whose last sync failed

    def sinks(self) -> list[str]:
        """Return every sink that anything is known of."""
        try:
            entries = sorted(os.listdir(self._root))
        except FileNotFoundError:
            return []
        return [name for entry in entries if (name := unfold(entry, _PREFIX)) is not None]

    # --- parts -------------------------------------------------------------------------------------------------

    def put(self, sink: str, batch: int, key: str, number: int, part: Part) -> None:
        """Keep a part; the same one again takes the place of the first. Raises `OSError`."""
        facts = json.dumps({"topic": part.topic, "count": part.count, "extras": part.extras}).encode()
        crc = kernel.crc32c(part.batch, kernel.crc32c(facts))
        directory = self._batch(sink, batch)
        content = (_HEAD.pack(len(facts), len(part.batch), crc), facts, part.batch)
        self._write(os.path.join(directory, f"{key}.{number}"), *content)

    def has(self, sink: str, batch: int, key: str, number: int) -> bool:
        """Return whether the part is there. Raises `OSError`."""
        return exists(os.path.join(self._batch(sink, batch), f"{key}.{number}"))

    def get(self, sink: str, batch: int, key: str, number: int) -> Part:
        """Return a part as it was put. Raises `CorruptChunk`, or `LogError` when it is gone or cannot be read."""
        path = os.path.join(self._batch(sink, batch), f"{key}.{number}")
        try:
            data = self._disk.read(path)
        except OSError as error:
            raise LogError(f"{path}: {error.strerror}") from error
        if len(data) >= _HEAD.size:
            length, size, crc = _HEAD.unpack_from(data)
            facts, body = data[_HEAD.size : _HEAD.size + length], data[_HEAD.size + length :]
            if len(facts) == length and len(body) == size and kernel.crc32c(body, kernel.crc32c(facts)) == crc:
                found = json.loads(facts)
                extras = [(index, defer, headers) for index, defer, headers in found["extras"]]
                return Part(found["topic"], found["count"], extras, body)
        raise CorruptChunk(path, 0, f"{len(data)} bytes that do not match their checksum")

    def topics(self, sink: str, batch: int, keys: list[str]) -> set[str]:
        """Return the topics that the staged parts of these keys are for. Raises `OSError` or `CorruptChunk`."""
        directory = self._batch(sink, batch)
        wanted = set(keys)
        found = set()
        for name in _names(directory):
            if name.rpartition(".")[0] in wanted:
                path = os.path.join(directory, name)
                with open(path, "rb") as file:
                    try:
                        length, _, _ = _HEAD.unpack(file.read(_HEAD.size))
                        found.add(json.loads(file.read(length))["topic"])
                    except (struct.error, ValueError, KeyError, TypeError) as error:
                        raise CorruptChunk(path, 0, f"the topic cannot be read ({error})") from error
        return found

    def drop(self, sink: str, batch: int, keys: list[str] | None = None) -> int:
        """Forget what is staged for a batch (of these keys); how many parts that were."""
        directory = self._batch(sink, batch)
        dropped = 0
        for name in _names(directory):
            if keys is None or name.rpartition(".")[0] in keys:
                self._disk.unlink(os.path.join(directory, name))
                dropped += 1
        if not _names(directory) and exists(directory):
            self._disk.rmdir(directory)
        return dropped

    def batches(self, sink: str) -> list[tuple[int, int]]:
        """Return the batches that something is staged for, and when (ns) that last changed."""
        directory = self._sink(sink)
        numbers = [name for name in _names(directory) if name.isdigit()]
        return [(int(name), os.stat(os.path.join(directory, name)).st_mtime_ns) for name in numbers]

    # --- what is being published -------------------------------------------------------------------------------

    def write_intent(self, sink: str, intent: Intent) -> None:
        """Save that a batch is to be published, before anything of it is."""
        self._write(os.path.join(self._sink(sink), "intent"), _sealed({"batch": intent.batch, "parts": intent.parts}))

    def note(self, sink: str, index: int, facts: dict[str, Any]) -> Callable[[], None] | None:
        """Save where a part is about to go; with `sync`, return a call that must return before it goes there."""
        path = os.path.join(self._sink(sink), "intent")
        line = _sealed({"part": index, **facts})
        disk = self._disk
        if path in self._doubtful:  # a sync of it failed: the disk may lack the lines before
            self._write(path, disk.read(path), line)
            self._doubtful.discard(path)
            return None
        disk.append(path, line)
        if not self._sync:
            return None

        def sync() -> None:
            fd = disk.open(path, os.O_RDONLY)
            try:
                disk.fsync(fd)
            except OSError:
                self._doubtful.add(path)
                raise
            finally:
                disk.close(fd)

        return sync

    def intent(self, sink: str) -> Intent | None:
        """Return the batch that is being published, if any; a line that a crash has torn off is cut off.

        Raises `CorruptChunk` when it is damaged otherwise, as it is then not known what was published, and `OSError`.
        """
        path = os.path.join(self._sink(sink), "intent")
        try:
            data = self._disk.read(path)
        except FileNotFoundError:
            return None
        lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
        try:
            while self._sync and len(lines) > 1 and not _is_sound(lines[-1]):
                lines.pop()  # a power loss left it: it was not synced, so its part was not appended
            head, *others = [_opened(line) for line in lines]
            intent = Intent(int(head["batch"]), [(str(key), int(number)) for key, number in head["parts"]])
            for line in others:
                intent.begun[int(line["part"])] = {name: line[name] for name in ("topic", "log_id", "next", "now")}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptChunk(path, 0, f"{_UNKNOWN} ({error})") from error
        whole = b"".join(lines)
        if len(whole) < len(data):
            self._write(path, whole)
        return intent

    def finish(self, sink: str, batch: int) -> None:
        """Write into the ledger that the batch is published, and remove its intent and its parts."""
        self._write(os.path.join(self._sink(sink), "ledger"), _sealed({"batch": batch}))
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(os.path.join(self._sink(sink), "intent"))
        for staged, _ in self.batches(sink):
            if staged <= batch:
                self.drop(sink, staged)

    def published(self, sink: str) -> int:
        """Return the last batch of the sink that was published, -1 if none was. Raises `CorruptChunk` or `LogError`."""
        path = os.path.join(self._sink(sink), "ledger")
        try:
            return int(_opened(self._disk.read(path))["batch"])
        except FileNotFoundError:
            return -1
        except OSError as error:
            raise LogError(f"{path}: cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptChunk(path, 0, f"{_UNKNOWN} ({error})") from error

    def forget(self, sink: str) -> None:
        """Drop everything about a sink."""
        directory = self._sink(sink)
        for batch, _ in self.batches(sink):
            self.drop(sink, batch)
        for name in _names(directory):
            self._disk.unlink(os.path.join(directory, name))
        self._disk.rmdir(directory)

    def age(self, sink: str, now: int) -> int:
        """Return how long (ns) nothing has been published by the sink."""
        try:
            return now - os.stat(os.path.join(self._sink(sink), "ledger")).st_mtime_ns
        except FileNotFoundError:
            return 0

    # --- places ------------------------------------------------------------------------------------------------

    def _sink(self, sink: str) -> str:
        return os.path.join(self._root, folder(sink, _PREFIX))

    def _batch(self, sink: str, batch: int) -> str:
        return os.path.join(self._sink(sink), f"{batch:020}")

    def _write(self, path: str, *content: bytes) -> None:
        """Write a file, whole or not at all."""
        self._disk.make_directory(os.path.dirname(path), sync=self._sync)
        self._disk.replace(path, content, sync=self._sync)


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _sealed(document: dict[str, Any]) -> bytes:
    """Return one line of JSON that carries its checksum."""
    return json.dumps({**document, "crc": kernel.crc32c(json.dumps(document).encode())}).encode() + b"\n"


def _opened(line: bytes) -> dict[str, Any]:
    """Return what such a line holds. Raises `ValueError`."""
    document = json.loads(line)
    if not isinstance(document, dict):
        raise ValueError("an object was expected")
    crc = document.pop("crc", None)
    if crc is not None and crc != kernel.crc32c(json.dumps(document).encode()):
        raise ValueError("it does not match its checksum")
    return document


def _is_sound(line: bytes) -> bool:
    try:
        return "part" in _opened(line)
    except (ValueError, RecursionError):
        return False
