"""Ask auth servers for the permissions of a client, and parse their answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote_plus

from lapwing.broker.settings.options import Options
from lapwing.errors import LapwingError
from lapwing.net.client.asynchronous import HttpClient
from lapwing.net.client.message import HttpFailed
from lapwing.net.options import without_secrets
from lapwing.nsqd.lookupd.outgoing_http import http_client
from lapwing.records import dataclass

PERMISSIONS: Final = ("subscribe", "publish")  # NSQ refuses an answer with any other one, and so do we
ADMIN: Final = "admin"  # granted by a member of its own, which NSQ ignores: one auth server serves both

_SECOND: Final = 1_000_000_000


class AuthFailed(LapwingError):
    """No auth server gave a usable answer; the text is the reason, for the log alone.

    `refused`: one of them answered that it does not accept the secret.
    """

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused


Search = Callable[[str], object | None]  # returns a match if its pattern is found anywhere in a text; in linear time


@dataclass(frozen=True, slots=True)
class Grant:
    """Permissions for the topics and channels that match its patterns."""

    topic: Search
    channels: tuple[Search, ...]
    permissions: frozenset[str]

    def allows(self, permission: str, topic: str, channel: str) -> bool:
        """Return whether this grant covers it; to publish, the channel is empty."""
        return (
            permission in self.permissions
            and self.topic(topic) is not None
            and any(search(channel) is not None for search in self.channels)
        )


@dataclass(frozen=True, slots=True)
class Authorizations:
    """The permissions of a client, until they expire."""

    secret: bytes
    identity: str
    identity_url: str
    authorizations: tuple[Grant, ...]
    expires: int  # ns

    def allows(self, permission: str, topic: str, channel: str) -> bool:
        """Return whether any grant covers it."""
        return any(grant.allows(permission, topic, channel) for grant in self.authorizations)

    def knows(self, topic: str) -> bool:
        """Return whether any grant is for the topic."""
        return any(grant.topic(topic) is not None for grant in self.authorizations)

    def expired(self, now: int) -> bool:
        """Return whether the server has to be asked again."""
        return now >= self.expires


def understand(document: Any, secret: bytes, *, now: int) -> Authorizations:
    """Parse the answer of an auth server; raise `AuthFailed` if any part of it is wrong."""
    if not isinstance(document, dict):
        raise AuthFailed("the answer is no object")
    ttl = document.get("ttl")
    if type(ttl) is not int or ttl <= 0:
        raise AuthFailed(f"ttl {ttl!r}, an integer above 0 needed")
    listed = _list(document, "authorizations")
    return Authorizations(
        secret=secret,
        identity=_text(document, "identity"),
        identity_url=_text(document, "identity_url"),
        authorizations=tuple(_grant(entry) for entry in listed),
        expires=now + ttl * _SECOND,
    )


def _grant(entry: Any) -> Grant:
    if not isinstance(entry, dict):
        raise AuthFailed("an authorization is no object")
    permissions = _texts(entry, "permissions")
    for permission in permissions:
        if permission not in PERMISSIONS:
            raise AuthFailed(f"unknown permission {permission!r}")
    admin = entry.get(ADMIN, False)
    if not isinstance(admin, bool):
        raise AuthFailed(f"admin {admin!r}, true or false needed")
    if admin:
        permissions = [*permissions, ADMIN]
    return Grant(
        topic=_compiled(_text(entry, "topic")),
        channels=tuple(_compiled(pattern) for pattern in _texts(entry, "channels")),
        permissions=frozenset(permissions),
    )


def _text(entry: dict[str, Any], key: str) -> str:
    found = entry.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise AuthFailed(f"{key} is no string")
    return found


def _texts(entry: dict[str, Any], key: str) -> Sequence[str]:
    found = _list(entry, key)
    if not all(isinstance(each, str) for each in found):
        raise AuthFailed(f"{key} is no list of strings")
    return found


def _list(entry: dict[str, Any], key: str) -> list[Any]:
    found = entry.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise AuthFailed(f"{key} is no list")
    return found


def _compiled(pattern: str) -> Search:
    """Compile a pattern in Go's syntax: one that could take exponential time is refused."""
    import re2  # type: ignore[import-untyped]  # here, as nobody who asks no auth server needs it

    options = re2.Options()
    options.log_errors = False
    try:
        search: Search = re2.compile(pattern, options=options).search
    except re2.error as error:
        raise AuthFailed(f"pattern {pattern!r} does not compile: {error}") from error
    return search


class Authenticator:
    """Asks the configured servers, beginning at a random one, until one answers."""

    def __init__(self, options: Options, now: Callable[[], int], http: HttpClient | None = None) -> None:
        self._addresses = options.auth_http_addresses
        self._post = options.auth_http_request_method.lower() == "post"
        self._now = now
        self._http = http or http_client(options)

    async def query(self, *, secret: bytes, remote_ip: str, tls: bool, common_name: str) -> Authorizations:
        """Return the permissions of a client with that secret; raise `AuthFailed` without a usable answer."""
        values = {
            "common_name": common_name,
            "remote_ip": remote_ip,
            "secret": secret.decode("utf-8", "surrogateescape"),
            "tls": "true" if tls else "false",
        }
        start = random.randrange(len(self._addresses))
        problems = []
        refused = False
        for address in self._addresses[start:] + self._addresses[:start]:
            try:
                return understand(await self._ask(address, values), secret, now=self._now())
            except (HttpFailed, AuthFailed) as error:
                problems.append(f"{without_secrets(address).rpartition('@')[2]}: {error}")
                refused |= isinstance(error, HttpFailed) and 400 <= error.status < 500
        raise AuthFailed("; ".join(problems), refused=refused)

    async def _ask(self, address: str, values: dict[str, str]) -> Any:
        url = address if "://" in address else f"http://{address}/auth"
        if self._post:
            return await self._http.ask(url, {key: [text] for key, text in values.items()})
        query = "&".join(f"{key}={quote_plus(text, errors='surrogateescape')}" for key, text in values.items())
        return await self._http.ask(f"{url}?{query}")
