"""The statuses that pipelines report to nsqd, merged over nodes and judged: one truth for every command and page."""

from collections.abc import Iterable
from typing import Final

from lapwing.client.cluster import Json
from lapwing.client.format import duration

SILENT_SECONDS: Final = 15.0  # a pipeline reports every second
ENDED: Final = ("stopped", "finished", "failed")


def newest(statuses: Iterable[Json]) -> tuple[Json, ...]:
    """Return one status for each pipeline, by name: the last one that any node has."""
    found: dict[str, Json] = {}
    for status in statuses:
        name = str(status.get("name", ""))
        if name not in found or _updated(status) >= _updated(found[name]):
            found[name] = status
    return tuple(found[name] for name in sorted(found))


def starting(status: Json) -> bool:
    """Return whether a pipeline has begun and not ended its first batch. Its topics may be patterns until then."""
    return status.get("state") in ("starting", "running") and int(status.get("batch_id", 0)) < 0


def silent_for(status: Json, *, now: float) -> float:
    """Return for how many seconds a pipeline that should report has not; 0 when it does or has ended."""
    if status.get("state") in ENDED:
        return 0.0
    silence = age(status, now=now)
    return silence if silence > SILENT_SECONDS else 0.0


def age(status: Json, *, now: float) -> float:
    """Return the seconds since a pipeline's last report."""
    return max(0.0, now - _updated(status))


def problem(status: Json, *, now: float) -> str:
    """Return why a pipeline does not work, in one line; empty when it works or was stopped on purpose."""
    if status.get("state") == "failed" or status.get("error"):
        text = str(status.get("error") or "it gave no reason").strip().partition("\n")[0]
        return f"failed: {text}"
    if silence := silent_for(status, now=now):
        return f"no report for {duration(silence)}: its process has ended, or it cannot reach this nsqd"
    if away := status.get("away"):
        return f"waits for brokers that are away: {'; '.join(map(str, away))}"
    return ""


def _updated(status: Json) -> float:
    return float(status.get("updated_ms") or 0) / 1000
