"""Asking another daemon over HTTP: one request, one JSON answer, within a deadline.

On httptools, which serves our own HTTP already: a client library would take longer to import than nsqd to start, and
the first new topic would wait for that.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from typing import Any, Final
from urllib.parse import SplitResult, unquote, urljoin, urlsplit, urlunsplit

import httptools

from lapwing.errors import LapwingError

_ACCEPT: Final = "application/vnd.nsq; version=1.0"
_HOPS: Final = 5  # redirects followed
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_BROKEN: Final = (
    OSError, EOFError, ValueError, RecursionError, httptools.HttpParserError, httptools.HttpParserUpgrade
)  # fmt: skip


class AskFailed(LapwingError):
    """No usable answer came; the text says why."""


class _Response:
    """One answer, as it comes."""

    def __init__(self, largest: int) -> None:
        self.status = 0
        self.location = ""
        self.body = bytearray()
        self.complete = False
        self._largest = largest
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self._parser.feed_data(data)
        if len(self.body) > self._largest:
            raise ValueError(f"answer of more than {self._largest} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"location":
            self.location = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        if self.status >= 200:  # else there is more to come
            self.complete = True


class HttpClient:
    """Asks with the same patience and the same trust each time."""

    def __init__(self, *, connect: float, whole: float, root_ca: str = "", largest: int = 5 * 1024 * 1024) -> None:
        """`connect` and `whole` are seconds; HTTPS trusts `root_ca`, or else what the system trusts."""
        self._connect = connect
        self._whole = whole
        self._root_ca = root_ca
        self._largest = largest
        self._context: ssl.SSLContext | None = None

    async def ask(self, url: str, document: Any = None) -> Any:
        """The JSON that `url` answers to a GET, or to a POST of `document`; raises `AskFailed`.

        Where a daemon says that it is to be asked over TLS, it is.
        """
        try:
            async with asyncio.timeout(self._whole):
                return await self._follow(url, None if document is None else json.dumps(document).encode())
        except TimeoutError as error:
            raise AskFailed(f"{_shown(url)}: no answer within {self._whole:g} s") from error
        except _BROKEN as error:
            raise AskFailed(f"{_shown(url)}: {error or type(error).__name__}") from error

    async def _follow(self, url: str, body: bytes | None) -> Any:
        for _ in range(_HOPS):
            parts = urlsplit(url)
            answer = await self._once(parts, body)
            if answer.status == 200:
                return json.loads(answer.body)
            if answer.status == 403 and parts.scheme == "http":
                url = _over_tls(parts, answer.body)
            elif answer.status in _REDIRECTS and answer.location and (body is None or answer.status in (307, 308)):
                url = urljoin(url, answer.location)
            else:
                raise AskFailed(f"{_shown(url)}: status {answer.status}")
        raise AskFailed(f"{_shown(url)}: sent from one place to the next")

    async def _once(self, parts: SplitResult, body: bytes | None) -> _Response:
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("not an HTTP URL")
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        opening = asyncio.open_connection(parts.hostname, port, ssl=self._tls() if tls else None)
        try:
            reader, writer = await asyncio.wait_for(opening, self._connect)
        except TimeoutError as error:
            raise OSError(f"no connection within {self._connect:g} s") from error
        try:
            writer.write(_request(parts, body))
            answer = _Response(self._largest)
            while not answer.complete:
                data = await reader.read(65536)
                if not data:
                    if not answer.status:
                        raise EOFError("closed without an answer")
                    break  # an answer without a length ends with its connection
                answer.feed(data)
            return answer
        finally:
            writer.close()

    def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context(cafile=self._root_ca or None)
        return self._context


def asker(connect: int, whole: int, root_ca: str = "", largest: int = 5 * 1024 * 1024) -> HttpClient:
    """An `HttpClient` with nsqd's options, which are in ns."""
    return HttpClient(connect=connect / 1e9, whole=whole / 1e9, root_ca=root_ca, largest=largest)


def _request(parts: SplitResult, body: bytes | None) -> bytes:
    target = urlunsplit(("", "", parts.path or "/", parts.query, ""))
    host = parts.netloc.rpartition("@")[2]
    lines = [
        f"{'GET' if body is None else 'POST'} {target} HTTP/1.1",
        f"Host: {host}",
        f"Accept: {_ACCEPT}",
        "User-Agent: nsqd",
        "Connection: close",
    ]
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        lines.append(f"Authorization: Basic {base64.b64encode(secret).decode()}")
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    head = "\r\n".join(lines)
    if "\n" in head.replace("\r\n", ""):
        raise ValueError("a line feed in a URL")
    return head.encode("ascii") + b"\r\n\r\n" + (body or b"")


def _over_tls(parts: SplitResult, body: bytes | bytearray) -> str:
    """The same question at the port that a 403 names; raises `AskFailed` if it names none."""
    try:
        port = json.loads(body)["https_port"]
    except (ValueError, KeyError, TypeError):
        port = None
    if type(port) is not int or not 0 < port < 65536:
        raise AskFailed(f"{_shown(urlunsplit(parts))}: status 403")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    user, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(("https", f"{user}{at}{host}:{port}", parts.path, parts.query, ""))


def _shown(url: str) -> str:
    """A URL as it may stand in a log: without what is secret in it."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


