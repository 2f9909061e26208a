"""The answers of HTTP routes, and their bytes."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import field
from http import HTTPStatus
from typing import Any, Final

from lapwing.errors import LapwingError
from lapwing.records import dataclass

JSON: Final = "application/json; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"

_REASONS: Final = {status.value: status.phrase for status in HTTPStatus} | {413: "Request Entity Too Large"}
_HARMFUL: Final = tuple((sign, f"\\u{ord(sign):04x}") for sign in "<>&\u2028\u2029")
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Refused(LapwingError):
    """A route cannot do what was asked: answered as `status` and `{"message": code}`, with `details` beside it."""

    def __init__(self, status: int, code: str, **details: Any) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code
        self.details = details

    def answer(self) -> Answer:
        """Return the answer that a client gets."""
        return value({"message": self.code, **self.details}, self.status)


@dataclass(slots=True, eq=False)
class Answer:
    """A whole answer. One that answers many requests is made once: its bytes are kept."""

    status: int = 200
    body: bytes = b""
    content_type: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    nsq: bool = True  # carries X-NSQ-Content-Type, by which old clients know that the JSON is not wrapped
    close: bool = False  # the connection ends with this answer
    _second: int = field(default=-1, repr=False, compare=False)  # the Date of the kept bytes
    _rendered: bytes = field(default=b"", repr=False, compare=False)

    def render(self, *, old: bool = False, close: bool = False, bodiless: bool = False) -> bytes:
        """Return the bytes for the wire: for HTTP/1.0 if `old`, without the body for a HEAD request."""
        if old or bodiless or close or self.close:
            return self._assemble(old=old, close=close or self.close, bodiless=bodiless)
        second = int(time.time())
        if second != self._second:
            self._rendered = self._assemble()
            self._second = second
        return self._rendered

    def _assemble(self, *, old: bool = False, close: bool = False, bodiless: bool = False) -> bytes:
        head = self.head(old=old, close=close) + b"Content-Length: %d\r\n\r\n" % len(self.body)
        return head if bodiless else head + self.body

    def head(self, *, old: bool, close: bool) -> bytes:
        """Status line and headers, without the length and the empty line."""
        lines = [f"HTTP/1.{0 if old else 1} {self.status} {_REASONS.get(self.status, 'Unknown')}\r\n{date()}"]
        if self.content_type is not None:
            lines.append(f"Content-Type: {self.content_type}\r\n")
        if self.nsq:
            lines.append("X-Nsq-Content-Type: nsq; version=1.0\r\n")
        lines += [f"{name}: {value}\r\n" for name, value in self.headers]
        if close:
            lines.append("Connection: close\r\n")
        return "".join(lines).encode("latin-1", "replace")


@dataclass(slots=True, eq=False)
class StreamedAnswer(Answer):
    """A long answer, sent piece by piece as the client takes it.

    `pieces` is closed when the client goes away; an error in it cuts the connection, so that the client
    sees the answer torn, never a short one that looks whole.
    """

    pieces: AsyncIterator[bytes | memoryview] | None = None


class Later:
    """An answer that is not known yet: a route returns it, and completes it later.

    Answers leave in the order of their requests, whatever the order of completion. Requests that follow on the
    same connection are carried out meanwhile, so what has effects has them before it returns its `Later`.
    """

    __slots__ = ("answer", "on_complete")

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer
        self.on_complete: Callable[[], None] | None = None

    def complete(self, answer: Answer) -> None:
        """Set the answer; only the first call counts. Harmless when the client is gone."""
        if self.answer is None:
            self.answer = answer
            if self.on_complete is not None:
                self.on_complete()


_date_second = -1
_date_line = ""


def date() -> str:
    """Return the `Date` header line of this second."""
    global _date_second, _date_line
    second = int(time.time())
    if second != _date_second:
        at = time.gmtime(second)
        _date_line = (
            f"Date: {_DAYS[at.tm_wday]}, {at.tm_mday:02} {_MONTHS[at.tm_mon - 1]} {at.tm_year} "
            f"{at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT\r\n"
        )
        _date_second = second
    return _date_line


def compact(value: Any) -> bytes:
    """Return `value` as compact JSON, with `<`, `>`, `&` and line separators escaped: it is harmless in HTML."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    # None of these can stand outside a string in JSON, so replacing them everywhere is replacing them in strings.
    for sign, escape in _HARMFUL:
        if sign in text:
            text = text.replace(sign, escape)
    return text.encode("utf-8", "replace")


def value(content: Any, status: int = 200) -> Answer:
    """Return a V1 answer that holds `content` as JSON."""
    return Answer(status, compact(content), JSON)


def text(content: str, status: int = 200) -> Answer:
    """Return a V1 answer that holds bare text; an empty one has no Content-Type."""
    body = content.encode("utf-8", "replace")
    return Answer(status, body, TEXT if body else None)


def nothing() -> Answer:
    """Return a V1 answer without a body: the request was carried out."""
    return Answer()


def plain(content: str, status: int = 200) -> Answer:
    """Return an answer outside V1: the text alone."""
    return Answer(status, content.encode("utf-8", "replace"), TEXT, nsq=False)


def failure(status: int, code: str, *, close: bool = False) -> Answer:
    """Return a V1 failure: `{"message": code}`."""
    return Answer(status, compact({"message": code}), JSON, close=close)


OK: Final = text("OK")
INVALID_REQUEST: Final = failure(400, "INVALID_REQUEST")
BODY_TOO_BIG: Final = failure(413, "BODY_TOO_BIG")
INTERNAL_ERROR: Final = failure(500, "INTERNAL_ERROR")
