"""The server's end of a conversation: bytes of a client in, its requests out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field
from typing import Final

from lapwing import kernel
from lapwing.errors import HangUp, ProtocolError
from lapwing.records import dataclass
from lapwing.wire.resp import inline

LONGEST_LINE: Final = 64 * 1024  # bytes of an inline command, or of a line with a length
LONGEST_WORD: Final = 512 * 1024 * 1024  # bytes that the protocol permits (`proto-max-bulk-len`)
MAX_WORDS: Final = 2**31 - 1
_FIRST_WORDS: Final = 10  # words of a request before AUTH
_FIRST_WORD: Final = 16384  # bytes of a word before AUTH
_ANY: Final = 1 << 62
_OVERHEAD: Final = 48  # bytes that a word takes in memory beside its own

_NUMBER: Final = re.compile(rb"0|-?[1-9][0-9]{0,18}")
_HTTP: Final = frozenset({b"post", b"host:"})


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The memory that a client may take."""

    max_request: int = 5 * 1024 * 1024  # bytes of one request, its words' overhead included
    max_entry: int = 1024 * 1024  # bytes of an entry as the body of a message


@dataclass(slots=True)
class XaddRun:
    """Several XADDs to one key without options, as they came: `kernel.frame_xadds` makes frames of them."""

    key: bytes
    count: int
    block: bytes


@dataclass(slots=True)
class Oversized:
    """A request that takes more memory than a client may have; nothing of it was kept but its first word."""

    name: bytes


Request = list[bytes] | XaddRun | Oversized


@dataclass(slots=True)
class _Partial:
    """A request that is not complete yet."""

    left: int  # words to come
    words: list[bytes] = field(default_factory=list)
    missing: int = 0  # bytes to read of a word and its line end; 0: the line with its length is awaited
    size: int = 0  # bytes of memory so far
    oversized: bool = False


