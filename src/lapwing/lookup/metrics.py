"""nsqlookupd's counts in Prometheus' text format."""

import resource
from collections.abc import Iterator

from lapwing.lookup.registry import Registry
from lapwing.net.server import prometheus
from lapwing.records import dataclass


@dataclass(slots=True)
class LookupCounts:
    """LookupCounts since the start."""

    started: float  # Unix seconds
    peers: int = 0  # connections of nsqds, now
    peers_total: int = 0
    refused: int = 0  # those that were too many
    answers: int = 0  # to peers' commands
    lookups: int = 0
    requests: int = 0  # HTTP requests answered; filled in when asked


def exposition(registry: Registry, counts: LookupCounts, *, now: int) -> str:
    """Return all metrics in Prometheus' text format."""
    lines = _lines(registry, counts, now)
    return "".join(prometheus.single(name, kind, text, value) for name, kind, value, text in lines)


def _lines(registry: Registry, counts: LookupCounts, now: int) -> Iterator[tuple[str, str, float, str]]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    topics = registry.topics
    yield "lapwing_lookup_topics", "gauge", len(topics), "Topics that are registered."
    yield "lapwing_lookup_channels", "gauge", len(registry) - len(topics), "Channels that are registered."
    yield "lapwing_lookup_producers", "gauge", len(registry.producers), "Connected nsqds."
    yield "lapwing_lookup_producers_active", "gauge", len(registry.active(now=now)), "Active nsqds."
    yield "lapwing_lookup_peers", "gauge", counts.peers, "Open connections of nsqds."
    yield "lapwing_lookup_peers_total", "counter", counts.peers_total, "Connections of nsqds since the start."
    yield "lapwing_lookup_peers_refused_total", "counter", counts.refused, "Connections refused."
    yield "lapwing_lookup_answers_total", "counter", counts.answers, "Commands of nsqds that were answered."
    yield "lapwing_lookup_lookups_total", "counter", counts.lookups, "Lookups of a topic."
    yield "lapwing_lookup_http_requests_total", "counter", counts.requests, "HTTP requests answered."
    yield "process_start_time_seconds", "gauge", counts.started, "Start of the process, in Unix seconds."
    yield "process_cpu_seconds_total", "counter", used.ru_utime + used.ru_stime, "CPU time used."
    yield "process_resident_memory_max_bytes", "gauge", used.ru_maxrss * 1024, "Most memory held so far."
