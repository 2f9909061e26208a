"""The words of commands that add and delete entries: XADD, XTRIM, XDEL and their kin."""

from __future__ import annotations

from enum import Enum
from typing import Final

from lapwing.records import dataclass
from lapwing.wire.resp import errors, ids
from lapwing.wire.resp.arguments import Options, integer
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import EntryId, NewId


class References(Enum):
    """The treatment of groups that have not finished an entry when it is deleted."""

    KEEPREF = b"KEEPREF"  # it is deleted, and stays pending where it is pending
    DELREF = b"DELREF"  # it is deleted, and is pending nowhere
    ACKED = b"ACKED"  # it is deleted only when every group has finished it


@dataclass(slots=True)
class Trim:
    """The part of a stream that is kept: a number of entries, or the entries from an id on."""

    max_length: int | None = None
    min_id: EntryId | None = None
    approximate: bool = False
    limit: int | None = None  # entries that are deleted at most
    references: References | None = None


@dataclass(slots=True)
class Xadd:
    key: bytes
    id: NewId
    pairs: list[bytes]
    trim: Trim | None = None
    create: bool = True
    producer: bytes | None = None  # of IDMP or IDMPAUTO
    idempotent_id: bytes | None = None  # None with a producer: made of the pairs


@dataclass(slots=True)
class Xdelex:
    """XDELEX, and XACKDEL, which has a group."""

    key: bytes
    ids: list[EntryId]
    references: References
    group: bytes = b""


@dataclass(slots=True)
class Xsetid:
    key: bytes
    id: EntryId
    entries_added: int | None = None
    max_deleted: EntryId | None = None


@dataclass(slots=True)
class Xcfgset:
    key: bytes
    duration: int | None = None  # s
    max_size: int | None = None


_REFERENCES: Final = {each.value: each for each in References}
_BOTH: Final = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
_TWICE: Final = "ERR syntax error, IDMP/IDMPAUTO specified multiple times"
_LONGEST_DURATION: Final = 86_400  # s
_MAX_REMEMBERED: Final = 10_000


def parse_xadd(words: list[bytes]) -> Xadd:
    """Return the meaning of `XADD key [options] <* | id> field value ..`. Raises `ErrorReply`."""
    options = Options(words, 2)
    asked = Xadd(words[1], NewId(), [])
    trim = Trim()
    for word in options:
        if word == b"NOMKSTREAM":
            asked.create = False
        elif word in (b"IDMP", b"IDMPAUTO") and options.left >= (2 if word == b"IDMP" else 1):
            _parse_producer(asked, options, word.decode())
        elif word == b"*" or not _parse_trim(trim, options, word):
            options.at -= 1
            break  # the id, or nothing that anybody understands
    if options.left:
        asked.id = ids.parse_new(options.take())
    _check_limit(trim)
    if asked.id.milliseconds is not None and asked.producer is not None:
        raise ErrorReply("ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")
    asked.pairs = words[options.at :]
    if len(asked.pairs) < 2 or len(asked.pairs) % 2:
        raise errors.wrong_arity("xadd")
    if (asked.id.milliseconds, asked.id.number) == ids.LEAST:
        raise ErrorReply("ERR The ID specified in XADD must be greater than 0-0")
    if trim.max_length is not None or trim.min_id is not None:
        asked.trim = trim
    return asked


def parse_xtrim(words: list[bytes]) -> tuple[bytes, Trim]:
    """Return the key and the meaning of `XTRIM key <MAXLEN | MINID> ..`. Raises `ErrorReply`."""
    options = Options(words, 2)
    trim = Trim()
    for word in options:
        if not _parse_trim(trim, options, word):
            raise errors.syntax_error()
    _check_limit(trim)
    return words[1], trim


