"""Numbers as Redis reads them: signed, 64 bits, and in their only spelling."""

from __future__ import annotations

import re
from typing import Final

from lapwing.wire.resp.errors import ErrorReply, not_an_integer

LARGEST: Final = 2**63 - 1

_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")


def maybe_integer(word: bytes) -> int | None:
    """Return the number in a word; None if there is none."""
    if not _INTEGER.fullmatch(word):
        return None
    number = int(word)
    return number if -LARGEST - 1 <= number <= LARGEST else None


def integer(word: bytes, problem: str | None = None) -> int:
    """Return the number in a word. Raises `ErrorReply`, with `problem` as its line."""
    number = maybe_integer(word)
    if number is None:
        raise not_an_integer() if problem is None else ErrorReply(problem)
    return number


def timeout(word: bytes) -> int:
    """Return the milliseconds that a blocking command waits at most; 0 is for ever. Raises `ErrorReply`."""
    number = integer(word, "ERR timeout is not an integer or out of range")
    if number < 0:
        raise ErrorReply("ERR timeout is negative")
    return number
