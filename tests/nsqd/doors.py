"""A node without sockets: a broker in memory, its turn, and its routes, called as the HTTP server would."""

import asyncio
import io
import json
import os
from collections.abc import Awaitable, Sequence
from typing import Any, cast

from lapwing.broker.broker import Broker
from lapwing.broker.keeper.storage import Storage
from lapwing.broker.settings.options import Options
from lapwing.errors import LapwingError
from lapwing.net.logs import Level, Log
from lapwing.net.server.answers import Answer, Later, StreamedAnswer
from lapwing.net.server.requests import Caller, Head, Request
from lapwing.net.server.routes import Reply, Router
from lapwing.nsqd.clock import Clock
from lapwing.nsqd.http.errors import refusal
from lapwing.nsqd.http.routes import Http
from lapwing.nsqd.stats.metrics import FsyncTimes
from lapwing.nsqd.turn import Turn


class NoPeers:
    """No nsqlookupd, or as if."""

    def __init__(self) -> None:
        self.addresses: Sequence[str] = ()
        self.futures: dict[str, asyncio.Future[None]] = {}

    def use(self, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)

    def settling(self, topic: str) -> asyncio.Future[None] | None:
        return self.futures.get(topic)


class Wall:
    """The time, as a test sets it."""

    def __init__(self) -> None:
        self.ns = 1_800_000_000 * 1_000_000_000

    def __call__(self) -> int:
        return self.ns


def options(**settings: Any) -> Options:
    return Options(**{"broadcast_address": "node.example", "broadcast_http_port": 4151, "node_id": 7} | settings)


def quiet() -> Log:
    """A log that nobody reads."""
    return Log("", Level.FATAL, os.open(os.devnull, os.O_WRONLY))


class Node:
    """What the routes need of a daemon. Make it inside a running loop."""

    def __init__(self, **settings: Any) -> None:
        self.options = options(**settings)
        self.log = quiet()
        self.wall = Wall()
        self.clock = Clock(self.wall, lambda: self.wall.ns)
        self.started = self.wall.ns
        self.broker = Broker(self.options, Storage(node=7))
        self.turn = Turn(self.broker, self.clock, asyncio.get_running_loop())
        self.tcp = self.http = None
        self.peers = NoPeers()
        self.times = FsyncTimes()
        self.remote: dict[str, Any] | None = None
        self.api = Http(self, self.times)
        self.table = Router(self.api.routes())

    def remote_figures(self) -> dict[str, Any] | None:
        return self.remote

    def request(
        self, method: str, target: str, body: bytes = b"", headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> Reply:
        """What the route gives back, whatever kind of reply that is."""
        head = Head(method, target.encode(), list(headers), old=False, close=False)
        head.route, head.parameter = self.table.resolve(head)
        try:
            return head.route.respond(Request(head, body, Caller("127.0.0.1:1", "127.0.0.1"), 0.0))
        except LapwingError as error:
            refused = refusal(error)
            if refused is None:
                raise
            return refused.answer()

    async def ask(
        self, method: str, target: str, body: bytes = b"", headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> tuple[int, str]:
        """Status and body of the answer, when it is there."""
        try:
            answer = await settle(self.request(method, target, body, headers))
        except LapwingError as error:
            refused = refusal(error)
            if refused is None:
                raise
            answer = refused.answer()
        return answer.status, (await whole(answer)).decode()

    async def json(self, target: str) -> Any:
        """The JSON that a GET gives."""
        status, body = await self.ask("GET", target)
        assert status == 200, body
        return json.loads(body)


async def settle(reply: Reply) -> Answer:
    """The answer behind a reply."""
    if isinstance(reply, Answer):
        return reply
    if isinstance(reply, Later):
        if reply.answer is None:
            there = asyncio.Event()
            reply.on_complete = there.set
            await asyncio.wait_for(there.wait(), 60)
        assert reply.answer is not None
        return reply.answer
    return await cast("Awaitable[Answer]", reply)


async def whole(answer: Answer) -> bytes:
    """All of an answer's body."""
    if not isinstance(answer, StreamedAnswer) or answer.pieces is None:
        return answer.body
    body = io.BytesIO()
    async for piece in answer.pieces:
        body.write(piece)
    return body.getvalue()
