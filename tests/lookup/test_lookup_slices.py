"""Answers about very many topics are written in slices: others have their turn in between."""

import json
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lookupclient import IDENTITY

from lapwing.lookup import http
from lapwing.lookup.http import LookupRoutes
from lapwing.lookup.metrics import LookupCounts
from lapwing.lookup.registry import Registry
from lapwing.net.server.answers import Answer
from lapwing.wire.nsq.lookup import PeerInfo

TOPICS = 1005


@pytest.fixture
def routes() -> dict[str, Any]:
    registry = Registry(inactive_after=10, tombstone_lifetime=10)
    peer = PeerInfo(**IDENTITY)
    for name in ("one", "two", "idle"):
        producer = registry.join(name, peer, now=0)
        for number in range(TOPICS if name == "one" else 5 if name == "two" else 0):
            registry.register(producer, f"t{number}", "c" if number % 2 else "")
    registry.tombstone("t7", f"{peer.broadcast_address}:{peer.http_port}", now=1)
    return {route.path: route.respond for route in LookupRoutes(registry, lambda: 5, LookupCounts(0.0), int).routes()}


def answered(routes: dict[str, Any], path: str, query: bytes = b"") -> tuple[bytes, int]:
    """Return the body of an answer, and how many turns of the loop it took."""
    reply = routes[path](SimpleNamespace(head=SimpleNamespace(raw_query=query)))
    if isinstance(reply, Answer):
        return bytes(reply.body), 1
    steps, turns = cast(Awaitable[Answer], reply).__await__(), 1
    try:
        while True:
            next(steps)
            turns += 1
    except StopIteration as end:
        return bytes(end.value.body), turns


@pytest.mark.parametrize(("path", "query"), [("/topics", b""), ("/topics", b"channels=true"), ("/nodes", b"")])
def test_an_answer_in_slices_is_the_same_as_one_in_one_piece(
    routes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, path: str, query: bytes
) -> None:
    whole, once = answered(routes, path, query)
    monkeypatch.setattr(http, "_SLICE", 100)
    sliced, turns = answered(routes, path, query)

    assert sliced == whole
    assert json.loads(whole)
    assert (once, turns >= TOPICS // 100) == (1, True)
