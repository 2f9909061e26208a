"""Other daemons, as small as a test needs them: an nsqlookupd."""

import asyncio
from collections.abc import Callable
from types import TracebackType

from lapwing.wire.nsq import lookup
from lapwing.wire.nsq.lookup import Identify, LookupConnection, PeerInfo


class LookupDouble:
    """An nsqlookupd that writes down what it is told; `known` is what it answers for `/channels`."""

    def __init__(self, http_port: int = 0, port: int = 0, welcome: bytes | None = None) -> None:
        self.told: list[object] = []
        self.connections: list[asyncio.StreamWriter] = []
        self.silent = False
        self._port = port
        self._http_port = http_port
        self._welcome = welcome
        self._news = asyncio.Event()

    async def __aenter__(self) -> "LookupDouble":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Gone: connections and all."""
        self._server.close()
        self.drop()

    def drop(self) -> None:
        """Hang up on everybody."""
        for writer in self.connections:
            writer.transport.abort()
        self.connections.clear()

    async def until(self, claim: Callable[[], object]) -> None:
        """Wait for something to be told that makes `claim()` true."""
        async with asyncio.timeout(60):
            while not claim():
                self._news.clear()
                await self._news.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        wire = LookupConnection()
        try:
            while data := await reader.read(65536):
                wire.receive(data)
                for command in wire.commands():
                    self.told.append(command)
                    self._news.set()
                    if not self.silent:
                        writer.write(lookup.answer(self._answer(command)))
        except ConnectionError:
            self._news.set()
        finally:
            writer.close()

    def _answer(self, command: object) -> bytes:
        if not isinstance(command, Identify):
            return b"OK"
        if self._welcome is not None:
            return self._welcome
        address = "127.0.0.1" if self._http_port else ""
        return PeerInfo(
            broadcast_address=address, http_port=self._http_port, tcp_port=self.port, version="1.3.0"
        ).welcome()
