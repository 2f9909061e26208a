"""Ids of stream entries: a pair of unsigned 64-bit numbers, written `<milliseconds>-<number>`."""

from __future__ import annotations

import re
from typing import Final

from lapwing.records import dataclass
from lapwing.wire.resp.errors import ErrorReply, invalid_id

EntryId = tuple[int, int]

GREATEST_PART: Final = 2**64 - 1
LEAST: Final[EntryId] = (0, 0)  # before all entries
GREATEST: Final[EntryId] = (GREATEST_PART, GREATEST_PART)

_LONGEST: Final = 127  # bytes of an id, whatever zeros it begins with
_PART: Final = re.compile(rb"[ \t\n\v\f\r]*\+?[0-9]+")


@dataclass(slots=True)
class NewId:
    """The id that an XADD asks for; None is chosen by the server."""

    milliseconds: int | None = None
    number: int | None = None


def encode(entry: EntryId) -> bytes:
    return b"%d-%d" % entry


def parse(word: bytes, *, number: int = 0) -> EntryId:
    """Return the id in `word`; `number` stands in for a missing second part. Raises `ErrorReply`."""
    if len(word) > _LONGEST:
        raise invalid_id()
    first, dash, second = word.partition(b"-")
    return _part(first), _part(second) if dash else number


def parse_new(word: bytes) -> NewId:
    """Return the id that an XADD asks for: `*`, `<milliseconds>-*` or a whole one. Raises `ErrorReply`."""
    if word == b"*":
        return NewId()
    if word.endswith(b"-*") and len(word) <= _LONGEST:
        return NewId(_part(word[:-2]))
    return NewId(*parse(word))


def parse_start(word: bytes) -> EntryId:
    """Return the first id of a range that begins with `word`: `-`, `+`, an id, or `(` and an id."""
    if word.startswith(b"("):
        entry = parse(word[1:])
        if entry == GREATEST:
            raise ErrorReply("ERR invalid start ID for the interval")
        return following(entry)
    return _edge(word, 0)


def parse_end(word: bytes) -> EntryId:
    """Return the last id of a range that ends with `word`: `-`, `+`, an id, or `(` and an id."""
    if word.startswith(b"("):
        entry = parse(word[1:], number=GREATEST_PART)
        if entry == LEAST:
            raise ErrorReply("ERR invalid end ID for the interval")
        return preceding(entry)
    return _edge(word, GREATEST_PART)


def following(entry: EntryId) -> EntryId:
    """Return the next id; the greatest one has none."""
    milliseconds, number = entry
    return (milliseconds, number + 1) if number < GREATEST_PART else (milliseconds + 1, 0)


def preceding(entry: EntryId) -> EntryId:
    """Return the id before; 0-0 has none."""
    milliseconds, number = entry
    return (milliseconds, number - 1) if number else (milliseconds - 1, GREATEST_PART)


def _edge(word: bytes, number: int) -> EntryId:
    if word == b"-":
        return LEAST
    if word == b"+":
        return GREATEST
    return parse(word, number=number)


def _part(digits: bytes) -> int:
    if not _PART.fullmatch(digits):
        raise invalid_id()
    part = int(digits)
    if part > GREATEST_PART:
        raise invalid_id()
    return part
