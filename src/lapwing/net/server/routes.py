"""The table of HTTP routes, and the answers to requests that are not in it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal, Protocol

from lapwing.net.server.answers import BODY_TOO_BIG, HTML, INVALID_REQUEST, JSON, Answer, Later, failure
from lapwing.net.server.requests import Head, Request, escape
from lapwing.records import dataclass

Reply = Answer | Later | Awaitable[Answer]

SMALL_BODY: Final = 262144  # bytes of a body that nobody asked for

_SLASHES: Final = re.compile("/{2,}")


@dataclass(frozen=True, slots=True)
class RouteAccess:
    """The permissions that allow a caller to use a route, where a daemon checks permissions.

    Any one of them is enough. It has to cover the topic and the channel of the query (`channel`), the topic alone
    (`topic`), everything on the node (`node`), or anything at all (`any`).
    """

    permissions: tuple[str, ...]  # empty: everybody may use the route
    scope: Literal["node", "topic", "channel", "any"] = "node"


OPEN: Final = RouteAccess(())
NODE_ADMIN: Final = RouteAccess(("admin",))


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path, and the function that answers it.

    `respond` gives an `Answer` at once (nothing else is started: the fast way), or a `Later`, or is a coroutine
    function. A path may end in `/<name>`: any one segment, found in `Request.parameter`. `max_body` is known
    before the body is read: a longer one is answered `too_big` at once, and the connection is closed.
    """

    method: str
    path: str
    respond: Callable[[Request], Reply]
    max_body: int = SMALL_BODY
    too_big: Answer = BODY_TOO_BIG
    overrun: Callable[[Head], Answer] | None = None  # instead of `too_big`, where the length only showed on the way
    cut_off: Answer | Callable[[Request], Answer] = INVALID_REQUEST  # the client stopped in mid-body
    logged: bool = True
    wants_body: bool = True  # answer `100 Continue` to a client that asks
    access: RouteAccess = NODE_ADMIN


class RouteTable(Protocol):
    """Finds the route of a request."""

    def resolve(self, head: Head) -> tuple[Route, str]:
        """Return the route and its parameter; one that refuses if there is no other."""


def always(answer: Answer) -> Route:
    """Return a route that gives `answer` to every request and reads no body."""
    return Route("", "", lambda _: answer, too_big=answer, cut_off=answer, wants_body=False, access=OPEN)


_NOT_FOUND: Final = always(failure(404, "NOT_FOUND"))
_OPTIONS_ANY: Final = always(Answer(nsq=False))


class Router:
    """Routes by path and method, with 404, 405, OPTIONS and redirects to the proper path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[str, dict[str, Route]] = {}
        self._open: dict[str, dict[str, Route]] = {}  # by what stands before the parameter
        self._proper: dict[tuple[str, str], str] = {}  # (method, path in lower case) -> path
        for route in routes:
            stem, slash, last = route.path.rpartition("/")
            if last.startswith("<") and last.endswith(">"):
                self._open.setdefault(stem + slash, {})[route.method] = route
                self._proper[route.method, (stem + slash).lower()] = stem + slash
            else:
                self._exact.setdefault(route.path, {})[route.method] = route
                self._proper[route.method, route.path.lower()] = route.path

    def resolve(self, head: Head) -> tuple[Route, str]:
        """Return the route of a request, or one that answers what is wrong with it."""
        path = head.path
        methods, parameter = self._methods(path)
        route = methods.get(head.method)
        if route is not None:
            return route, parameter
        if path == "*":
            return _OPTIONS_ANY, ""
        proper = self._properly(head.method, path)
        if proper is not None:
            return always(_redirect(head, proper)), ""
        if not methods:
            return _NOT_FOUND, ""
        allow = (("Allow", ", ".join(sorted({*methods, "OPTIONS"}))),)
        if head.method == "OPTIONS":
            return always(Answer(headers=allow, nsq=False)), ""
        return always(Answer(405, b'{"message":"METHOD_NOT_ALLOWED"}', JSON, allow)), ""

    def _methods(self, path: str) -> tuple[dict[str, Route], str]:
        """Return the routes of exactly this path by method, and its parameter."""
        found = self._exact.get(path)
        if found is not None:
            return found, ""
        stem, slash, last = path.rpartition("/")
        if last and (found := self._open.get(stem + slash)) is not None:
            return found, last
        return {}, ""

    def _properly(self, method: str, path: str) -> str | None:
        """Return the path that was meant: one slash more or less, doubled slashes, or letters in another case."""
        cleaned = _SLASHES.sub("/", path)
        for meant in (cleaned, cleaned[:-1] if cleaned.endswith("/") else cleaned + "/"):
            if (found := self._proper.get((method, meant.lower()))) is not None and found in self._exact:
                return found if found != path else None
            stem, slash, last = meant.rpartition("/")
            if last and (found := self._proper.get((method, (stem + slash).lower()))) in self._open:
                return f"{found}{escape(last)}"
        return None


def _redirect(head: Head, path: str) -> Answer:
    query = head.raw_query.decode("latin-1")
    location = (("Location", f"{path}?{query}" if query else path),)
    if head.method != "GET":
        return Answer(307, headers=location, nsq=False)
    link = location[0][1].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&#34;")
    body = f'<a href="{link}">Moved Permanently</a>.\n\n'.encode("latin-1", "replace")
    return Answer(301, body, HTML, location, nsq=False)


class TlsRequired:
    """The table of a plain listener where only TLS is allowed: every request is sent to the other port."""

    def __init__(self, https_port: int) -> None:
        body = f'{{"message": "TLS_REQUIRED", "https_port": {https_port}}}'.encode()
        self._route = always(Answer(403, body, JSON))

    def resolve(self, head: Head) -> tuple[Route, str]:
        return self._route, ""
