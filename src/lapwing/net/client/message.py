"""HTTP/1.1 as a client sees it: URLs, requests to bytes, bytes to an answer. Sans-IO.

`HttpClient` (asyncio) and `BlockingHttpClient` drive this.
"""

from __future__ import annotations

import base64
import json
import os
import re
from dataclasses import field
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin, urlsplit

from lapwing.errors import LapwingError
from lapwing.records import dataclass

MAX_ANSWER: Final = 64 << 20  # bytes of one answer's body
MAX_HEAD: Final = 64 << 10  # bytes of status line and headers, and of the trailers of a chunked body
MAX_REDIRECTS: Final = 5
MAX_CONTAINERS: Final = 2_000_000  # objects and lists in one answer; `/stats` of 100,000 topics has a third of it
MAX_VALUES: Final = 10_000_000  # values in one answer
_MAX_CHUNK_LINE: Final = 1024  # bytes; the line before each chunk
REPEATABLE: Final = ("GET", "HEAD", "PUT", "DELETE")  # methods that may be sent again after a connection was closed
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_END_OF_HEAD: Final = re.compile(rb"\r?\n\r?\n")
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.([01]) (\d{3})(?: ([^\r\n]*))?")
_HOST: Final = re.compile(r"[!-~]+")
_PRINTABLE: Final = "".join(map(chr, range(33, 127)))
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[^\r\n\0]*")
_SECRET: Final = ("authorization", "cookie", "proxy-authorization")
_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")
_HEX: Final = re.compile(rb"[0-9a-fA-F]{1,16}")


class HttpFailed(LapwingError):
    """No usable answer came. The text is the reason, without the URL: `connection refused`.

    `url` is the one that failed, where a redirect led, if the request was sent. `status` is that of an answer that came
    and was not wanted, else 0.
    """

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status
        self.url: HttpUrl | None = None


def reason_of(error: BaseException) -> str:
    """Return why a call failed, in the words of the operating system where it has some: `connection refused`."""
    text = str(error)
    if isinstance(error, HttpFailed):
        return text
    if text.startswith("[SSL"):
        return text.removeprefix("[SSL: ").partition("] ")[2].partition(" (_ssl.c")[0]
    if isinstance(error, OSError) and error.errno is not None and error.errno < 0:  # of a name that was looked up
        return (error.strerror or text).lower()
    number = error.errno if isinstance(error, OSError) and error.errno else None
    if number is None and (match := _ERRNO.search(text)):  # one of several addresses
        number = int(match[1])
    return os.strerror(number).lower() if number else text or type(error).__name__


