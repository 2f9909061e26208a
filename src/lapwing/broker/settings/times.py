"""Times as people write them: RFC 3339, Unix seconds, or a duration from now; inside, Unix ns."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from lapwing import durations

_SECOND: Final = 1_000_000_000  # ns
_LATEST: Final = 1 << 33  # seconds; in the year 2242
_EXPECTED: Final = 'a time such as "2030-01-31T12:00:00Z", Unix seconds, or a duration such as "30m"'


def parse(value: Any, *, now: int = 0, back: bool = False) -> int:
    """Return the Unix ns that `value` means; nothing at all is 0. Raises `ValueError` with what is expected.

    With `now`, a duration means so long after it, or before it if `back`.
    """
    if value in ("", 0, "0") and not isinstance(value, bool):
        return 0
    if isinstance(value, str):
        if now and (span := _span(value)) is not None:
            moment = max(now - span if back else now + span, 1)
            if moment >= _LATEST * _SECOND:
                raise ValueError(_EXPECTED)
            return moment
        return _rfc3339(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LATEST:
        raise ValueError(_EXPECTED)
    return int(value * 1_000_000) * 1000


def _span(text: str) -> int | None:
    try:
        return max(durations.parse(text), 0)
    except ValueError:
        return None


def _rfc3339(text: str) -> int:
    from datetime import datetime  # slow to load; the start of a broker does without

    whole, dot, rest = text.partition(".")
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    try:
        moment = datetime.fromisoformat(whole + rest[len(digits) :])
    except ValueError:
        raise ValueError(_EXPECTED) from None
    if moment.tzinfo is None or (dot and not digits):
        raise ValueError(_EXPECTED)
    seconds = int(moment.timestamp())
    if not 0 <= seconds < _LATEST:
        raise ValueError(_EXPECTED)
    return seconds * _SECOND + int(digits[:9].ljust(9, "0"))


def show(nanoseconds: int) -> str:
    """Return Unix ns as RFC 3339 in UTC, exactly; an empty string for 0."""
    if not nanoseconds:
        return ""
    seconds, rest = divmod(nanoseconds, _SECOND)
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{_second(seconds)}{fraction}Z"


@lru_cache(16)
def _second(seconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
