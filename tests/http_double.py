"""An HTTP server with canned answers."""

import asyncio
import json
import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any

Answering = Callable[[str, str, dict[str, str], bytes], "bytes | None"]


def reply(document: Any, status: str = "200 OK", headers: str = "") -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


class HttpDouble:
    """Serves what `answering(method, target, headers, body)` says; None: nothing, ever."""

    def __init__(self, answering: Answering, tls: ssl.SSLContext | None = None) -> None:
        self._answering = answering
        self._tls = tls
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []

    async def __aenter__(self) -> "HttpDouble":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = lines[0].split(" ")
            headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append((method, target, headers, body))
            answer = self._answering(method, target, headers, body)
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
        finally:
            writer.close()
