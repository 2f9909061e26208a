"""Durations in text: `1m30s`, `1.5h`, `250ms`, `7d`; inside, integer nanoseconds.

The grammar is Go's, which NSQ's flags have, and days. A number without a unit is refused: some would mean seconds,
others milliseconds.
"""

import re
from typing import Final

_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,  # micro sign
    "μs": 1_000,  # Greek mu
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,  # of 24 hours
}
_PART: Final = re.compile("([0-9]*)(?:\\.([0-9]*))?(ns|us|µs|μs|ms|s|m|h|d)")
_NUMBER: Final = re.compile("[+-]?[0-9]+(?:\\.[0-9]*)?|[+-]?\\.[0-9]+")
_LARGEST: Final = 2**63 - 1
_SHOWN: Final = 80  # characters of a text in an error


def parse(text: str) -> int:
    """Return `text` in nanoseconds; raise `ValueError` for anything but numbers with units, or `0`."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if digits == "0":
        return 0
    total = position = 0
    while position < len(digits):
        match = _PART.match(digits, position)
        if match is None or not (match[1] or match[2]):
            raise ValueError(_refusal(text))
        unit = _UNITS[match[3]]
        total += int(match[1] or "0") * unit
        if match[2]:
            total += int(match[2]) * unit // 10 ** len(match[2])
        position = match.end()
    if position == 0:
        raise ValueError(_refusal(text))
    if total > _LARGEST:
        raise ValueError(f'invalid duration "{text[:_SHOWN]}": 292 years are the longest')
    return -total if text[0] == "-" else total


def _refusal(text: str) -> str:
    if _NUMBER.fullmatch(text):
        shown = text[:_SHOWN]
        return f'invalid duration "{shown}": the unit is missing, write {shown}s for seconds (ns, us, ms, s, m, h, d)'
    return f'invalid duration "{text[:_SHOWN]}": write numbers with units, such as 250ms, 30s, 10m, 1h30m or 7d'


def show(nanoseconds: int) -> str:
    """Return `nanoseconds` the way Go prints a duration: `0s`, `1.5ms`, `1m29.940847675s`, `2h0m5.1s`."""
    if nanoseconds == 0:
        return "0s"
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    for unit, size in (("ns", 1), ("µs", 1_000), ("ms", 1_000_000)):
        if rest < size * 1000:
            return f"{sign}{_fraction(rest, size)}{unit}"
    minutes, below = divmod(rest, 60_000_000_000)
    hours, minutes = divmod(minutes, 60)
    seconds = f"{_fraction(below, 1_000_000_000)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _fraction(number: int, unit: int) -> str:
    whole, rest = divmod(number, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{rest:0{len(str(unit)) - 1}}".rstrip("0")
