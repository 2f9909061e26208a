"""The words of commands that read entries: XRANGE, XREVRANGE, XREAD and XREADGROUP."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from functools import lru_cache
from typing import Final

from lapwing.records import dataclass
from lapwing.wire.resp import errors, ids
from lapwing.wire.resp.arguments import Options, timeout
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import EntryId

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
    options = Options(words, 4)
    for word in options:
        if word != b"COUNT" or not options.left:
            raise errors.syntax_error()
        asked.count = max(options.integer(), 0)
    return asked


def parse_xread(words: list[bytes]) -> Xread:
    """Return the meaning of `XREAD ..` or `XREADGROUP ..`, which is not to be changed. Raises `ErrorReply`."""
    return _known_xread(*words) if len(words) <= _SHORT and max(map(len, words)) <= _SHORT else _parse_xread(words)


@lru_cache(_KEPT)  # a consumer asks the same again and again
def _known_xread(*words: bytes) -> Xread:
    return _parse_xread(words)


def _parse_xread(words: list[bytes] | tuple[bytes, ...]) -> Xread:
    name = words[0].upper()
    grouped = name == b"XREADGROUP"
    asked = Xread()
    options = Options(words, 1)
    for word in options:
        if word == b"STREAMS" and options.left:
            first, count = options.at, options.left
            if count % 2:
                raise ErrorReply(f"ERR Unbalanced {_UNBALANCED[name]}")
            asked.keys, asked.positions = list(words[first : first + count // 2]), list(words[first + count // 2 :])
            break
        if word in (b"NOACK", b"GROUP") and not grouped and (word == b"NOACK" or options.left >= 2):
            raise ErrorReply(_ONLY_GROUPS.format(word.decode()))
        if word == b"NOACK":
            asked.acknowledge = True
        elif word == b"GROUP" and options.left >= 2:
            asked.group, asked.consumer = options.take(), options.take()
        elif word == b"COUNT" and options.left:
            asked.count = max(options.integer(), 0)
        elif word == b"MAXCOUNT" and options.left:
            asked.max_count = options.positive("ERR MAXCOUNT must be a positive integer")
        elif word == b"MAXSIZE" and options.left:
            asked.max_size = options.positive("ERR MAXSIZE must be a positive integer")
        elif word == b"BLOCK" and options.left:
            asked.block = timeout(options.take())
        elif word == b"CLAIM" and options.left and grouped:
            problem = "ERR min-idle-time is not an integer or out of range"
            asked.claim = options.integer(problem, least=0, too_small="ERR min-idle-time must be a positive integer")
        else:
            raise errors.syntax_error()
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
