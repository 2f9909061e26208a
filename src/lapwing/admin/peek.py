"""Reads a topic's messages without consuming them, from nsqds that keep a log of them."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from lapwing.client.cluster import Json, Node
from lapwing.client.http import Asked, CallFailed, DaemonHttp

LARGEST_READ: Final = 4 << 20  # bytes of messages in one answer
SCANNED_AT_MOST: Final = 20_000  # messages looked through for a filter
BLOCK: Final = 1000
WAIT_MS: Final = 15_000


@dataclass(frozen=True, slots=True)
class LogState:
    """A topic's log on one node: it holds the sequences [first, next)."""

    node: Node
    log_id: str
    first: int
    next: int
    first_timestamp: int  # ns
    last_timestamp: int
    bytes: int
    at: int | None = None  # first sequence at or after the time that was asked for


class Peek:
    """Looks into topic logs; every call raises `CallFailed` when the node does not answer or refuses."""

    def __init__(self, http: DaemonHttp) -> None:
        self._http = http

    async def states(self, nodes: list[Node], topic: str, *, at: int | None = None) -> list[LogState]:
        """The topic's log on each of the nodes that has one; nodes without the log API are left out."""
        params = {"topic": topic} | ({"at": str(at)} if at is not None else {})
        by_contact = {node.contact: node for node in nodes}
        asked: Asked[Any] = await self._http.ask_all(
            by_contact, lambda contact: self._http.get(contact, "/log/offsets", params)
        )
        return [
            _state(by_contact[contact], found)
            for contact, answer in asked.answers.items()
            for found in answer.get("topics") or ()
            if found.get("topic") == topic
        ]

    async def read(self, node: Node, topic: str, begin: int, end: int, *, limit: int) -> list[Json]:
        """Messages of [begin, end), at most `limit`; a range that the log no longer holds begins where it does."""
        params = {
            "topic": topic,
            "from": str(max(0, begin)),
            "to": str(end),
            "format": "json",
            "limit": str(limit),
            "max_bytes": str(LARGEST_READ),
        }
        try:
            answer = await self._http.get(node.contact, "/log/read", params)
        except CallFailed as error:
            first = error.answer.get("first") if isinstance(error.answer, dict) else None
            if error.status != 416 or not isinstance(first, int) or first <= begin or first >= end:
                raise
            answer = await self._http.get(node.contact, "/log/read", {**params, "from": str(first)})
        return [{**message, "node": node.name} for message in answer.get("messages") or ()]

    async def find(
        self, state: LogState, topic: str, text: str, *, begin: int, backwards: bool, limit: int
    ) -> list[Json]:
        """Messages that contain `text`, from `begin` on (or before it); looks through a bounded number of messages."""
        found: list[Json] = []
        looked = 0
        at = begin
        wanted = text.lower()
        while len(found) < limit and looked < SCANNED_AT_MOST:
            low, high = (max(state.first, at - BLOCK), at) if backwards else (at, min(state.next, at + BLOCK))
            if low >= high:
                break
            block = await self.read(state.node, topic, low, high, limit=BLOCK)
            if not block:
                break
            looked += high - low
            fits = [message for message in block if _contains(message, wanted)]
            found += reversed(fits) if backwards else fits
            at = low if backwards else block[-1]["sequence"] + 1
        return found[:limit]

    async def news(self, state: LogState, topic: str, after: int) -> int:
        """Wait until the log has grown past `after`, or for some seconds; its next sequence."""
        params = {"topic": topic, "after": f"{topic}:{after}", "wait_ms": str(WAIT_MS)}
        answer = await self._http.get(state.node.contact, "/log/offsets", params, timeout=WAIT_MS / 1000 + 5)
        found = [each for each in answer.get("topics") or () if each.get("topic") == topic]
        return int(found[0]["next"]) if found else after


def _state(node: Node, found: Json) -> LogState:
    return LogState(
        node,
        str(found.get("log_id", "")),
        int(found["first"]),
        int(found["next"]),
        int(found.get("first_timestamp") or 0),
        int(found.get("last_timestamp") or 0),
        int(found.get("bytes") or 0),
        found.get("at"),
    )


def _contains(message: Json, text: str) -> bool:
    body = message.get("body")
    headers = " ".join(f"{key}: {value}" for key, value in (message.get("headers") or {}).items())
    return text in (body or "").lower() or text in headers.lower() or text in str(message.get("id", ""))


async def newest(
    peek: Peek, states: list[LogState], topic: str, *, before: dict[str, int], text: str, limit: int
) -> list[Json]:
    """The newest messages of all the nodes together, newest first; `before` are upper ends by node name."""

    async def one(state: LogState) -> list[Json]:
        end = min(before.get(state.node.name, state.next), state.next)
        if text:
            return await peek.find(state, topic, text, begin=end, backwards=True, limit=limit)
        return (
            await peek.read(state.node, topic, max(state.first, end - limit), end, limit=limit)
            if end > state.first
            else []
        )

    read = await asyncio.gather(*(one(state) for state in states))
    return sorted((message for messages in read for message in messages), key=lambda message: -message["timestamp"])[
        :limit
    ]


async def oldest(
    peek: Peek, states: list[LogState], topic: str, *, begins: dict[str, int], text: str, limit: int
) -> list[Json]:
    """The first messages from `begins` on (by node name), oldest first."""

    async def one(state: LogState) -> list[Json]:
        begin = max(begins.get(state.node.name, state.first), state.first)
        if text:
            return await peek.find(state, topic, text, begin=begin, backwards=False, limit=limit)
        return await peek.read(state.node, topic, begin, state.next, limit=limit) if begin < state.next else []

    read = await asyncio.gather(*(one(state) for state in states))
    return sorted((message for messages in read for message in messages), key=lambda message: message["timestamp"])[
        :limit
    ]
