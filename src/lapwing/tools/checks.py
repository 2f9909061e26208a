"""Judge the health and lag of a cluster by rules, in the manner of Nagios plugins."""

import enum
from dataclasses import dataclass
from typing import Final

from lapwing import names
from lapwing.client.cluster import Json
from lapwing.client.cluster_view import ClusterView
from lapwing.client.format import duration, messages
from lapwing.client.pipeline_status import problem

_REASONS: Final = "it is a plain NSQ server, or /metrics is refused"


class Verdict(enum.IntEnum):
    """The judgement; the number is the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """The values from which something is a problem; None: never."""

    lag_warning: int | None = None  # messages that a channel has not finished
    lag_critical: int | None = None
    age_warning: float | None = None  # s that the oldest of them has waited
    age_critical: float | None = None
    held_warning: float | None = None  # s that a named consumer has held a message
    held_critical: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem, or one thing that could not be judged."""

    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """The judgement of everything."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    channels: int
    lag: int  # of the channel that is furthest behind
    oldest: float | None  # s; None: no server reports it

    def text(self, limits: CheckLimits) -> str:
        """Return one line for people, and after the bar the figures for graphs."""
        text = "; ".join(finding.text for finding in self.findings if finding.verdict)
        if not text:
            oldest = "age of the oldest message unknown"
            if self.oldest is not None:
                oldest = f"oldest message {duration(self.oldest)}"
            text = f"{self.channels} channels, largest lag {self.lag:,}, {oldest}"
        figures = f"lag={self.lag};{_shown(limits.lag_warning)};{_shown(limits.lag_critical)}"
        if self.oldest is not None:
            figures += f" oldest={self.oldest:.3f}s;{_shown(limits.age_warning)};{_shown(limits.age_critical)}"
        return f"{self.verdict.name}: {text} | {figures}"


def _shown(limit: float | None) -> str:
    return "" if limit is None else f"{limit:g}"


def lag(channel: Json) -> int:
    """Return the number of messages that a channel has not finished."""
    return int(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"])


def judge(
    view: ClusterView, limits: CheckLimits, *, topic: str = "", channel: str = "", everything: bool = False
) -> Report:
    """Return the verdict on the cluster, or on one topic or channel of it: the worst of all findings.

    Of lapwing's own topics nothing is found unless one is named or `everything` is asked for: they need no consumer.
    """
    view = view if topic or everything else view.users()
    findings = [Finding(Verdict.CRITICAL, error) for error in view.errors]
    findings += [Finding(Verdict.CRITICAL, f"{state.node.name} is not healthy: {state.health}")
                 for state in view.reachable if state.health != "OK"]  # fmt: skip
    chosen = [found for found in view.channels(topic) if channel in ("", found["channel_name"])]
    if not view.errors:
        if topic and topic not in view.topics:
            findings.append(Finding(Verdict.UNKNOWN, f"no topic {topic}"))
        elif channel and not chosen:
            findings.append(Finding(Verdict.UNKNOWN, f"no channel {channel} on {topic or 'any topic'}"))
    if limits.age_warning is not None or limits.age_critical is not None:
        findings += [Finding(Verdict.UNKNOWN, f"{state.node.name} does not report the age of messages: {_REASONS}")
                     for state in view.reachable if not state.lapwing]  # fmt: skip
    moved = view.pipeline_channels()
    for each in chosen:
        findings += _of_channel(each, view, limits, moved)
    if not channel:
        findings += [finding for name, found in view.topics.items() if topic in ("", name)
                     for finding in _of_topic(found, limits)]  # fmt: skip
    findings += [
        Finding(Verdict.CRITICAL if trouble.startswith(("failed", "no report")) else Verdict.WARNING,
                f"pipeline {pipeline.get('name')}: {trouble}")
        for pipeline in view.pipelines or ()
        if _concerns(pipeline, topic, channel) and (trouble := problem(pipeline, now=view.at))
    ]  # fmt: skip
    ages = [view.ages.get((each["topic_name"], each["channel_name"]), 0.0) for each in chosen]
    known = any(state.lapwing for state in view.reachable)
    # unknown is no worse than critical, although its number is higher
    order = [Verdict.OK, Verdict.WARNING, Verdict.UNKNOWN, Verdict.CRITICAL]
    worst = max((finding.verdict for finding in findings), key=order.index, default=Verdict.OK)
    return Report(worst, tuple(findings), len(chosen), max((lag(each) for each in chosen), default=0),
                  max(ages, default=0.0) if known else None)  # fmt: skip


def _concerns(pipeline: Json, topic: str, channel: str) -> bool:
    return (not topic or topic in (pipeline.get("topics") or ())) and channel in ("", pipeline.get("channel"))


def _of_channel(channel: Json, view: ClusterView, limits: CheckLimits, moved: set[tuple[str, str]]) -> list[Finding]:
    key = channel["topic_name"], channel["channel_name"]
    name = "/".join(key)
    findings = []
    behind = lag(channel)
    if (verdict := _over(behind, limits.lag_warning, limits.lag_critical)) is not Verdict.OK:
        more = ""
        if channel["paused"]:
            more = ", and it is paused"
        elif names.dead_letters(*key):
            more = ": dead letters that nobody has dealt with"
        elif not channel["client_count"] and not channel.get("consumers") and key not in moved:
            more = ", and it has no consumer"
        findings.append(Finding(verdict, f"{name} is {messages(behind)} behind{more}"))
    age = view.ages.get(key, 0.0)
    if (verdict := _over(age, limits.age_warning, limits.age_critical)) is not Verdict.OK:
        findings.append(Finding(verdict, f"the oldest message of {name} has waited {duration(age)}"))
    for each in channel.get("consumers", ()):
        verdict = _over(each["oldest_seconds"], limits.held_warning, limits.held_critical)
        if verdict is not Verdict.OK:
            held = f"consumer {each['name']} of {name} holds {messages(each['in_flight_count'])}"
            findings.append(Finding(verdict, f"{held}, the oldest for {duration(each['oldest_seconds'])}"))
    return findings


def _of_topic(topic: Json, limits: CheckLimits) -> list[Finding]:
    """Check a topic without a channel, which keeps all messages, by the limits of lag."""
    verdict = Verdict.OK if topic["channels"] else _over(topic["depth"], limits.lag_warning, limits.lag_critical)
    text = f"{topic['topic_name']} has no channel and keeps {messages(topic['depth'])}"
    return [Finding(verdict, text)] if verdict is not Verdict.OK else []


def _over(value: float, warning: float | None, critical: float | None) -> Verdict:
    if critical is not None and value >= critical:
        return Verdict.CRITICAL
    return Verdict.WARNING if warning is not None and value >= warning else Verdict.OK
