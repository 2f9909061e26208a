"""Write numbers, times and texts for people, and read the times that people write."""

import contextlib
import math
import re
from datetime import UTC, datetime
from typing import Final

from lapwing import durations
from lapwing.errors import ConfigError

SECOND: Final = 1_000_000_000  # ns
_FRACTION: Final = re.compile(r"\.\d+(?=Z|[+-])")  # of a second
_TWO_UNITS: Final = (("d", 86_400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1))  # with their seconds


def count(number: float) -> str:
    """`12,430`."""
    return f"{round(number):,}"


def several(number: float, word: str) -> str:
    """`1 topic` or `12,430 topics`."""
    return f"1 {word}" if round(number) == 1 else f"{count(number)} {word}s"


def messages(number: float) -> str:
    """`1 message` or `12,430 messages`."""
    return several(number, "message")


def messages_are(number: float) -> str:
    """`1 message is` or `12,430 messages are`: what they are doing comes after."""
    return f"{messages(number)} {'is' if round(number) == 1 else 'are'}"


def rate(number: float) -> str:
    """Messages a second: `0`, `0.42`, `7.3`, `1,204`."""
    if number <= 0:
        return "0"
    if number < 1:
        return f"{number:.2f}"
    return f"{number:.1f}" if number < 10 else count(number)


def duration(seconds: float) -> str:
    """Return the two greatest units: `12.3ms`, `4.5s`, `3m 20s`, `2h 5m`, `3d 4h`."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.001:
        return "0s" if seconds == 0 else f"{seconds * 1_000_000:.0f}µs"
    if seconds < 1:
        return f"{seconds * 1000:.1f}ms".replace(".0ms", "ms")
    if seconds < 60:
        return f"{seconds:.1f}s".replace(".0s", "s")
    unit, length, smaller, part = next(each for each in _TWO_UNITS if seconds >= each[1])
    greater, rest = divmod(math.floor(seconds), length)
    return f"{greater}{unit} {rest // part}{smaller}" if rest >= part else f"{greater}{unit}"


def size(number: float) -> str:
    """Return bytes: `512 B`, `1.5 KiB`, `12 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 10 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def short(number: float) -> str:
    """Return a number that fits a column: `812`, `45.2k`, `3.1M`."""
    if number < 0:
        return "-" + short(-number)
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.1f}"


def utc_time(seconds: float) -> str:
    """Return a Unix time as `2026-11-15 09:31:44` (UTC)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") if seconds else ""


def quantile(number: float) -> str:
    """`99th`, `99.5th`, `1st`: the head of a latency column."""
    return ordinal(f"{number * 100:.4f}".rstrip("0").rstrip("."))


def ordinal(number: int | str) -> str:
    """`1st`, `2nd`, `11th`, `99.5th`."""
    digits = str(number)
    ending = {"1": "st", "2": "nd", "3": "rd"}.get(digits[-1], "th") if digits[-2:] not in ("11", "12", "13") else "th"
    return digits + ending


def moment(text: str, *, now: float) -> str:
    """Return a time of nsqd (RFC 3339) with its distance from `now` (Unix s): `2026-11-15 09:31:44 UTC, 3m 20s ago`.

    A text that is no time is returned as it is.
    """
    seconds = _unix_time(text)
    return text if seconds is None else f"{utc_time(seconds)} UTC, {ago(text, now=now)}"


def ago(text: str, *, now: float) -> str:
    """Return the distance of a time of nsqd (RFC 3339) from `now` (Unix s): `3m 20s ago`, `in 5s`."""
    seconds = _unix_time(text)
    if seconds is None:
        return text
    left = seconds - now
    return f"in {duration(math.ceil(left))}" if left > 0 else f"{duration(math.floor(-left))} ago"


def _unix_time(text: str) -> float | None:
    try:
        return datetime.fromisoformat(_FRACTION.sub("", text)).timestamp()
    except ValueError:
        return None


def local_time(timestamp: int) -> str:
    """Return a Unix time in ns, local, to the millisecond: `2026-11-15 09:31:44.123+01:00`."""
    return datetime.fromtimestamp(timestamp / SECOND).astimezone().isoformat(sep=" ", timespec="milliseconds")


def printable(body: bytes) -> bytes:
    """Return the body with control characters written out."""
    text = body.decode("utf-8", "backslashreplace")
    shown = "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)
    return shown.encode("utf-8", "backslashreplace")


def printable_text(text: str) -> str:
    """Return a text with control characters written out, so that a terminal does not obey them."""
    return printable(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


def parse_span(text: str, what: str = "") -> int:
    """Return the ns of `90s`, `10m`, `1h30m`, `2d`. Raises `ConfigError`; `what` names the value in it."""
    prefix = f"{what}: " if what else ""
    try:
        span = durations.parse(text.strip())
    except ValueError as error:
        raise ConfigError(f"{prefix}{error}") from error
    if span < 0:
        raise ConfigError(f'{prefix}invalid duration "{text.strip()}": 0 or more expected')
    return span


def parse_time(text: str, *, now: int) -> int:
    """Return the Unix ns of `earliest`, `10m` (ago), or a date and time. Raises `ConfigError`.

    A date without a zone is local time.
    """
    text = text.strip()
    if text == "earliest":
        return 0
    with contextlib.suppress(ConfigError):
        return max(0, now - parse_span(text))
    try:
        return int(datetime.fromisoformat(text).timestamp() * SECOND)
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"time {text!r} is not understood: write 10m (ago), earliest, or 2026-11-15T09:30:00"
        ) from error
