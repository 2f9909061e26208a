"""The client's end of a conversation: bytes of a server in, its replies out, in RESP2 or RESP3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lapwing.errors import ProtocolError
from lapwing.wire.resp.errors import ErrorReply

_LONGEST_LINE: Final = 64 * 1024
_DEEPEST: Final = 32  # arrays in arrays
_LINES: Final = frozenset(b"+-:,(#_")
_STRINGS: Final = frozenset(b"$=!")
_ARRAYS: Final = frozenset(b"*~>%|")


def encode(*words: bytes | str | int) -> bytes:
    """Return a command as bytes."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


class ReplyReader:
    """Cut what a server sends into replies.

    A reply is bytes, a str for a status line, an int, a float, a bool, None, a list, a dict (RESP3), or an `ErrorReply`
    that the caller may raise.
    """

    __slots__ = ("_data", "_wanted", "max_reply")

    def __init__(self, max_reply: int = 1 << 30) -> None:
        self.max_reply = max_reply  # bytes
        self._data = bytearray()
        self._wanted = 0  # bytes that must be there before it is worth looking again

    def receive(self, data: bytes) -> None:
        """Take what came from the server; `replies` gives what it means."""
        self._data += data

    def replies(self) -> Iterator[Any]:
        """Yield each whole reply in order; raise `ProtocolError` at garbage."""
        while len(self._data) >= max(self._wanted, 1):
            try:
                reply, end = self._read(0, 0)
            except _Unfinished as unfinished:
                self._wanted = unfinished.wanted
                if self._wanted > self.max_reply:
                    raise ProtocolError("ERR", f"reply of over {self.max_reply} bytes") from None
                return
            del self._data[:end]
            self._wanted = 0
            yield reply

    def _read(self, at: int, depth: int) -> tuple[Any, int]:
        """Return the reply at `at`, and where the next one begins."""
        data = self._data
        end = data.find(b"\r\n", at)
        if end < 0:
            if len(data) - at > _LONGEST_LINE:
                raise ProtocolError("ERR", "a line without an end")
            raise _Unfinished(len(data) + 1)
        kind, text = data[at], bytes(data[at + 1 : end])
        if kind in _LINES:
            return _line(kind, text), end + 2
        size = _size(text)
        if kind in _STRINGS:
            return self._string(kind, size, end + 2)
        if kind not in _ARRAYS or depth == _DEEPEST:
            raise ProtocolError("ERR", f"reply of the unknown type {chr(kind)!r}")
        if size < 0:
            return None, end + 2
        return self._array(kind, size, end + 2, depth)

    def _string(self, kind: int, size: int, at: int) -> tuple[Any, int]:
        if size < 0:
            return None, at
        if len(self._data) < at + size + 2:
            raise _Unfinished(at + size + 2)
        text = bytes(self._data[at : at + size])
        if kind == ord("="):
            text = text[4:]
        return (ErrorReply(text.decode("latin-1")) if kind == ord("!") else text), at + size + 2

    def _array(self, kind: int, size: int, at: int, depth: int) -> tuple[Any, int]:
        items: list[Any] = []
        for _ in range(2 * size if kind in b"%|" else size):
            item, at = self._read(at, depth + 1)
            items.append(item)
        if kind == ord("|"):  # attributes of the reply that follows
            return self._read(at, depth + 1)
        if kind != ord("%"):
            return items, at
        try:
            return dict(zip(items[::2], items[1::2], strict=True)), at
        except TypeError as error:
            raise ProtocolError("ERR", "a key of a map is an array or a map itself") from error


class _Unfinished(Exception):
    """A reply is not complete; `wanted` bytes at least are."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted


def _line(kind: int, text: bytes) -> Any:
    try:
        match chr(kind):
            case "+":
                return text.decode("latin-1")
            case "-":
                return ErrorReply(text.decode("latin-1"))
            case ":" | "(":
                return int(text)
            case ",":
                return float(text)
            case "#":
                return text == b"t"
    except ValueError as error:
        raise ProtocolError("ERR", f"{text[:40]!r} is no number") from error
    return None


def _size(text: bytes) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ProtocolError("ERR", f"{text[:40]!r} is no length") from error