def _parse_trim(trim: Trim, options: Options, word: bytes) -> bool:
    """Take one option that XADD and XTRIM share; return whether it is one."""
    if word in _REFERENCES:
        if trim.references is not None:
            raise errors.syntax_error()
        trim.references = _REFERENCES[word]
    elif word == b"LIMIT" and options.left:
        trim.limit = options.integer(least=0, too_small="ERR The LIMIT argument must be >= 0.")
    elif word in (b"MAXLEN", b"MINID") and options.left:
        if trim.max_length is not None or trim.min_id is not None:
            raise ErrorReply(_BOTH)
        threshold = options.take()
        if options.left and threshold in (b"~", b"="):
            trim.approximate = threshold == b"~"
            threshold = options.take()
        if word == b"MINID":
            trim.min_id = ids.parse(threshold)
        else:
            trim.max_length = integer(threshold)
            if trim.max_length < 0:
                raise ErrorReply("ERR The MAXLEN argument must be >= 0.")
    else:
        return False
    return True


def _parse_producer(asked: Xadd, options: Options, name: str) -> None:
    if asked.producer is not None:
        raise ErrorReply(_TWICE)
    asked.producer = options.take()
    if not asked.producer:
        raise ErrorReply(f"ERR syntax error, {name} requires a non-empty producer ID")
    if name == "IDMP":
        asked.idempotent_id = options.take()
        if not asked.idempotent_id:
            raise ErrorReply(f"ERR syntax error, {name} requires a non-empty idempotent ID")


def _check_limit(trim: Trim) -> None:
    if trim.limit and trim.max_length is None and trim.min_id is None:
        raise ErrorReply("ERR syntax error, LIMIT cannot be used without specifying a trimming strategy")
    if trim.limit is not None and not trim.approximate:
        raise ErrorReply("ERR syntax error, LIMIT cannot be used without the special ~ option")


def parse_ids(words: list[bytes], first: int) -> list[EntryId]:
    """Return the ids in words[first:]. Raises `ErrorReply`."""
    return [ids.parse(word) for word in words[first:]]


def parse_xdelex(words: list[bytes]) -> Xdelex:
    """Return the meaning of `XDELEX key [how] IDS n id ..`. Raises `ErrorReply`."""
    references, found = _counted_ids(words, 2)
    return Xdelex(words[1], found, references)


def parse_xackdel(words: list[bytes]) -> Xdelex:
    """Return the meaning of `XACKDEL key group [how] IDS n id ..`. Raises `ErrorReply`."""
    references, found = _counted_ids(words, 3)
    return Xdelex(words[1], found, references, words[2])


def _counted_ids(words: list[bytes], at: int) -> tuple[References, list[EntryId]]:
    references: References | None = None
    options = Options(words, at)
    for word in options:
        if word in _REFERENCES and references is None:
            references = _REFERENCES[word]
            continue
        if word != b"IDS" or not options.left:
            break
        if options.positive("ERR Number of IDs must be a positive integer") != options.left:
            raise ErrorReply("ERR The `numids` parameter must match the number of arguments")
        return references or References.KEEPREF, parse_ids(words, options.at)
    raise errors.syntax_error()


def parse_xsetid(words: list[bytes]) -> Xsetid:
    """Return the meaning of `XSETID key id [ENTRIESADDED n] [MAXDELETEDID id]`. Raises `ErrorReply`."""
    setting = Xsetid(words[1], ids.parse(words[2]))
    options = Options(words, 3)
    for word in options:
        if word == b"ENTRIESADDED" and options.left:
            setting.entries_added = options.integer(least=0, too_small="ERR entries_added must be positive")
        elif word == b"MAXDELETEDID" and options.left:
            setting.max_deleted = ids.parse(options.take())
            if setting.id < setting.max_deleted:
                raise ErrorReply("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
        else:
            raise errors.syntax_error()
    return setting


def parse_xcfgset(words: list[bytes]) -> Xcfgset:
    """Return the meaning of `XCFGSET key [IDMP-DURATION s] [IDMP-MAXSIZE n]`. Raises `ErrorReply`."""
    setting = Xcfgset(words[1])
    options = Options(words, 2)
    for word in options:
        if word not in (b"IDMP-DURATION", b"IDMP-MAXSIZE") or not options.left:
            raise errors.syntax_error()
        greatest = _LONGEST_DURATION if word == b"IDMP-DURATION" else _MAX_REMEMBERED
        number = options.integer()
        if not 1 <= number <= greatest:
            raise ErrorReply(f"ERR {word.decode()} must be between 1 and {greatest}")
        if word == b"IDMP-DURATION":
            setting.duration = number
        else:
            setting.max_size = number
    return setting
