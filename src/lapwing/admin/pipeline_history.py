"""The batches of pipelines since nsqadmin started, from their reports: pure."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from lapwing.client.cluster import Json

MOST: Final = 1000  # batches kept of each pipeline


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch, or several that ended between two reports."""

    at: float  # Unix seconds of its end
    rows_in: float | None  # None: not known, as the batches before were not seen
    rows_out: float | None
    took: float  # seconds
    lag: float | None  # messages that it left unread


class PipelineHistory:
    """Keep the batches of each pipeline, by name."""

    def __init__(self) -> None:
        self.batches: dict[str, deque[Batch]] = {}
        self._last: dict[str, Json] = {}

    def sample(self, pipelines: Iterable[Json]) -> None:
        """Add the batches of these reports that were not known yet, and drop pipelines that are gone."""
        reports = {str(each["name"]): each for each in pipelines}
        for gone in self._last.keys() - reports.keys():
            del self._last[gone]
            self.batches.pop(gone, None)
        for name, report in reports.items():
            before, ended = self._last.get(name), report.get("batch_at_ms")
            if not ended or (before is not None and before.get("batch_at_ms") == ended):
                continue
            self._last[name] = report
            self.batches.setdefault(name, deque(maxlen=MOST)).append(
                Batch(
                    ended / 1000,
                    _grown(before, report, "rows_in"),
                    _grown(before, report, "rows_out"),
                    (report.get("batch_ms") or 0) / 1000,
                    report.get("lag"),
                )
            )


def _grown(before: Json | None, now: Json, name: str) -> float | None:
    """Return how much a count has grown; a run that began again counts from 0."""
    count, past = now.get(name), before.get(name) if before is not None else None
    if count is None or past is None:
        return None
    return float(count - past if count >= past else count)
