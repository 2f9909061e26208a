"""A filter of dead letters: by origin, reason, error, time, text and JSON fields of the body."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Final

from lapwing.broker.failures import dead_letters
from lapwing.broker.settings import times
from lapwing.errors import SettingRefused
from lapwing.records import dataclass

LONGEST_TEXT: Final = 1024  # characters
MOST_FIELDS: Final = 16
MOST_SEQUENCES: Final = 10_000
_RE2: Final = "a regular expression as RE2 knows them"
_LONGEST_REASON: Final = 80  # characters of what RE2 reports
_PATTERN_MEMORY: Final = 1 << 20  # bytes that a compiled pattern may take

KEYS: Final = (
    "topic", "channel", "reason", "error", "text", "pattern", "fields", "since", "until", "sequences",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """A condition for dead letters; an empty filter matches all of them."""

    topic: str = ""  # that it comes from
    channel: str = ""  # that gave it up
    reason: str = ""
    error: str = ""  # contained in its error
    text: str = ""  # contained in its body
    pattern: str = ""  # found in its body, a regular expression as RE2 knows them
    fields: Mapping[str, Any] = field(default_factory=dict)  # JSON pointer -> value in its body
    since: int = 0  # Unix ns; given up then or later
    until: int = 0  # Unix ns; given up before
    sequences: frozenset[int] = frozenset()  # in the dead-letter topic; none: any
    _search: Callable[[bytes], object] | None = field(default=None, compare=False, repr=False)

    @property
    def needs_body(self) -> bool:
        """Whether the headers alone do not decide."""
        return bool(self.text or self.pattern or self.fields)

    def matches(self, sequence: int, headers: Mapping[str, str], body: bytes) -> bool:
        """Return whether a dead letter is meant."""
        if self.sequences and sequence not in self.sequences:
            return False
        if not self._matches_headers(headers):
            return False
        return not self.needs_body or self._matches_body(body)

    def _matches_headers(self, headers: Mapping[str, str]) -> bool:
        get = headers.get
        wanted = {"dead-topic": self.topic, "dead-channel": self.channel, "dead-reason": self.reason}
        if any(value and get(name) != value for name, value in wanted.items()):
            return False
        if self.error and self.error not in get("dead-error", ""):
            return False
        if self.since or self.until:
            try:
                at = times.parse(get("dead-at", ""))
            except ValueError:
                return False
            return at >= self.since and (not self.until or at < self.until)
        return True

    def _matches_body(self, body: bytes) -> bool:
        if self.text and self.text.encode() not in body:
            return False
        if self._search is not None and self._search(body) is None:
            return False
        if not self.fields:
            return True
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return False
        return all(_same(_found(document, pointer), value) for pointer, value in self.fields.items())

    def document(self) -> dict[str, Any]:
        """Return the filter as JSON, as `parse` takes it."""
        found: dict[str, Any] = {name: getattr(self, name) for name in KEYS if getattr(self, name)}
        for name in ("since", "until"):
            if name in found:
                found[name] = times.show(found[name])
        if self.sequences:
            found["sequences"] = sorted(self.sequences)
        if self.fields:
            found["fields"] = dict(self.fields)
        return found


def parse(document: Mapping[str, Any], *, now: int = 0) -> DeadFilter:
    """Return the filter that a JSON document describes. Raises `SettingRefused` with one sentence.

    A duration as a time means so long before `now` (Unix ns).
    """
    found: dict[str, Any] = {}
    for key, value in document.items():
        if key not in KEYS:
            raise SettingRefused(f"{str(key)[:80]} is no part of a filter: use {', '.join(KEYS)}")
        if value is None or value == "":  # an empty shell variable must not match all letters
            raise SettingRefused(f"{key}: a value expected; leave it out for all letters")
        if key in ("since", "until"):
            found[key] = _time(key, value, now)
        elif key == "fields":
            found[key] = _fields(value)
        elif key == "sequences":
            found[key] = _sequences(value)  # not an empty list: a filter without letters must not match all of them
        elif not isinstance(value, str) or len(value) > LONGEST_TEXT:
            raise SettingRefused(f"{key}: a string of at most {LONGEST_TEXT} characters expected")
        elif not _is_unicode(value):
            raise SettingRefused(f"{key}: text expected: half of a surrogate pair is no character")
        else:
            found[key] = value
    if found.get("reason", dead_letters.ATTEMPTS) not in dead_letters.REASONS:
        raise SettingRefused(f"reason: one of {', '.join(dead_letters.REASONS)} expected")
    if "pattern" in found:
        found["_search"] = _compiled(found["pattern"])
    return DeadFilter(**found)


def _time(key: str, value: Any, now: int) -> int:
    if isinstance(value, str) and value.startswith("-"):
        raise SettingRefused(f"{key}: a duration before now expected, such as 1h, and none below 0")
    try:
        found = times.parse(value, now=now, back=True)
    except ValueError as error:
        raise SettingRefused(f"{key}: {error} expected") from error
    if key == "until" and not found:
        raise SettingRefused("until: a time after 1970 expected; leave it out for all letters")
    return found


def _fields(value: Any) -> dict[str, Any]:
    good = isinstance(value, dict) and 0 < len(value) <= MOST_FIELDS
    for pointer, wanted in value.items() if good else ():
        good &= pointer.startswith("/") and len(pointer) <= LONGEST_TEXT
        good &= isinstance(wanted, str | int | float | bool | None) and wanted == wanted  # not NaN
        good &= abs(wanted) != math.inf if isinstance(wanted, float) else True
        good &= wanted.bit_length() < LONGEST_TEXT if isinstance(wanted, int) else len(str(wanted)) <= LONGEST_TEXT
    if not good:
        raise SettingRefused(
            f'fields: 1 to {MOST_FIELDS} JSON pointers with the value of each expected, such as {{"/id": 17}}'
        )
    return dict(value)


def _sequences(value: Any) -> frozenset[int]:
    good = isinstance(value, list) and 0 < len(value) <= MOST_SEQUENCES
    if not good or not all(isinstance(each, int) and not isinstance(each, bool) and each >= 0 for each in value):
        raise SettingRefused(f"sequences: a list of 1 to {MOST_SEQUENCES} sequences of dead letters expected")
    return frozenset(value)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _compiled(pattern: str) -> Callable[[bytes], object]:
    try:
        import re2  # type: ignore[import-untyped]  # only for those who filter so
    except ImportError as error:
        raise SettingRefused("pattern: google-re2 is not installed here: pip install 'lapwing[re2]'") from error

    options = re2.Options()
    options.max_mem = _PATTERN_MEMORY
    options.log_errors = False
    try:
        search: Callable[[bytes], object] = re2.compile(pattern.encode(), options=options).search
    except re2.error as error:
        seen = error.args[0] if error.args else ""
        text = seen.decode("utf-8", "replace") if isinstance(seen, bytes) else str(seen)
        raise SettingRefused(f"pattern: {_RE2} expected: {text[:_LONGEST_REASON]}") from error
    return search


def _found(document: Any, pointer: str) -> Any:
    """Return the value that a JSON pointer names; `_NOTHING` when there is none."""
    for part in pointer[1:].split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list) and part.isascii() and part.isdigit() and int(part[:9]) < len(document):
            document = document[int(part[:9])]
        else:
            return _NOTHING
    return document


def _same(one: object, other: object) -> bool:
    """Return whether two JSON values are the same: true is not 1."""
    return one == other and isinstance(one, bool) is isinstance(other, bool)


_NOTHING: Final = object()
