"""A topic's log read over HTTP: looked into, or followed as it grows, without anything being consumed."""

import asyncio
import base64
import heapq
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lapwing.client.cluster import Json, Node
from lapwing.client.http import CallFailed, DaemonHttp
from lapwing.errors import LapwingError
from lapwing.tools.time_format import clock_time

_WAIT: Final = 20_000  # ms that a question for news may take
_PAGE: Final = 1000  # messages of one answer
_PAUSE: Final = 1.0  # s before a node that could not be asked is asked again


class NoLog(LapwingError):
    """This nsqd keeps no log that could be read."""


class NoTopic(LapwingError):
    """Nobody has this topic."""


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One message as it lies in a log."""

    timestamp: int  # ns
    node: str
    sequence: int
    id: str
    attempts: int
    body: bytes
    headers: dict[str, str] = field(compare=False)

    def as_json(self, topic: str) -> Json:
        """For scripts; a body that is no UTF-8 comes as base64."""
        told: Json = {"topic": topic, "node": self.node, "sequence": self.sequence, "id": self.id,
                      "timestamp": self.timestamp, "attempts": self.attempts}
        try:
            told["body"] = self.body.decode()
        except UnicodeDecodeError:
            told["body"] = None
            told["body_base64"] = base64.b64encode(self.body).decode()
        told["headers"] = self.headers
        return told


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading begins: exactly one of these, or at the end of the log."""

    sequence: int | None = None
    time: int | None = None  # Unix ns
    last: int | None = None  # so many from the end

    def in_log(self, facts: Json) -> int:
        """The sequence that this means in a log as `/log/offsets` tells of it."""
        first, end = int(facts["first"]), int(facts["next"])
        if self.sequence is not None:
            return self.sequence
        if self.time is not None:
            return int(facts["at"])
        return max(first, end - (self.last or 0))


