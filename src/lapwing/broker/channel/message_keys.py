"""The key of a message: a header, a field of a stream entry, or a place in its JSON body."""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final

from lapwing import kernel
from lapwing.kernel import HEAD

HEADER: Final = "header:"
JSON: Final = "json:"
_LONGEST: Final = 128  # bytes of a key that are kept as they are
_SHOWN: Final = 64  # bytes of a longer one that are kept beside its hash
_ARRAY: Final = ord("*")

Keys = list[bytes | None]  # of messages; None where one has no key


class MessageKeys:
    """Reads keys from where the setting `key_from` has them. One that is very long is cut, with a hash."""

    __slots__ = ("_header", "_name", "_path", "key_from")

    def __init__(self, key_from: str) -> None:
        self.key_from = key_from
        self._header = b""
        self._path: list[str] = []
        if key_from.startswith(HEADER):
            self._header = key_from.removeprefix(HEADER).encode()
            self._name = self._header
        else:
            self._path = pointer(key_from.removeprefix(JSON))
            self._name = self._path[0].encode() if len(self._path) == 1 else b""

    @property
    def from_headers(self) -> bool:
        """Whether the rows of headers are looked at."""
        return bool(self._header)

    def of_frames(self, frames: bytes, positions: Sequence[int], first: int, rows: bytes) -> Keys:
        """Return the keys of frames that begin at `positions`, the first of them that of the sequence `first`.

        The last position is the end. `rows` are those of their headers.
        """
        count = len(positions) - 1
        if not self._header:
            return [self.of_body(frames[positions[at] + HEAD : positions[at + 1]]) for at in range(count)]
        keys, longest = kernel.header_column(rows, self._header, first, count)
        if longest > _LONGEST:
            keys = [short(key) if key is not None else None for key in keys]
        if None in keys:
            for place in range(count):
                if keys[place] is None and frames[positions[place] + HEAD] == _ARRAY:
                    keys[place] = self._of_field(frames[positions[place] + HEAD : positions[place + 1]])
        return keys

    def of_one(self, frame: bytes, headers: bytes) -> bytes | None:
        """Return the key of one message, of which `headers` are the row, without its brackets."""
        if not self._header:
            return self.of_body(frame[HEAD:])
        for _, value in kernel.header_values(headers, self._header) if headers else ():
            return short(value)
        return self._of_field(frame[HEAD:])

    def of_body(self, body: bytes) -> bytes | None:
        """Return the key of a JSON body, or of the fields of a stream entry."""
        if body[:1] == b"*" and kernel.is_pairs(body):
            return self._of_field(body)
        try:
            found = json.loads(body)
            for step in self._path:
                found = found[_place(step)] if isinstance(found, list) else found[step]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            return None
        return text_of(found)

    def _of_field(self, body: bytes) -> bytes | None:
        """Return the key of a stream entry that has a field of that name."""
        if not self._name or body[:1] != b"*" or not kernel.is_pairs(body):
            return None
        words, _ = kernel.split_words(body, 0, 2**31 - 1)
        for field, value in zip(words[::2], words[1::2], strict=True):
            if field == self._name:
                return short(value) if value else None
        return None


def text_of(value: Any) -> bytes | None:
    """Return a JSON value as a key: text as it is, anything else as canonical JSON; null and empty text are none."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return short(value.encode("utf-8", "surrogatepass"))
    try:
        return short(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())
    except (ValueError, TypeError, RecursionError):
        return None


def short(key: bytes) -> bytes:
    """Return a key that takes little memory: a long one as its beginning and a hash."""
    if len(key) <= _LONGEST:
        return key
    return key[:_SHOWN] + b"#" + blake2b(key, digest_size=16).hexdigest().encode()


def pointer(text: str) -> list[str]:
    """Return the steps of a JSON pointer (RFC 6901). Raises `ValueError`."""
    if not text.startswith("/"):
        raise ValueError("a JSON pointer begins with /")
    return [step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/")]


def _place(step: str) -> int:
    """Return the place in a list that a step of a pointer names. Raises `ValueError`."""
    if not (step.isascii() and step.isdigit()):
        raise ValueError(f"{step} is not a place in a list")
    return int(step)
