"""Check every request before a route gets it.

Checked, in this order: the Host (a name of ours, so that no foreign name can be pointed at us), the Origin of whatever
can change things (forms, scripts, websockets), who asks. Every answer leaves with the headers that tie the browser's
hands: no scripts, unless it brings a policy of its own, as pages do.
"""

import ipaddress
import logging
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from lapwing.admin.access import AccessRules, Visitor
from lapwing.admin.asgi import (
    AsgiApp,
    Receive,
    Scope,
    Send,
    WebRequest,
    WebRoutes,
    cookies_of,
    encoded_headers,
    headers_of,
    send_answer,
)
from lapwing.admin.plain_pages import not_found
from lapwing.client.format import duration
from lapwing.net.server.answers import Answer, failure, plain

log = logging.getLogger("nsqadmin")

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OPEN: Final = ("/ping", "/login", "/static/")  # open to everybody

HARDENING: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)
POLICY: Final = "Content-Security-Policy"
NO_SCRIPTS: Final = (
    POLICY,
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
)


def page_policy(nonce: str) -> str:
    """Return the Content-Security-Policy of a page whose own scripts and styles carry that number.

    It allows no other inline script, no eval, and nothing from other sites. Style attributes are allowed: charts and
    menus place themselves with them, and they can run nothing.
    """
    own = f"'self' 'nonce-{nonce}'"
    return (
        f"default-src 'none'; script-src {own}; style-src-elem {own}; style-src-attr 'unsafe-inline'; "
        "img-src 'self' data:; font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    )


def host_allowed(host: str, allowed: Iterable[str], own: Iterable[str]) -> bool:
    """Return whether a Host header names this nsqadmin. Another site can only point its own, dotted name at it."""
    name = urlsplit(f"//{host}").hostname or ""
    names = {each.lower() for each in allowed}
    if "*" in names or name in names or host.lower() in names or name in {each.lower() for each in own}:
        return True
    if "." not in name.rstrip("."):
        return bool(name)
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.endswith(".localhost")
    return True


def same_origin(headers: Mapping[str, str], hosts: Iterable[str]) -> bool:
    """Return whether a request comes from a page of nsqadmin, or from no page at all (curl sends no Origin)."""
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() in {host.lower() for host in hosts if host}


class Firewall:
    """An ASGI application: the routes, and behind the same checks the assets and websockets of the pages."""

    def __init__(
        self,
        assets: AsgiApp,
        routes: WebRoutes,
        access: AccessRules,
        *,
        base: str = "",
        allowed_hosts: Iterable[str] = (),
    ) -> None:
        self._assets = assets
        self._routes = routes
        self._access = access
        self._base = base
        self._allowed = tuple(allowed_hosts)
        self._own = {socket.gethostname(), socket.getfqdn()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request."""
        if scope["type"] == "lifespan":
            await self._assets(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._http(scope, receive, send)

    # ---- checks ----

    def _headers(self, scope: Scope) -> dict[str, str]:
        """Return the headers that count. The others are removed from the scope too, so that no page reads them."""
        given = headers_of(scope)
        headers = self._access.believed(given, _peer(scope)[0])
        if len(headers) < len(given):
            scope["headers"] = [pair for pair in scope["headers"] if pair[0].decode("latin-1").lower() in headers]
        return headers

    def _visitor(self, scope: Scope, headers: Mapping[str, str]) -> Visitor:
        peer, port = _peer(scope)
        return self._access.visitor(headers, peer, cookies_of(headers), port=port)

    def _hosts(self, headers: Mapping[str, str]) -> list[str]:
        return [host for name in ("host", "x-forwarded-host") if (host := headers.get(name, ""))]

    def _host_allowed(self, headers: Mapping[str, str]) -> bool:
        # a page of a rebound name can add any header, X-Forwarded-Host too, but it cannot change the Host
        return host_allowed(headers.get("host", ""), self._allowed, self._own)

    def _below_base(self, scope: Scope) -> str | None:
        path: str = scope.get("raw_path", scope["path"].encode()).decode("latin-1").partition("?")[0]
        if not path.startswith(self._base):
            return None
        rest = path[len(self._base) :]
        return rest if rest.startswith("/") or not rest else None

    # ---- websockets ----

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._headers(scope)
        hosts = self._hosts(headers)
        visitor = self._visitor(scope, headers)
        ours = (self._below_base(scope) or "").startswith("/_nicegui_ws/")
        # a browser always sends the Origin of a websocket
        if (
            ours
            and "origin" in headers
            and same_origin(headers, hosts)
            and self._host_allowed(headers)
            and visitor.may_read
        ):
            await self._assets(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.close", "code": 1008})

    # ---- HTTP ----

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = self._headers(scope)
        hosts = self._hosts(headers)
        visitor = self._visitor(scope, headers)
        path = self._below_base(scope)
        query = scope.get("query_string", b"").decode("latin-1")
        refusal = self._refusal(scope["method"], path, query, headers, hosts, visitor)
        if refusal is not None:
            await self._answer(send, headers, refusal)
            return
        assert path is not None
        if path.startswith(("/_nicegui/", "/_nicegui_ws/", "/favicon.ico")):
            await self._send_asset(scope, receive, send)
            return
        found = self._routes.resolve(scope["method"], path or "/", query)
        if isinstance(found, Answer):
            if found.status == 404 and not _is_api(path) and "text/html" in headers.get("accept", ""):
                found = not_found(self._base, self._base + path)
            await self._answer(send, headers, self._relocated(found))
            return
        route, names = found
        if self._base and path == "/":
            await self._answer(send, headers, Answer(301, headers=(("Location", self._base),), nsq=False))
            return
        scheme: str = headers.get("x-forwarded-proto") or scope.get("scheme", "http")
        request = WebRequest(scope["method"], self._base + path, query, headers, scheme, receive, visitor, scope, names)
        began = time.monotonic()
        try:
            answer = await route.respond(request)
        except Exception:
            log.exception("%s %s failed", scope["method"], request.path)
            answer = failure(500, "INTERNAL_ERROR")
        await self._answer(send, headers, answer)
        uri = f"{scope['method']} {request.target}"
        took = duration(time.monotonic() - began)
        log.info("%d %s (%s:%d) %s", answer.status, uri, visitor.peer, visitor.port, took)

    def _refusal(
        self, method: str, path: str | None, query: str, headers: Mapping[str, str], hosts: list[str], visitor: Visitor
    ) -> Answer | None:
        if path is None:
            return failure(404, "NOT_FOUND")
        api = _is_api(path)
        # browsers send a language, scripts do not; over plain HTTP a browser may send none of the other two
        from_page = any(name in headers for name in ("origin", "sec-fetch-site", "accept-language"))
        if (not api or from_page) and not self._host_allowed(headers):
            return plain(
                f"nsqadmin does not know itself as {hosts[0] if hosts else 'nothing'}: "
                "start it with --allowed-host=<that name> if this is right\n",
                403,
            )
        changing = method not in _SAFE or path.startswith("/_nicegui_ws/")
        if changing and not same_origin(headers, hosts):
            return failure(403, "FORBIDDEN")
        if visitor.may_read or path.startswith(_OPEN):
            return None
        if api or path.startswith("/_nicegui") or method not in _SAFE:
            return failure(401, "UNAUTHORIZED")
        if self._access.logins is None:
            return plain("nsqadmin shows nothing to unknown users: the proxy in front has to name the user\n", 401)
        target = quote(self._base + path + (f"?{query}" if query else ""), safe="")
        return Answer(303, headers=(("Location", f"{self._base}/login?next={target}"),), nsq=False)

    def _relocated(self, answer: Answer) -> Answer:
        """Move a redirect below the base path."""
        answer.headers = tuple(
            (name, self._base + value if name == "Location" else value) for name, value in answer.headers
        )
        return answer

    async def _answer(self, send: Send, headers: Mapping[str, str], answer: Answer) -> None:
        accepted = headers.get("accept-encoding", "")
        own = any(name == POLICY for name, _ in answer.headers)
        await send_answer(send, answer, accepted=accepted, extra=HARDENING if own else (*HARDENING, NO_SCRIPTS))

    async def _send_asset(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the pages' library answer, with the hardening headers."""
        from starlette.middleware.gzip import GZipMiddleware  # the pages' libraries are loaded with the first page

        async def harden(message: Scope) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *encoded_headers(HARDENING)]
            await send(message)

        await GZipMiddleware(self._assets, minimum_size=1024, compresslevel=5)(scope, receive, harden)


def _is_api(path: str) -> bool:
    """Return whether the path is one for scripts."""
    return path.startswith(("/api/", "/config/", "/render", "/ping", "/metrics"))


def _peer(scope: Scope) -> tuple[str, int]:
    """Return the address and port of the other end of the connection; empty for a Unix socket."""
    peer, port = scope.get("client") or ("", 0)
    return peer, port
