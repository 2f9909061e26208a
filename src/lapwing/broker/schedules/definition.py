"""A schedule as somebody put it: what is published, where, and when."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from lapwing import kernel, names
from lapwing.broker.schedules.timing import SECOND, At, Timing, read_at, read_cron, read_every
from lapwing.broker.settings import times
from lapwing.broker.topic import dedup
from lapwing.broker.topic.batch import of_client
from lapwing.errors import SettingRefused
from lapwing.log.segments.attributes import encode_headers
from lapwing.records import dataclass

LONGEST_BODY: Final = 64 * 1024  # bytes
MISFIRES: Final = ("once", "skip", "all")
NAME: Final = "schedule-name"  # headers of each message of a schedule
TIME: Final = "schedule-time"
BY_HAND: Final = "schedule-run"  # of one that somebody asked for, beside the ticks
_HEADER_ROOM: Final = 512  # bytes for the headers that the broker sets
_TIMINGS: Final = ("at", "every", "cron")
_KEYS: Final = ("topic", "body", "body_base64", "headers", *_TIMINGS, "zone", "misfire", "paused")
_EXAMPLE: Final = '{"topic": "reports", "body": "nightly", "cron": "30 8 * * *", "zone": "Europe/Berlin"}'


@dataclass(frozen=True, slots=True)
class Definition:
    """A schedule as somebody put it."""

    name: str
    topic: str
    body: bytes
    headers: Mapping[str, str]
    kind: str  # at, every or cron
    when: str  # the time, the duration or the expression
    zone: str
    misfire: str
    paused: bool
    timing: Timing

    def document(self) -> dict[str, Any]:
        """Return it as JSON, as it was put."""
        try:
            body = {"body": self.body.decode()}
        except UnicodeDecodeError:
            body = {"body_base64": base64.b64encode(self.body).decode()}
        return {
            "topic": self.topic,
            **body,
            "headers": dict(self.headers),
            self.kind: self.when,
            "zone": self.zone,
            "misfire": self.misfire,
            "paused": self.paused,
        }

    def ticks_like(self, other: Definition) -> bool:
        """Return whether both have the same ticks, so that one carries on where the other was."""
        return (self.kind, self.when, self.zone) == (other.kind, other.when, other.zone)


def parse(name: str, document: Any, *, now: int, most_body: int = LONGEST_BODY) -> Definition:
    """Return the schedule that a JSON document describes. `now` is Unix ns. Raises `SettingRefused`."""
    if not names.valid_policy(name) or names.ephemeral(name):
        raise SettingRefused(names.POLICY.replace("a policy", "a schedule"))
    if not isinstance(document, dict):
        raise SettingRefused(f"an object expected: {_EXAMPLE}")
    for key in document:
        if key not in _KEYS:
            raise SettingRefused(f"{str(key)[:80]} is no part of a schedule: use {', '.join(_KEYS)}")
    topic = _text(document, "topic", "")
    if not names.valid(topic):
        raise SettingRefused(f'topic: the name of a topic expected, such as "reports": {_EXAMPLE}')
    given = [key for key in _TIMINGS if document.get(key) is not None]
    if len(given) != 1:
        raise SettingRefused(f"one of {', '.join(_TIMINGS)} expected: {_EXAMPLE}")
    kind = given[0]
    when, zone = _text(document, kind, ""), _text(document, "zone", "UTC")
    now -= now % SECOND  # nobody wants to read nanoseconds
    timing: Timing
    if kind == "cron":
        when = " ".join(when.split())
        timing = read_cron(when, zone)
    elif zone != "UTC":
        raise SettingRefused("zone: it belongs to cron; a time at has its own, such as 2030-01-31T12:00:00+01:00")
    elif kind == "every":
        timing = read_every(when, now)
    else:
        timing = at = read_at(when, now)
        when = times.show(at.time)
    misfire = _text(document, "misfire", "once")
    if misfire not in MISFIRES:
        raise SettingRefused(f"misfire: one of {', '.join(MISFIRES)} expected")
    paused = document.get("paused", False)
    if not isinstance(paused, bool):
        raise SettingRefused("paused: true or false expected")
    body = _body(document)
    if not 0 < len(body) <= most_body:
        raise SettingRefused(f"body: 1 to {most_body} bytes expected, got {len(body)}")
    return Definition(name, topic, body, _headers(document), kind, when, zone, misfire, paused, timing)


def is_over(definition: Definition, now: int) -> bool:
    """Return whether its only tick lies in the past."""
    return isinstance(definition.timing, At) and definition.timing.time <= now


def _text(document: Mapping[str, Any], key: str, default: str) -> str:
    found = document.get(key, default)
    if not isinstance(found, str) or len(found) > 1000:
        raise SettingRefused(f"{key}: a string expected")
    return found


def _body(document: Mapping[str, Any]) -> bytes:
    text, encoded = document.get("body"), document.get("body_base64")
    if (text is None) == (encoded is None):
        raise SettingRefused("body or body_base64 expected: what each message carries")
    if text is not None:
        if not isinstance(text, str):
            raise SettingRefused("body: a string expected (bytes as base64 in body_base64)")
        return text.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(str(encoded), validate=True)
    except (binascii.Error, ValueError) as error:
        raise SettingRefused("body_base64: bytes as base64 expected") from error


def _headers(document: Mapping[str, Any]) -> dict[str, str]:
    found = document.get("headers", {})
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise SettingRefused("headers: an object of strings expected")
    for name in found:
        if name == dedup.HEADER or not of_client({name: ""}):
            raise SettingRefused(f"headers: {name[:80]} is set by the broker alone")
    try:
        text = encode_headers(found)
    except UnicodeEncodeError as error:
        raise SettingRefused("headers: text expected") from error
    if len(text) > kernel.MAX_HEADERS - _HEADER_ROOM or (found and kernel.count_headers(text) < 0):
        raise SettingRefused(
            f"headers: names in lower case of at most 64 characters expected, "
            f"at most {kernel.MAX_HEADERS - _HEADER_ROOM} bytes together"
        )
    return found
