"""`/pipelines`: the last status that each pipeline has reported, kept in memory for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from lapwing.net.server.answers import Answer, Refused, nothing, value
from lapwing.net.server.requests import Request
from lapwing.net.server.routes import Route
from lapwing.nsqd.http.document import parse_json
from lapwing.nsqd.http.permissions import KNOWN

LARGEST: Final = 64 * 1024  # bytes of one status
MOST: Final = 1000
LONGEST_NAME: Final = 128
LIFETIME: Final = 600 * 1_000_000_000  # ns for which a pipeline is kept that ended as it should
LONG_LIFETIME: Final = 86_400 * 1_000_000_000  # ns for which one is kept that failed or fell silent
SILENT: Final = 15 * 1_000_000_000  # ns without a report after which a pipeline is silent: it reports every second
ENDED: Final = ("finished", "stopped", "failed")
_BAD: Final = ("failed", "silent")

Samples = Sequence[tuple[dict[str, str], float]]  # labels and a number


def _seconds(ms: Any) -> float | None:
    """Return the seconds of a number of ms; None where it is none."""
    return max(ms, 0) / 1000 if isinstance(ms, int) else None


def _age(moment: Any, now: int) -> float | None:
    """Return the seconds since a time in ms; None where it is not known."""
    return _seconds(now - moment) if isinstance(moment, int) and moment else None


# name, type, help, and the number of a status at a time (ms); a status that does not have it has no sample
_METRICS: Final[tuple[tuple[str, str, str, Callable[[dict[str, Any], int], Any]], ...]] = (
    ("rows_in_total", "counter", "Messages read since the run began.", lambda each, now: each.get("rows_in")),
    ("rows_out_total", "counter", "Rows written since the run began.", lambda each, now: each.get("rows_out")),
    ("rejected_total", "counter", "Messages rejected since the run began.", lambda each, now: each.get("rejected")),
    ("late_total", "counter", "Rows that came after the watermark.", lambda each, now: each.get("late")),
    ("lag", "gauge", "Messages that are published and not read.", lambda each, now: each.get("lag")),
    ("input_rate", "gauge", "Messages read per second.", lambda each, now: each.get("input_rate")),
    ("batch_seconds", "gauge", "Duration of the last batch.", lambda each, now: _seconds(each.get("batch_ms"))),
    ("batch_age_seconds", "gauge", "Time since the last batch.", lambda each, now: _age(each.get("batch_at_ms"), now)),
    ("report_age_seconds", "gauge", "Time since the last report.", lambda each, now: _age(each["updated_ms"], now)),
    ("failed", "gauge", "1 if it has failed or fallen silent.", lambda each, now: each.get("state") in _BAD),
)


class Pipelines:
    """The last status of each pipeline."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._statuses: dict[str, tuple[int, dict[str, Any]]] = {}  # the time and the status; the oldest first

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/pipelines", self.list, access=KNOWN),
            Route("POST", "/pipelines/<name>", self.update, max_body=LARGEST, logged=False, access=KNOWN),
            Route("DELETE", "/pipelines/<name>", self.delete, access=KNOWN),
        ]

    def update(self, request: Request) -> Answer:
        """Take the status of a pipeline, a JSON object, in the place of the one before."""
        name = request.parameter
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise Refused(400, "INVALID_NAME")
        status = parse_json(request.body, "INVALID_STATUS")
        if not isinstance(status, dict):
            raise Refused(400, "INVALID_STATUS")
        self._forget()
        self._statuses.pop(name, None)
        if len(self._statuses) >= MOST:
            raise Refused(503, "TOO_MANY_PIPELINES")
        self._statuses[name] = self._now(), status
        return nothing()

    def list(self, request: Request) -> Answer:
        """Return every pipeline by name: what it reported, and when (`updated_ms`, by our clock).

        One that should report and does not is `silent`: its lag and rates are not known any more.
        """
        return value({"pipelines": self._known()})

    def samples(self) -> Iterator[tuple[str, str, str, Samples]]:
        """Yield the metrics of pipelines: name, type, help, and the samples by label."""
        known = self._known()
        for name, kind, text, count in _METRICS:
            found = []
            for status in known:
                number = count(status, self._now() // 1_000_000)
                if isinstance(number, int | float):
                    found.append(({"pipeline": status["name"], "kind": str(status.get("kind", ""))}, float(number)))
            yield f"lapwing_pipeline_{name}", kind, text, found

    def delete(self, request: Request) -> Answer:
        """Drop a pipeline that was removed."""
        if self._statuses.pop(request.parameter, None) is None:
            raise Refused(404, "PIPELINE_NOT_FOUND")
        return nothing()

    def _known(self) -> Sequence[dict[str, Any]]:
        self._forget()
        return [self._judged(name, updated, status) for name, (updated, status) in sorted(self._statuses.items())]

    def _judged(self, name: str, updated: int, status: dict[str, Any]) -> dict[str, Any]:
        known = {**status, "name": name, "updated_ms": updated // 1_000_000}
        if status.get("state") not in ENDED and self._now() - updated > SILENT:
            known |= {"state": "silent", "reported_state": status.get("state"), "lag": None}
            known |= {"input_rate": 0, "processed_rate": 0}
        return known

    def _forget(self) -> None:
        """Drop pipelines that have not reported for too long."""
        now = self._now()
        for name, (updated, status) in list(self._statuses.items()):
            kept = LIFETIME if status.get("state") in ("finished", "stopped") else LONG_LIFETIME
            if now - updated >= kept:
                del self._statuses[name]
