"""The JSON object in the body of a request, with the query's parameters beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lapwing.net.answers import Refused
from lapwing.net.requests import Request


def read_json(request: Request, example: str) -> Any:
    """Return what the body holds. Raises `Refused` with one sentence when it is not JSON."""
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"a JSON object expected in the body, such as {example}") from error


def read_document(request: Request, keys: Sequence[str], example: str) -> dict[str, Any]:
    """Return the object in the body, with the topic and channel of the query. Raises `Refused` with one sentence.

    Where permissions are checked they are those of the query, so a body that names another topic is refused.
    """
    found = read_json(request, example) if request.body else {}
    if not isinstance(found, dict):
        raise Refused(400, f"a JSON object expected in the body, such as {example}")
    for key in found:
        if key not in keys:
            raise Refused(400, f"{key[:80]} is no parameter: use {', '.join(keys)}")
    for name in ("topic", "channel"):
        given = request.query.get(name) if name in keys else None
        if given is not None and found.setdefault(name, given) != given:
            raise Refused(400, f"{name}: the query and the body name two different ones")
    return found


def boolean(document: Mapping[str, Any], key: str) -> bool:
    """Return a member that is true or false; absent is false. Raises `Refused`."""
    value = document.get(key, False)
    if not isinstance(value, bool):
        raise Refused(400, f"{key}: true or false expected")
    return value
