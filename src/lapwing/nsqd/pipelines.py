"""What running pipelines say of themselves: kept in memory for a while, for whoever asks how they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from lapwing.net.answers import Answer, Refused, failure, nothing, value
from lapwing.net.requests import Request
from lapwing.net.routes import Route
from lapwing.nsqd.permissions import KNOWN

LARGEST: Final = 64 * 1024  # bytes of one status
MOST: Final = 1000
LONGEST_NAME: Final = 128
LIFETIME: Final = 600 * 1_000_000_000  # ns without an update after which a pipeline is forgotten


class Pipelines:
    """The last status of each pipeline."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._statuses: dict[str, tuple[int, dict[str, Any]]] = {}  # when, and what it said; the oldest first

    def routes(self) -> list[Route]:
        """For the table."""
        too_big = failure(413, "BODY_TOO_BIG")
        return [
            Route("GET", "/pipelines", self.list, access=KNOWN),
            Route(
                "POST", "/pipelines/<name>", self.update,
                max_body=LARGEST, too_big=too_big, logged=False, access=KNOWN,
            ),
        ]  # fmt: skip

    def update(self, request: Request) -> Answer:
        """Take the status of a pipeline, a JSON object, in the place of the one before."""
        name = request.parameter
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise Refused(400, "INVALID_NAME")
        try:
            status = json.loads(request.body)
        except (ValueError, RecursionError) as error:
            raise Refused(400, "INVALID_STATUS") from error
        if not isinstance(status, dict):
            raise Refused(400, "INVALID_STATUS")
        self._forget()
        self._statuses.pop(name, None)
        if len(self._statuses) >= MOST:
            raise Refused(503, "TOO_MANY_PIPELINES")
        self._statuses[name] = self._now(), status
        return nothing()

    def list(self, request: Request) -> Answer:
        """Every pipeline by name: what it said, and when it did (`updated_ms`, by our clock)."""
        self._forget()
        found = [
            {**status, "name": name, "updated_ms": updated // 1_000_000}
            for name, (updated, status) in sorted(self._statuses.items())
        ]
        return value({"pipelines": found})

    def _forget(self) -> None:
        """Drop those that have not been heard of for too long."""
        before = self._now() - LIFETIME
        for name, (updated, _) in list(self._statuses.items()):
            if updated > before:
                return
            del self._statuses[name]
