"""JSON as NSQ reads and writes it: strict types, keys in any case, compact, and safe inside HTML."""

import json
import re
from collections.abc import Container, Generator, Iterator, Mapping
from enum import Enum
from functools import cache
from typing import Any, Final


class JsonKind(Enum):
    """The type of a member."""

    TEXT = "string"  # of which 1 KiB is kept
    LONG_TEXT = "long string"  # of which 4 KiB are kept
    FLAG = "boolean"
    INT32 = "32-bit integer"
    INT64 = "64-bit integer"


_BITS: Final = {JsonKind.INT32: 32, JsonKind.INT64: 64}
_LONGEST_INTEGER: Final = 20  # signs of the longest 64-bit one, with its minus
_LONGEST_KEY: Final = 256  # bytes, escapes included; no member that anybody wants has a longer one
_LONGEST: Final = {JsonKind.TEXT: 1024, JsonKind.LONG_TEXT: 4096}  # bytes that are kept of a text
_DEEPEST: Final = 10_000  # containers inside each other, as in Go
_SMALL: Final = 4096  # bytes of a body in which it does not pay to look for runs
_STEPS: Final = 500  # of one call of `MemberReader.advance`
_BYTES: Final = 65536  # the same
_ARRAY, _OBJECT = b"[{"
_CLOSING: Final = {_ARRAY: b"]", _OBJECT: b"}"}

_SPACE: Final = rb"[ \t\n\r]*+"
_SIGNS: Final = rb'[^"\\\x00-\x1f]'
_ESCAPED: Final = rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_STRING: Final = rb'"%b*+(?:%b%b*+)*+"' % (_SIGNS, _ESCAPED, _SIGNS)
_NUMBER: Final = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_OTHER: Final = rb"%b|true|false|null|\[%b\]|\{%b\}" % (_NUMBER, _SPACE, _SPACE)
_SIMPLE: Final = rb"%b(?>%b|%b)%b," % (_SPACE, _STRING, _OTHER, _SPACE)  # a value with nothing inside, and a comma

_BLANK: Final = re.compile(_SPACE)
_COLON: Final = re.compile(rb"%b:%b" % (_SPACE, _SPACE))
_QUOTED: Final = re.compile(_STRING)
_INNER: Final = re.compile(rb"(?:%b++|%b)++" % (_SIGNS, _ESCAPED))
_VALUE: Final = re.compile(_OTHER)
_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)")
_START: Final = {  # of a string, cut between two signs
    kind: re.compile(rb'"(?:[^"\\]|\\u....|\\.){0,%d}+' % most) for kind, most in _LONGEST.items()
}

_HTML: Final = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
_ESCAPE: Final = re.compile(r"\\.", re.DOTALL)
_LONG_ESCAPES: Final = {"\\b": "\\u0008", "\\f": "\\u000c"}


@cache
def _runs() -> dict[int, re.Pattern[bytes]]:
    """Return the patterns of runs by the container they are in; only large bodies need them, and compiling is slow."""
    return {
        _ARRAY: re.compile(rb"(?:%b){1,4096}+" % _SIMPLE),
        _OBJECT: re.compile(rb"(?:%b%b%b:%b){1,4096}+" % (_SPACE, _STRING, _SPACE, _SIMPLE)),
    }


