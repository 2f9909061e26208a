"""The libraries of the pages are loaded once, soon after the start."""

import asyncio
from typing import Any

from lapwing.admin.asgi import Receive, Scope, Send
from lapwing.admin.lazy_pages import LazyPages


class Pages(LazyPages):
    """Pages that note when they are loaded and asked for."""

    def __init__(self, *, wait: float) -> None:
        super().__init__(None, wait=wait)  # type: ignore[arg-type]
        self.loads = 0
        self.requests = 0
        self.loading = asyncio.Event()

    async def load(self) -> Any:
        """Return a site that counts requests."""
        self.loads += 1
        self.loading.set()
        await asyncio.sleep(0)
        return self

    async def assets(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.requests += 1


class Server:
    """Starts and ends an application as its server does."""

    def __init__(self, pages: LazyPages) -> None:
        self._events: asyncio.Queue[Scope] = asyncio.Queue()
        self.answers: asyncio.Queue[Scope] = asyncio.Queue()
        self._task = asyncio.create_task(pages({"type": "lifespan"}, self._events.get, self.answers.put))

    async def announce(self, event: str) -> None:
        """Announce the start or the end, and wait until the application has followed."""
        self._events.put_nowait({"type": f"lifespan.{event}"})
        assert (await self.answers.get())["type"] == f"lifespan.{event}.complete"


async def ask(pages: LazyPages) -> None:
    queue: asyncio.Queue[Scope] = asyncio.Queue()
    await pages({"type": "http"}, queue.get, queue.put)


async def test_the_pages_are_loaded_without_a_request() -> None:
    pages = Pages(wait=0.0)
    server = Server(pages)
    await server.announce("startup")
    async with asyncio.timeout(60):
        await pages.loading.wait()
    await asyncio.gather(ask(pages), ask(pages))
    await server.announce("shutdown")

    assert (pages.loads, pages.requests) == (1, 2)


async def test_a_request_before_that_loads_them_at_once() -> None:
    pages = Pages(wait=3600.0)
    server = Server(pages)
    await server.announce("startup")
    assert pages.loads == 0
    await asyncio.gather(ask(pages), ask(pages))
    await server.announce("shutdown")

    assert (pages.loads, pages.requests) == (1, 2)
