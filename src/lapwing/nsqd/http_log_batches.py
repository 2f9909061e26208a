"""`/log/ranges` and `/channel/commits`: many small topics read, and their channels moved, with one request."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

from lapwing.broker.broker import Broker
from lapwing.broker.topic import Topic
from lapwing.errors import LapwingError
from lapwing.net.answers import Answer, Refused, StreamedAnswer, failure, value
from lapwing.net.requests import Request
from lapwing.net.routes import Reply, Route
from lapwing.nsqd.http_authorization import require
from lapwing.nsqd.http_errors import refusal
from lapwing.nsqd.http_log import FRAMES, LogApi, range_blocks, same_log
from lapwing.nsqd.permissions import KNOWN, READ, USE_CHANNEL
from lapwing.nsqd.publishing import named

MAX_BODY: Final = 1 << 20
MAX_ENTRIES: Final = 10_000


class LogBatches:
    """The routes."""

    def __init__(self, broker: Broker, api: LogApi) -> None:
        self._broker = broker
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes, for the table."""
        too_big = failure(413, "BODY_TOO_BIG")
        return [
            Route("POST", "/log/ranges", self.read, max_body=MAX_BODY, too_big=too_big, logged=False, access=KNOWN),
            Route(
                "POST", "/channel/commits", self.commit, max_body=MAX_BODY, too_big=too_big, logged=False, access=KNOWN
            ),
        ]

    def read(self, request: Request) -> Reply:
        """Return the messages of some ranges as raw blocks, one range after the other.

        The body is a JSON array of [topic, log id, from, to]. A range that cannot be read whole refuses them all.
        """
        query = request.query
        channel = query.get("channel", "")
        ranges: list[tuple[Topic, int, int]] = []
        for index, entry in enumerate(_entries(request)):
            match entry:
                case [str() as name, str() as log_id, int() as start, int() as stop]:
                    require(request, READ, name, channel)
                    ranges.append((self._checked(index, name, log_id, start, stop), start, stop))
                case _:
                    raise Refused(400, "INVALID_RANGE", index=index)
        headers = query.get("headers") not in ("false", "0")
        positions = query.get("positions") not in ("false", "0")
        files = request.caller.near and query.get("files") in ("true", "1")
        share = self._api.share()

        async def pieces() -> AsyncIterator[bytes | memoryview]:
            for topic, start, stop in ranges:
                async for piece in range_blocks(
                    topic, start, stop, share, headers=headers, positions=positions, files=files
                ):
                    yield piece

        return StreamedAnswer(200, content_type=FRAMES, pieces=pieces())

    def _checked(self, index: int, name: str, log_id: str, start: int, stop: int) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise Refused(404, "TOPIC_NOT_FOUND", index=index)
        same_log(topic, log_id)
        if not topic.log.first <= start <= stop <= topic.log.end:
            raise Refused(416, "OUT_OF_RANGE", index=index, first=topic.log.first, next=topic.log.end)
        return topic

    def commit(self, request: Request) -> Answer:
        """Move one channel of many topics; return which were not moved, and why.

        The body is a JSON array of [topic, log id, sequence].
        """
        query = request.query
        name = named(request.head, "channel", "INVALID_ARG_CHANNEL")
        create, back = query.get("create") in ("true", "1"), query.get("back") in ("true", "1")
        entries = _entries(request)
        for index, entry in enumerate(entries):
            match entry:
                case [str() as topic_name, str(), int()]:
                    require(request, USE_CHANNEL, topic_name, name)
                case _:
                    raise Refused(400, "INVALID_COMMIT", index=index)
        refused: list[dict[str, Any]] = []
        for topic_name, log_id, sequence in entries:
            topic = self._broker.topics.get(topic_name)
            try:
                if topic is None:
                    raise Refused(404, "TOPIC_NOT_FOUND")
                same_log(topic, log_id)
                self._api.move(topic, name, sequence, create=create, back=back)
            except LapwingError as error:
                why = refusal(error)
                if why is None:
                    raise
                refused.append({"topic": topic_name, "status": why.status, "message": why.code})
        self._api.schedule()
        return value({"moved": len(entries) - len(refused), "refused": refused})


def _entries(request: Request) -> list[Any]:
    try:
        found = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "INVALID_BODY") from error
    if not isinstance(found, list) or len(found) > MAX_ENTRIES:
        raise Refused(400, "INVALID_BODY")
    return found
