"""Parse the bytes of a client into whole requests, within limits that are checked before memory is taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httptools

from lapwing.errors import LapwingError
from lapwing.net.server.answers import Answer, plain
from lapwing.net.server.requests import BadEscape, Head

if TYPE_CHECKING:
    from lapwing.net.server.conversation import HttpConnection
    from lapwing.net.server.http import HttpServer

_LONGEST_KEPT: Final = 1024  # bytes of a head worth keeping
_OVERHEAD: Final = 65536  # bytes of chunk headers and trailers beyond eight times the body


class Incoming:
    """The requests of one client. `head` is set while a body is awaited, `partial` while anything is."""

    def __init__(self, server: HttpServer, taker: HttpConnection) -> None:
        self._server = server
        self._heads = server.heads
        self._limits = server.limits
        self._taker = taker
        self._parser = httptools.HttpRequestParser(self)
        self.since = server.now  # when the present wait began
        self.partial = False
        self.head: Head | None = None
        self.body: list[bytes] = []
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._raw_head = b""  # the bytes of the head to come, if it may be kept
        self._length = 0  # of the body, if it was declared
        self._body_bytes = 0
        self._raw_bytes = 0  # bytes received for a chunked body, framing included
        self._resumed = False  # this request was fed to the parser a second time
        self._finished = False  # a request came to its end in what the parser was fed last

    def take(self, data: bytes) -> None:
        """Parse received bytes; the taker gets each request that is whole."""
        if not self.partial:
            data = self._take_known(data)
            self.since = self._server.now
        if data and not self._taker.ended:
            self._feed(data)

    def forget(self) -> None:
        """Drop what was received of an unfinished request."""
        self.head = None
        self.body = []

    def part(self) -> None:
        """Break the reference cycles with the connection and the parser: the client is gone."""
        self.forget()
        del self._taker, self._parser

    def _take_known(self, data: bytes) -> bytes:
        """Carry out the whole requests at the start of `data` whose heads are known; return the rest.

        A head is a pure function of its bytes, so nothing changes by not parsing it again. Clients send the same
        one over and over but for its Content-Length, so that number is cut out of what a head is known by.
        """
        heads = self._heads
        start = 0
        while not self._taker.ended:
            end = data.find(b"\r\n\r\n", start, start + _LONGEST_KEPT) + 4
            if end < 4:
                self._raw_head = b""
                break
            number = data.find(b"\r\nContent-Length: ", start, end)
            if number < 0:
                number = data.find(b"\r\ncontent-length: ", start, end)
            if number < 0:
                raw = data[start:end]
                length = 0
            else:
                number += 18
                behind = data.find(b"\r", number, number + 12)
                digits = data[number:behind]
                if behind < 0 or not digits.isdigit():
                    self._raw_head = b""
                    break
                raw = data[start:number] + data[behind:end]
                length = int(digits)
            head = heads.get(raw)
            if head is None:
                self._raw_head = raw
                break
            stop = end + length
            if stop > len(data) or length > head.route.max_body:
                self._raw_head = b""
                break
            self._taker.carry_out(head, data[end:stop])
            start = stop
            if start == len(data):
                return b""
        return data[start:] if start else data

    def _feed(self, data: bytes) -> None:
        self.partial = True
        self._finished = False
        while data:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as error:
                # No upgrade is on offer, so the request is an ordinary one: feed it to a new parser as such.
                data = data[error.args[0] :]
                self._parser = httptools.HttpRequestParser(self)
                if self.head is not None:
                    self._resumed = True
                    framing = b"Content-Length: %d" % self._length
                    if self.head.chunked:
                        framing = b"Transfer-Encoding: chunked"
                    self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing)
                continue
            except httptools.HttpParserError:
                if not self._taker.ended:
                    self._taker.refuse(plain("400 Bad Request", 400))
                return
            break
        if self._taker.ended or not self.partial or self._finished:  # of `data` only the end is its own
            return
        if self.head is None:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.head_bytes:
                self._taker.refuse(plain("431 Request Header Fields Too Large", 431))
        elif self.head.chunked:
            self._raw_bytes += len(data)
            if self._raw_bytes > 8 * self._body_bytes + _OVERHEAD:
                self._taker.refuse(plain("400 Bad Request: more framing than content", 400))

    def on_message_begin(self) -> None:
        """Begin a request (called by the parser, like all `on_...`)."""
        if not self._resumed:
            self.partial = True
            self.head = None
            self._target = b""
            self._headers = []
            self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Add some or all of the request target."""
        if not self._resumed:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; ignore a trailer behind the body."""
        if self.head is None and not self._taker.ended:
            self._headers.append((name.lower(), value))
            if len(self._headers) > self._limits.headers:
                self._taker.refuse(plain("431 Request Header Fields Too Large: too many headers", 431))

    def on_headers_complete(self) -> None:
        """Find the route, and with it how long the body may be: the head is whole."""
        if self._taker.ended or self._resumed:
            return
        parser = self._parser
        version = parser.get_http_version()
        try:
            head = Head(
                parser.get_method().decode("ascii"),
                self._target,
                self._headers,
                old=version == "1.0",
                close=version == "1.0" or not (parser.should_keep_alive() or parser.should_upgrade()),
            )
        except BadEscape:
            return self._taker.refuse(plain("400 Bad Request", 400))
        if version not in ("1.1", "1.0"):
            return self._taker.refuse(plain("505 HTTP Version Not Supported", 505))
        if version == "1.1" and head.header(b"host") is None:
            return self._taker.refuse(plain("400 Bad Request: missing required Host header", 400))
        head.chunked = head.header(b"transfer-encoding") is not None
        length = self._length = int(head.header(b"content-length") or 0)
        head.headers = [header for header in head.headers if header[0] != b"content-length"]
        head.route, head.parameter = self._server.table.resolve(head)
        raw, self._raw_head = self._raw_head, b""
        expect = head.header(b"expect")
        has_body = head.chunked or length > 0
        self.head = head
        self.body = []
        self._body_bytes = self._raw_bytes = 0
        self.since = self._server.now
        if length > head.route.max_body:
            return self._taker.refuse(head.route.too_big, head)
        if expect is not None and has_body:
            if expect.lower() != b"100-continue":
                return self._taker.refuse(plain("417 Expectation Failed", 417), head)
            if not head.route.wants_body:
                return self._taker.refuse(head.route.too_big, head)
            if not head.old:
                self._taker.encourage()
        elif raw and not head.chunked and not parser.should_upgrade() and _plain_lines(raw, length):
            self._server.keep(raw, head)
        return None

    def on_body(self, body: bytes) -> None:
        """Add some or all of the body."""
        if self._taker.ended or self.head is None:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self.head.route.max_body:
            return self._taker.refuse(self._overrun(self.head), self.head)
        self.body.append(body)

    def _overrun(self, head: Head) -> Answer:
        route = head.route
        if route.overrun is None:
            return route.too_big
        try:
            return route.overrun(head)
        except LapwingError as error:
            return self._server.failed(head, error)

    def on_message_complete(self) -> None:
        """Pass the request on: it is whole."""
        head = self.head
        if self._taker.ended or head is None:
            return
        if not self._resumed and self._parser.should_upgrade() and (head.chunked or self._length):
            return  # the parser believes that no body follows; `_feed` corrects it
        self.head = None
        self.partial = self._resumed = False
        self._finished = True
        self._raw_head = b""
        body, self.body = self.body, []
        self._taker.carry_out(head, body[0] if len(body) == 1 else b"".join(body))


def _plain_lines(raw: bytes, length: int) -> bool:
    """Return whether `raw` is all of one head and nothing else, with its length (if it has one) cut out.

    It starts with a method, all its lines end alike, and a length was written in one of the ways we look for.
    """
    alike = raw.count(b"\n") == raw.count(b"\r\n") == raw.count(b"\r")
    cut = length == 0 or b"\r\nContent-Length: \r\n" in raw or b"\r\ncontent-length: \r\n" in raw
    return 65 <= raw[0] <= 90 and alike and cut
