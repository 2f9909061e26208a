"""Load the libraries of the web pages right after the start, or when the first page is asked for.

NiceGUI and its dependencies take several times the CPU of everything else that a start needs. A daemon that starts
answers its API, its login and health checks without them. They are imported in a thread, beside these answers.
"""

import asyncio
import gc
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Final

from lapwing.admin.asgi import AsgiApp, Receive, Scope, Send
from lapwing.admin.services import Services

# python-engineio and python-socketio import these if they are installed: for their client, for another server, and
# for message queues between servers. Nobody uses them here, and they cost up to 0.7 s.
_UNUSED: Final = ("aiohttp", "tornado", "redis", "valkey", "kombu", "aio_pika")
_WAIT: Final = 1.0  # seconds after the start, which the answers of the first moments have for themselves


class LazyPages:
    """An ASGI application that becomes the pages soon after the start, or with the first request."""

    def __init__(self, admin: Services, *, wait: float = _WAIT) -> None:
        self._admin = admin
        self._wait = wait
        self._lock = asyncio.Lock()
        self._site: AsgiApp | None = None
        self._running = AsyncExitStack()  # ends the pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request for a page, or the start and end of the server."""
        if scope["type"] == "lifespan":
            await self._follow_server(receive, send)
            return
        site = self._site if self._site is not None else await self._loaded()
        await site(scope, receive, send)

    async def _loaded(self) -> AsgiApp:
        async with self._lock:
            if self._site is None:
                self._site = await self.load()
            return self._site

    async def _load_soon(self) -> None:
        await asyncio.sleep(self._wait)
        await self._loaded()

    async def load(self) -> AsgiApp:
        """Return the pages, started."""
        await asyncio.to_thread(_import_pages)
        from lapwing.admin.pages.site import mount, while_signed_in

        site = mount(self._admin)
        await self._running.enter_async_context(site.router.lifespan_context(site))
        return while_signed_in(site, self._admin.access)

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
        with _without(_UNUSED):
            import lapwing.admin.pages.site  # noqa: F401
        gc.freeze()
    finally:
        gc.enable()


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """Have imports of these modules fail, as if they were not installed."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
