"""Parsers of single settings: from YAML, from Python or from `--set key=value`, always to the same value."""

import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Any, Final

from lapwing import durations, names
from lapwing.spark.files import plain_place
from lapwing.spark.options import LAST_MOMENT

_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TABLE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,2}")

# options of the data source: how brokers are reached, read, and written to
ACCESS_OPTIONS: Final = ("tls", "tlsRootCaFile", "tlsCertFile", "tlsKeyFile", "tlsVerify", "authSecret")
READ_OPTIONS: Final = (
    "minPartitions", "maxRecordsPerPartition", "minMessagesPerTrigger", "maxTriggerDelay", "pollTimeout", "localFiles",
)  # fmt: skip
SINK_OPTIONS: Final = ("acceptDoubles",)
_OTHER_SETTING: Final = {
    "nsqd": "nsqd", "lookupd": "lookupd", "retrytimeout": "retry", "topic": "topics", "subscribe": "topics",
    "topicpattern": "pattern", "subscribepattern": "pattern", "channel": "channel", "startingoffsets": "start",
    "maxmessagespertrigger": "max_messages", "maxoffsetspertrigger": "max_messages",
    "failondataloss": "fail_on_data_loss", "acceptloss": "accept_loss",
}  # fmt: skip


class BadSetting(ValueError):
    """A value that the setting cannot have; the text names what was expected."""


Parse = Callable[[Any], Any]


def setting(
    parse: Parse, default: Any = None, *, about: str, example: str = "", fixed: str = "", secret: bool = False
) -> Any:
    """Return a field of a pipeline's settings.

    `about` is one line for people. `fixed` is the reason why a run that continues from a checkpoint cannot change it;
    empty where it can. A `secret` is written nowhere.
    """
    facts = {"parse": parse, "about": about, "example": example, "fixed": fixed, "secret": secret}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=facts)
    return field(default=default, metadata=facts)


def meant(given: str, known: Collection[str], otherwise: str = "") -> str:
    """Return the hint for an unknown word: the nearest known one, else `otherwise`, else all that are known."""
    near = difflib.get_close_matches(given, known, n=1)
    return f"did you mean {near[0]}?" if near else otherwise or f"there are {', '.join(known)}"


def text(value: Any) -> str:
    """Return the text."""
    if not isinstance(value, str) or not value.strip():
        raise BadSetting(f"words expected, not {value!r}")
    return value.strip()


def place(value: Any) -> str:
    """Return a directory: the path from the root, so that one place has one name; or a URL."""
    return plain_place(text(value))


def password(value: Any) -> str:
    """Return a password, which may be empty."""
    if not isinstance(value, str):
        raise BadSetting("a text expected; put quotes around a number")
    return value


def table(value: Any) -> str:
    """Return the name of a table, with the names of schema and catalog before it if need be."""
    if not isinstance(value, str) or not _TABLE.fullmatch(value):
        raise BadSetting(f"a table such as orders or public.orders expected, not {value!r}")
    return value


def word(value: Any) -> str:
    """Return a name for a pipeline: it becomes a folder."""
    if not isinstance(value, str) or not _WORD.fullmatch(value):
        raise BadSetting(f"letters, digits, '.', '_' and '-' expected, not {value!r}")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """Return one or several, as a list or with commas."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        raise BadSetting(f"a list expected, or words with commas, not {value!r}")
    found = tuple(str(part).strip() for part in parts if str(part).strip())
    if not found:
        raise BadSetting("at least one is needed")
    return found


def topic(value: Any) -> str:
    """Return the name of a topic."""
    if not isinstance(value, str) or not names.valid(value.strip()):
        raise BadSetting(f"{value!r} is no name for a topic")
    return value.strip()


def channel(value: Any) -> str:
    """Return the name of a channel."""
    if not isinstance(value, str) or not names.valid(value.strip()):
        raise BadSetting(f"{value!r} is no name for a channel")
    return value.strip()


def topics(value: Any) -> tuple[str, ...]:
    """Names of topics."""
    return tuple(topic(part) for part in texts(value))


def addresses(value: Any) -> tuple[str, ...]:
    """`host:port` of HTTP doors."""
    found = texts(value)
    for part in found:
        host, colon, port = part.rpartition(":")
        if "/" in host or not (host and colon and port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise BadSetting(f"host:port of an HTTP address expected, not {part!r}")
    return found


def pattern(value: Any) -> str:
    """Return a regular expression."""
    try:
        re.compile(text(value))
    except re.error as error:
        raise BadSetting(f"{value!r} is no regular expression: {error}") from error
    return text(value)


def seconds(value: Any) -> float:
    """Return a duration in seconds: `500ms`, `10s`, `1h30m`, `7d`. A number without a unit is refused, but for 0."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadSetting(f"a duration such as 10s or 5m expected, not {value!r}")
    try:
        length = durations.parse(str(value).strip())
    except ValueError as error:
        raise BadSetting(str(error)) from error
    if length < 0:
        raise BadSetting(f"a duration is not below 0: {value!r}")
    return length / 1e9


