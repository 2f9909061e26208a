"""An HTTP client for asyncio: kept-alive connections, one deadline per request, bounded answers."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from typing import Any, Final, cast

from lapwing.net.client.blocking import is_readable
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

NSQ_ACCEPT: Final = "application/vnd.nsq; version=1.0"
_IDLE_SECONDS: Final = 60.0  # an unused connection is closed after this time


class _Connection(asyncio.Protocol):
    """One connection: a request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0.0  # loop time
        self.closed = False
        self._parser: AnswerParser | None = None
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    async def send(self, data: bytes, parser: AnswerParser) -> None:
        """Send a request and return when `parser` has the whole answer. Raises `HttpFailed`, `OSError`."""
        assert self.transport is not None
        if self.closed:
            raise HttpFailed("closed without an answer")
        self._parser = parser
        self._done = asyncio.get_running_loop().create_future()
        try:
            self.transport.write(data)
            await self._done
        finally:
            self._parser = self._done = None

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._done is None or self._done.done():
            self.close()  # bytes that belong to no request
            return
        try:
            self._parser.feed(data)
        except HttpFailed as error:
            self._fail(error)
            return
        if self._parser.complete:
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._parser is None or self._done is None or self._done.done():
            return
        if error is not None:
            self._fail(error)
            return
        try:
            self._parser.end()
            self._done.set_result(None)
        except HttpFailed as failure:
            self._fail(failure)

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
        self.close()

    @property
    def readable(self) -> bool:
        """Whether bytes or the end of the connection wait to be read."""
        assert self.transport is not None
        return is_readable(self.transport.get_extra_info("socket"))

    def close(self) -> None:
        """Close at once, without waiting for anything."""
        self.closed = True
        if self.transport is not None:
            self.transport.abort()


class HttpClient:
    """Call HTTP servers from one event loop.

    A proxy of the environment is never used. Secrets in headers never follow a redirect to another server.
    """

    def __init__(
        self,
        *,
        connect_timeout: float = 2.0,
        request_timeout: float = 5.0,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
        ca_file: str = "",
        max_answer: int = MAX_ANSWER,
        max_connections: int = 64,
        keep: bool = True,
        follow_redirects: bool = False,
        upgrade_to_tls: bool = False,
    ) -> None:
        """`request_timeout` covers a request from connecting to the last byte of the answer, in seconds.

        Without `tls`, HTTPS trusts `ca_file`, or the authorities of the system. `keep` reuses connections.
        """
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._headers = dict(headers or {})
        self._tls = tls
        self._ca_file = ca_file
        self._max_answer = max_answer
        self._keep = keep
        self._follow = follow_redirects
        self._upgrade = upgrade_to_tls
        self._slots = asyncio.Semaphore(max_connections)
        self._idle: dict[Origin, list[_Connection]] = {}
        self._tls_ports: dict[Origin, Origin] = {}  # servers that asked for TLS before

    async def request(
        self,
        method: str,
        url: str | HttpUrl,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout: float | None = None,
        max_answer: int | None = None,
    ) -> HttpAnswer:
        """Return the answer, whatever its status. Raises `HttpFailed`."""
        where = parse_url(url)
        request = HttpRequest(
            method, where, {**self._headers, **(headers or {})}, body, follow=self._follow, upgrade=self._upgrade
        )
        if not self._keep:
            request.headers["Connection"] = "close"
        if known := self._tls_ports.get(where.origin):
            request.url = HttpUrl(known, where.target, where.authorization)
        seconds = self._request_timeout if timeout is None else timeout
        async with self._slots:
            try:
                async with asyncio.timeout(seconds):
                    return await self._exchange(request, self._max_answer if max_answer is None else max_answer)
            except TimeoutError as error:
                failure = HttpFailed(f"no answer within {seconds:g} s")
                failure.url = request.url
                raise failure from error
            except HttpFailed as error:
                self._tls_ports.pop(where.origin, None)
                error.url = request.url
                raise

    async def ask(self, url: str, document: Any = None) -> Any:
        """Return the JSON that `url` answers to a GET, or to a POST of `document`.

        Raises `HttpFailed` with a text that names the URL, but not its query, where a secret may be.
        """
        where = parse_url(url)
        try:
            if document is None:
                answer = await self.request("GET", where)
            else:
                body, headers = json.dumps(document).encode(), {"Content-Type": "application/json"}
                answer = await self.request("POST", where, body=body, headers=headers)
            if answer.status != 200:
                raise HttpFailed(f"status {answer.status}", answer.status)
            return answer.json()
        except HttpFailed as error:
            raise HttpFailed(f"{(error.url or where).without_query}: {error}", error.status) from error

    async def _exchange(self, request: HttpRequest, max_answer: int) -> HttpAnswer:
        while True:
            asked = request.url.origin
            answer = await self._once(request, max_answer)
            if not request.redirect(answer):
                return answer
            if answer.status == 403:
                self._tls_ports[asked] = request.url.origin

    async def _once(self, request: HttpRequest, max_answer: int) -> HttpAnswer:
        data = request.encode()
        while True:
            parser = AnswerParser(request.method, max_answer=max_answer)
            connection = self._take_idle(request.url.origin, look=request.method not in REPEATABLE)
            reused = connection is not None
            if connection is None:
                connection = await self._connect(request.url.origin)
            try:
                await connection.send(data, parser)
            except (HttpFailed, OSError) as error:
                connection.close()
                if reused and not parser.started and request.method in REPEATABLE:
                    continue  # the server closed the connection while it was idle
                raise HttpFailed(reason_of(error)) from error
            except BaseException:
                connection.close()
                raise
            self._give_back(request.url.origin, connection, keep=parser.keep_alive)
            return HttpAnswer(request.url, parser.status, parser.reason, parser.headers, bytes(parser.body))

    async def _connect(self, origin: Origin) -> _Connection:
        try:
            async with asyncio.timeout(self._connect_timeout):
                _, connection = await asyncio.get_running_loop().create_connection(
                    _Connection, origin.host, origin.port, ssl=self._context() if origin.tls else None
                )
        except TimeoutError as error:
            raise HttpFailed(f"no connection within {self._connect_timeout:g} s") from error
        except (OSError, ValueError) as error:  # a host name may be one that cannot be encoded
            raise HttpFailed(reason_of(error)) from error
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context(cafile=self._ca_file or None)
        return self._tls

    def _take_idle(self, origin: Origin, *, look: bool) -> _Connection | None:
        """Return a kept connection; `look` asks the operating system first whether the server has closed it."""
        kept = self._idle.get(origin)
        oldest = asyncio.get_running_loop().time() - _IDLE_SECONDS
        while kept:
            connection = kept.pop()
            if not connection.closed and connection.idle_since >= oldest and not (look and connection.readable):
                return connection
            connection.close()
        return None

    def _give_back(self, origin: Origin, connection: _Connection, *, keep: bool) -> None:
        if not keep or not self._keep or connection.closed:
            connection.close()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        kept = self._idle.setdefault(origin, [])
        kept.append(connection)
        while kept and (kept[0].closed or kept[0].idle_since < connection.idle_since - _IDLE_SECONDS):
            kept.pop(0).close()

    async def aclose(self) -> None:
        """Close every kept connection."""
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