class RequestParser:
    """Cut what a client sends into requests. The session sets whether the client is `authenticated`."""

    __slots__ = ("_at", "_data", "_gathered", "_max_words", "_over", "_partial", "authenticated", "limits")

    def __init__(self, limits: RequestLimits | None = None, *, authenticated: bool = True) -> None:
        self.limits = RequestLimits() if limits is None else limits
        self.authenticated = authenticated
        self._max_words = self.limits.max_request // _OVERHEAD
        self._data = b""  # received, and parsed up to `_at`
        self._at = 0
        self._partial: _Partial | None = None
        self._gathered = bytearray()  # the begin of a word of which more is to come
        self._over = False

    def receive(self, data: bytes) -> None:
        """Take what came from the client; `requests` gives what it means."""
        if self._at < len(self._data):
            data = self._data[self._at :] + data
        self._data = data
        self._at = 0

    def next_request(self) -> Request | None:
        """Return the next whole request, a run of plain XADDs to one key as one; None if there is no other.

        Raises `ProtocolError` or `HangUp` at garbage, after what came before was returned; nothing more is understood
        then.
        """
        if self._at >= len(self._data) or self._over:
            self._data, self._at = b"", 0
            return None
        try:
            return self._next()
        except (ProtocolError, HangUp):
            self._over = True
            self._partial = None
            self._gathered = bytearray()
            raise

    @property
    def buffered(self) -> int:
        """Bytes that were received and not handed out."""
        partial = self._partial.size if self._partial is not None else 0
        return len(self._data) - self._at + len(self._gathered) + partial

    def _next(self) -> Request | None:
        while self._at < len(self._data):
            if self._partial is not None:
                return self._words(self._partial)
            data, at = self._data, self._at
            if data[at] != 42:  # *
                words = self._inline()
                if words is None:
                    return None
                if words:
                    return words
                continue
            if self.authenticated:
                count, end, key = kernel.xadd_run(data, at, self.limits.max_entry)
                if count:
                    self._at = end
                    return XaddRun(key, count, data[at:end])
                if len(data) - at <= self.limits.max_request:
                    words, end = kernel.split_words(data, at, self._max_words)
                    if words:
                        self._at = end
                        return _checked(words)
            if not self._begin():
                return None
        return None

    def _begin(self) -> bool:
        """Read the line with the number of words; return whether it is there."""
        line = self._line("too big mbulk count string")
        if line is None:
            return False
        count = _number(line[1:])
        if count is None or count > MAX_WORDS:
            raise _broken("invalid multibulk length")
        if count > _FIRST_WORDS and not self.authenticated:
            raise _broken("unauthenticated multibulk length")
        if count > 0:
            self._partial = _Partial(count)
        return True

    def _words(self, partial: _Partial) -> Request | None:
        """Gather the words of a request; None as long as some are missing."""
        while partial.left:
            if not partial.missing and self.authenticated and self._take_words(partial):
                continue
            if not partial.missing:
                line = self._line("too big bulk count string")
                if line is None:
                    return None
                length = self._length(line)
                partial.missing = length + 2
                partial.size += length + _OVERHEAD
                if partial.size > self.limits.max_request:
                    partial.oversized = True
                    del partial.words[1:]
            word = self._word(partial)
            if word is None:
                return None
            if not partial.oversized or not partial.words:
                partial.words.append(word)
            partial.missing = 0
            partial.left -= 1
        self._partial = None
        return Oversized(partial.words[0]) if partial.oversized else _checked(partial.words)

    def _take_words(self, partial: _Partial) -> bool:
        """Take the words that are there whole, as far as there is memory for them; return whether there were any."""
        room = _ANY if partial.oversized else self.limits.max_request - partial.size
        words, end, size = kernel.take_words(self._data, self._at, partial.left, room, _OVERHEAD)
        if not words:
            return False
        self._at = end
        partial.left -= len(words)
        if not partial.oversized:
            partial.words += words
            partial.size += size
        elif not partial.words:
            partial.words.append(words[0])
        return True

    def _length(self, line: bytes) -> int:
        if line[:1] != b"$":
            got = line[:1].decode("latin-1")
            raise _broken(f"expected '$', got '{got}'")
        length = _number(line[1:])
        if length is None or length < 0 or length > LONGEST_WORD:
            raise _broken("invalid bulk length")
        if length > _FIRST_WORD and not self.authenticated:
            raise _broken("unauthenticated bulk length")
        return length

    def _word(self, partial: _Partial) -> bytes | None:
        """Return the word that is being read once all of it is there; one that is too much is not kept."""
        data, at, gathered = self._data, self._at, self._gathered
        end = at + partial.missing
        if len(data) < end:
            partial.missing = end - len(data)
            if not partial.oversized:
                gathered += memoryview(data)[at:]
            self._data, self._at = b"", 0
            return None
        self._at = end
        if not gathered:
            return b"" if partial.oversized else data[at : end - 2]
        gathered += memoryview(data)[at:end]
        word = bytes(memoryview(gathered)[:-2])
        self._gathered = bytearray()
        return word

    def _line(self, too_long: str) -> bytes | None:
        """Return the line at hand without its end and move behind it; None if it is not complete."""
        data, at = self._data, self._at
        end = data.find(b"\r", at, at + LONGEST_LINE)
        if end < 0 and len(data) - at > LONGEST_LINE:
            raise _broken(too_long)
        if end < 0 or len(data) < end + 2:
            self._data, self._at = data[at:], 0  # a small rest must not hold much memory
            return None
        self._at = end + 2
        return data[at:end]

    def _inline(self) -> list[bytes] | None:
        """Return the words of an inline command, which may be none; None if the line is not complete."""
        data, at = self._data, self._at
        end = data.find(b"\n", at, at + LONGEST_LINE)
        if end < 0:
            if len(data) - at > LONGEST_LINE:
                raise _broken("too big inline request")
            self._data, self._at = data[at:], 0
            return None
        self._at = end + 1
        words = inline.split(data[at : end - 1] if data[end - 1 : end] == b"\r" and end > at else data[at:end])
        if words is None:
            raise _broken("unbalanced quotes in request")
        return _checked(words) if words else words


def split_run(block: bytes) -> Iterator[list[bytes]]:
    """Yield the words of each XADD of a run."""
    at = 0
    while at < len(block):
        words, at = kernel.split_words(block, at, MAX_WORDS)
        yield words


def _checked(words: list[bytes]) -> list[bytes]:
    """Hang up on a browser that was talked into sending us a request."""
    if words[0].lower() in _HTTP:
        raise HangUp("this is HTTP")
    return words


def _number(digits: bytes) -> int | None:
    return int(digits) if _NUMBER.fullmatch(digits) else None


def _broken(what: str) -> ProtocolError:
    return ProtocolError("ERR", f"Protocol error: {what}")
