"""The words of commands about groups and what is pending: XGROUP, XPENDING, XCLAIM, XAUTOCLAIM, XNACK, XINFO."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Final

from lapwing.records import dataclass
from lapwing.wire.resp import errors, ids
from lapwing.wire.resp.arguments import Options, integer, positive
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import EntryId

DEFAULT_CLAIMED: Final = 100  # entries that XAUTOCLAIM takes over
DEFAULT_SHOWN: Final = 10  # entries that XINFO STREAM FULL shows


@dataclass(slots=True)
class GroupOptions:
    """The options of XGROUP CREATE and XGROUP SETID."""

    create_stream: bool = False
    entries_read: int | None = None


@dataclass(slots=True)
class Xpending:
    """XPENDING with a range; without one it asks for the summary."""

    start: EntryId
    end: EntryId
    count: int
    min_idle: int = 0  # ms
    consumer: bytes | None = None


@dataclass(slots=True)
class Xclaim:
    min_idle: int  # ms
    ids: list[EntryId] = field(default_factory=list)
    idle: int | None = None  # ms since the delivery is to have been
    time: int | None = None  # Unix time of the delivery, ms
    deliveries: int | None = None
    force: bool = False
    just_ids: bool = False
    last_id: EntryId | None = None


@dataclass(slots=True)
class Xautoclaim:
    min_idle: int  # ms
    start: EntryId
    count: int = DEFAULT_CLAIMED
    just_ids: bool = False


class NackMode(Enum):
    """The effect of XNACK on the number of deliveries."""

    SILENT = b"SILENT"  # one less
    FAIL = b"FAIL"  # as it was
    FATAL = b"FATAL"  # the greatest number


@dataclass(slots=True)
class Xnack:
    mode: NackMode
    ids: list[EntryId]
    deliveries: int | None = None
    force: bool = False


_MODES: Final = {each.value: each for each in NackMode}


def parse_group_options(words: list[bytes]) -> GroupOptions:
    """Return the options of `XGROUP <CREATE | SETID> key group id ..`. Raises `ErrorReply`."""
    creating = words[1].upper() == b"CREATE"
    found = GroupOptions()
    options = Options(words, 5)
    for word in options:
        if creating and word == b"MKSTREAM":
            found.create_stream = True
        elif word == b"ENTRIESREAD" and options.left:
            number = options.integer(least=-1, too_small="ERR value for ENTRIESREAD must be positive or -1")
            found.entries_read = None if number < 0 else number
        else:
            raise errors.wrong_subcommand("XGROUP", words[1])
    return found


def parse_xpending(words: list[bytes]) -> Xpending | None:
    """Return the meaning of `XPENDING key group ..`; None if it asks for the summary. Raises `ErrorReply`."""
    if len(words) == 3:
        return None
    if not 6 <= len(words) <= 9:
        raise errors.syntax_error()
    at, min_idle = 3, 0
    if words[3].upper() == b"IDLE":
        min_idle = integer(words[4])
        if len(words) < 8:
            raise errors.syntax_error()
        at = 5
    count = max(integer(words[at + 2]), 0)
    start, end = ids.parse_start(words[at]), ids.parse_end(words[at + 1])
    consumer = words[at + 3] if len(words) > at + 3 else None
    return Xpending(start, end, count, min_idle, consumer)


def parse_xclaim(words: list[bytes]) -> Xclaim:
    """Return the meaning of `XCLAIM key group consumer min-idle id ..`. Raises `ErrorReply`."""
    claim = Xclaim(max(integer(words[4], "ERR Invalid min-idle-time argument for XCLAIM"), 0))
    at = 5
    while at < len(words):
        try:
            claim.ids.append(ids.parse(words[at]))
        except ErrorReply:
            break
        at += 1
    options = Options(words, at)
    for word in options:
        if word == b"FORCE":
            claim.force = True
        elif word == b"JUSTID":
            claim.just_ids = True
        elif word == b"LASTID" and options.left:
            claim.last_id = ids.parse(options.take())
        elif word in (b"IDLE", b"TIME", b"RETRYCOUNT") and options.left:
            number = options.integer(f"ERR Invalid {word.decode()} option argument for XCLAIM")
            if word == b"IDLE":
                claim.idle = number
            elif word == b"TIME":
                claim.time = number
            else:
                claim.deliveries = None if number < 0 else number
        else:
            raise ErrorReply(f"ERR Unrecognized XCLAIM option '{errors.text(options.word)}'")
    return claim


def parse_xautoclaim(words: list[bytes]) -> Xautoclaim:
    """Return the meaning of `XAUTOCLAIM key group consumer min-idle start ..`. Raises `ErrorReply`."""
    min_idle = max(integer(words[4], "ERR Invalid min-idle-time argument for XAUTOCLAIM"), 0)
    claim = Xautoclaim(min_idle, ids.parse_start(words[5]))
    options = Options(words, 6)
    for word in options:
        if word == b"JUSTID":
            claim.just_ids = True
        elif word == b"COUNT" and options.left:
            claim.count = options.positive("ERR COUNT must be > 0")
        else:
            raise errors.syntax_error()
    return claim


def parse_xnack(words: list[bytes]) -> Xnack:
    """Return the meaning of `XNACK key group mode IDS n id ..`. Raises `ErrorReply`."""
    mode = _MODES.get(words[3].upper())
    if mode is None:
        raise ErrorReply("ERR mode must be SILENT, FAIL, or FATAL")
    if words[4].upper() != b"IDS":
        raise errors.syntax_error()
    count = positive(words[5], "ERR Number of IDs must be a positive integer")
    if count > len(words) - 6:
        raise ErrorReply("ERR number of IDs doesn't match numids")
    nack = Xnack(mode, [ids.parse(word) for word in words[6 : 6 + count]])
    options = Options(words, 6 + count)
    for word in options:
        if word == b"FORCE":
            nack.force = True
        elif word == b"RETRYCOUNT" and options.left:
            problem = "ERR Invalid RETRYCOUNT option argument for XNACK"
            nack.deliveries = options.integer(problem, least=0, too_small=problem)
        else:
            raise ErrorReply("ERR number of IDs doesn't match numids")
    return nack


def parse_xinfo_full(words: list[bytes]) -> int | None:
    """Return how many entries `XINFO STREAM key FULL [COUNT n]` shows, 0 for all; None without FULL."""
    options = words[3:]
    if not options:
        return None
    if options[0].upper() != b"FULL" or len(options) not in (1, 3):
        raise errors.wrong_subcommand("XINFO", words[1])
    if len(options) == 1:
        return DEFAULT_SHOWN
    if options[1].upper() != b"COUNT":
        raise errors.wrong_subcommand("XINFO", words[1])
    count = integer(options[2])
    return DEFAULT_SHOWN if count < 0 else count
