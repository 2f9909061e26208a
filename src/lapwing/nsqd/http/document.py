"""The JSON object in the body of a request, with the query's parameters beside it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from lapwing.net.server.answers import Refused
from lapwing.net.server.requests import Query, Request

T = TypeVar("T")


def parse_json(text: str | bytes, refusal: str) -> Any:
    """Return the value that a text holds. Raises `Refused` with that message when it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(400, refusal) from error


def read_document(request: Request, keys: Sequence[str], example: str) -> dict[str, Any]:
    """Return the object in the body, with the topic and channel of the query. Raises `Refused` with one sentence.

    Where permissions are checked they are those of the query, so a body that names another topic is refused.
    """
    refusal = f"a JSON object expected in the body, such as {example}"
    found = parse_json(request.body, refusal) if request.body else {}
    if not isinstance(found, dict):
        raise Refused(400, refusal)
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


def member(document: Mapping[str, Any], key: str, kind: type[T], default: T | None = None) -> T:
    """Return a member of that type; without a default it must be there. Raises `Refused`."""
    value = document.get(key, default)
    if not isinstance(value, kind):
        raise Refused(400, f"{key}: a {_NOUNS[kind]} expected")
    return value


_NOUNS: Final[dict[type[Any], str]] = {str: "string", int: "whole number", dict: "JSON object", list: "list"}


def body_fields(body: bytes) -> dict[str, str | None]:
    """Return the body of a message as members of JSON: `body` if it is text, else `body_base64`."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body": None, "body_base64": base64.b64encode(body).decode()}


def whole_parameter(query: Query, name: str, default: int) -> int:
    """Return a parameter of the query that is a whole number. Raises `Refused`."""
    text = query.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Refused(400, f"{name}: a whole number expected")
    return int(text)


def whole_number(document: Mapping[str, Any], name: str, default: int, *, least: int = 0, most: int = 1 << 62) -> int:
    """Return a member that is a whole number within bounds. Raises `Refused`."""
    found = document.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
        upper = f" to {most}" if most < 1 << 62 else " on"
        raise Refused(400, f"{name}: a whole number from {least}{upper} expected")
    return found
