"""Static files: the stylesheet and the icon, from the package or, while developing, from a directory."""

import mimetypes
from functools import partial
from pathlib import Path
from typing import Final

from lapwing.admin.web import Request, Route
from lapwing.net.answers import Answer, plain

PACKAGED: Final = Path(__file__).parent / "static"


def static_routes(directory: str = "") -> list[Route]:
    """`/static/F` and `/fonts/F`."""
    root = Path(directory) if directory else PACKAGED
    respond = partial(_file, root)
    return [Route("GET", "/static/<file>", respond), Route("GET", "/fonts/<file>", respond)]


async def _file(root: Path, request: Request) -> Answer:
    name = request.names["file"]
    path = root / name
    # one segment, and nothing that could climb out of the directory
    if "/" in name or "\\" in name or name.startswith(".") or not path.is_file():
        return plain("NOT_FOUND", 404)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    content_type = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
    cached = (("Cache-Control", "public, max-age=86400" if "v=" in request.raw_query else "no-cache"),)
    return Answer(200, path.read_bytes(), content_type, cached, nsq=False)
