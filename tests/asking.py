"""A running daemon asked over HTTP: the status and the JSON of each answer."""

import json
import urllib.error
import urllib.request
from typing import Any, Protocol


class Running(Protocol):
    """A daemon that is listening."""

    @property
    def url(self) -> str:
        """Where."""


def ask(daemon: Running, method: str, path: str, document: Any = None) -> tuple[int, Any]:
    """Return the status and the decoded answer; `document` is sent as JSON, bytes as they are."""
    body = document if isinstance(document, bytes | None) else json.dumps(document).encode()
    request = urllib.request.Request(f"{daemon.url}{path}", data=body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, _decoded(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, _decoded(error.read())


def _decoded(text: bytes) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text.decode()
