"""Quote the bytes of a peer inside an error, and any text inside a command."""

import re
from typing import Final

_SHORT: Final = {
    '"': '\\"', "\\": "\\\\", "\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v",
}  # fmt: skip


def raw(data: bytes) -> str:
    """Return any bytes as text that `ProtocolError.payload` turns back into the same bytes."""
    return data.decode("latin-1")


def quoted(name: bytes) -> str:
    """Return the name between double quotes, unprintable signs escaped, as text for a `ProtocolError`."""
    shown = "".join(map(_shown, name.decode("utf-8", "surrogateescape")))
    return raw(f'"{shown}"'.encode())


def _shown(sign: str) -> str:
    if short := _SHORT.get(sign):
        return short
    point = ord(sign)
    if 0xDC80 <= point <= 0xDCFF:  # not UTF-8: the byte itself is in the low half
        return f"\\x{point & 0xFF:02x}"
    if sign.isprintable():
        return sign
    if point < 0x20 or point == 0x7F:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def percent_encoded(text: bytes) -> bytes:
    """Return the text as one word: all but letters, digits and `_.-~` as %XX, as in a URL."""
    return re.sub(rb"[^A-Za-z0-9_.~-]", lambda sign: b"%%%02X" % sign[0][0], text)


def percent_decoded(word: bytes) -> bytes:
    """Return the text of a word in which signs are written %XX; any other % is left as it is."""
    return re.sub(rb"%([0-9a-fA-F]{2})", lambda digits: bytes((int(digits[1], 16),)), word)