class LogReader:
    """The logs of one topic, on one node or several."""

    def __init__(self, http: DaemonHttp, nodes: Sequence[Node], topic: str, say: Callable[[str], None]) -> None:
        self._http = http
        self._nodes = nodes
        self._topic = topic
        self._say = say

    async def facts(self, node: Node, start: Start = Start()) -> Json | None:  # noqa: B008  frozen
        """Where this node's log of the topic begins and ends; None when it has none. Raises `NoLog`, `CallFailed`."""
        parameters = [("topic", self._topic)]
        if start.time is not None:
            parameters.append(("at", str(start.time)))
        try:
            said = await self._http.get(node.contact, "/log/offsets", parameters)
        except CallFailed as error:
            if error.status == 404:
                raise NoLog(f"{node.contact} keeps no log to read: it is a plain NSQ server; `lapwing sub` and "
                            "nsq_tail consume from it") from error
            raise
        found: list[Json] = said.get("topics") or []
        return found[0] if found else None

    async def peek(self, start: Start, limit: int) -> list[Entry]:
        """At most `limit` messages from `start` on, of all nodes, by time. Raises `NoTopic`, `NoLog`, `CallFailed`."""
        pages = await asyncio.gather(*(self._peek(node, start, limit) for node in self._nodes))
        if all(page is None for page in pages):
            raise NoTopic(f"no topic {self._topic!r} on {', '.join(node.contact for node in self._nodes)}")
        entries = sorted(entry for page in pages for entry in page or ())
        if start.last is not None:
            return entries[-limit:]
        return heapq.nsmallest(limit, entries)

    async def _peek(self, node: Node, start: Start, limit: int) -> list[Entry] | None:
        facts = await self.facts(node, start)
        if facts is None:
            return None
        at = self._inside(node, start.in_log(facts), facts)
        entries: list[Entry] = []
        while len(entries) < limit and at < int(facts["next"]):
            page, at = await self._read(node, at, min(_PAGE, limit - len(entries)))
            entries += page
        return entries

    def _inside(self, node: Node, sequence: int, facts: Json) -> int:
        """The sequence, or the nearest one that the log still has; where it moved, it is said."""
        first, end = int(facts["first"]), int(facts["next"])
        if sequence < first:
            self._say(f"{node.contact}: the log of {self._topic} begins at {first:,}; what was before is gone")
            return first
        if sequence > end:
            self._say(f"{node.contact}: the log of {self._topic} ends at {end:,}")
        return min(sequence, end)

    async def _read(self, node: Node, start: int, limit: int) -> tuple[list[Entry], int]:
        """Messages from `start` on, and where to go on."""
        said = await self._http.get(node.contact, "/log/read", {
            "topic": self._topic, "from": str(start), "limit": str(limit), "format": "json"})
        entries = [_entry(node, message) for message in said["messages"]]
        resume = int(said.get("resume", start + len(entries)))
        if resume == start and int(said["next"]) > start:
            resume = start + 1  # nothing there can be read: never stand still
        return entries, resume

    async def follow(self, start: Start) -> AsyncGenerator[Entry, None]:
        """Every message from `start` on, and then what is published, of all nodes, until cancelled.

        A node that is away is asked again until it is back; only one without a log is an error (`NoLog`).
        """
        queue: asyncio.Queue[Entry | BaseException] = asyncio.Queue(maxsize=10_000)
        tasks = [asyncio.create_task(self._follow(node, start, queue)) for node in self._nodes]
        try:
            while True:
                entry = await queue.get()
                if isinstance(entry, BaseException):
                    raise entry
                yield entry
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, node: Node, start: Start, queue: "asyncio.Queue[Entry | BaseException]") -> None:
        at: int | None = None
        log_id = ""
        troubled = missing = False
        while True:
            try:
                facts = await self._news(node, at, start)
                if troubled:
                    self._say(f"{node.contact} is back")
                    troubled = False
                if facts is None:
                    if not missing:
                        self._say(f"{node.contact} has no topic {self._topic} yet: waiting for it")
                    missing, start = True, Start(sequence=0)
                    await asyncio.sleep(_PAUSE)
                    continue
                if at is None or facts["log_id"] != log_id:
                    at = self._inside(node, start.in_log(facts) if at is None else int(facts["first"]), facts)
                    log_id, missing = facts["log_id"], False
                while at < int(facts["next"]):
                    entries, at = await self._read(node, at, _PAGE)
                    for entry in entries:
                        await queue.put(entry)
            except CallFailed as error:
                if error.code == "OUT_OF_RANGE" and isinstance(error.answer, dict) and at is not None:
                    at = self._inside(node, at, error.answer)
                    continue
                if not troubled:
                    self._say(f"{error}; trying again")
                    troubled = True
                await asyncio.sleep(_PAUSE)
            except LapwingError as error:
                await queue.put(error)
                return

    async def _news(self, node: Node, at: int | None, start: Start) -> Json | None:
        """The log's facts: now if we know nothing of it yet, else when it has grown beyond `at` or nothing happened."""
        if at is None:
            return await self.facts(node, start)
        parameters = {"topic": self._topic, "after": f"{self._topic}:{at}", "wait_ms": str(_WAIT)}
        said = await self._http.get(node.contact, "/log/offsets", parameters, timeout=_WAIT / 1000 + 5)
        found: list[Json] = said.get("topics") or []
        return found[0] if found else None


def _entry(node: Node, message: Json) -> Entry:
    body = message["body"]
    content = base64.b64decode(message["body_base64"]) if body is None else body.encode()
    return Entry(int(message["timestamp"]), node.name, int(message["sequence"]), str(message["id"]),
                 int(message["attempts"]), content, dict(message.get("headers") or {}))


def line(entry: Entry, topic: str, *, as_json: bool, facts: bool, terminal: bool) -> bytes:
    """A message as one line of output; what a terminal would take for commands is shown, not obeyed."""
    if as_json:
        return json.dumps(entry.as_json(topic), ensure_ascii=False).encode() + b"\n"
    body = printable(entry.body) if terminal else entry.body
    if not facts:
        return body + b"\n"
    headers = f"  {json.dumps(entry.headers, ensure_ascii=False)}" if entry.headers else ""
    return f"{entry.sequence}  {clock_time(entry.timestamp)}{headers}  ".encode() + body + b"\n"


def printable(body: bytes) -> bytes:
    """The body with control characters written out."""
    text = body.decode("utf-8", "backslashreplace")
    shown = "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)
    return shown.encode("utf-8", "backslashreplace")


def decoded(row: Any) -> Json:
    """A delivered message (of the client library) for scripts."""
    entry = Entry(row.timestamp, row.address, -1, row.id.decode("ascii", "replace"), row.attempts, row.body, {})
    told = entry.as_json(row.topic)
    del told["sequence"], told["headers"]
    return told
