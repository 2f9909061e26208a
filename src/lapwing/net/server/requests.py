"""An HTTP request as a route sees it: head, query, body."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from lapwing.net.server.answers import Refused
from lapwing.records import dataclass

if TYPE_CHECKING:
    from lapwing.net.server.routes import Route

_ESCAPE: Final = re.compile(rb"%([0-9a-fA-F]{2})?")


class BadEscape(ValueError):
    """A `%` that is not followed by two hex digits."""


def unescape(data: bytes) -> bytes:
    """Return `data` with every `%xx` decoded; raise `BadEscape`."""
    if b"%" not in data:
        return data

    def decode(match: re.Match[bytes]) -> bytes:
        digits: bytes | None = match[1]
        if digits is None:
            raise BadEscape(f"bad escape at {match.start()}")
        return bytes((int(digits, 16),))

    return _ESCAPE.sub(decode, data)


def escape(text: str) -> str:
    """Return `text` escaped for one segment of a path or one value of a query."""
    from urllib.parse import quote  # not while starting: nsqd does without it

    return quote(text, safe="", errors="replace")


class Query(dict[str, str]):
    """The parameters of a query string, first values; `all` has the repeated ones too."""

    __slots__ = ("pairs",)

    def __init__(self, raw: bytes) -> None:
        """Parse `raw` strictly; raises `BadEscape` for a bad escape or a `;` anywhere in it."""
        super().__init__()
        self.pairs: list[tuple[str, str]] = []
        if b";" in raw:
            raise BadEscape("semicolon in a query")
        for piece in raw.split(b"&"):
            if piece:
                name, _, value = piece.replace(b"+", b" ").partition(b"=")
                pair = unescape(name).decode("utf-8", "replace"), unescape(value).decode("utf-8", "replace")
                self.pairs.append(pair)
                self.setdefault(*pair)

    def all(self, name: str) -> list[str]:
        """Return every value given for `name`, in order."""
        return [value for key, value in self.pairs if key == name]


class Head:
    """All of a request but its body. Equal bytes make equal heads, so one is kept and used again."""

    __slots__ = (
        *("_query", "chunked", "close", "headers", "method"),
        *("old", "parameter", "path", "raw_query", "route", "target"),
    )

    def __init__(
        self, method: str, target: bytes, headers: list[tuple[bytes, bytes]], *, old: bool, close: bool
    ) -> None:
        """Raises `BadEscape` for a target that is no path."""
        self.method = method
        self.target = target
        self.headers = headers  # names in lower case; without the length, which the body has itself
        self.old = old  # HTTP/1.0
        self.close = close  # the client wants no further answers on this connection
        self.chunked = False
        path, _, self.raw_query = _origin(method, target).partition(b"?")
        self.path = unescape(path).decode("utf-8", "replace")
        self.route: Route
        self.parameter = ""
        self._query: Query | None = None

    @property
    def query(self) -> Query:
        """The parsed query; raises `Refused` if it cannot be decoded."""
        if self._query is None:
            try:
                self._query = Query(self.raw_query)
            except BadEscape as error:
                raise Refused(400, "INVALID_REQUEST") from error
        return self._query

    def header(self, name: bytes) -> bytes | None:
        """Return the first header called `name` (lower case)."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


def _origin(method: str, target: bytes) -> bytes:
    """Return the path and query of a request target in any form."""
    if target.startswith(b"/") or (target == b"*" and method == "OPTIONS"):
        return target
    scheme, found, rest = target.partition(b"://")
    if not found or scheme.lower() not in (b"http", b"https"):
        raise BadEscape("neither a path nor a URL")
    slash = rest.find(b"/")
    return rest[slash:] if slash >= 0 else b"/"


@dataclass(frozen=True, slots=True)
class Caller:
    """The client at the other end of a connection; the same for all its requests."""

    address: str = "@"  # `ip:port`, or `@` on a Unix socket
    host: str = ""  # the `ip` of it
    near: bool = False  # on this machine
    tls: bool = False
    common_name: str = ""  # of its certificate


class Permissions(Protocol):
    """The permissions of the caller."""

    @property
    def identity(self) -> str:
        """The name that the auth server knows the caller by; empty if it gave none."""

    def allows(self, permission: str, topic: str, channel: str) -> bool:
        """Return whether the caller has the permission for the topic and the channel."""


class Request:
    """One request, whole."""

    __slots__ = ("body", "caller", "head", "permissions", "started")

    def __init__(self, head: Head, body: bytes, caller: Caller, started: float) -> None:
        self.head = head
        self.body = body
        self.caller = caller
        self.started = started  # seconds of the performance counter; 0 if requests are not logged
        self.permissions: Permissions | None = None  # None: requests need none

    @property
    def query(self) -> Query:
        """The query's parameters; raises `Refused` (400 INVALID_REQUEST) if it cannot be decoded."""
        return self.head.query

    @property
    def parameter(self) -> str:
        """The part of the path that matches the route's `<parameter>`."""
        return self.head.parameter

    def argument(self, name: str) -> str:
        """Return the query parameter `name`; raise `Refused` (400 MISSING_ARG_NAME) without it."""
        found = self.head.query.get(name)
        if found is None:
            raise Refused(400, f"MISSING_ARG_{name.upper()}")
        return found
