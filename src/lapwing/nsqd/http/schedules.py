"""`/schedules`: messages that the broker publishes by itself."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from lapwing.broker.schedules.schedules import Schedule
from lapwing.broker.settings import times
from lapwing.net.server.answers import Answer, Refused, nothing, value
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Reply, Route
from lapwing.nsqd.http.document import parse_json, whole_parameter
from lapwing.nsqd.http.publishing import Settled
from lapwing.nsqd.turn import Turn

_LARGEST: Final = 256 * 1024  # of a document, whose body may be base64
_MOST_NEXT: Final = 100
_EXAMPLE: Final = '{"topic": "reports", "body": "nightly", "every": "5m"}'


class SchedulesApi:
    def __init__(self, turn: Turn) -> None:
        self._broker, self._now, self._schedule_flush = turn.broker, turn.clock.now, turn.schedule_flush
        self._schedules = turn.broker.schedules

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/schedules", self.list),
            Route("GET", "/schedules/<name>", self.show),
            Route("PUT", "/schedules/<name>", self.put, max_body=_LARGEST),
            Route("DELETE", "/schedules/<name>", self.remove),
            Route("POST", "/schedules/run/<name>", self.run),
            Route("POST", "/schedules/pause/<name>", self.pause),
            Route("POST", "/schedules/resume/<name>", self.resume),
        ]

    async def list(self, request: Request) -> Answer:
        """Answer with all schedules; with `next=N` each names so many of its ticks to come."""
        count = _count(request)
        shown: list[dict[str, Any]] = []
        for each in self._schedules.all():
            shown.append(self._shown(each, count))
            await asyncio.sleep(0)  # others get their turn
        return value({"schedules": shown})

    def show(self, request: Request) -> Answer:
        return value(self._shown(self._existing(request), _count(request)))

    def put(self, request: Request) -> Answer:
        """Add a schedule, or change the one of its name."""
        document = parse_json(request.body, f"a JSON object expected in the body, such as {_EXAMPLE}")
        return value(self._shown(self._schedules.put(request.parameter, document, now=self._now()), _count(request)))

    def remove(self, request: Request) -> Answer:
        self._schedules.remove(self._existing(request).definition.name)
        return nothing()

    def run(self, request: Request) -> Reply:
        """Publish its message now; answered when the log has it."""
        answer = Settled()
        self._schedules.run(self._existing(request), answer, now=self._now())
        self._schedule_flush()
        return answer

    def pause(self, request: Request) -> Answer:
        """Leave out its ticks from now on."""
        return self._set_paused(request, True)

    def resume(self, request: Request) -> Answer:
        """Publish its ticks again; those that came meanwhile are left out."""
        return self._set_paused(request, False)

    def _set_paused(self, request: Request, paused: bool) -> Answer:
        found = self._schedules.set_paused(self._existing(request), paused, now=self._now())
        return value(self._shown(found, _count(request)))

    def _existing(self, request: Request) -> Schedule:
        found = self._schedules.get(request.parameter)
        if found is None:
            raise Refused(404, "SCHEDULE_NOT_FOUND")
        return found

    def _shown(self, schedule: Schedule, count: int) -> dict[str, Any]:
        wall = self._now() + self._broker.skew
        return {
            "name": schedule.definition.name,
            **schedule.definition.document(),
            "state": schedule.state,
            "next": [times.show(tick) for tick in schedule.upcoming(wall, count)],
            "last": times.show(schedule.ran),
            "published": schedule.published,
            "missed": schedule.missed,
            "problem": schedule.problem,
        }


def _count(request: Request) -> int:
    return min(whole_parameter(request.query, "next", 1), _MOST_NEXT)
