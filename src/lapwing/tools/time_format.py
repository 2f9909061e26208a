"""Times as people write and read them."""

import re
from datetime import datetime
from typing import Final

from lapwing.errors import ConfigError

SECOND: Final = 1_000_000_000  # ns
LONGEST: Final = 1 << 63  # ns; what 64 bits can tell
_UNITS: Final = {"ms": SECOND // 1000, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND, "d": 86_400 * SECOND}
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SPANS: Final = re.compile(rf"(?:{_SPAN.pattern})+")


def span(text: str, what: str = "duration") -> int:
    """ns of `90s`, `10m`, `1h30m`, `2d`; a bare number counts seconds. Raises `ConfigError`."""
    text = text.strip()
    if text.isascii() and text.replace(".", "", 1).isdigit():
        nanoseconds = float(text) * SECOND
    elif _SPANS.fullmatch(text) is not None:
        nanoseconds = sum(float(number) * _UNITS[unit] for number, unit in _SPAN.findall(text))
    else:
        raise ConfigError(f"{what} {text!r} is not understood: write 90s, 10m, 1h30m or 2d")
    if nanoseconds > LONGEST:
        raise ConfigError(f"{what} {text[:40]!r} is longer than anybody waits: 292 years at most")
    return int(nanoseconds)


def moment(text: str, *, now: int) -> int:
    """The time (Unix ns) that `text` means: `earliest`, so long ago (`10m`), or a date and time. Raises `ConfigError`.

    A date without a zone is local time.
    """
    text = text.strip()
    if text == "earliest":
        return 0
    if _SPANS.fullmatch(text):
        return max(0, now - span(text))
    try:
        return int(datetime.fromisoformat(text).timestamp() * SECOND)
    except (ValueError, OverflowError) as error:
        raise ConfigError(
            f"time {text!r} is not understood: write 10m (ago), earliest, or 2026-11-15T09:30:00"
        ) from error


def clock_time(timestamp: int) -> str:
    """A Unix time in ns, local, to the millisecond."""
    return datetime.fromtimestamp(timestamp / SECOND).astimezone().isoformat(sep=" ", timespec="milliseconds")


def spoken(seconds: float) -> str:
    """`340 ms`, `12 s`, `4 m 10 s`, `3 h 5 m`, `2 d 4 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} m {seconds % 60:.0f} s"
    if seconds < 86_400:
        return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} m"
    return f"{seconds // 86_400:.0f} d {seconds % 86_400 // 3600:.0f} h"


def short(count: float) -> str:
    """A number that fits a column: `812`, `45.2k`, `3.1M`."""
    if count < 0:
        return "-" + short(-count)
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= size:
            return f"{count / (1e3 if unit == 'k' else size):.1f}{unit}"
    return f"{count:,.0f}" if count >= 10 or count == int(count) else f"{count:.1f}"
