"""Numbers and times in words a reader takes in at a glance: pure."""

import math
from datetime import UTC, datetime


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
    """The two greatest units: `12.3ms`, `4.5s`, `3m 20s`, `2h 5m`, `3d 4h`."""
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds < 0.001:
        return "0s" if seconds == 0 else f"{seconds * 1_000_000:.0f}µs"
    if seconds < 1:
        return f"{seconds * 1000:.1f}ms".replace(".0ms", "ms")
    if seconds < 60:
        return f"{seconds:.1f}s".replace(".0s", "s")
    whole = math.floor(seconds)
    if whole < 3600:
        return _two(whole // 60, "m", whole % 60, "s")
    if whole < 86400:
        return _two(whole // 3600, "h", whole % 3600 // 60, "m")
    return _two(whole // 86400, "d", whole % 86400 // 3600, "h")


def _two(greater: int, unit: str, lesser: int, small: str) -> str:
    return f"{greater}{unit} {lesser}{small}" if lesser else f"{greater}{unit}"


def size(number: float) -> str:
    """Bytes: `512 B`, `1.5 KiB`, `12 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" or number >= 10 else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def moment(seconds: float) -> str:
    """A Unix time as `2026-11-15 09:31:44` (UTC)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") if seconds else ""


def quantile(number: float) -> str:
    """`99th`, `99.5th`, `1st`: the head of a latency column."""
    percent = f"{number * 100:.4f}".rstrip("0").rstrip(".")
    ending = (
        {"1": "st", "2": "nd", "3": "rd"}.get(percent[-1], "th") if percent[-2:] not in ("11", "12", "13") else "th"
    )
    return percent + ending
