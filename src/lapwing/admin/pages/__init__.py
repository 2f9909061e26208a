"""The web UI, one module a page; `mount` gives the ASGI application that serves them."""

from lapwing.admin.pages.site import mount

__all__ = ["mount"]
