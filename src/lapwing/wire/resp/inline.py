"""Inline commands: a line of words, as people type them into a terminal."""

from __future__ import annotations

from typing import Final

_BLANKS: Final = frozenset(b" \t\n\v\f\r")
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")
_ESCAPES: Final = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}
_BACKSLASH, _DOUBLE, _SINGLE, _X = b"\\\"'x"


def split(line: bytes) -> list[bytes] | None:
    """Return the words of a line; None if a quote is not closed, or something follows it at once.

    Between double quotes `\\xHH`, `\\n`, `\\r`, `\\t`, `\\b` and `\\a` are understood, between single quotes `\\'`.
    """
    words: list[bytes] = []
    at, end = 0, line.find(b"\0")
    line = line if end < 0 else line[:end]
    while True:
        while at < len(line) and line[at] in _BLANKS:
            at += 1
        if at == len(line):
            return words
        word = bytearray()
        while at < len(line) and line[at] not in _BLANKS:
            if line[at] == _DOUBLE:
                at = _double(line, at + 1, word)
            elif line[at] == _SINGLE:
                at = _single(line, at + 1, word)
            else:
                word.append(line[at])
                at += 1
                continue
            if at < 0 or (at < len(line) and line[at] not in _BLANKS):
                return None
        words.append(bytes(word))


def _double(line: bytes, at: int, word: bytearray) -> int:
    """Add what stands between double quotes to a word; return where to carry on, or -1 without a closing quote."""
    while at < len(line):
        byte = line[at]
        if byte == _DOUBLE:
            return at + 1
        if byte == _BACKSLASH and at + 1 < len(line):
            digits = line[at + 2 : at + 4]
            if line[at + 1] == _X and len(digits) == 2 and _HEX.issuperset(digits):
                word.append(int(digits, 16))
                at += 4
                continue
            word.append(_ESCAPES.get(line[at + 1], line[at + 1]))
            at += 2
            continue
        word.append(byte)
        at += 1
    return -1


def _single(line: bytes, at: int, word: bytearray) -> int:
    """Add what stands between single quotes to a word; return where to carry on, or -1 without a closing quote."""
    while at < len(line):
        if line[at] == _SINGLE:
            return at + 1
        if line[at] == _BACKSLASH and line[at + 1 : at + 2] == b"'":
            at += 1
        word.append(line[at])
        at += 1
    return -1
