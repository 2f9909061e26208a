"""A small Redis client for our own programs: commands in, replies out, in pipelines."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from typing import Any, Final

from lapwing.errors import ConfigError, LapwingError, ProtocolError
from lapwing.wire.resp.errors import ErrorReply
from lapwing.wire.resp.reply_reader import ReplyReader, encode

Words = Sequence[bytes | str | int]

_PIECE: Final = 256 * 1024  # bytes read at a time


class RedisGone(LapwingError):
    """The server cannot be reached, or has closed the connection."""


class RedisServer:
    """One connection to a Redis server, or to nsqd's Redis door."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._replies = ReplyReader()

    @classmethod
    async def open(
        cls, address: str, *, password: str = "", database: int = 0, tls: ssl.SSLContext | None = None
    ) -> RedisServer:
        """Connect to `host:port`. Raises `RedisGone`, or `ErrorReply` for a wrong password."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"{address}: host:port expected, such as 127.0.0.1:6379")
        try:
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=tls)
        except OSError as error:
            raise RedisGone(f"{address}: {error.strerror or error}: is a Redis server listening there?") from error
        made = cls(reader, writer, address)
        if password:
            await made.ask("AUTH", password)
        if database:
            await made.ask("SELECT", database)
        return made

    async def ask(self, *words: bytes | str | int) -> Any:
        """Return the reply to one command. Raises `ErrorReply` or `RedisGone`."""
        (reply,) = await self.ask_all([words])
        if isinstance(reply, ErrorReply):
            raise reply
        return reply

    async def ask_all(self, commands: Sequence[Words]) -> list[Any]:
        """Return the replies to commands that are sent together, errors among them. Raises `RedisGone`."""
        found: list[Any] = []
        try:
            self._writer.write(b"".join([encode(*words) for words in commands]))
            await self._writer.drain()
            while len(found) < len(commands):
                data = await self._reader.read(_PIECE)
                if not data:
                    raise RedisGone(f"{self.address}: the server has closed the connection")
                self._replies.receive(data)
                found += self._replies.replies()
        except (OSError, ProtocolError) as error:
            raise RedisGone(f"{self.address}: {error}") from error
        return found

    async def close(self) -> None:
        """End the connection."""
        self._writer.close()
        with contextlib.suppress(OSError):  # the server was faster
            await self._writer.wait_closed()
