"""The settings of topics and channels: one definition for the checks, the HTTP API, the command and the documents.

A setting is kept as JSON (`"1s"`, `5`, `"drop-oldest"`), with its topic or channel or in a policy. `resolve` turns
layers of such JSON into one frozen object; `explain` names the layer that each value comes from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final, TypeVar

from lapwing import durations, kernel, names
from lapwing.broker.settings import times
from lapwing.errors import SettingRefused
from lapwing.net import options
from lapwing.net.options import BOOLEAN, INTEGER, Kind, Setting, option
from lapwing.records import dataclass

_SECOND: Final = 1_000_000_000  # ns
_PER: Final = {"s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND}
_LARGEST: Final = 2**63 - 1
_LONGEST_VALUE: Final = 80  # characters of a refused value that are shown
_LONGEST_POINTER: Final = 1024  # characters
_HEAVIEST: Final = 1000
_MOST_WEIGHTS: Final = 1000

_DEAD: Final = ".dead"
_HASH: Final = 8  # hex digits of a name's hash
_LONGEST_CHANNEL_PART: Final = 40  # of the default name of a dead-letter topic


# --- kinds of values --------------------------------------------------------------------------------------------


Weights = tuple[tuple[str, int], ...]  # pattern of keys, and weight


@dataclass(frozen=True, slots=True)
class Rate:
    """Deliveries per time; a count of 0 is no limit."""

    count: int
    per: int  # ns


UNLIMITED: Final = Rate(0, _SECOND)


def _read_rate(text: str) -> Rate:
    count, slash, unit = text.partition("/")
    if text in ("", "0"):
        return UNLIMITED
    good = count.isascii() and count.isdigit() and len(count) <= 9 and (not slash or unit in _PER)
    if not good or not int(count):  # "0/s" would be no limit at all
        raise ValueError('a rate such as "100/s", "5/m" or "20/h"')
    return Rate(int(count), _PER[unit or "s"])


def _rate_from_json(value: Any) -> Rate:
    return _read_rate(str(value) if isinstance(value, int) and not isinstance(value, bool) else _text(value))


def _show_rate(rate: Rate) -> str:
    return f"{rate.count}/{next(unit for unit, per in _PER.items() if per == rate.per)}" if rate.count else ""


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def _ranged(kind: Kind, least: Any, most: Any, expected: str, *, show: Callable[[Any], Any] | None = None) -> Kind:
    """Return `kind` with bounds; its readers raise `ValueError` with what is expected."""

    def bounded(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def checked(value: Any) -> Any:
            try:
                found = read(value)
            except ValueError:
                raise ValueError(expected) from None
            if not least <= found <= most:
                raise ValueError(expected)
            return found

        return checked

    shown = show if show is not None else kind.value
    return Kind(kind.name or "boolean", bounded(kind.from_flag), bounded(kind.from_file), kind.show, shown)


def _number(value: Any) -> float:
    if isinstance(value, str):
        if not value.isascii() or "_" in value:
            raise ValueError("a number")
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a number")
    return float(value)


def _show_number(number: float) -> str:
    return f"{number:g}"


def _json_number(number: float) -> float:
    return int(number) if number == int(number) else number


_FLOAT: Final = Kind("number", _number, _number, _show_number, _json_number)


def _choice(*words: str) -> Kind:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(f"one of {', '.join(words)}")
        return str(value)

    return Kind("word", read, read)


def _read_topic(value: Any) -> str:
    if _text(value) and (not names.valid(value) or names.ephemeral(value)):
        raise ValueError(f'the name of a durable topic (letters, digits, ".", "_", "-", at most {names.LONGEST}) or ""')
    return str(value)


def _read_span(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value:
        raise ValueError("a unit")  # seconds or milliseconds? A guess would be wrong for half of the people
    return int(options.DURATION.from_file(value))


def _read_field(value: Any) -> str:
    if not 0 < len(_text(value).encode()) <= names.LONGEST:
        raise ValueError(f"the name of a field, 1 to {names.LONGEST} bytes")
    return str(value)


def _read_key_from(value: Any) -> str:
    kind, colon, name = _text(value).partition(":")
    header = kind == "header" and colon and kernel.count_headers(json.dumps({name: ""}).encode()) == 1
    if not header and not (kind == "json" and name.startswith("/") and len(name) <= _LONGEST_POINTER):
        raise ValueError('"header:" and the name of a header, or "json:" and a pointer such as json:/customer/id')
    return str(value)


def _read_weights(value: Any) -> Weights:
    """Return patterns of keys with their weights, from text or an object; the first that matches a key counts."""
    expected = f'keys and their weights from 1 to {_HEAVIEST}, such as "gold-*=3,silver=2"'
    if isinstance(value, str):
        pairs = [each.rpartition("=")[::2] for each in value.split(",") if each]
    elif isinstance(value, dict):
        pairs = [(name, str(weight)) for name, weight in value.items() if not isinstance(weight, bool)]
    else:
        raise ValueError(expected)
    found = []
    for name, weight in pairs:
        good = name.strip() and weight.isascii() and weight.strip().isdigit() and 1 <= int(weight) <= _HEAVIEST
        if not good or len(pairs) > _MOST_WEIGHTS:
            raise ValueError(expected)
        found.append((name.strip(), int(weight)))
    return tuple(found)


def _show_weights(weights: Weights) -> str:
    return ",".join(f"{name}={weight}" for name, weight in weights)


COUNT: Final = _ranged(INTEGER, 0, _LARGEST, "an integer of 0 or more")
_SPAN: Final = Kind("duration", durations.parse, _read_span, durations.show)
SPAN: Final = _ranged(
    _SPAN, 0, 100 * 365 * 24 * 3600 * _SECOND, 'a duration such as "500ms", "30s", "15m" or "72h"',
    show=durations.show,
)  # fmt: skip
DEDUP: Final = _ranged(
    _SPAN, 0, 24 * 3600 * _SECOND, 'a duration such as "30s" or "10m", at most "24h"', show=durations.show
)
IDS: Final = _ranged(INTEGER, 1, 10_000_000, "an integer from 1 to 10000000")
FACTOR: Final = _ranged(_FLOAT, 1, 1000, "a number from 1 to 1000")
FRACTION: Final = _ranged(_FLOAT, 0, 1, "a number from 0 to 1")
RATE: Final = Kind("rate", _read_rate, _rate_from_json, _show_rate, _show_rate)
TIME: Final = Kind("time", times.parse, times.parse, times.show, times.show)
TOPIC: Final = Kind("topic", _read_topic, _read_topic)
OVERFLOW: Final = _choice("reject", "drop-oldest", "dead")
FIELDS: Final = _choice("pairs", "json")
KEEP: Final = _choice("finished", "trimmed")
HOLD: Final = _choice("timeout", "connection")
ACTIVE: Final = _choice("all", "single")
ORDER: Final = _choice("none", "key")
KEY_FROM: Final = Kind("source of a key", _read_key_from, _read_key_from)
WEIGHTS: Final = Kind("weights", _read_weights, _read_weights, _show_weights, _show_weights)
FIELD: Final = Kind("text", _read_field, _read_field)
FLAG: Final = _ranged(BOOLEAN, False, True, "true or false")


# --- the settings -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSettings:
    """The settings of a channel. Times are ns."""

    max_attempts: int = option(0, "give a message up after this many failures; 0: never", kind=COUNT)
    retry_first: int = option(
        "0s", "retry this long after the first failure, unless the consumer names a delay; 0: at once", kind=SPAN
    )
    retry_factor: float = option(2.0, "multiply the delay by this with each further failure", kind=FACTOR)
    retry_max: int = option("15m", "retry at most this long after a failure", kind=SPAN)
    retry_jitter: float = option(0.1, "vary the delay at random by up to this fraction, both ways", kind=FRACTION)
    dead_topic: str | None = option(
        None, "move messages that are given up to this topic; an empty name drops them",
        kind=TOPIC, shown="<topic>.<channel>.dead",
    )  # fmt: skip
    msg_timeout: int = option(
        "1m", "requeue a message after this time without an answer, unless its consumer asked for another", kind=SPAN
    )
    hold: str = option(
        "timeout",
        "leave a message with its consumer for msg_timeout (timeout), or while the consumer is connected and answers "
        "heartbeats (connection)",
        kind=HOLD,
    )
    active: str = option(
        "all",
        "deliver to all consumers, or to a single one: another takes over when it leaves, or asks for nothing and has "
        "answered everything",
        kind=ACTIVE,
    )
    order: str = option(
        "none",
        "deliver in any order, or by key: at most one message of a key at a time, in order, and the next one only when "
        "it is finished or given up",
        kind=ORDER,
    )
    fair: bool = option(
        False, "deliver to keys in turn, the one with fewest messages in flight first; false: first come, first served",
        kind=FLAG,
    )  # fmt: skip
    key_from: str = option(
        "header:key", "find the key of a message in a header, or in its JSON body, such as json:/customer/id",
        kind=KEY_FROM,
    )  # fmt: skip
    key_weights: Weights = option(
        (), "deliver this many messages of a key at its turn, with fair, such as gold-*=3,silver=2; other keys: 1",
        kind=WEIGHTS,
    )  # fmt: skip
    max_in_flight_per_key: int = option(0, "deliver at most this many of one key at a time; 0: no limit", kind=COUNT)
    max_in_flight: int = option(0, "deliver at most this many at a time to all consumers; 0: no limit", kind=COUNT)
    rate: Rate = option(
        UNLIMITED, "deliver at most this often, such as 100/s or 5/m; empty: no limit", kind=RATE
    )
    burst: int = option(0, "deliver up to this many at once within the rate; 0: those of one second", kind=COUNT)
    message_ttl: int = option("0s", "deliver no message that is older than this; 0: deliver all", kind=SPAN)
    expired_to_dead: bool = option(False, "move expired messages to the dead-letter topic; false: drop", kind=FLAG)
    max_depth: int = option(0, "accept at most this many waiting messages; 0: no limit", kind=COUNT)
    max_bytes: int = option(
        0, "accept at most this many bytes that wait for their first delivery; 0: no limit", kind=COUNT
    )
    overflow: str = option(
        "reject",
        "choose what happens beyond max_depth or max_bytes: reject (the publish fails), drop-oldest, or dead",
        kind=OVERFLOW,
    )
    paused_until: int = option(0, "keep the channel paused until this time; empty: not paused", kind=TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic. Times are ns."""

    retention_bytes: int = option(0, "keep this many bytes of finished messages for replay", kind=COUNT)
    retention_age: int = option("0s", "keep finished messages for replay this long", kind=SPAN)
    retention_count: int = option(0, "keep this many finished messages for replay", kind=COUNT)
    message_ttl: int = option("0s", "set message_ttl of channels without one; 0: deliver all", kind=SPAN)
    max_msg_size: int = option(1048576, "refuse messages with more bytes, up to --max-msg-size", kind=COUNT)
    dedup_window: int = option(
        "0s", "store a message with a known message-id once within this time, up to 24h; 0: store all", kind=DEDUP
    )
    dedup_max: int = option(100_000, "remember this many message-ids, the newest ones", kind=IDS)
    keep: str = option(
        "finished", "keep messages until every channel has finished them, or trimmed: until a Redis client trims them",
        kind=KEEP,
    )  # fmt: skip
    fields: str = option(
        "pairs", "store entries with several fields as pairs (a RESP array) or json (an object of strings)",
        kind=FIELDS,
    )  # fmt: skip
    body_field: str = option("data", "show the body of a message to Redis clients as this field", kind=FIELD)


