"""Load the libraries of the web pages right after the start, or when the first page is asked for.

NiceGUI and its dependencies take several times the CPU of everything else that a start needs. A daemon that starts
answers its API, its login and health checks without them. They are imported in a thread, beside these answers.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from lapwing.admin.asgi import Receive, Scope, Send, WebRequest
from lapwing.admin.page_table import PageEntry
from lapwing.admin.services import Services
from lapwing.net.server.answers import Answer

if TYPE_CHECKING:
    from lapwing.admin.pages.site import Site

_WAIT: Final = 1.0  # seconds after the start, which the answers of the first moments have for themselves


class LazyPages:
    """The pages, and an ASGI application for their assets and websockets; loaded soon, or with the first request."""

    def __init__(self, admin: Services, *, wait: float = _WAIT) -> None:
        self._admin = admin
        self._wait = wait
        self._lock = asyncio.Lock()
        self._site: Site | None = None
        self._running = AsyncExitStack()  # ends the pages

    async def draw(self, page: PageEntry, request: WebRequest) -> Answer:
        """Return the answer to a request for a page."""
        return await (await self._loaded()).draw(page, request)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an asset or a websocket, or the start and end of the server."""
        if scope["type"] == "lifespan":
            await self._follow_server(receive, send)
        else:
            await (await self._loaded()).assets(scope, receive, send)

    async def _loaded(self) -> Site:
        async with self._lock:
            if self._site is None:
                self._site = await self.load()
            return self._site

    async def _load_soon(self) -> None:
        await asyncio.sleep(self._wait)
        await self._loaded()

    async def load(self) -> Site:
        """Return the pages, started."""
        await asyncio.to_thread(_import_pages)
        from lapwing.admin.pages.site import Site

        return await self._running.enter_async_context(Site(self._admin).running())

    async def _follow_server(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        soon = asyncio.create_task(self._load_soon())
        await receive()
        soon.cancel()
        await asyncio.gather(soon, return_exceptions=True)
        await self._running.aclose()
        await send({"type": "lifespan.shutdown.complete"})


def _import_pages() -> None:
    gc.disable()  # nothing of it is garbage; looking for it again and again takes a fifth of the time
    try:
        import lapwing.admin.pages.site  # noqa: F401

        gc.freeze()
    finally:
        gc.enable()