@dataclass(frozen=True, slots=True)
class Origin:
    """The server that a URL names. Requests to the same origin share connections."""

    scheme: str
    host: str  # an IPv6 address without brackets
    port: int

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "https"

    @property
    def netloc(self) -> str:
        """`host:port`, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HttpUrl:
    """An `http://` or `https://` URL, taken apart."""

    origin: Origin
    target: str  # path and query, as they stand in the request line
    authorization: str = ""  # `Basic …` if the URL has a user

    def __str__(self) -> str:
        return f"{self.origin.scheme}://{self.origin.netloc}{self.target}"

    @property
    def without_query(self) -> str:
        """The URL without its query, where secrets may be: fit for a log line."""
        return str(self).partition("?")[0]


def parse_url(text: str | HttpUrl) -> HttpUrl:
    """Take a URL apart, unless that was done; spaces and characters beyond ASCII are escaped. Raises `HttpFailed`."""
    if isinstance(text, HttpUrl):
        return text
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
        if not host.isascii():
            host = host.encode("idna").decode()
    except ValueError as error:
        raise HttpFailed(f"not an HTTP URL: {error}") from error
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or port == 0:
        raise HttpFailed("not an HTTP URL")
    target = quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_PRINTABLE)
    authorization = ""
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(secret.encode()).decode()}"
    return HttpUrl(Origin(parts.scheme, host, port or (443 if parts.scheme == "https" else 80)), target, authorization)


@dataclass(slots=True)
class HttpAnswer:
    """A whole answer."""

    url: HttpUrl
    status: int
    reason: str
    headers: dict[str, str]  # names in lower case; repeated ones joined by a comma
    body: bytes = b""

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        """Return the body as JSON. Raises `HttpFailed`."""
        body = self.body
        if len(body) > MAX_CONTAINERS:  # bytes: fewer cannot have more containers
            if body.count(b"[") + body.count(b"{") > MAX_CONTAINERS:  # those in texts count too
                raise HttpFailed(f"the answer has more than {MAX_CONTAINERS} lists and objects as values")
            if body.count(b",") > MAX_VALUES:
                raise HttpFailed(f"the answer has more than {MAX_VALUES} values")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise HttpFailed(f"not JSON: {error}") from error


@dataclass(slots=True)
class HttpRequest:
    """One request, which an answer may send elsewhere.

    nsqd and nsqlookupd with `--tls-required` answer `403` with an `https_port`; `upgrade` sends the request there.
    """

    method: str
    url: HttpUrl
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    follow: bool = False  # redirects
    upgrade: bool = False  # to TLS
    hops: int = 0

    def encode(self) -> bytes:
        """Return the bytes to send. Raises `HttpFailed` for a header that HTTP forbids."""
        origin, body = self.url.origin, self.body
        default_port = origin.port == (443 if origin.tls else 80)
        sent = {"host": ("Host", origin.netloc.rpartition(":")[0] if default_port else origin.netloc)}
        if self.url.authorization:
            sent["authorization"] = ("Authorization", self.url.authorization)
        for name, value in self.headers.items():
            sent[name.lower()] = (name, value)
        if body is not None or self.method in ("POST", "PUT", "PATCH"):
            sent["content-length"] = ("Content-Length", str(len(body or b"")))
        lines = [f"{self.method} {self.url.target} HTTP/1.1"]
        for name, value in sent.values():
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise HttpFailed(f"header {name!r} cannot be sent: its name or value has characters that HTTP forbids")
            lines.append(f"{name}: {value}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")

    def redirect(self, answer: HttpAnswer) -> bool:
        """Aim the request at where `answer` sends it; false if the answer is final. Raises `HttpFailed`."""
        status, here = answer.status, self.url.origin
        if self.upgrade and status == 403 and not here.tls and (port := _https_port(answer.body)):
            self.url = HttpUrl(Origin("https", here.host, port), self.url.target, self.url.authorization)
        elif self.follow and status in _REDIRECTS and answer.headers.get("location"):
            self._move(parse_url(urljoin(str(self.url), answer.headers["location"])))
            if status in (301, 302, 303) and self.method != "HEAD":
                self.method, self.body = "GET", None
        else:
            return False
        self.hops += 1
        if self.hops > MAX_REDIRECTS:
            raise HttpFailed(f"redirected more than {MAX_REDIRECTS} times")
        return True

    def _move(self, there: HttpUrl) -> None:
        if there.origin == self.url.origin:
            there = HttpUrl(there.origin, there.target, there.authorization or self.url.authorization)
        else:  # another server must not get the secrets of this one
            self.headers = {name: value for name, value in self.headers.items() if name.lower() not in _SECRET}
        self.url = there


@dataclass(slots=True)
class _Framing:
    """The end of an answer's body: by length, by chunks, or with the connection."""

    chunked: bool = False
    left: int | None = 0  # bytes of the body, or of the current chunk, that are still to come; None: until the end
    after_chunk: bool = False  # the line end behind a chunk is due
    trailers: bool = False
    trailer_bytes: int = 0