Layer = tuple[str, Mapping[str, Any]]  # where values come from (`channel`, `policy x`, ...), and the values as JSON
Own = dict[str, Any]  # settings as JSON, by name
S = TypeVar("S", ChannelSettings, TopicSettings)

CHANNEL: Final = {setting.name: setting for setting in options.settings(ChannelSettings)}
TOPIC_LEVEL: Final = {setting.name: setting for setting in options.settings(TopicSettings)}
_DEFINITIONS: Final[dict[type[Any], dict[str, Setting]]] = {ChannelSettings: CHANNEL, TopicSettings: TOPIC_LEVEL}


@dataclass(frozen=True, slots=True)
class Resolved:
    """One value in force, as JSON, and where it comes from."""

    value: Any
    source: str


def read(definition: Mapping[str, Setting], noun: str, name: str, value: Any, *, now: int = 0) -> Any:
    """Return a value in the form that it is kept in (JSON). Raises `SettingRefused` with one sentence.

    A duration as a time means from `now` (Unix ns) on.
    """
    setting = definition.get(name)
    if setting is None:
        raise SettingRefused(f"{_shorten(name)} is no setting of a {noun}: {_alike(name, definition)}")
    try:
        if setting.kind is TIME:
            return times.show(times.parse(value, now=now))
        return setting.kind.value(setting.kind.from_file(value))
    except (ValueError, OverflowError) as error:
        raise SettingRefused(f"{name}: {error} expected, not {_shorten(json.dumps(value))}") from error


