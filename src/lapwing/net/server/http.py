"""An HTTP/1 server on one event loop: its table of routes, its limits, its connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lapwing.net.server.answers import INTERNAL_ERROR, Answer, Refused
from lapwing.net.server.conversation import HttpConnection
from lapwing.net.server.requests import Head
from lapwing.net.server.routes import RouteTable
from lapwing.records import dataclass

_KEPT_HEADS: Final = 512
_LONGEST_TICK: Final = 2.0  # seconds between two ticks that count for deadlines


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of one client."""

    head_bytes: int = 65536
    headers: int = 200
    head_seconds: float = 30.0  # from the first byte of a request to the end of its headers
    body_seconds: float = 120.0  # from there to the end of its body
    idle_seconds: float = 900.0  # between requests
    stall_seconds: float = 120.0  # with an answer that the client does not take
    connections: int = 0  # 0: no limit


class HttpServer:
    """The state that all connections of one listener share. Pass `protocol` to `Listener.serve`."""

    def __init__(
        self,
        table: RouteTable,
        *,
        limits: HttpLimits | None = None,
        log: Callable[[str], None] | None = None,
        broken: Callable[[str, BaseException], None] | None = None,
        translate: Callable[[BaseException], Refused | None] = lambda error: None,
    ) -> None:
        """`translate` turns errors of routes into refusals.

        `log` gets one line per request, `broken` every error that is neither, with the request's method and target.
        """
        self.table = table
        self.limits = limits or HttpLimits()
        self.log = log
        self.broken = broken
        self._translate = translate
        self.closing = False
        self.connections: set[HttpConnection] = set()
        self.served = 0  # requests answered
        self.heads: dict[bytes, Head] = {}
        self.now = 0.0  # seconds, coarse: moved on once a second while somebody is connected, and not while we hang
        self._ticking = False
        self._ticked = 0.0  # monotonic seconds of the last tick
        self._empty: asyncio.Event | None = None  # set when the last connection is gone

    def protocol(self) -> HttpConnection:
        return HttpConnection(self)

    def keep(self, raw: bytes, head: Head) -> None:
        """Keep a parsed head by its bytes: the next request with the same head needs no parsing."""
        if len(self.heads) >= _KEPT_HEADS:
            self.heads.clear()
        self.heads[raw] = head

    def joined(self, connection: HttpConnection, loop: asyncio.AbstractEventLoop) -> bool:
        """Add a connection; return False if there are too many."""
        if self.closing or 0 < self.limits.connections <= len(self.connections):
            return False
        self.connections.add(connection)
        if not self._ticking:
            self._ticking = True
            self._ticked = time.monotonic()
            loop.call_later(1.0, self._tick, loop)
        return True

    def left(self, connection: HttpConnection) -> None:
        self.connections.discard(connection)
        if self._empty is not None and not self.connections:
            self._empty.set()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        before, self._ticked = self._ticked, time.monotonic()
        self.now += min(self._ticked - before, _LONGEST_TICK)  # clients had no chance while the loop was held up
        for connection in list(self.connections):
            connection.check_deadline(self.now)
        self._ticking = bool(self.connections)
        if self._ticking:
            loop.call_later(1.0, self._tick, loop)

    def failed(self, head: Head, error: BaseException) -> Answer:
        """Return the answer to a request whose route raised an error."""
        refusal = error if isinstance(error, Refused) else self._translate(error)
        if refusal is not None:
            return refusal.answer()
        if self.broken is not None:
            self.broken(f"{head.method} {head.target.decode('latin-1')}", error)
        return INTERNAL_ERROR

    async def shutdown(self, grace: float) -> None:
        """End every connection: idle ones now, the others after the answers they wait for or `grace` seconds."""
        self.closing = True
        for connection in list(self.connections):
            connection.finish()
        if self.connections:
            self._empty = asyncio.Event()
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._empty.wait()
        for connection in list(self.connections):
            connection.abort()
