"""Check the permissions of HTTP callers: the same secret and the same auth servers as AUTH over TCP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final

from lapwing.net.client.bearer import CHALLENGE, secret_of
from lapwing.net.logs import Log
from lapwing.net.server.answers import JSON, Answer, Later, Refused, compact
from lapwing.net.server.requests import Caller, Head, Request
from lapwing.net.server.routes import Reply, Route, RouteAccess, Router, always
from lapwing.nsqd.doors.auth import Authenticator, AuthFailed, Authorizations
from lapwing.nsqd.http.permissions import unauthorized

_REQUIRED: Final = always(Answer(401, compact({"message": "AUTH_REQUIRED"}), JSON, (CHALLENGE,)))
_MAX_KNOWN: Final = 10_000  # answers of auth servers that are remembered
_MAX_ASKED: Final = 256  # questions to auth servers under way at a time

_Key = tuple[bytes, str, bool, str]  # secret, host, TLS, common name


class GuardedRoutes:
    """A table of routes that callers may use only with the permissions that each route asks for."""

    def __init__(
        self, routes: Iterable[Route], authenticator: Authenticator, now: Callable[[], int], log: Log
    ) -> None:
        self._authenticator = authenticator
        self._now = now
        self._log = log
        self._known: dict[_Key, Authorizations] = {}  # the oldest first
        self._asked: dict[_Key, asyncio.Task[Authorizations]] = {}
        self._router = Router([self._guarded(route) for route in routes])

    def resolve(self, head: Head) -> tuple[Route, str]:
        """Return the route of a request; without a secret, one that asks for it before any body is read."""
        route, parameter = self._router.resolve(head)
        if route.access.permissions and _secret(head) is None:
            return _REQUIRED, ""
        return route, parameter

    def _guarded(self, route: Route) -> Route:
        access, respond = route.access, route.respond
        if not access.permissions:
            return route

        def guarded(request: Request) -> Reply:
            key = _key(request)
            found = self._known.get(key)
            if found is None or found.expired(self._now()):
                return self._respond_later(key, access, respond, request)
            check(found, access, request)
            request.permissions = found
            return respond(request)

        # `overrun` acts before the request is whole, and so before it is allowed
        return replace(route, respond=guarded, overrun=None)

    async def _respond_later(
        self, key: _Key, access: RouteAccess, respond: Callable[[Request], Reply], request: Request
    ) -> Answer:
        found = await self._ask(key, request.caller)
        check(found, access, request)
        request.permissions = found
        return await _completed(respond(request))

    async def _ask(self, key: _Key, caller: Caller) -> Authorizations:
        """Ask the auth servers, once for all callers who wait for the same answer. Raises `Refused`."""
        task = self._asked.get(key)
        if task is None:
            if len(self._asked) >= _MAX_ASKED:
                raise Refused(503, "AUTH_UNAVAILABLE", reason="too many questions to the auth server are under way")
            task = self._asked[key] = asyncio.get_running_loop().create_task(self._query(key))
            task.add_done_callback(lambda done: self._answered(key, done))
        try:
            return await asyncio.shield(task)
        except AuthFailed as error:
            self._log.warn(f"{caller.address}: auth server: {error}")
            if error.refused:
                raise Refused(403, "AUTH_FAILED") from error
            raise Refused(503, "AUTH_UNAVAILABLE") from error

    async def _query(self, key: _Key) -> Authorizations:
        secret, host, tls, common_name = key
        return await self._authenticator.query(secret=secret, remote_ip=host, tls=tls, common_name=common_name)

    def _answered(self, key: _Key, task: asyncio.Task[Authorizations]) -> None:
        del self._asked[key]
        if task.cancelled() or task.exception() is not None:
            return
        self._known.pop(key, None)
        if len(self._known) >= _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[key] = task.result()


def check(found: Authorizations, access: RouteAccess, request: Request) -> None:
    """Raise `Refused` unless the caller has a permission that the route asks for."""
    if access.scope == "any":
        if not found.authorizations:
            raise unauthorized(access, "", "")
        return
    topics, channel = [""], ""
    if access.scope != "node":
        topics = request.query.all("topic") or topics
    if access.scope == "channel":
        channel = request.query.get("channel", "")
    for topic in topics:
        if not any(found.allows(permission, topic, channel) for permission in access.permissions):
            raise unauthorized(access, topic, channel)


def _secret(head: Head) -> bytes | None:
    return secret_of(head.header(b"authorization"))


def _key(request: Request) -> _Key:
    caller, secret = request.caller, _secret(request.head)
    assert secret is not None  # `resolve` has seen to it
    return secret, caller.host, caller.tls, caller.common_name


async def _completed(reply: Reply) -> Answer:
    if isinstance(reply, Answer):
        return reply
    if not isinstance(reply, Later):
        awaited: Awaitable[Answer] = reply
        return await awaited
    if reply.answer is None:
        ready = asyncio.Event()
        reply.on_complete = ready.set
        await ready.wait()
    assert reply.answer is not None
    return reply.answer