def _alike(name: str, definition: Mapping[str, Setting]) -> str:
    """Return the setting that was probably meant, and all that there are."""
    import difflib  # seldom needed; the start of a broker does without

    near = difflib.get_close_matches(name[:_LONGEST_VALUE], definition, n=1)
    return f"{f'did you mean {near[0]}? There are' if near else 'use one of'} {', '.join(definition)}"


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "..."


def changed(
    definition: Mapping[str, Setting], noun: str, own: Mapping[str, Any], changes: Any, *, now: int = 0
) -> Own:
    """Return `own` with `changes`; null removes a setting. Raises `SettingRefused`."""
    if not isinstance(changes, dict):
        raise SettingRefused(f'an object of settings expected, such as {{"{next(iter(definition))}": 5}}')
    found = dict(own)
    for name, value in changes.items():
        if value is None and name in definition:
            found.pop(name, None)
        else:
            found[name] = read(definition, noun, name, value, now=now)
    return found


def resolve(kind: type[S], layers: Sequence[Layer]) -> S:
    """Return the values in force: each from the first layer that has it, else the default.

    A value that is not understood (a file edited by hand, or a newer version) counts as not set.
    """
    return kind(**{name: value for name, (value, _) in _found(kind, layers).items()})


def explain(kind: type[S], layers: Sequence[Layer]) -> dict[str, Resolved]:
    """Return every setting with its value in force as JSON and where it comes from."""
    found, settings = _found(kind, layers), _DEFINITIONS[kind]
    shown = {}
    for field in fields(kind):
        value, source = found.get(field.name, (field.default, "default"))
        shown[field.name] = Resolved(None if value is None else settings[field.name].kind.value(value), source)
    return shown


