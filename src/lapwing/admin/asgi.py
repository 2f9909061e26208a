"""Requests, routes and answers on top of ASGI: paths, methods, bodies, compression."""

import json
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import parse_qsl, quote, unquote

from lapwing.admin.access import Visitor
from lapwing.net.server.answers import HTML, Answer, failure

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_BODY: Final = 1 << 20


class BodyTooBig(Exception):
    """The body of a request is larger than allowed."""


@dataclass(slots=True)
class WebRequest:
    """One HTTP request. The names of `headers` are in lower case; `path` is not decoded."""

    method: str
    path: str  # with the base path
    raw_query: str
    headers: dict[str, str]
    scheme: str
    receive: Receive
    visitor: Visitor
    scope: Scope
    names: dict[str, str] = field(default_factory=dict)  # the variable parts of the path, decoded

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the query, each with its first value."""
        return dict(reversed(parse_qsl(self.raw_query, keep_blank_values=True)))

    @property
    def cookies(self) -> dict[str, str]:
        """The cookies by name."""
        return cookies_of(self.headers)

    @property
    def target(self) -> str:
        """The path and the query."""
        return f"{self.path}?{self.raw_query}" if self.raw_query else self.path

    @property
    def url(self) -> str:
        """The URL as the client sees it, as far as the headers show."""
        shown = "https" if "https" in (self.scheme, self.headers.get("x-scheme")) else "http"
        return f"{shown}://{self.headers.get('host', '')}{self.target}"

    async def body(self, limit: int = LARGEST_BODY) -> bytes:
        """Return the whole body. Raises `BodyTooBig`."""
        parts = bytearray()
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                return bytes(parts)
            parts += message.get("body", b"")
            if len(parts) > limit:
                raise BodyTooBig
            if not message.get("more_body"):
                return bytes(parts)


def headers_of(scope: Scope) -> dict[str, str]:
    """Return the request's headers by lower-case name; a header that was sent several times is joined to one.

    A proxy may add a line of its own behind one that its client has forged, so no line may hide another.
    """
    headers: dict[str, str] = {}
    for raw, line in scope["headers"]:
        name, value = raw.decode("latin-1").lower(), line.decode("latin-1")
        headers[name] = f"{headers[name]}{'; ' if name == 'cookie' else ', '}{value}" if name in headers else value
    return headers


def cookies_of(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the request's cookies, or none if the header is malformed."""
    jar: SimpleCookie = SimpleCookie()
    try:
        jar.load(headers.get("cookie", ""))
    except CookieError:
        return {}
    return {name: morsel.value for name, morsel in jar.items()}


# ---- routes ----

Respond = Callable[[WebRequest], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class WebRoute:
    """One method on one path, such as `/api/topics/<topic>/<channel>`."""

    method: str
    path: str
    respond: Respond

    @property
    def segments(self) -> list[str]:
        """The segments of the path."""
        return [segment for segment in self.path.split("/") if segment]


class WebRoutes:
    """Find the route of a request, or the answer that refuses or redirects it."""

    def __init__(self, routes: Iterable[WebRoute]) -> None:
        self._routes = list(routes)

    def resolve(self, method: str, path: str, raw_query: str = "") -> tuple[WebRoute, dict[str, str]] | Answer:
        """Return the route and the variable parts of its path, or a 404, a 405 or a redirect. `path` is not decoded."""
        given = [segment for segment in path.split("/") if segment]
        fitting = [(route, names) for route in self._routes if (names := _fit(route.segments, given)) is not None]
        if not fitting:
            return failure(404, "NOT_FOUND")
        methods = sorted({route.method for route, _ in fitting} | {"OPTIONS"})
        if method == "OPTIONS":
            return Answer(headers=(("Allow", ", ".join(methods)),), nsq=False)
        for route, names in fitting:
            if route.method == method:
                proper = _proper(route.segments, given)
                return (route, names) if proper == path else _redirect(method, proper, raw_query)
        refused = failure(405, "METHOD_NOT_ALLOWED")
        refused.headers = (("Allow", ", ".join(methods)),)
        return refused


def _fit(pattern: list[str], given: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(given):
        return None
    names: dict[str, str] = {}
    for wanted, segment in zip(pattern, given, strict=True):
        if wanted.startswith("<"):
            names[wanted[1:-1]] = unquote(segment)
        elif wanted.lower() != segment.lower():
            return None
    return names


def _proper(pattern: list[str], given: list[str]) -> str:
    return "/" + "/".join(
        segment if wanted.startswith("<") else wanted for wanted, segment in zip(pattern, given, strict=True)
    )


def _redirect(method: str, path: str, raw_query: str) -> Answer:
    location = quote(path, safe="/%:[]@!$&'()*+,;=~") + (f"?{raw_query}" if raw_query else "")
    headers = (("Location", location),)
    if method != "GET":
        return Answer(307, headers=headers, nsq=False)
    return Answer(301, b"<a>Moved Permanently</a>.\n", HTML, headers, nsq=False)


# ---- answers ----


def json_body(raw: bytes) -> dict[str, Any]:
    """Return a JSON object. Raises `ValueError` with the decoder's text, `EOF` for an empty body."""
    if not raw.strip():
        raise ValueError("EOF")
    try:
        decoded = json.loads(raw)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(decoded, dict):
        raise ValueError(f"expected an object, not {type(decoded).__name__}")
    return decoded


def compressed(body: bytes, accepted: str) -> tuple[bytes, str]:
    """Compress the body with gzip or raw deflate, whichever the client names first, and return the coding too."""
    for word in accepted.split(","):
        coding = word.partition(";")[0].strip().lower()
        if coding in ("gzip", "deflate") and "q=0" not in word.replace(" ", "").split(";")[1:]:
            packer = zlib.compressobj(5, wbits=31 if coding == "gzip" else -15)
            return packer.compress(body) + packer.flush(), coding
    return body, ""


async def send_answer(send: Send, answer: Answer, *, accepted: str = "", extra: Iterable[tuple[str, str]] = ()) -> None:
    """Send a whole answer."""
    body, coding = compressed(answer.body, accepted) if answer.body else (answer.body, "")
    headers = [*answer.headers, *extra, ("Content-Length", str(len(body)))]
    if answer.content_type is not None:
        headers.append(("Content-Type", answer.content_type))
    if answer.nsq:
        headers.append(("X-NSQ-Content-Type", "nsq; version=1.0"))
    if coding:
        headers += [("Content-Encoding", coding), ("Vary", "Accept-Encoding")]
    await send({"type": "http.response.start", "status": answer.status, "headers": encoded_headers(headers)})
    await send({"type": "http.response.body", "body": body})


def encoded_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Return headers as ASGI sends them."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]
