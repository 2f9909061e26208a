"""`/drain` and `/undrain`: empty a node before it is taken away."""

from __future__ import annotations

from typing import Any, Final

from lapwing import durations
from lapwing.broker.broker import Broker
from lapwing.broker.settings import times
from lapwing.net.logs import Log
from lapwing.net.server.answers import Answer, Refused, value
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Route
from lapwing.nsqd.http.document import read_document
from lapwing.nsqd.http.permissions import KNOWN
from lapwing.nsqd.turn import Turn

_EXAMPLE: Final = '{"deadline": "10m"}'


class DrainApi:
    def __init__(self, turn: Turn, log: Log) -> None:
        self._broker, self._now, self._schedule_flush = turn.broker, turn.clock.now, turn.schedule_flush
        self._log = log

    def routes(self) -> list[Route]:
        return [
            Route("POST", "/drain", self.drain, max_body=4096),
            Route("GET", "/drain", self.show, access=KNOWN),
            Route("POST", "/undrain", self.undrain),
        ]

    def drain(self, request: Request) -> Answer:
        """Refuse new messages from now on; consumers are served until the node is empty or the deadline has passed."""
        deadline = read_document(request, ("deadline",), _EXAMPLE).get("deadline", "")
        now = self._now()
        until = 0
        if deadline != "":
            try:
                until = now + durations.parse(deadline)
            except (ValueError, TypeError, AttributeError) as error:
                raise Refused(400, 'deadline: a duration such as "10m" expected') from error
            if until <= now:
                raise Refused(400, "deadline: a duration above 0 expected")
        self._broker.begin_drain(now=now, deadline=until)
        self._broker.checkpoint(now=now)
        self._log.info(f"draining: no new messages are taken{f', deliveries end in {deadline}' if until else ''}")
        self._schedule_flush()
        return self.show(request)

    def undrain(self, request: Request) -> Answer:
        """Take messages again."""
        if self._broker.drain is not None:
            self._broker.end_drain()
            self._log.info("no longer draining: messages are taken again")
            self._schedule_flush()
        return self.show(request)

    def show(self, request: Request) -> Answer:
        """Answer how far a drain has come."""
        return value(drain_object(self._broker, self._now()) or {"state": "none"})


def drain_object(broker: Broker, now: int) -> dict[str, Any] | None:
    """Return how far a drain has come, as JSON; None while there is none."""
    if broker.drain is None:
        return None
    progress = broker.drain.progress(now)
    return {
        "state": progress.state,
        "since": times.show(progress.since),
        "deadline": times.show(progress.deadline),
        "messages": progress.messages,
        "topics": progress.topics,
    }