def _found(kind: type[S], layers: Sequence[Layer]) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    settings = _DEFINITIONS[kind]
    for source, values in reversed(layers):
        for name, value in values.items():
            if name in settings:
                try:
                    found[name] = settings[name].kind.from_file(value), source
                except (ValueError, OverflowError):
                    continue
    return found


def check_channel(settings: ChannelSettings, *, topic: str, max_msg_timeout: int) -> None:
    """Raise `SettingRefused` for values that contradict each other."""
    show = durations.show
    if settings.retry_first > settings.retry_max:
        raise SettingRefused(
            f"retry_first {show(settings.retry_first)} is longer than retry_max {show(settings.retry_max)}: "
            "lower retry_first or raise retry_max"
        )
    if settings.order == "key" and settings.max_in_flight_per_key > 1:
        raise SettingRefused(
            "order key has at most one message of a key in flight: remove max_in_flight_per_key, or order"
        )
    if settings.key_weights and not settings.fair:
        raise SettingRefused("key_weights needs fair: set fair too, or remove key_weights")
    if settings.burst and not settings.rate.count:
        raise SettingRefused("burst needs a rate: set rate too, or remove burst")
    if settings.dead_topic == "" and settings.overflow == "dead":
        raise SettingRefused("overflow dead needs a dead-letter topic: set dead_topic, or choose reject or drop-oldest")
    if settings.dead_topic == "" and settings.expired_to_dead:
        raise SettingRefused("expired_to_dead needs a dead-letter topic: set dead_topic, or remove expired_to_dead")
    if settings.dead_topic and settings.dead_topic == topic:  # a policy belongs to no topic
        raise SettingRefused(f"dead_topic {topic} is the topic of the channel itself: name another topic")
    if not 0 < settings.msg_timeout <= max_msg_timeout:
        raise SettingRefused(
            f"msg_timeout {show(settings.msg_timeout)} is out of range: above 0, at most --max-msg-timeout "
            f"{show(max_msg_timeout)}"
        )


def check_topic(settings: TopicSettings, *, max_msg_size: int) -> None:
    """Raise `SettingRefused` for values that contradict the node's limits."""
    if not 0 < settings.max_msg_size <= max_msg_size:
        raise SettingRefused(
            f"max_msg_size {settings.max_msg_size} is out of range: above 0, at most --max-msg-size {max_msg_size}"
        )


def describe() -> dict[str, list[dict[str, str]]]:
    """Return what may be set, for the documents, the command and the web page."""
    return {
        noun: [
            {
                "name": setting.name,
                "kind": setting.kind.name,
                "default": setting.default(kind),
                "help": setting.help,
            }
            for setting in _DEFINITIONS[kind].values()
        ]
        for noun, kind in (("channel", ChannelSettings), ("topic", TopicSettings))
    }


# --- dead-letter topics -----------------------------------------------------------------------------------------


@lru_cache(1024)
def default_dead_topic(topic: str, channel: str) -> str:
    """Return `<topic>.<channel>.dead`, cut to fit a name; empty where the topic or the channel is ephemeral."""
    if names.ephemeral(topic) or names.ephemeral(channel):
        return ""
    name = f"{topic}.{channel}{_DEAD}"
    if len(name) <= names.LONGEST:
        return name
    channel = _cut(channel, _LONGEST_CHANNEL_PART)
    return f"{_cut(topic, names.LONGEST - len(channel) - len(_DEAD) - 1)}.{channel}{_DEAD}"


def _cut(name: str, room: int) -> str:
    if len(name) <= room:
        return name
    return f"{name[: room - _HASH - 1]}-{hashlib.sha256(name.encode()).hexdigest()[:_HASH]}"