class MemberReader:
    """Reads the named members of a JSON object, a slice of the body at a time.

    All of the body is checked. Keys match in any case, the last duplicate wins, null counts as absent (as the whole
    body, too), other members are ignored. A number is an integer only when it is written as one. Of a text, 1 KiB is
    kept. Bytes that are not UTF-8 become U+FFFD. A `lenient` member of the wrong kind is ignored.
    """

    __slots__ = ("_body", "_kinds", "_lenient", "_passed", "found")

    def __init__(self, body: bytes, kinds: Mapping[str, JsonKind], *, lenient: Container[str] = frozenset()) -> None:
        self.found: dict[str, Any] = {}
        self._body = body
        self._kinds = kinds
        self._lenient = lenient
        self._passed = self._read()

    def advance(self) -> bool:
        """Read for a few milliseconds at most; return whether all is read.

        Raises `ValueError` when the body is not an object, or a member is of the wrong kind.
        """
        until = -1
        for _ in range(_STEPS):
            at = next(self._passed, None)
            if at is None:
                return True
            if until < 0:
                until = at + _BYTES
            elif at >= until:
                break
        return False

    def _read(self) -> Iterator[int]:
        """Pass the body in small steps; yield the position after each."""
        body = self._body
        at = _blank(body, 0)
        if body[at : at + 1] != b"{" and body[at : at + 4] != b"null":
            raise ValueError("not an object")
        inside = bytearray()  # the containers around the value at hand, the outermost first
        name: str | None = None  # of the wanted member at hand
        # how far values are passed one by one: a small body, and a run of members that may hold a wanted one
        one_by_one = _SMALL if len(body) <= _SMALL else 0
        while True:
            if inside:
                run = _runs()[inside[-1]].match(body, at, at + _BYTES) if at >= one_by_one else None
                if run is not None and (len(inside) > 1 or not self._may_name(run[0])):
                    at = run.end()
                elif run is not None:
                    one_by_one = run.end()
                at = _blank(body, at)
                if inside[-1] == _OBJECT:
                    end = yield from self._string(at)
                    if len(inside) == 1:
                        name = self._name(body[at:end])
                    colon = _COLON.match(body, end)
                    if colon is None:
                        raise ValueError(f"no colon at byte {end}")
                    at = colon.end()
            begin = at
            if body[at : at + 1] == b'"':
                at = yield from self._string(at)
            elif (value := _VALUE.match(body, at)) is not None:
                at = value.end()
            if name is not None and len(inside) == 1:
                self._keep(name, b"[]" if at == begin else body[begin:at])
            if at == begin:
                if body[at : at + 1] not in (b"[", b"{") or len(inside) >= _DEEPEST:
                    raise ValueError(f"no value at byte {at}, or nested too deep")
                inside.append(body[at])
                at += 1
                yield at
                continue
            while inside:
                at = _blank(body, at) + 1
                sign = body[at - 1 : at]
                if sign == b",":
                    break
                if sign != _CLOSING[inside.pop()]:
                    raise ValueError(f"neither a comma nor an end at byte {at - 1}")
                yield at
            if not inside:
                break
            yield at
        if _blank(body, at) != len(body):
            raise ValueError(f"more than one value, at byte {at}")

    def _string(self, at: int) -> Generator[int, None, int]:
        """Pass a string, a long one in several steps; return where it ends."""
        body = self._body
        whole = _QUOTED.match(body, at, at + _BYTES)
        if whole is not None:
            return whole.end()
        if body[at : at + 1] != b'"':
            raise ValueError(f"no string at byte {at}")
        at += 1
        while (part := _INNER.match(body, at, at + _BYTES)) is not None:
            at = part.end()
            yield at
        if body[at : at + 1] != b'"':
            raise ValueError(f"a string that is wrong at byte {at}")
        return at + 1

    def _name(self, key: bytes) -> str | None:
        """Return the wanted member that `key`, with its quotes, names; None if it names none."""
        if len(key) > _LONGEST_KEY:
            return None
        text = _text(key) if b"\\" in key else key[1:-1].decode("utf-8", "replace")
        name = text.replace("\u017f", "s").lower()  # the long s, which lower() leaves alone
        return name if name in self._kinds else None

    def _may_name(self, run: bytes) -> bool:
        """Return whether a run of members may hold a wanted one. A name may be written with escapes, or odd letters."""
        if any(sign in run for sign in (b"\\", b"\xc5\xbf", b"\xe2\x84\xaa")):
            return True
        lower = run.lower()
        return any(name.encode() in lower for name in self._kinds)

    def _keep(self, name: str, value: bytes) -> None:
        if value == b"null":
            return
        try:
            self.found[name] = _member(name, value, self._kinds[name])
        except ValueError:
            if name not in self._lenient:
                raise


def read_members(
    body: bytes, kinds: Mapping[str, JsonKind], *, lenient: Container[str] = frozenset()
) -> dict[str, Any]:
    """Return the named members of the object in `body`, as `MemberReader` finds them. Raises `ValueError`."""
    reader = MemberReader(body, kinds, lenient=lenient)
    while not reader.advance():
        pass
    return reader.found


def _blank(body: bytes, at: int) -> int:
    match = _BLANK.match(body, at)
    assert match is not None  # it matches nothing, too
    return match.end()


def _member(name: str, value: bytes, kind: JsonKind) -> Any:
    if kind is JsonKind.FLAG and value in (b"true", b"false"):
        return value == b"true"
    if kind in _BITS and len(value) <= _LONGEST_INTEGER and _INTEGER.fullmatch(value) is not None:
        number, half = int(value), 1 << (_BITS[kind] - 1)
        if -half <= number < half:
            return number
    if kind in _LONGEST and value[:1] == b'"':
        return _text(value, kind)
    raise ValueError(f"{name} is not a {kind.value}")


def _text(value: bytes, kind: JsonKind = JsonKind.TEXT) -> str:
    """Return the text of a JSON string: no more bytes of it than its kind keeps, as UTF-8 counts."""
    most = _LONGEST[kind]
    if len(value) > most:
        start = _START[kind].match(value)
        assert start is not None
        value = start[0] + b'"'
    text: str = json.loads(value.decode("utf-8", "replace"))
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a pair is no sign
    return whole.encode()[:most].decode("utf-8", "ignore")


def compact_json(document: Any) -> bytes:
    """Return the document as compact JSON in UTF-8; characters that could end a script in HTML are escaped."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).translate(_HTML)
    if "\\b" in text or "\\f" in text:
        text = _ESCAPE.sub(lambda escape: _LONG_ESCAPES.get(escape[0], escape[0]), text)
    return text.encode("utf-8", "replace")
