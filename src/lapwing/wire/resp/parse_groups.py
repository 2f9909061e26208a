"""The words of commands about groups and what is pending: XGROUP, XPENDING, XCLAIM, XAUTOCLAIM, XNACK, XINFO."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Final

from lapwing.records import dataclass
from lapwing.wire.resp import errors, ids
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import EntryId
from lapwing.wire.resp.numbers import integer, maybe_integer

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
    """XCLAIM."""

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
    """XAUTOCLAIM."""

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
    """XNACK."""

    mode: NackMode
    ids: list[EntryId]
    deliveries: int | None = None
    force: bool = False


_MODES: Final = {each.value: each for each in NackMode}


def parse_group_options(words: list[bytes]) -> GroupOptions:
    """Return the options of `XGROUP <CREATE | SETID> key group id ..`. Raises `ErrorReply`."""
    creating = words[1].upper() == b"CREATE"
    options = GroupOptions()
    at = 5
    while at < len(words):
        word = words[at].upper()
        if creating and word == b"MKSTREAM":
            options.create_stream = True
            at += 1
        elif word == b"ENTRIESREAD" and at + 1 < len(words):
            number = integer(words[at + 1])
            if number < -1:
                raise ErrorReply("ERR value for ENTRIESREAD must be positive or -1")
            options.entries_read = None if number < 0 else number
            at += 2
        else:
            raise errors.wrong_subcommand("XGROUP", words[1])
    return options


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
    while at < len(words):
        at = _claim_option(claim, words, at)
    return claim


def _claim_option(claim: Xclaim, words: list[bytes], at: int) -> int:
    """Take one option of XCLAIM; return where the next one is."""
    word, more = words[at].upper(), at + 1 < len(words)
    if word == b"FORCE":
        claim.force = True
        return at + 1
    if word == b"JUSTID":
        claim.just_ids = True
        return at + 1
    if word == b"LASTID" and more:
        claim.last_id = ids.parse(words[at + 1])
        return at + 2
    if word not in (b"IDLE", b"TIME", b"RETRYCOUNT") or not more:
        raise ErrorReply(f"ERR Unrecognized XCLAIM option '{errors.text(words[at])}'")
    number = integer(words[at + 1], f"ERR Invalid {word.decode()} option argument for XCLAIM")
    if word == b"IDLE":
        claim.idle = number
    elif word == b"TIME":
        claim.time = number
    else:
        claim.deliveries = None if number < 0 else number
    return at + 2


def parse_xautoclaim(words: list[bytes]) -> Xautoclaim:
    """Return the meaning of `XAUTOCLAIM key group consumer min-idle start ..`. Raises `ErrorReply`."""
    min_idle = max(integer(words[4], "ERR Invalid min-idle-time argument for XAUTOCLAIM"), 0)
    claim = Xautoclaim(min_idle, ids.parse_start(words[5]))
    at = 6
    while at < len(words):
        word = words[at].upper()
        if word == b"JUSTID":
            claim.just_ids = True
        elif word == b"COUNT" and at + 1 < len(words):
            at += 1
            number = maybe_integer(words[at])
            if number is None or number <= 0:
                raise ErrorReply("ERR COUNT must be > 0")
            claim.count = number
        else:
            raise errors.syntax_error()
        at += 1
    return claim


def parse_xnack(words: list[bytes]) -> Xnack:
    """Return the meaning of `XNACK key group mode IDS n id ..`. Raises `ErrorReply`."""
    mode = _MODES.get(words[3].upper())
    if mode is None:
        raise ErrorReply("ERR mode must be SILENT, FAIL, or FATAL")
    if words[4].upper() != b"IDS":
        raise errors.syntax_error()
    count = maybe_integer(words[5])
    if count is None or count <= 0:
        raise ErrorReply("ERR Number of IDs must be a positive integer")
    if count > len(words) - 6:
        raise ErrorReply("ERR number of IDs doesn't match numids")
    nack = Xnack(mode, [ids.parse(word) for word in words[6 : 6 + count]])
    at = 6 + count
    while at < len(words):
        word = words[at].upper()
        if word == b"FORCE":
            nack.force = True
        elif word == b"RETRYCOUNT" and at + 1 < len(words):
            at += 1
            nack.deliveries = integer(words[at], "ERR Invalid RETRYCOUNT option argument for XNACK")
            if nack.deliveries < 0:
                raise ErrorReply("ERR Invalid RETRYCOUNT option argument for XNACK")
        else:
            raise ErrorReply("ERR number of IDs doesn't match numids")
        at += 1
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
