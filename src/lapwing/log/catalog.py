"""The catalog: which topics, channels and policies exist, with their settings. `nsqd.dat`, in NSQ's JSON and more.

The file begins with `{"crc":<n>,`, the CRC-32C of everything behind the comma. A file of NSQ, of an older version, or
one whose `crc` was removed by hand, has none and is read as it is.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final

from lapwing import kernel, names
from lapwing.errors import LogError, WriteFailed
from lapwing.log.disk import DISK, Disk
from lapwing.names import NSQ_VERSION
from lapwing.records import dataclass

FILE: Final = "nsqd.dat"
DAMAGED: Final = ".damaged"  # what a file is called, behind its name, that was set aside
_BEGIN: Final = b'{"crc":'
_SEAL: Final = re.compile(_BEGIN + rb"(\d{1,10}),")


@dataclass(slots=True)
class ChannelEntry:
    """A channel, as the catalog knows it."""

    name: str
    paused: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class TopicEntry:
    """A topic, as the catalog knows it."""

    name: str
    paused: bool = False
    channels: list[ChannelEntry] = field(default_factory=list)
    settings: Mapping[str, Any] = field(default_factory=dict)


class DamagedCatalog(LogError):
    """A catalog that does not match its checksum."""


class Catalog:
    """The catalog in the data path `path`. `warnings` has what `load` had to skip, `policies` the policies it found."""

    def __init__(self, path: str | os.PathLike[str], *, disk: Disk = DISK) -> None:
        self.file = os.path.join(os.fspath(path), FILE)
        self.disk = disk
        self.warnings: list[str] = []
        self.policies: dict[str, Any] = {}
        self.saves = 0  # counts those that began; the last one holds

    def open(self) -> list[TopicEntry]:
        """Return every topic, as `load` does; set a file aside that does not match its checksum, and warn.

        Raises `LogError` when a file without a checksum is not understood, or the disk refuses.
        """
        try:
            return self.load()
        except DamagedCatalog as error:
            self.set_aside()
            self.warnings.append(
                f"{error}. It is kept as {self.file}{DAMAGED}. Topics and channels are found by their files; pauses, "
                "settings and policies are lost. To use it as it is, stop nsqd, put it back without its crc, and start"
            )
            return []

    def set_aside(self) -> None:
        """Rename the file, so that it is not read again. Raises `LogError`."""
        try:
            self.disk.rename(self.file, self.file + DAMAGED)
        except OSError as error:
            raise LogError(f"{self.file} is damaged and cannot be renamed: {error.strerror}") from error

    def load(self) -> list[TopicEntry]:
        """Return every topic; none when there is no file yet.

        Raises `DamagedCatalog`, or `LogError` when a file without a checksum is not understood or cannot be read.
        """
        try:
            data = self.disk.read(self.file)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LogError(f"failed to read metadata from {self.file} - {error.strerror}") from error
        if data.startswith(_BEGIN) and not _is_sound(data):
            raise DamagedCatalog(f"failed to parse metadata in {self.file} - it does not match its checksum")
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise LogError(f"failed to parse metadata in {self.file} - {error}") from error
        if not isinstance(document, dict):
            raise LogError(f"failed to parse metadata in {self.file} - an object was expected")
        policies = document.get("policies")
        self.policies = policies if isinstance(policies, dict) else {}
        return [
            TopicEntry(
                entry["name"],
                entry.get("paused") is True,
                [
                    ChannelEntry(channel["name"], channel.get("paused") is True, _settings(channel))
                    for channel in self._named(entry.get("channels"), "channel")
                ],
                _settings(entry),
            )
            for entry in self._named(document.get("topics"), "topic")
        ]

    def _named(self, entries: Any, kind: str) -> list[dict[str, Any]]:
        if entries is None:
            return []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise LogError(f"failed to parse metadata in {self.file} - {kind}s are not a list of objects")
        good = []
        for entry in entries:
            name = entry.get("name")
            if isinstance(name, str) and names.valid(name):
                good.append(entry)
            else:
                self.warnings.append(f"skipping creation of invalid {kind} {name}")
        return good

    def save(self, topics: Iterable[TopicEntry], policies: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Make `topics` and `policies` the catalog, in one step, without ephemeral topics. Raises `WriteFailed`."""
        lasting = [topic for topic in topics if not names.ephemeral(topic.name)]
        save = CatalogSave(self, list(map(encode_topic, lasting)), policies)
        save.write()
        save.finish()
        save.sync_name()


class CatalogSave:
    """One save of a catalog in three steps; the first and the last take long, and may run in another thread.

    `topics` are as `encode_topic` returns them.
    """

    def __init__(self, catalog: Catalog, topics: list[str], policies: Mapping[str, Any]) -> None:
        catalog.saves += 1
        self._number = catalog.saves
        self._catalog = catalog
        self._topics = topics
        self._policies = dict(policies)
        self._temporary = ""

    def write(self) -> None:
        """Write and sync the new content, beside the file. Raises `WriteFailed`."""
        catalog = self._catalog
        rest = [f'"topics":[{",".join(self._topics)}],' if self._topics else '"topics":null,']
        rest.append(f'"version":{_json(NSQ_VERSION)}')
        if self._policies:
            rest.append(f',"policies":{_json(self._policies)}')
        body = "".join([*rest, "}"]).encode()
        try:
            parts = [b'{"crc":%d,' % kernel.crc32c(body), body]
            self._temporary = catalog.disk.prepare(catalog.file, parts, sync=True)
        except OSError as error:
            raise WriteFailed(catalog.file, 0, error) from error

    def finish(self) -> None:
        """Make the new content the catalog, unless a later save has begun meanwhile. Raises `WriteFailed`."""
        catalog = self._catalog
        if catalog.saves != self._number:
            catalog.disk.discard(self._temporary)
            return
        try:
            catalog.disk.rename(self._temporary, catalog.file)
        except OSError as error:
            catalog.disk.discard(self._temporary)
            raise WriteFailed(catalog.file, 0, error) from error

    def sync_name(self) -> None:
        """Have the new content survive a power loss. Raises `WriteFailed`."""
        catalog = self._catalog
        try:
            catalog.disk.sync_directory(os.path.dirname(catalog.file))
        except OSError as error:
            raise WriteFailed(catalog.file, 0, error) from error


def _is_sound(data: bytes) -> bool:
    seal = _SEAL.match(data)
    return seal is not None and int(seal[1]) == kernel.crc32c(data[seal.end() :])


def encode_topic(topic: TopicEntry) -> str:
    """Return the JSON of a topic, without ephemeral channels."""
    channels = [_entry(channel) for channel in topic.channels if not names.ephemeral(channel.name)]
    if not channels and not topic.settings:  # as most are, where there are very many; a name needs no escapes
        return f'{{"name":"{topic.name}","paused":{"true" if topic.paused else "false"},"channels":null}}'
    entry: dict[str, Any] = {"name": topic.name, "paused": topic.paused, "channels": channels or None}
    return _json(entry | ({"settings": topic.settings} if topic.settings else {}))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _entry(channel: ChannelEntry) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": channel.name, "paused": channel.paused}
    return entry | ({"settings": channel.settings} if channel.settings else {})


def _settings(entry: dict[str, Any]) -> dict[str, Any]:
    settings = entry.get("settings")
    return dict(settings) if isinstance(settings, dict) else {}
