"""Policies: settings for every topic or channel whose name matches a pattern."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from fnmatch import fnmatchcase
from typing import Any, Final

from lapwing import names
from lapwing.broker.settings import definitions as settings
from lapwing.broker.settings.definitions import Own
from lapwing.errors import SettingRefused
from lapwing.records import dataclass

MOST: Final = 1000  # policies of one node
LONGEST_PATTERN: Final = 128  # characters
_PRIORITIES: Final = 1 << 31
_KEYS: Final = ("topics", "channels", "priority", "settings")
_ANY: Final = "*"


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings for the channels, or the topics, whose names match.

    A pattern is a name in which `*` matches any characters and `?` one.
    """

    name: str
    topics: str = _ANY
    channels: str = _ANY
    priority: int = 0
    settings: Own = field(default_factory=dict)

    def matches_topic(self, topic: str) -> bool:
        """Return whether the policy holds for a topic as a whole: one that names channels does not."""
        return self.channels == _ANY and fnmatchcase(topic, self.topics)

    def matches(self, topic: str, channel: str) -> bool:
        """Return whether the policy holds for a channel."""
        return fnmatchcase(topic, self.topics) and fnmatchcase(channel, self.channels)

    def document(self) -> dict[str, Any]:
        """Return the policy as JSON, as it was put."""
        return {key: getattr(self, key) for key in _KEYS}


def parse(name: str, document: Any, *, now: int = 0) -> Policy:
    """Return the policy that a JSON document describes. Raises `SettingRefused` with one sentence."""
    if not names.valid_policy(name):
        raise SettingRefused(names.POLICY)
    if not isinstance(document, dict):
        raise SettingRefused('an object expected: {"topics": "orders.*", "channels": "*", "settings": {...}}')
    for key in document:
        if key not in _KEYS:
            raise SettingRefused(f"{str(key)[:80]} is no part of a policy: use {', '.join(_KEYS)}")
    priority = document.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int) or not -_PRIORITIES <= priority < _PRIORITIES:
        raise SettingRefused("priority: an integer expected; of two policies that set a value, the higher one wins")
    topics, channels = (_read_pattern(key, document.get(key, _ANY)) for key in ("topics", "channels"))
    wanted = document.get("settings")
    if not isinstance(wanted, dict) or not wanted:
        raise SettingRefused('settings: an object with at least one setting expected, such as {"max_attempts": 5}')
    own: Own = {}
    for setting, value in wanted.items():
        own[setting] = settings.read(_EITHER, "topic or channel", setting, value, now=now)
        if channels != _ANY and setting not in settings.CHANNEL:
            raise SettingRefused(f"{setting} is a setting of topics: leave out channels, or put it into another policy")
    return Policy(name, topics, channels, priority, own)


def _read_pattern(key: str, value: Any) -> str:
    usable = isinstance(value, str) and 0 < len(value) <= LONGEST_PATTERN
    if not usable or not names.valid(value.replace("*", "x").replace("?", "x")[: names.LONGEST]):
        raise SettingRefused(
            f'{key}: a pattern such as "orders.*" expected: the characters of names, "*" and "?", '
            f"at most {LONGEST_PATTERN}"
        )
    return str(value)


_EITHER: Final = settings.TOPIC_LEVEL | settings.CHANNEL


class Policies:
    """All policies of a node, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Policy] = {}
        self._ordered: list[Policy] = []

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Policy | None:
        """Return the policy of that name, if there is one."""
        return self._by_name.get(name)

    def all(self) -> list[Policy]:
        """Return all policies, the one that wins first."""
        return list(self._ordered)

    def put(self, policy: Policy) -> None:
        """Add a policy, or replace the one of its name. Raises `SettingRefused` when there are too many."""
        if policy.name not in self._by_name and len(self._by_name) >= MOST:
            raise SettingRefused(f"this node has {MOST} policies, the most that it may have: remove one first")
        self._by_name[policy.name] = policy
        self._sort()

    def remove(self, name: str) -> None:
        """Remove the policy of that name, if there is one."""
        if self._by_name.pop(name, None) is not None:
            self._sort()

    def _sort(self) -> None:
        self._ordered = sorted(self._by_name.values(), key=lambda policy: (-policy.priority, policy.name))

    def of_channel(self, topic: str, channel: str) -> list[Policy]:
        """Return the policies that hold for a channel, the one that wins first."""
        return [policy for policy in self._ordered if policy.matches(topic, channel)]

    def of_topic(self, topic: str) -> list[Policy]:
        """Return the policies that hold for a topic, the one that wins first."""
        return [policy for policy in self._ordered if policy.matches_topic(topic)]

    def documents(self) -> dict[str, dict[str, Any]]:
        """Return all policies as JSON, for the catalog."""
        return {name: policy.document() for name, policy in self._by_name.items()}

    def restore(self, documents: Mapping[str, Any]) -> list[str]:
        """Take the policies of the catalog; return one line for each that is not understood and is left out."""
        notes = []
        for name, document in documents.items():
            try:
                self.put(parse(name, document))
            except SettingRefused as error:
                notes.append(f"policy {name} of the catalog is left out: {error}")
        return notes


def layers(policies: Iterable[Policy]) -> list[settings.Layer]:
    """Return policies as layers of settings."""
    return [(f"policy {policy.name}", policy.settings) for policy in policies]