class AnswerParser:
    """Read one answer from bytes that arrive in any pieces.

    `feed` takes bytes and raises `HttpFailed` at garbage or when a limit is passed. Read `body` when `complete`, or
    call `take` for what has come so far. A driver may read `direct` bytes past the parser, straight into
    a buffer of the caller, and then calls `passed`.
    """

    def __init__(self, method: str = "GET", *, max_answer: int = MAX_ANSWER) -> None:
        self.status = 0  # 0 until the head is complete
        self.reason = ""
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = False
        self.keep_alive = False  # whether another request may follow on this connection
        self.started = False  # whether any byte has come
        self._method = method
        self._limit = max_answer
        self._size = 0  # bytes of the body so far
        self._interim = 0  # bytes of the heads of interim answers
        self._unread = bytearray()
        self._framing = _Framing()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the connection."""
        if not data:
            return
        if self.complete:
            self.keep_alive = False  # bytes that belong to no request
            return
        self.started = True
        if not self._unread and self.status and not self._framing.chunked:
            self._take_plain(data)
            return
        self._unread += data
        while not self.status:
            if not self._read_head():
                return
        if self._framing.chunked:
            self._read_chunks()
        elif self._unread or self._framing.left == 0:
            rest = bytes(self._unread)
            self._unread.clear()
            self._take_plain(rest)

    def end(self) -> None:
        """Handle the end of the connection. Raises `HttpFailed` unless the answer may end so."""
        if self.complete:
            return
        if not self.started:
            raise HttpFailed("closed without an answer")
        if self.status and not self._framing.chunked and self._framing.left is None:
            self.complete, self.keep_alive = True, False
            return
        raise HttpFailed("closed in the middle of the answer")

    def take(self) -> bytes:
        """Return the part of the body that has come since the last call."""
        data = bytes(self.body)
        self.body.clear()
        return data

    @property
    def direct(self) -> int:
        """Number of bytes that come next and belong to the body; 0 if the next bytes must be fed."""
        if self._unread or self.complete or not self.status or self._framing.after_chunk:
            return 0
        return self._framing.left or 0

    def passed(self, count: int) -> None:
        """Note that `count` of the `direct` bytes were read past the parser."""
        framing = self._framing
        assert framing.left is not None
        framing.left -= count
        self._count(count)
        if framing.left == 0:
            if framing.chunked:
                framing.after_chunk = True
            else:
                self.complete = True

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._limit:
            raise HttpFailed(f"the answer has more than {self._limit} bytes")

    # ---- head ----

    def _read_head(self) -> bool:
        """Parse the head if all of it is there; false if more bytes are needed."""
        end = _END_OF_HEAD.search(self._unread)
        if end is None:
            if not self._unread.startswith(b"HTTP/"[: len(self._unread)]):
                raise HttpFailed(_not_http(bytes(self._unread[:40])))
            if len(self._unread) > MAX_HEAD:
                raise HttpFailed(f"the head of the answer has more than {MAX_HEAD} bytes")
            return False
        head = bytes(self._unread[: end.start()])
        if len(head) > MAX_HEAD:
            raise HttpFailed(f"the head of the answer has more than {MAX_HEAD} bytes")
        lines = head.split(b"\n")
        match = _STATUS_LINE.fullmatch(lines[0].rstrip(b"\r"))
        if match is None:
            raise HttpFailed(_not_http(lines[0][:40]))
        del self._unread[: end.end()]
        status = int(match[2])
        if 100 <= status < 200 and status != 101:
            self._interim += end.end()
            if self._interim > MAX_HEAD:
                raise HttpFailed(f"the head of the answer has more than {MAX_HEAD} bytes")
            return bool(self._unread)  # an interim answer: the real one follows
        if status < 200:
            raise HttpFailed(f"status {status} was not asked for")
        self._read_headers(lines[1:])
        self.reason = (match[3] or b"").decode("latin-1").strip()
        self._choose_framing(status, newer=match[1] == b"1")
        self.status = status
        return True

    def _read_headers(self, lines: list[bytes]) -> None:
        for line in lines:
            name, colon, value = line.partition(b":")
            if not colon or not name or name != name.strip():
                raise HttpFailed(f"not a header: {line[:40]!r}")
            key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def _choose_framing(self, status: int, *, newer: bool) -> None:
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = "close" not in connection and (newer or "keep-alive" in connection)
        coding = self.headers.get("transfer-encoding", "").lower()
        length = self.headers.get("content-length")
        if self._method == "HEAD" or status in (204, 304):
            return
        if coding:
            if coding != "chunked":
                raise HttpFailed(f"transfer coding {coding[:40]!r} is not known")
            self.keep_alive = self.keep_alive and length is None
            self._framing = _Framing(chunked=True)
        elif length is not None:
            sizes = set(length.replace(" ", "").split(","))
            size = sizes.pop()
            if sizes or not (size.isascii() and size.isdigit()) or len(size) > 18:
                raise HttpFailed(f"content length {length[:40]!r} is not a number")
            if int(size) > self._limit:
                raise HttpFailed(f"the answer has more than {self._limit} bytes")
            self._framing = _Framing(left=int(size))
        else:
            self.keep_alive = False
            self._framing = _Framing(left=None)

    # ---- body ----

    def _take_plain(self, data: bytes) -> None:
        left = self._framing.left
        if left is not None:
            if len(data) > left:
                self.keep_alive = False  # bytes that belong to no request
                data = data[:left]
            left = self._framing.left = left - len(data)
        self._count(len(data))
        self.body += data
        self.complete = left == 0

    def _read_chunks(self) -> None:
        framing, unread = self._framing, self._unread
        at = 0
        while not self.complete:
            if framing.left:
                piece = unread[at : at + framing.left]
                if not piece:
                    break
                self._count(len(piece))
                self.body += piece
                at += len(piece)
                framing.left -= len(piece)
                framing.after_chunk = framing.left == 0
                continue
            end = unread.find(b"\n", at)
            if end < 0:
                if len(unread) - at > _MAX_CHUNK_LINE:
                    raise HttpFailed("a chunk of the answer has no size")
                break
            line = bytes(unread[at:end]).rstrip(b"\r")
            at = end + 1
            self._read_chunk_line(line)
        if self.complete and at < len(unread):
            self.keep_alive = False  # bytes that belong to no request
        del unread[:at]

    def _read_chunk_line(self, line: bytes) -> None:
        framing = self._framing
        if framing.after_chunk:
            if line:
                raise HttpFailed("a chunk of the answer is longer than its size")
            framing.after_chunk = False
        elif framing.trailers:
            framing.trailer_bytes += len(line) + 2
            if framing.trailer_bytes > MAX_HEAD:
                raise HttpFailed(f"the trailers of the answer have more than {MAX_HEAD} bytes")
            self.complete = not line
        else:
            size = line.partition(b";")[0].strip()
            if not _HEX.fullmatch(size):
                raise HttpFailed(f"{line[:40]!r} is not the size of a chunk")
            framing.left = int(size, 16)
            if self._size + framing.left > self._limit:
                raise HttpFailed(f"the answer has more than {self._limit} bytes")
            framing.trailers = framing.left == 0


def _not_http(start: bytes) -> str:
    if start.startswith((b"\x15\x03", b"\x16\x03")):
        return "the server speaks TLS on this port: use https"
    return f"not an HTTP answer: {start!r}"


def _https_port(body: bytes) -> int:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return 0
    port = answer.get("https_port") if isinstance(answer, dict) else None
    return port if type(port) is int and 0 < port < 65536 else 0
