"""Numbers as they stand in a command line."""

from typing import Final

_WORD: Final = 1 << 64
_SIGN: Final = 1 << 63
_MILLISECOND: Final = 1_000_000  # ns
_TELLING: Final = 64  # digits: 10 ** 64 is a multiple of 2 ** 64, so whatever stands before them does not count


def decimal(raw: bytes) -> int | None:
    """Return the unsigned number in ASCII digits, modulo 2 ** 64; None for anything else. No digits are 0."""
    if raw.isdigit():
        return int(raw[-_TELLING:]) % _WORD
    return None if raw else 0


def signed(number: int) -> int:
    """Return the lowest 64 bits of `number` as a signed integer."""
    number %= _WORD
    return number - _WORD if number >= _SIGN else number


def nanoseconds(milliseconds: int) -> int:
    """Milliseconds as signed nanoseconds; what does not fit wraps around, as it does in NSQ."""
    return signed(milliseconds * _MILLISECOND)
