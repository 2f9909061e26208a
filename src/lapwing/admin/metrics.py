"""`/metrics` in Prometheus' text format: pipelines as they report themselves, alarms, and the daemons of the cluster.

The names of pipelines' metrics are those of nsqd's `/metrics`: nsqadmin has every pipeline of the cluster once.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from lapwing.client.alarms import Alarm
from lapwing.client.cluster import Json
from lapwing.client.cluster_view import ClusterView
from lapwing.client.pipeline_status import problem
from lapwing.net.server import prometheus

Sample = tuple[dict[str, str], float]  # labels and a number
Figure = Callable[[Json, float], float | None]  # the number of a pipeline's status at a time in Unix seconds


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _of(field: str) -> Figure:
    """Return the figure of a field as it is."""
    return lambda status, _: _number(status.get(field))


def _living(field: str) -> Figure:
    """Return the figure of a field of a living pipeline: what a silent one last reported is not known to hold."""
    return lambda status, _: None if status.get("state") == "silent" else _number(status.get(field))


def _age(field: str) -> Figure:
    """Return the seconds since a time in ms; None where it is not known."""

    def age(status: Json, now: float) -> float | None:
        number = _number(status.get(field))
        return max(now - number / 1000, 0.0) if number else None

    return age


def _batch_seconds(status: Json, now: float) -> float | None:
    number = _number(status.get("batch_ms"))
    return None if number is None else max(number, 0) / 1000


def _failed(status: Json, now: float) -> float:
    return float(bool(problem(status, now=now)))


# name, type, help, and the number of a status; a status that does not have it has no sample
PIPELINE: Final[tuple[tuple[str, str, str, Figure], ...]] = (
    ("rows_in_total", "counter", "Messages read since the run began.", _of("rows_in")),
    ("rows_out_total", "counter", "Rows written since the run began.", _of("rows_out")),
    ("rejected_total", "counter", "Messages rejected since the run began.", _of("rejected")),
    ("late_total", "counter", "Rows that came after the watermark.", _of("late")),
    ("lag", "gauge", "Messages that are published and not read.", _living("lag")),
    ("input_rate", "gauge", "Messages read per second.", _living("input_rate")),
    ("batch_seconds", "gauge", "Duration of the last batch.", _batch_seconds),
    ("batch_age_seconds", "gauge", "Time since the last batch.", _age("batch_at_ms")),
    ("report_age_seconds", "gauge", "Time since the last report.", _age("updated_ms")),
    ("failed", "gauge", "1 if it has failed or fallen silent.", _failed),
)


def exposition(cluster_view: ClusterView, alarms: Iterable[Alarm], *, now: float) -> str:
    """Return all metrics as text; `now` is in Unix seconds."""
    return "".join(_lines(cluster_view, alarms, now))


def _lines(cluster_view: ClusterView, alarms: Iterable[Alarm], now: float) -> Iterator[str]:
    severities = Counter(alarm.severity for alarm in alarms)
    found = [({"severity": severity}, severities[severity]) for severity in ("error", "warning", "info")]
    yield from _family("lapwing_alarms", "gauge", "Alarms by severity.", found)
    answering = [({"node": state.node.name}, float(state.reachable)) for state in cluster_view.nodes]
    yield from _family("lapwing_nsqd_up", "gauge", "1 if the nsqd answers nsqadmin.", answering)
    lookupds = [({"address": address}, float(not error)) for address, error in cluster_view.lookupds]
    yield from _family("lapwing_nsqlookupd_up", "gauge", "1 if the nsqlookupd answers nsqadmin.", lookupds)
    pipelines = [
        ({"pipeline": str(each.get("name", "")), "kind": str(each.get("kind") or "")}, each)
        for each in cluster_view.pipelines or ()
    ]
    for name, kind, text, figure in PIPELINE:
        samples = [(labels, figure(each, now)) for labels, each in pipelines]
        known = [(labels, number) for labels, number in samples if number is not None]
        yield from _family(f"lapwing_pipeline_{name}", kind, text, known)


def _family(name: str, kind: str, text: str, samples: Sequence[Sample]) -> Iterator[str]:
    if samples:
        yield prometheus.head(name, kind, text)
    for labels, number in samples:
        yield prometheus.line(name, labels, float(number))
