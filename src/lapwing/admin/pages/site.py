"""All pages: each is drawn with NiceGUI for one request, and sent as one document."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import escape
from importlib import import_module
from typing import Final, Self
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request
from nicegui import Client, ui

from lapwing.admin.asgi import Receive, Scope, Send, WebRequest, cookies_of, headers_of
from lapwing.admin.firewall import POLICY, page_policy
from lapwing.admin.page_table import PAGES, PageEntry
from lapwing.admin.pages.document import use_own_document
from lapwing.admin.pages.frame import frame
from lapwing.admin.services import Services
from lapwing.admin.static import PACKAGED
from lapwing.net.server.answers import HTML, Answer

PATIENCE: Final = 20.0  # seconds until a page that cannot be drawn fails
DRAW: Final = {page: import_module(f"lapwing.admin.pages.{page.module}").draw for page in PAGES}


class Site:
    """The pages. Create it once per process: NiceGUI keeps its configuration in globals."""

    def __init__(self, admin: Services) -> None:
        self._admin = admin
        mark = hashlib.sha256((PACKAGED / "lapwing.css").read_bytes()).hexdigest()[:12]  # new with each release
        base = escape(admin.base)
        Client.shared_head_html += (
            f'<link rel="stylesheet" href="{base}/static/lapwing.css?v={mark}">'
            f'<link rel="icon" href="{base}/static/favicon.svg">'
        )
        use_own_document()
        self._library = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        ui.run_with(
            self._library,
            mount_path=admin.base or "/",
            title="nsqadmin",
            language="en-US",
            dark=None,
            tailwind=False,
            gzip_middleware_factory=None,  # `Firewall` compresses
            binding_refresh_interval=None,
            show_welcome_message=False,
            reconnect_timeout=10.0,
            message_history_length=50,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Run the library of the pages."""
        async with self._library.router.lifespan_context(self._library):
            yield self

    async def draw(self, page: PageEntry, request: WebRequest) -> Answer:
        """Return the document of a page. Every script and style in it carries a number that its policy names."""
        await self._admin.poller.fresh()
        nonce = secrets.token_urlsafe(18)
        # the library reads the base path from `root_path`
        asked = Request({**request.scope, "root_path": self._admin.base, "state": {"nonce": nonce}})
        with Client(ui.page(page.path), request=asked) as client:
            try:
                async with asyncio.timeout(PATIENCE):
                    with frame(self._admin, request, page) as view:
                        drawn = DRAW[page](view, *request.names.values())
                        if drawn is not None:
                            await drawn
            except BaseException:
                client.delete()
                raise
            document = bytes(client.build_response(asked).body)
        return Answer(200, document, HTML, ((POLICY, page_policy(nonce)), ("Cache-Control", "no-store")), nsq=False)

    async def assets(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the library's scripts, and the websocket of an open page while its session lasts."""
        if scope["type"] == "websocket" and self._admin.access.logins is not None:
            receive = self._while_signed_in(scope, receive)
        await self._library(scope, receive, send)

    def _while_signed_in(self, scope: Scope, receive: Receive) -> Receive:
        """Return a `receive` without the messages of an ended session: a page that sends one goes to the login."""
        access = self._admin.access
        headers, peer = headers_of(scope), (scope.get("client") or ("", 0))[0]
        name = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("client_id", "")

        async def next_message() -> Scope:
            while True:
                message = await receive()
                visitor = access.visitor(headers, peer, cookies_of(headers))
                if visitor.may_read or message["type"] != "websocket.receive":
                    return message
                if (client := Client.instances.get(name)) is not None:
                    client.open("/login")

        return next_message
