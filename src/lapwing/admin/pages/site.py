"""All pages in one ASGI application."""

import hashlib
from html import escape
from typing import TYPE_CHECKING

from fastapi import FastAPI
from nicegui import Client, ui

from lapwing.admin.pages import (
    audit,
    channel,
    clients,
    counter,
    lookup,
    messages,
    node,
    nodes,
    overview,
    pipelines,
    topic,
    topics,
)
from lapwing.admin.static import PACKAGED

if TYPE_CHECKING:
    from lapwing.admin.app import Admin
    from lapwing.admin.web import AsgiApp


def mount(admin: "Admin") -> "AsgiApp":
    """The pages of this cluster; once a process, as the library keeps its routes for itself."""
    site = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    for page in (overview, topics, topic, channel, nodes, node, counter, lookup, messages, clients, pipelines, audit):
        page.install(admin)
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
        gzip_middleware_factory=None,  # the door has to read pages; compression happens outside of it
        binding_refresh_interval=None,
        show_welcome_message=False,
        reconnect_timeout=10.0,
        message_history_length=50,
    )
    return site
