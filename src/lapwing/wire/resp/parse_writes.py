"""The words of commands that add and delete entries: XADD, XTRIM, XDEL and their kin."""

from __future__ import annotations

from dataclasses import field
from enum import Enum
from typing import Final

from lapwing.records import dataclass
from lapwing.wire.resp import errors, ids
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.ids import EntryId, NewId
from lapwing.wire.resp.numbers import integer, maybe_integer


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
    """XADD."""

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
    """XSETID."""

    key: bytes
    id: EntryId
    entries_added: int | None = None
    max_deleted: EntryId | None = None


@dataclass(slots=True)
class Xcfgset:
    """XCFGSET."""

    key: bytes
    duration: int | None = None  # s
    max_size: int | None = None


_REFERENCES: Final = {each.value: each for each in References}
_BOTH: Final = "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
_TWICE: Final = "ERR syntax error, IDMP/IDMPAUTO specified multiple times"
_LONGEST_DURATION: Final = 86_400  # s
_MOST_REMEMBERED: Final = 10_000


@dataclass(slots=True)
class _Options:
    """The options that XADD and XTRIM share, and where in the words they end."""

    trim: Trim = field(default_factory=Trim)
    create: bool = True
    producer: bytes | None = None
    idempotent_id: bytes | None = None
    at: int = 2


def parse_xadd(words: list[bytes]) -> Xadd:
    """Return the meaning of `XADD key [options] <* | id> field value ..`. Raises `ErrorReply`."""
    options = _options(words, adding=True)
    word = words[options.at] if options.at < len(words) else None
    new = NewId() if word is None or word == b"*" else ids.parse_new(word)
    _check_limit(options.trim)
    if new.milliseconds is not None and options.producer is not None:
        raise ErrorReply("ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs")
    pairs = words[options.at + 1 :]
    if len(pairs) < 2 or len(pairs) % 2:
        raise errors.wrong_arity("xadd")
    if (new.milliseconds, new.number) == ids.LEAST:
        raise ErrorReply("ERR The ID specified in XADD must be greater than 0-0")
    trim = options.trim
    wanted = trim.max_length is not None or trim.min_id is not None
    return Xadd(words[1], new, pairs, trim if wanted else None, options.create, options.producer, options.idempotent_id)


def parse_xtrim(words: list[bytes]) -> tuple[bytes, Trim]:
    """Return the key and the meaning of `XTRIM key <MAXLEN | MINID> ..`. Raises `ErrorReply`."""
    options = _options(words, adding=False)
    _check_limit(options.trim)
    return words[1], options.trim


def _options(words: list[bytes], *, adding: bool) -> _Options:
    options = _Options()
    trim = options.trim
    while options.at < len(words):
        word, more = words[options.at].upper(), len(words) - options.at - 1
        if adding and word == b"*":
            break
        if word in (b"MAXLEN", b"MINID") and more:
            _threshold(words, options, word, more)
        elif word == b"LIMIT" and more:
            options.at += 1
            trim.limit = integer(words[options.at])
            if trim.limit < 0:
                raise ErrorReply("ERR The LIMIT argument must be >= 0.")
        elif word in _REFERENCES:
            if trim.references is not None:
                raise errors.syntax_error()
            trim.references = _REFERENCES[word]
        elif adding and word == b"NOMKSTREAM":
            options.create = False
        elif adding and ((word == b"IDMP" and more >= 2) or (word == b"IDMPAUTO" and more)):
            _producer(words, options, word)
        elif adding:
            break  # the id, or nothing that anybody understands
        else:
            raise errors.syntax_error()
        options.at += 1
    return options


def _threshold(words: list[bytes], options: _Options, word: bytes, more: int) -> None:
    trim = options.trim
    if trim.max_length is not None or trim.min_id is not None:
        raise ErrorReply(_BOTH)
    options.at += 1
    if more >= 2 and words[options.at] in (b"~", b"="):
        trim.approximate = words[options.at] == b"~"
        options.at += 1
    if word == b"MINID":
        trim.min_id = ids.parse(words[options.at])
        return
    trim.max_length = integer(words[options.at])
    if trim.max_length < 0:
        raise ErrorReply("ERR The MAXLEN argument must be >= 0.")


def _producer(words: list[bytes], options: _Options, word: bytes) -> None:
    name = word.decode()
    if options.producer is not None:
        raise ErrorReply(_TWICE)
    options.at += 1
    options.producer = words[options.at]
    if not options.producer:
        raise ErrorReply(f"ERR syntax error, {name} requires a non-empty producer ID")
    if word == b"IDMP":
        options.at += 1
        options.idempotent_id = words[options.at]
        if not options.idempotent_id:
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
    while at < len(words):
        word = words[at].upper()
        if word in _REFERENCES and references is None:
            references = _REFERENCES[word]
            at += 1
            continue
        if word != b"IDS" or at + 1 >= len(words):
            break
        count = maybe_integer(words[at + 1])
        if count is None or count <= 0:
            raise ErrorReply("ERR Number of IDs must be a positive integer")
        if count != len(words) - at - 2:
            raise ErrorReply("ERR The `numids` parameter must match the number of arguments")
        return references or References.KEEPREF, parse_ids(words, at + 2)
    raise errors.syntax_error()


def parse_xsetid(words: list[bytes]) -> Xsetid:
    """Return the meaning of `XSETID key id [ENTRIESADDED n] [MAXDELETEDID id]`. Raises `ErrorReply`."""
    setting = Xsetid(words[1], ids.parse(words[2]))
    at = 3
    while at < len(words):
        word = words[at].upper()
        if at + 1 == len(words):
            raise errors.syntax_error()
        if word == b"ENTRIESADDED":
            setting.entries_added = integer(words[at + 1])
            if setting.entries_added < 0:
                raise ErrorReply("ERR entries_added must be positive")
        elif word == b"MAXDELETEDID":
            setting.max_deleted = ids.parse(words[at + 1])
            if setting.id < setting.max_deleted:
                raise ErrorReply("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
        else:
            raise errors.syntax_error()
        at += 2
    return setting


def parse_xcfgset(words: list[bytes]) -> Xcfgset:
    """Return the meaning of `XCFGSET key [IDMP-DURATION s] [IDMP-MAXSIZE n]`. Raises `ErrorReply`."""
    setting = Xcfgset(words[1])
    for at in range(2, len(words), 2):
        word = words[at].upper()
        if at + 1 == len(words) or word not in (b"IDMP-DURATION", b"IDMP-MAXSIZE"):
            raise errors.syntax_error()
        most = _LONGEST_DURATION if word == b"IDMP-DURATION" else _MOST_REMEMBERED
        number = integer(words[at + 1])
        if not 1 <= number <= most:
            raise ErrorReply(f"ERR {word.decode()} must be between 1 and {most}")
        if word == b"IDMP-DURATION":
            setting.duration = number
        else:
            setting.max_size = number
    return setting
