"""An HTTP client that blocks, for threads without an event loop: kept-alive connections, answers whole or streamed."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from typing import Final

from lapwing.net.client.message import (
    MAX_ANSWER,
    REPEATABLE,
    AnswerParser,
    HttpAnswer,
    HttpFailed,
    HttpRequest,
    HttpUrl,
    Origin,
    parse_url,
    reason_of,
)

_PIECE: Final = 256 << 10  # bytes of one read
_HEAD_PIECE: Final = 4 << 10  # bytes of a read for the head of a chunk, whose body is then read without a copy
_MAX_IDLE: Final = 8  # connections kept per server


class Exchange:
    """A request whose answer is being read. The connection is kept if all of the answer was read.

    Each read waits at most `seconds` for the next bytes. Every method raises `HttpFailed`.
    """

    def __init__(
        self, client: BlockingHttpClient, origin: Origin, sock: socket.socket, parser: AnswerParser, seconds: float
    ) -> None:
        self._client = client
        self._origin = origin
        self._sock: socket.socket | None = sock
        self._parser = parser
        self._seconds = seconds

    @property
    def status(self) -> int:
        return self._parser.status

    @property
    def reason(self) -> str:
        """The text behind the status."""
        return self._parser.reason

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer, names in lower case."""
        return self._parser.headers

    def fileno(self) -> int:
        """Return the number of the socket, for `select`."""
        assert self._sock is not None
        return self._sock.fileno()

    def read(self, size: int | None = None) -> bytes:
        """Return exactly `size` bytes (None: the rest of the answer), or none at the end of the answer."""
        parser = self._parser
        while not parser.complete and (size is None or len(parser.body) < size):
            self._receive()
        if size is None:
            return parser.take()
        if 0 < len(parser.body) < size:
            raise HttpFailed("closed in the middle of the answer")
        data = bytes(parser.body[:size])
        del parser.body[:size]
        return data

    def fill(self, view: memoryview) -> None:
        """Read as many bytes as `view` holds into it, large pieces without a copy."""
        parser, filled = self._parser, 0
        while filled < len(view):
            if parser.body:
                count = min(len(parser.body), len(view) - filled)
                view[filled : filled + count] = parser.body[:count]
                del parser.body[:count]
            elif parser.complete:
                raise HttpFailed("closed in the middle of the answer")
            elif direct := min(parser.direct, len(view) - filled):
                count = self._receive_into(view[filled : filled + direct])
                parser.passed(count)
            else:
                self._receive(_HEAD_PIECE)
                continue
            filled += count

    def finish(self) -> None:
        """Keep the connection for the next request, or close it if the answer was not read to its end."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        if self._parser.complete and self._parser.keep_alive:
            self._client._give_back(self._origin, sock)
        else:
            sock.close()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def _receive_before(self, deadline: float) -> None:
        """Receive the next bytes, at the latest at `deadline` of the monotonic clock."""
        assert self._sock is not None
        left = deadline - time.monotonic()
        if left <= 0:  # which a socket takes for a wish not to wait
            raise self._broken(TimeoutError())
        self._sock.settimeout(left)
        self._receive()

    def _receive(self, size: int = _PIECE) -> None:
        try:
            assert self._sock is not None
            data = self._sock.recv(size)
            if data:
                self._parser.feed(data)
            else:
                self._parser.end()
        except (OSError, HttpFailed) as error:
            raise self._broken(error) from error

    def _receive_into(self, view: memoryview) -> int:
        try:
            assert self._sock is not None
            count = self._sock.recv_into(view)
            if not count:
                self._parser.end()
            return count
        except (OSError, HttpFailed) as error:
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> HttpFailed:
        sock, self._sock = self._sock, None
        if sock is not None:
            sock.close()
        if isinstance(error, TimeoutError):
            return HttpFailed(f"no answer within {self._seconds:g} s")
        return HttpFailed(reason_of(error))


class BlockingHttpClient:
    """Call HTTP servers from threads. Several threads may share one client."""

    def __init__(
        self,
        *,
        connect_timeout: float = 5.0,
        request_timeout: float = 60.0,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        max_answer: int = MAX_ANSWER,
        follow_redirects: bool = False,
        upgrade_to_tls: bool = False,
    ) -> None:
        """`request_timeout` covers a `request`, the head of an `open` answer, and each wait for more of it, in s."""
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._headers = dict(headers or {})
        self._tls = tls
        self._max_answer = max_answer
        self._follow = follow_redirects
        self._upgrade = upgrade_to_tls
        self._idle: dict[Origin, list[socket.socket]] = {}
        self._lock = threading.Lock()

    def request(
        self,
        method: str,
        url: str | HttpUrl,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
    ) -> HttpAnswer:
        """Return the answer, whatever its status. Raises `HttpFailed`."""
        where = parse_url(url)
        request = HttpRequest(
            method, where, {**self._headers, **(headers or {})}, body, follow=self._follow, upgrade=self._upgrade
        )
        seconds = self._request_timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        while True:
            with self._send(request, seconds, deadline, self._max_answer) as exchange:
                while not exchange._parser.complete:
                    exchange._receive_before(deadline)
            answer = HttpAnswer(request.url, exchange.status, exchange.reason, exchange.headers, exchange.read())
            if not request.redirect(answer):
                return answer

    def open(
        self,
        method: str,
        url: str | HttpUrl,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
        max_answer: int = 1 << 62,
    ) -> Exchange:
        """Send a request and return its answer for reading, once the head is there. Follows no redirect."""
        where = parse_url(url)
        request = HttpRequest(method, where, {**self._headers, **(headers or {})}, body)
        seconds = self._request_timeout if timeout is None else timeout
        exchange = self._send(request, seconds, time.monotonic() + seconds, max_answer)
        assert exchange._sock is not None
        exchange._sock.settimeout(seconds)
        return exchange

    def start(self, method: str, url: str | HttpUrl, *, headers: Mapping[str, str] | None = None) -> Exchange:
        """Send a request and return at once, on a connection of its own; `select` shows when its answer comes."""
        where = parse_url(url)
        request = HttpRequest(method, where, {**self._headers, **(headers or {})})
        sock = self._connect(where.origin, self._request_timeout)
        exchange = Exchange(self, where.origin, sock, AnswerParser(method), self._request_timeout)
        self._write(exchange, request.encode())
        return exchange

    def close(self) -> None:
        """Close every idle connection."""
        with self._lock:
            kept = [sock for socks in self._idle.values() for sock in socks]
            self._idle.clear()
        for sock in kept:
            sock.close()

    def __enter__(self) -> BlockingHttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, request: HttpRequest, seconds: float, deadline: float, max_answer: int) -> Exchange:
        data, origin = request.encode(), request.url.origin
        while True:
            sock = self._take_idle(origin)
            reused = sock is not None
            if sock is None:
                sock = self._connect(origin, seconds)
            parser = AnswerParser(request.method, max_answer=max_answer)
            exchange = Exchange(self, origin, sock, parser, seconds)
            sock.settimeout(seconds)
            try:
                self._write(exchange, data)
                while not parser.status:
                    exchange._receive_before(deadline)
                return exchange
            except HttpFailed:
                if not reused or parser.started or request.method not in REPEATABLE or time.monotonic() >= deadline:
                    raise

    def _write(self, exchange: Exchange, data: bytes) -> None:
        try:
            assert exchange._sock is not None
            exchange._sock.sendall(data)
        except OSError as error:
            raise exchange._broken(error) from error

    def _connect(self, origin: Origin, timeout: float) -> socket.socket:
        seconds = min(self._connect_timeout, timeout) if timeout > 0 else self._connect_timeout
        try:
            sock = socket.create_connection((origin.host, origin.port), timeout=seconds)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return self._context().wrap_socket(sock, server_hostname=origin.host) if origin.tls else sock
            except BaseException:
                sock.close()
                raise
        except TimeoutError as error:
            raise HttpFailed(f"no connection within {seconds:g} s") from error
        except (OSError, ValueError) as error:  # a host name may be one that cannot be encoded
            raise HttpFailed(reason_of(error)) from error

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _take_idle(self, origin: Origin) -> socket.socket | None:
        while True:
            with self._lock:
                kept = self._idle.get(origin)
                if not kept:
                    return None
                sock = kept.pop()
            if not is_readable(sock):  # else the server has closed it
                return sock
            sock.close()

    def _give_back(self, origin: Origin, sock: socket.socket) -> None:
        with self._lock:
            kept = self._idle.setdefault(origin, [])
            if len(kept) < _MAX_IDLE:
                kept.append(sock)
                return
        sock.close()


def is_readable(sock: socket.socket) -> bool:
    """Return whether bytes or the end of the connection wait to be read."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
