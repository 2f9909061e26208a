"""Headers of messages as text: checked before they are sent, read when somebody asks."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

from lapwing import kernel

CONTENT_TYPE: Final = "content-type"

_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")  # perhaps half of a surrogate pair


def encode(headers: Mapping[str, str]) -> bytes:
    """Return headers as JSON. Raises `TypeError` or `ValueError` with the header that nsqd would refuse."""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"header {name!r} is {value!r}: names and values of headers are text")
    text = json.dumps(headers, separators=(",", ":")).encode()
    if len(text) > kernel.MAX_HEADERS:
        raise ValueError(f"the headers take {len(text)} bytes, at most {kernel.MAX_HEADERS} are allowed")
    if kernel.count_headers(text) >= 0:
        return text
    for name in headers:
        if kernel.count_headers(json.dumps({name: ""}).encode()) < 0:
            raise ValueError(f"header name {name!r}: 1 to 64 lower-case letters, digits or !#$%&'*+.^_`|~-")
    raise ValueError(f"header message-id is {headers.get('message-id')!r}, at most 128 bytes are allowed")


def encode_in_context(headers: Mapping[str, str], context: Mapping[str, str]) -> bytes:
    """Return headers as JSON, with those of a trace as far as nsqd takes them: tracing makes no publish fail."""
    if not context:
        return encode(headers) if headers else b""
    for some in (context, {name: value for name, value in context.items() if name != "baggage"}):
        with contextlib.suppress(ValueError):  # too long, or a name that is no header
            return encode({**some, **headers})
    return encode(headers) if headers else b""


def headers_of_each(
    topic: str, headers: Mapping[str, str] | Sequence[Mapping[str, str]] | None, count: int
) -> Sequence[Mapping[str, str]]:
    """Return the headers of each of `count` messages. Raises `ValueError` for a list of another length."""
    if headers is None or isinstance(headers, Mapping):
        return [headers or {}] * count
    if len(headers) != count:
        raise ValueError(f"{topic}: headers of {len(headers)} messages for {count} bodies")
    return headers


def decode(text: bytes) -> dict[str, str]:
    """Return the headers in a text of nsqd; none if it is not understood.

    Half of a surrogate pair, which any client may publish and no text can be encoded with, is shown as `?`.
    """
    try:
        found = json.loads(text.decode("utf-8", "surrogatepass"))
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    if _HALF.search(text):
        return {name: str(value).encode("utf-8", "replace").decode() for name, value in found.items()}
    return found
