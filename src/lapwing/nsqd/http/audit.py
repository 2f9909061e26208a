"""The audit of a node: every change that somebody made over HTTP, whatever program was used.

The routes that change something are wrapped once, when the node starts. All others, those of publishing and reading
among them, do not know that there is an audit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any, Final

from lapwing.broker.broker import Broker
from lapwing.log.audit_file import AuditFile
from lapwing.net.logs import Log
from lapwing.net.server.answers import Answer, Later, Refused, value
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import NODE_ADMIN, Reply, Route
from lapwing.nsqd.http.errors import refusal
from lapwing.nsqd.http.permissions import CHANNEL_ADMIN, CREATE_TOPIC, TOPIC_ADMIN, USE_CHANNEL

_ORDERS: Final = (CREATE_TOPIC, TOPIC_ADMIN, USE_CHANNEL, CHANNEL_ADMIN, NODE_ADMIN)
_CREATING: Final = ("/topic/create", "/channel/create")
_DEBUGGING: Final = "/debug/"
_FAILED: Final = 500  # the lowest status of a request that was carried out in part, perhaps
_REFUSED: Final = 400
_LONGEST_DETAIL: Final = 1000
_LONGEST_NAME: Final = 100
_LISTED: Final = 100
_MAX_LISTED: Final = 1000


def is_order(route: Route) -> bool:
    """Return whether a route changes the node at the wish of a person, and is no part of consuming or publishing."""
    return (
        route.method not in ("GET", "HEAD")
        and route.logged
        and route.access in _ORDERS
        and not route.path.startswith(_DEBUGGING)
    )


class NodeAudit:
    """Writes each change to a file of the data path, and lists the newest ones at `GET /audit`."""

    def __init__(self, file: AuditFile, broker: Broker, log: Log) -> None:
        self._file = file
        self._broker = broker
        self._log = log

    def watched(self, routes: Iterable[Route]) -> list[Route]:
        """Return the routes, those that change something with the audit around them, and that of the audit."""
        watched = [self._watched(route) if is_order(route) else route for route in routes]
        return [*watched, Route("GET", "/audit", self.newest)]

    def newest(self, request: Request) -> Answer:
        """Return the newest changes, the newest first."""
        text = request.query.get("limit", str(_LISTED))
        if not text.isdecimal() or not 1 <= int(text) <= _MAX_LISTED:
            raise Refused(400, f"limit: a number from 1 to {_MAX_LISTED} expected")
        changes = []
        for line in self._file.newest(int(text)):
            try:
                changes.append(json.loads(line))
            except ValueError:  # torn by a crash
                continue
        return value({"changes": changes})

    def _watched(self, route: Route) -> Route:
        respond = route.respond

        def respond_audited(request: Request) -> Reply:
            if _is_dry(request) or (route.path in _CREATING and self._exists(request)):
                return respond(request)
            try:
                reply = respond(request)
            except Exception as error:
                self._failed(request, error)
                raise
            if isinstance(reply, Answer):
                self._write(request, reply)
                return reply
            if isinstance(reply, Later):
                return self._once_complete(request, reply)
            return self._once_awaited(request, reply)

        return replace(route, respond=respond_audited)

    def _once_complete(self, request: Request, reply: Later) -> Later:
        if reply.answer is not None:
            self._write(request, reply.answer)
            return reply
        audited = Later()

        def complete() -> None:
            assert reply.answer is not None
            self._write(request, reply.answer)
            audited.complete(reply.answer)

        reply.on_complete = complete
        return audited

    async def _once_awaited(self, request: Request, reply: Awaitable[Answer]) -> Answer:
        try:
            answer = await reply
        except Exception as error:
            self._failed(request, error)
            raise
        self._write(request, answer)
        return answer

    def _failed(self, request: Request, error: Exception) -> None:
        refused = refusal(error)
        self._write(request, Answer(_FAILED) if refused is None else refused.answer())

    def _write(self, request: Request, answer: Answer) -> None:
        """Write down what was done, or failed half-way. A request that was refused has changed nothing."""
        if _REFUSED <= answer.status < _FAILED:
            return
        error = f"{answer.status} {answer.body[:_LONGEST_DETAIL].decode('utf-8', 'replace')}".strip()
        entry = {"at_ms": time.time_ns() // 1_000_000, **_described(request)}
        entry["error"] = error if answer.status >= _FAILED else ""
        try:
            self._file.append(json.dumps(entry, ensure_ascii=False).encode("utf-8", "replace"))
        except OSError as failure:
            self._log.warn(f"failed to write the audit: {failure.strerror}; a change is missing in it ({entry})")

    def _exists(self, request: Request) -> bool:
        topic = self._broker.topics.get(request.query.get("topic", ""))
        channel = request.query.get("channel")
        return topic is not None and (channel is None or channel in topic.channels)


def _is_dry(request: Request) -> bool:
    document = _document(request)
    return isinstance(document, dict) and document.get("dry_run") is True


def _document(request: Request) -> Any:
    """Return the JSON of a body; None for any other."""
    if not request.body:
        return None
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError):
        return None


def _described(request: Request) -> dict[str, str]:
    """Return what was asked for, and by whom."""
    head, query, document = request.head, request.query, _document(request)
    named = document if isinstance(document, dict) else {}
    detail = request.body[:_LONGEST_DETAIL].decode("utf-8", "replace")
    others = [f"{name}={text}" for name, text in query.pairs if name not in ("topic", "channel")]
    change, _, user = _header(request, b"x-lapwing-change").partition(" ")
    return {
        "method": head.method,
        "path": head.path,
        "topic": _text(query.get("topic") or named.get("topic")),
        "channel": _text(query.get("channel") or named.get("channel")),
        "detail": detail or "&".join(others)[:_LONGEST_DETAIL],
        "user": user if request.permissions is None else request.permissions.identity or user,
        "address": request.caller.address,
        "program": _header(request, b"user-agent"),
        "change": change,
    }


def _text(name: object) -> str:
    return name if isinstance(name, str) else ""


def _header(request: Request, name: bytes) -> str:
    found = (request.head.header(name) or b"")[:_LONGEST_NAME].decode("utf-8", "replace")
    return "".join(sign for sign in found if sign.isprintable())
