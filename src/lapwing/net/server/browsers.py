"""Refuse requests that a web page of another site makes through the browser of somebody who can reach a daemon.

A page can make a browser send a POST to any address, and it can point its own name at an address of ours to read
answers (DNS rebinding). Programs such as curl send none of the headers by which browsers are recognised, and may call a
daemon by any name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from lapwing.net.server.answers import Answer, failure
from lapwing.net.server.requests import Head
from lapwing.net.server.routes import Route, RouteTable, always

if TYPE_CHECKING:
    from urllib.parse import SplitResult

_HARMLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_SIGNS: Final = (b"origin", b"sec-fetch-site", b"referer", b"accept-language")  # every browser sends the last one
_SAME_SITE: Final = (None, b"same-origin", b"none")


class BrowserGuard:
    """A table of routes that browsers may use only from pages of this daemon, under one of its own names."""

    def __init__(self, table: RouteTable, *, names: Iterable[str], program: str) -> None:
        """`names` are the host names of this daemon; `*` allows any."""
        self._table = table
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._program = program

    def resolve(self, head: Head) -> tuple[Route, str]:
        """Return the route of a request, or one that refuses it."""
        if any(name in _SIGNS for name, _ in head.headers):
            refusal = self._refusal(head)
            if refusal is not None:
                return always(refusal), ""
        return self._table.resolve(head)

    def _refusal(self, head: Head) -> Answer | None:
        host = (head.header(b"host") or b"").decode("latin-1")
        if not self._knows(_name(host)):
            return failure(403, f"{self._program} is not known as {_name(host)}: start it with --allowed-host=<name>")
        if head.method in _HARMLESS:
            return None
        origin = head.header(b"origin")
        if origin is not None:
            source = _split(origin.decode("latin-1")).netloc
            foreign = source.lower() != host.lower() and not (_name(source) in self._names or "*" in self._names)
        else:
            foreign = head.header(b"sec-fetch-site") not in _SAME_SITE
        return failure(403, f"a page of another site may not change anything on {self._program}") if foreign else None

    def _knows(self, name: str) -> bool:
        """Return whether a name is one of ours. A foreign site can only point its own, dotted name at us."""
        if "." not in name or name in self._names or "*" in self._names or name.endswith(".localhost"):
            return True
        import ipaddress  # with the first browser, as `urllib.parse` is

        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _split(url: str) -> SplitResult:
    from urllib.parse import urlsplit  # slow to load, and only needed for browsers

    return urlsplit(url)


def _name(host: str) -> str:
    """Return the host name in `host:port`, in lower case and without a dot at the end."""
    try:
        return (_split(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return host
