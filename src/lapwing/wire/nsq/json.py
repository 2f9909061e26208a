"""JSON as NSQ reads and writes it: strict about types, easy about keys, compact, and safe inside HTML."""

import json
import re
from collections.abc import Container, Mapping
from enum import Enum
from typing import Any, Final


class Kind(Enum):
    """What a member must be."""

    TEXT = "string"
    FLAG = "boolean"
    INT32 = "32-bit integer"
    INT64 = "64-bit integer"


_BITS: Final = {Kind.INT32: 32, Kind.INT64: 64}
_LONGEST_INTEGER: Final = 20  # signs of the longest 64-bit one, with its minus

_HTML: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
_ESCAPE: Final = re.compile(r"\\.", re.DOTALL)
_LONG_ESCAPES: Final = {"\\b": "\\u0008", "\\f": "\\u000c"}


class _Members(list[tuple[str, Any]]):
    """The members of an object in their order, duplicates and all."""


class _Integer(str):
    """An integer as it is written: nobody pays for one of a million digits."""


class _Fraction(str):
    """Any other number as it is written."""


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_Members, parse_int=_Integer, parse_float=_Fraction, parse_constant=_refuse
)


def read_members(
    body: bytes, kinds: Mapping[str, Kind], *, lenient: Container[str] = frozenset()
) -> dict[str, Any]:
    """The named members of the object in `body`; raises `ValueError` when it is none, or a member of the wrong kind.

    A `lenient` member of the wrong kind is ignored. Keys match in any case, the last duplicate wins, null counts as
    absent (as the whole body, too), other members are ignored. A number is an integer only when it is written as one.
    Bytes that are not UTF-8 become U+FFFD.
    """
    try:
        document = _DECODER.decode(body.decode("utf-8", "replace"))
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if document is None:
        return {}
    if not isinstance(document, _Members):
        raise ValueError("not an object")
    found: dict[str, Any] = {}
    for key, value in document:
        name = key.replace("\u017f", "s").lower()  # the long s, which lower() leaves alone
        kind = kinds.get(name)
        if kind is not None and value is not None:
            try:
                found[name] = _member(name, value, kind)
            except ValueError:
                if name not in lenient:
                    raise
    return found


def _member(name: str, value: Any, kind: Kind) -> Any:
    if kind is Kind.FLAG and isinstance(value, bool):
        return value
    if kind in _BITS and isinstance(value, _Integer) and len(value) <= _LONGEST_INTEGER:
        number, half = int(value), 1 << (_BITS[kind] - 1)
        if -half <= number < half:
            return number
    if kind is Kind.TEXT and isinstance(value, str) and not isinstance(value, _Integer | _Fraction):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a pair is no sign
    raise ValueError(f"{name} is not a {kind.value}")


def compact_json(document: Any) -> bytes:
    """The document without a space to spare, as UTF-8; what could end a script in HTML is escaped."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).translate(_HTML)
    if "\\b" in text or "\\f" in text:
        text = _ESCAPE.sub(lambda escape: _LONG_ESCAPES.get(escape[0], escape[0]), text)
    return text.encode("utf-8", "replace")
