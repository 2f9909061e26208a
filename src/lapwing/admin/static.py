"""Serve static files from the package, or from a directory during development."""

import mimetypes
from functools import partial
from pathlib import Path
from typing import Final

from lapwing.admin.asgi import WebRequest, WebRoute
from lapwing.net.server.answers import Answer, plain

PACKAGED: Final = Path(__file__).parent / "static"


def static_routes(directory: str = "") -> list[WebRoute]:
    """Return the routes `/static/F` and `/fonts/F`."""
    root = Path(directory) if directory else PACKAGED
    respond = partial(_file, root)
    return [WebRoute("GET", "/static/<file>", respond), WebRoute("GET", "/fonts/<file>", respond)]


async def _file(root: Path, request: WebRequest) -> Answer:
    name = request.names["file"]
    path = root / name
    # one segment that cannot leave the directory
    if "/" in name or "\\" in name or name.startswith(".") or not path.is_file():
        return plain("NOT_FOUND", 404)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    content_type = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
    cached = (("Cache-Control", "public, max-age=86400" if "v=" in request.raw_query else "no-cache"),)
    return Answer(200, path.read_bytes(), content_type, cached, nsq=False)
