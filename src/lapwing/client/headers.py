"""Headers of messages as text: checked before they are sent, read when somebody asks."""

import json
from collections.abc import Mapping, Sequence

from lapwing import kernel


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
    """Return the headers in a text of nsqd; none if it is not understood."""
    try:
        found = json.loads(text.decode("utf-8", "surrogatepass"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
