"""Messages that wait for a word: written down, not yet published. And who has been published already.

    staging/s-<sink>/
        ledger                  the last batch of this sink that was published: JSON
        intent                  the batch that is being published: JSON lines, see `write_intent` and `note`
        <batch, 20 digits>/     what is staged for a batch
            <key>.<part>        length and CRC-32C of what follows, JSON (topic, count, extras), the body of an MPUB
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from io import FileIO
from typing import Any, Final

from lapwing import kernel
from lapwing.errors import CorruptChunk, LogError
from lapwing.log.datapath import folder, unfold
from lapwing.log.disk import DISK

STAGING: Final = "staging"
KEY: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")

_HEAD: Final = struct.Struct("<III")  # bytes of JSON, bytes of the batch, CRC-32C of both
_PREFIX: Final = "s-"
_UNKNOWN: Final = "what was published is not known; without its folder the sink begins anew"


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

    def __init__(self, data_path: str, *, sync: bool) -> None:
        self._root = os.path.join(data_path, STAGING)
        self._sync = sync

    def sinks(self) -> list[str]:
        """Every sink that anything is known of."""
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
        """Whether the part is there."""
        return os.path.exists(os.path.join(self._batch(sink, batch), f"{key}.{number}"))

    def get(self, sink: str, batch: int, key: str, number: int) -> Part:
        """A part as it was put; raises `CorruptChunk`, or `LogError` when it is gone."""
        path = os.path.join(self._batch(sink, batch), f"{key}.{number}")
        try:
            with open(path, "rb") as file:
                data = file.read()
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
                os.unlink(os.path.join(directory, name))
                dropped += 1
        if not _names(directory) and os.path.isdir(directory):
            os.rmdir(directory)
        return dropped

    def batches(self, sink: str) -> list[tuple[int, int]]:
        """The batches that something is staged for, and when (ns) that last changed."""
        directory = self._sink(sink)
        numbers = [name for name in _names(directory) if name.isdigit()]
        return [(int(name), os.stat(os.path.join(directory, name)).st_mtime_ns) for name in numbers]

    # --- what is being published -------------------------------------------------------------------------------

    def write_intent(self, sink: str, intent: Intent) -> None:
        """Remember that a batch is to be published, before anything of it is."""
        line = json.dumps({"batch": intent.batch, "parts": intent.parts}).encode() + b"\n"
        self._write(os.path.join(self._sink(sink), "intent"), line)

    def note(self, sink: str, index: int, facts: dict[str, Any]) -> Callable[[], None] | None:
        """Write down where a part is about to go; with `sync`, a call that must return before it goes there."""
        path = os.path.join(self._sink(sink), "intent")
        line = json.dumps({"part": index, **facts}).encode() + b"\n"
        with open(path, "ab", buffering=0) as file:
            before = file.tell()
            try:
                _write_all(file, line)
            except OSError:
                file.truncate(before)  # half a line would spoil the next one
                raise
        if not self._sync:
            return None

        def sync() -> None:
            with open(path, "rb") as file:
                os.fsync(file.fileno())

        return sync

    def intent(self, sink: str) -> Intent | None:
        """The batch that is being published, if any; a line that a crash has torn off counts as not written, and goes.

        Raises `CorruptChunk` when it is damaged otherwise: what was published is then not known.
        """
        path = os.path.join(self._sink(sink), "intent")
        try:
            with open(path, "r+b", buffering=0) as file:
                data = file.read()
                whole = data[: data.rfind(b"\n") + 1]
                if len(whole) < len(data):
                    file.truncate(len(whole))
        except FileNotFoundError:
            return None
        try:
            head, *lines = [json.loads(line) for line in whole.splitlines()]
            intent = Intent(int(head["batch"]), [(str(key), int(number)) for key, number in head["parts"]])
            for line in lines:
                intent.begun[int(line["part"])] = {name: line[name] for name in ("topic", "log_id", "next", "now")}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptChunk(path, 0, f"{_UNKNOWN} ({error})") from error
        return intent

    def finish(self, sink: str, batch: int) -> None:
        """Write into the ledger that the batch is published, and forget all that led there."""
        self._write(os.path.join(self._sink(sink), "ledger"), json.dumps({"batch": batch}).encode())
        path = os.path.join(self._sink(sink), "intent")
        if os.path.exists(path):
            os.unlink(path)
        for staged, _ in self.batches(sink):
            if staged <= batch:
                self.drop(sink, staged)

    def published(self, sink: str) -> int:
        """The last batch of the sink that was published, -1 if none was; raises `CorruptChunk` or `LogError`."""
        path = os.path.join(self._sink(sink), "ledger")
        try:
            with open(path, "rb") as file:
                return int(json.loads(file.read())["batch"])
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
            os.unlink(os.path.join(directory, name))
        os.rmdir(directory)

    def age(self, sink: str, now: int) -> int:
        """How long (ns) nothing has been published by the sink."""
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
        """Make a file whole or not at all."""
        DISK.make_directory(os.path.dirname(path), sync=self._sync)
        draft = f"{path}.new"
        with open(draft, "wb", buffering=0) as file:
            for piece in content:
                _write_all(file, piece)
            if self._sync:
                os.fsync(file.fileno())
        os.replace(draft, path)
        if self._sync:
            DISK.sync_directory(os.path.dirname(path))


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _write_all(file: FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
