"""The words of a request as Redis reads them: options one after the other, and numbers in their only spelling."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from lapwing.wire.resp.errors import ErrorReply, not_an_integer

LARGEST: Final = 2**63 - 1

_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")


class Options:
    """The options of a request. Each turn of a loop gives the name of the next one, in upper case."""

    __slots__ = ("_words", "at")

    def __init__(self, words: list[bytes] | tuple[bytes, ...], at: int) -> None:
        self._words = words
        self.at = at  # place of the next word

    def __iter__(self) -> Iterator[bytes]:
        while self.at < len(self._words):
            self.at += 1
            yield self._words[self.at - 1].upper()

    @property
    def left(self) -> int:
        """The number of words behind the one at hand."""
        return len(self._words) - self.at

    @property
    def word(self) -> bytes:
        """The option at hand as the client has written it."""
        return self._words[self.at - 1]

    def take(self) -> bytes:
        """Return the next word, a value of the option at hand."""
        self.at += 1
        return self._words[self.at - 1]

    def integer(self, problem: str | None = None, *, least: int | None = None, too_small: str = "") -> int:
        """Return the next word, a number. Raises `ErrorReply`: with `too_small` for one below `least`."""
        number = integer(self.take(), problem)
        if least is not None and number < least:
            raise ErrorReply(too_small)
        return number

    def positive(self, problem: str) -> int:
        """Return the next word, a number from 1 on. Raises `ErrorReply` with `problem` for anything else."""
        return positive(self.take(), problem)


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


def positive(word: bytes, problem: str) -> int:
    """Return the number from 1 on in a word. Raises `ErrorReply` with `problem` for anything else."""
    number = maybe_integer(word)
    if number is None or number <= 0:
        raise ErrorReply(problem)
    return number


def timeout(word: bytes) -> int:
    """Return the milliseconds that a blocking command waits at most; 0 is for ever. Raises `ErrorReply`."""
    number = integer(word, "ERR timeout is not an integer or out of range")
    if number < 0:
        raise ErrorReply("ERR timeout is negative")
    return number
