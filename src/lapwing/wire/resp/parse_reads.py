"""The words of commands that read entries: XRANGE, XREVRANGE, XREAD and XREADGROUP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import Enum
from functools import lru_cache
from typing import Final

from lapwing.records import dataclass
from lapwing.wire.resp import errors, ids
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import EntryId
from lapwing.wire.resp.numbers import integer, maybe_integer, timeout

_KEPT: Final = 1024  # requests to read that are parsed once
_SHORT: Final = 64  # words of such a request, and bytes of each of them


class Position(Enum):
    """A place in a stream that is no id."""

    NEW = b">"  # what nobody in the group was given
    END = b"$"  # behind the last id that was given out
    LAST = b"+"  # the last entry itself


@dataclass(slots=True)
class Xrange:
    """XRANGE and XREVRANGE."""

    key: bytes
    start: EntryId
    end: EntryId
    count: int | None = None
    reverse: bool = False


@dataclass(slots=True)
class Xread:
    """XREAD and XREADGROUP; the words of the ids are for `parse_position`, once the group is known to be there."""

    keys: list[bytes] = field(default_factory=list)
    positions: list[bytes] = field(default_factory=list)
    count: int = 0  # entries of each stream at most; 0 is no limit
    max_count: int = 0  # entries of all streams
    max_size: int = 0  # bytes of all streams
    block: int | None = None  # ms; 0 is for ever
    group: bytes | None = None
    consumer: bytes = b""
    acknowledge: bool = False  # NOACK: entries are finished as they are delivered
    claim: int | None = None  # ms for which an entry is pending with anybody before it is claimed

    @property
    def is_plain(self) -> bool:
        """Whether new entries are only delivered: neither finished, nor claimed ones before them, nor measured."""
        return self.claim is None and not self.acknowledge and not self.max_size


_UNBALANCED: Final = {
    b"XREAD": "'xread' list of streams: for each stream key an ID, '+', or '$' must be specified.",
    b"XREADGROUP": "'xreadgroup' list of streams: for each stream key an ID or '>' must be specified.",
}
_ONLY_GROUPS: Final = "ERR The {} option is only supported by XREADGROUP. You called XREAD instead."
_NO_END: Final = (
    "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by "
    "specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result set."
)
_NO_NEW: Final = "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option."


def parse_xrange(words: list[bytes]) -> Xrange:
    """Return the meaning of `XRANGE key start end [COUNT n]` or XREVRANGE. Raises `ErrorReply`."""
    reverse = words[0].upper() == b"XREVRANGE"
    start, end = (words[3], words[2]) if reverse else (words[2], words[3])
    asked = Xrange(words[1], ids.parse_start(start), ids.parse_end(end), reverse=reverse)
    for at in range(4, len(words), 2):
        if words[at].upper() != b"COUNT" or at + 1 == len(words):
            raise errors.syntax_error()
        asked.count = max(integer(words[at + 1]), 0)
    return asked


def parse_xread(words: list[bytes]) -> Xread:
    """Return the meaning of `XREAD ..` or `XREADGROUP ..`, which is not to be changed. Raises `ErrorReply`."""
    return _known_xread(*words) if len(words) <= _SHORT and max(map(len, words)) <= _SHORT else _parse_xread(words)


@lru_cache(_KEPT)  # a consumer asks the same again and again
def _known_xread(*words: bytes) -> Xread:
    return _parse_xread(words)


def _parse_xread(words: Sequence[bytes]) -> Xread:
    name = words[0].upper()
    grouped = name == b"XREADGROUP"
    asked = Xread()
    at = 1
    while at < len(words):
        word, more = words[at].upper(), len(words) - at - 1
        if word == b"STREAMS" and more:
            if more % 2:
                raise ErrorReply(f"ERR Unbalanced {_UNBALANCED[name]}")
            asked.keys, asked.positions = list(words[at + 1 : at + 1 + more // 2]), list(words[at + 1 + more // 2 :])
            break
        if word == b"NOACK":
            _check_grouped(grouped, "NOACK")
            asked.acknowledge = True
        elif word == b"GROUP" and more >= 2:
            _check_grouped(grouped, "GROUP")
            asked.group, asked.consumer = words[at + 1], words[at + 2]
            at += 2
        elif word in _NUMBERS and more:
            at += 1
            _number(asked, word, words[at], grouped)
        else:
            raise errors.syntax_error()
        at += 1
    if not asked.keys:
        raise errors.syntax_error()
    if grouped and asked.group is None:
        raise ErrorReply("ERR Missing GROUP option for XREADGROUP")
    if asked.max_count and asked.max_count < asked.count:
        raise ErrorReply("ERR MAXCOUNT must be greater than or equal to COUNT")
    return asked


def parse_position(word: bytes, *, grouped: bool) -> Position | EntryId:
    """Return where XREAD or, `grouped`, XREADGROUP begins in one stream. Raises `ErrorReply`."""
    if word == b"$":
        if grouped:
            raise ErrorReply(_NO_END)
        return Position.END
    if word == b">":
        if not grouped:
            raise ErrorReply(_NO_NEW)
        return Position.NEW
    if word == b"+" and not grouped:
        return Position.LAST
    return ids.parse(word)


_NUMBERS: Final = frozenset({b"COUNT", b"MAXCOUNT", b"MAXSIZE", b"BLOCK", b"CLAIM"})


def _number(asked: Xread, word: bytes, value: bytes, grouped: bool) -> None:
    if word == b"BLOCK":
        asked.block = timeout(value)
    elif word == b"COUNT":
        asked.count = max(integer(value), 0)
    elif word == b"CLAIM":
        if not grouped:
            raise errors.syntax_error()
        asked.claim = integer(value, "ERR min-idle-time is not an integer or out of range")
        if asked.claim < 0:
            raise ErrorReply("ERR min-idle-time must be a positive integer")
    else:
        number = maybe_integer(value)
        if number is None or number <= 0:
            raise ErrorReply(f"ERR {word.decode()} must be a positive integer")
        if word == b"MAXCOUNT":
            asked.max_count = number
        else:
            asked.max_size = number


def _check_grouped(grouped: bool, option: str) -> None:
    if not grouped:
        raise ErrorReply(_ONLY_GROUPS.format(option))
