"""All pages as one ASGI application."""

import hashlib
from html import escape
from typing import Final
from urllib.parse import parse_qsl

from fastapi import FastAPI
from nicegui import Client, ui

from lapwing.admin.access import AccessRules
from lapwing.admin.asgi import AsgiApp, Receive, Scope, Send, cookies_of, headers_of
from lapwing.admin.pages import (
    audit,
    channel,
    clients,
    counter,
    dead,
    lookup,
    messages,
    node,
    nodes,
    overview,
    pipelines,
    settings,
    topic,
    topics,
)
from lapwing.admin.pages.frame import add_page
from lapwing.admin.services import Services
from lapwing.admin.static import PACKAGED

# path, name of the section, and the function that draws the page
PAGES: Final = (
    ("/", "Overview", overview.draw),
    ("/topics", "Topics", topics.draw),
    ("/topics/{topic}", "Topics", topic.draw),
    ("/topics/{topic}/{channel}", "Topics", channel.draw),
    ("/clients", "Clients", clients.draw),
    ("/counter", "Counter", counter.draw),
    ("/messages", "Messages", messages.draw),
    ("/dead", "Dead letters", dead.draw),
    ("/pipelines", "Pipelines", pipelines.draw),
    ("/nodes", "Nodes", nodes.draw),
    ("/nodes/{name}", "Nodes", node.draw),
    ("/lookup", "Lookup", lookup.draw),
    ("/settings", "Settings", settings.draw),
    ("/audit", "Audit", audit.draw),
)


def mount(admin: Services) -> FastAPI:
    """Return the pages. Call it once per process: NiceGUI keeps its routes in a global."""
    site = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for path, section, draw in PAGES:
        add_page(admin, path, section, draw)
    mark = hashlib.sha256((PACKAGED / "lapwing.css").read_bytes()).hexdigest()[:12]  # a new release is a new address
    base = escape(admin.base)
    Client.shared_head_html += (
        f'<link rel="stylesheet" href="{base}/static/lapwing.css?v={mark}">'
        f'<link rel="icon" href="{base}/static/favicon.svg">'
    )
    ui.run_with(
        site,
        mount_path=admin.base or "/",
        title="nsqadmin",
        language="en-US",
        dark=None,
        tailwind=False,
        gzip_middleware_factory=None,  # `Firewall` reads pages before they are compressed
        binding_refresh_interval=None,
        show_welcome_message=False,
        reconnect_timeout=10.0,
        message_history_length=50,
    )
    return site


def while_signed_in(site: AsgiApp, access: AccessRules) -> AsgiApp:
    """Return the pages without the messages of ended sessions: an open page that still sends one goes to the login."""
    if access.logins is None:
        return site

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await site(scope, receive, send)
            return
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

        await site(scope, next_message, send)

    return serve