def count(value: Any) -> int:
    """Return a number above 0; underscores may group it."""
    number = value
    if isinstance(value, str) and value.replace("_", "").isascii() and value.replace("_", "").isdigit():
        number = int(value)
    if type(number) is not int or number <= 0:
        raise BadSetting(f"a number above 0 expected, not {value!r}")
    return number


def flag(value: Any) -> bool:
    """Return true or false."""
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise BadSetting(f"true or false expected, not {value!r}")
    return value


def one_of(*choices: str) -> Parse:
    """Return one of a few words."""

    def parse(value: Any) -> str:
        if value not in choices:
            raise BadSetting(f"{' or '.join(choices)} expected, not {value!r}")
        return str(value)

    parse.choices = choices  # type: ignore[attr-defined]
    return parse


def mapping(value: Any) -> dict[str, str]:
    """Names and values; on the command line `a=1;b=2`."""
    if isinstance(value, str):
        pairs = [part.partition("=") for part in value.split(";") if part.strip()]
        if any(not middle for _, middle, _ in pairs):
            raise BadSetting(f"name=value expected, several with ';' between them, not {value!r}")
        return {name.strip(): given.strip() for name, _, given in pairs}
    if not isinstance(value, Mapping) or not value:
        raise BadSetting(f"names with values expected, not {value!r}")
    return {str(name): str(given).lower() if isinstance(given, bool) else str(given) for name, given in value.items()}


def options(value: Any) -> dict[str, str]:
    """Return options of the data source that no other setting has, as the source spells them."""
    found: dict[str, str] = {}
    spelling = {name.lower(): name for name in (*ACCESS_OPTIONS, *READ_OPTIONS, *SINK_OPTIONS)}
    for name, given in mapping(value).items():
        if name.lower() in _OTHER_SETTING:
            raise BadSetting(f"{name} belongs to the setting {_OTHER_SETTING[name.lower()]}")
        if name.lower() not in spelling:
            near = difflib.get_close_matches(name.lower(), spelling, n=1)
            hint = f"did you mean {spelling[near[0]]}?" if near else f"there are {', '.join(spelling.values())}"
            raise BadSetting(f"unknown option {name}; {hint}")
        found[spelling[name.lower()]] = given
    return found


def moment(value: Any) -> int:
    """Return a time as ms since 1970: that number, or ISO 8601 (UTC where no zone is given)."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    if type(value) is int:
        if value > LAST_MOMENT:
            raise BadSetting(f"a time in ms since 1970 expected, not {value}")
        return value
    if isinstance(value, datetime):
        parsed = value
    else:
        try:
            parsed = datetime.fromisoformat(str(value))
        except ValueError:
            raise BadSetting(f"a time such as 2026-11-15T10:00:00Z expected, not {value!r}") from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return round(parsed.timestamp() * 1000)


def sequences(value: Any) -> tuple[int, int]:
    """`from..to` (to excluded); either side may be left out."""
    found = re.fullmatch(r"\s*(\d*)\s*\.\.\s*(\d*)\s*", str(value))
    if found is None or not (found[1] or found[2]):
        raise BadSetting(f"sequences such as 100..200, 100.. or ..200 expected, not {value!r}")
    low, high = int(found[1] or 0), int(found[2] or 2**62)
    if low >= high:
        raise BadSetting(f"{value!r} holds no sequence")
    return low, high


def starting(value: Any) -> str:
    """Return where a new query starts: earliest, latest, channel, JSON of offsets, or a time as `@` and ms."""
    if isinstance(value, str) and (value in ("earliest", "latest", "channel") or value.lstrip().startswith("{")):
        return value.strip()
    try:
        return f"@{moment(value.removeprefix('@') if isinstance(value, str) else value)}"
    except BadSetting:
        expected = "earliest, latest, channel, a time such as 2026-11-15T10:00:00Z or JSON per topic and node"
        raise BadSetting(f"{expected} expected, not {value!r}") from None


def file(value: Any) -> str:
    """Return a file that exists."""
    found = os.path.abspath(os.path.expanduser(text(value)))
    if not os.path.isfile(found):
        raise BadSetting(f"there is no file {found}")
    return found
