"""Which topics, channels and policies exist, with their settings: `nsqd.dat`, in NSQ's JSON with ours beside it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from lapwing import names
from lapwing.errors import LogError, WriteFailed
from lapwing.log.disk import DISK, Disk
from lapwing.names import NSQ_VERSION

FILE: Final = "nsqd.dat"


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
    settings: dict[str, Any] = field(default_factory=dict)


class Catalog:
    """The catalog in the data path `path`. `warnings` has what `load` had to skip, `policies` the policies it found."""

    def __init__(self, path: str | os.PathLike[str], *, disk: Disk = DISK) -> None:
        self.file = os.path.join(os.fspath(path), FILE)
        self.disk = disk
        self.warnings: list[str] = []
        self.policies: dict[str, Any] = {}

    def load(self) -> list[TopicEntry]:
        """Every topic; none when there is no file yet. Raises `LogError` when the file is not what it should be."""
        try:
            data = self.disk.read(self.file)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise LogError(f"failed to read metadata from {self.file} - {error.strerror}") from error
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

    def save(self, topics: list[TopicEntry], policies: Mapping[str, Any] = MappingProxyType({})) -> None:
        """Make `topics` and `policies` the catalog, in one step, without ephemeral topics. Raises `WriteFailed`."""
        document: dict[str, Any] = {
            "topics": [_topic(topic) for topic in topics if not names.ephemeral(topic.name)] or None,
            "version": NSQ_VERSION,
        }
        if policies:
            document["policies"] = dict(policies)
        text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
        try:
            self.disk.replace(self.file, [text], sync=True)
        except OSError as error:
            raise WriteFailed(self.file, 0, error) from error


def _topic(topic: TopicEntry) -> dict[str, Any]:
    channels = [_entry(channel) for channel in topic.channels if not names.ephemeral(channel.name)]
    entry: dict[str, Any] = {"name": topic.name, "paused": topic.paused, "channels": channels or None}
    return entry | ({"settings": topic.settings} if topic.settings else {})


def _entry(channel: ChannelEntry) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": channel.name, "paused": channel.paused}
    return entry | ({"settings": channel.settings} if channel.settings else {})


def _settings(entry: dict[str, Any]) -> dict[str, Any]:
    settings = entry.get("settings")
    return dict(settings) if isinstance(settings, dict) else {}
