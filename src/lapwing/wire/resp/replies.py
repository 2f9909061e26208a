"""Replies as bytes. What looks otherwise in RESP2 and RESP3 takes the protocol's number, 2 or 3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from lapwing.wire.resp.errors import ErrorReply

OK: Final = b"+OK\r\n"
PONG: Final = b"+PONG\r\n"
QUEUED: Final = b"+QUEUED\r\n"
EMPTY: Final = b"*0\r\n"

_BREAKS: Final = str.maketrans("\r\n", "  ")


def simple(text: str) -> bytes:
    return b"+%b\r\n" % text.encode()


def error(problem: ErrorReply | str) -> bytes:
    line = problem.line if isinstance(problem, ErrorReply) else problem
    return b"-%b\r\n" % line.translate(_BREAKS).encode("latin-1", "replace")


def integer(number: int) -> bytes:
    return b":%d\r\n" % number


def bulk(text: bytes) -> bytes:
    """Return a string of any bytes."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


def text(words: str) -> bytes:
    return bulk(words.encode())


def null(protocol: int) -> bytes:
    """Return the null of a string."""
    return b"_\r\n" if protocol == 3 else b"$-1\r\n"


def null_array(protocol: int) -> bytes:
    return b"_\r\n" if protocol == 3 else b"*-1\r\n"


def verbatim(words: str, protocol: int) -> bytes:
    """Return a text for people."""
    data = words.encode()
    return b"=%d\r\ntxt:%b\r\n" % (len(data) + 4, data) if protocol == 3 else bulk(data)


def array(parts: Sequence[bytes]) -> bytes:
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))


def array_of(count: int, parts: Iterable[bytes]) -> bytes:
    """Return an array of `count` replies that lie in any pieces."""
    return b"*%d\r\n%b" % (count, b"".join(parts))


def bulks(words: Iterable[bytes]) -> bytes:
    return array([bulk(word) for word in words])


def unordered(parts: Sequence[bytes], protocol: int) -> bytes:
    """Return a set of replies: an array in RESP2."""
    return (b"~%d\r\n%b" if protocol == 3 else b"*%d\r\n%b") % (len(parts), b"".join(parts))


def mapping(pairs: Sequence[tuple[bytes, bytes]], protocol: int) -> bytes:
    """Return a map of replies to replies: a flat array in RESP2."""
    parts = b"".join([part for pair in pairs for part in pair])
    return b"%%%d\r\n%b" % (len(pairs), parts) if protocol == 3 else b"*%d\r\n%b" % (2 * len(pairs), parts)


def fields(pairs: Sequence[tuple[str, bytes]], protocol: int) -> bytes:
    """Return a map of names to replies."""
    return mapping([(text(name), part) for name, part in pairs], protocol)


def streams(found: Sequence[tuple[bytes, int, Iterable[bytes]]], protocol: int) -> bytes:
    """Return the entries of several streams, as XREAD does; null if there are none.

    Of each stream: the key, how many entries, and the entries in any pieces.
    """
    if not found:
        return null_array(protocol)
    parts = [b"%%%d\r\n" % len(found) if protocol == 3 else b"*%d\r\n" % len(found)]
    pair = b"" if protocol == 3 else b"*2\r\n"
    for key, count, entries in found:
        parts.append(b"%b$%d\r\n%b\r\n*%d\r\n" % (pair, len(key), key, count))
        parts += entries
    return b"".join(parts)
