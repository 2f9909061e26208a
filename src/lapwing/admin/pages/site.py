"""All pages in one ASGI application."""

from typing import TYPE_CHECKING

from fastapi import FastAPI
from nicegui import ui

if TYPE_CHECKING:
    from lapwing.admin.app import Admin
    from lapwing.admin.web import AsgiApp


def mount(admin: "Admin") -> "AsgiApp":
    """The pages of this cluster; once a process, as the library keeps its routes for itself."""
    site = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @ui.page("/")
    def index() -> None:
        ui.label("x")

    ui.run_with(
        site,
        mount_path=admin.base or "/",
        title="nsqadmin",
        tailwind=False,
        gzip_middleware_factory=None,
        binding_refresh_interval=None,
        show_welcome_message=False,
        reconnect_timeout=10.0,
    )
    return site
