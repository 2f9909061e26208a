"""An HTTP server with canned answers."""

import asyncio
import json
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

Answering = Callable[[str, str, dict[str, str], bytes], "bytes | None"]


def reply(document: Any, status: str = "200 OK", headers: str = "") -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


class LoopbackServer:
    """A server for the length of an `async with` block; `talk` serves one connection, which is closed after it."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self._served: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening, and wait until every connection is closed."""
        self._server.close()
        for writer in self._served.values():
            writer.transport.abort()
        if self._served:
            await asyncio.wait(self._served)
        await asyncio.sleep(0)  # transports close in the next turn of the loop

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._served[task] = writer
        try:
            await self.talk(reader, writer)
        finally:
            writer.close()
            del self._served[task]


class HttpDouble(LoopbackServer):
    """Answers with what `answering(method, target, headers, body)` returns; None: nothing, ever."""

    def __init__(self, answering: Answering, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self._answering = answering
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = lines[0].split(" ")
        headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.requests.append((method, target, headers, body))
        answer = await self.answer(method, target, headers, body)
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)

    async def answer(self, *request: Any) -> bytes | None:
        """Return the answer to a request, whenever it is ready."""
        return self._answering(*request)
