"""The alarms of a cluster as one line with a verdict, in the manner of Nagios plugins."""

import enum
from dataclasses import dataclass
from typing import Final

from lapwing.client.alarms import Alarm, AlarmLimits, Bounds, Past, alarms, lag
from lapwing.client.cluster_view import ClusterView
from lapwing.client.format import duration

_REASONS: Final = "it is a plain NSQ server, or /metrics is refused"


class Verdict(enum.IntEnum):
    """The judgement; the number is the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


_SEVERITIES: Final = {"error": Verdict.CRITICAL, "warning": Verdict.WARNING, "info": Verdict.OK}


def check_limits(*, lag: Bounds = Bounds(), oldest: Bounds = Bounds(), held: Bounds = Bounds()) -> AlarmLimits:  # noqa: B008  frozen
    """Return the limits of a check: it finds late what is beyond the given bounds, and nothing else."""
    return AlarmLimits(lag=lag, oldest=oldest, held=held, buffered=lag, age=float("inf"))


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

    def text(self, limits: AlarmLimits) -> str:
        """Return one line for people, and after the bar the figures for graphs."""
        text = "; ".join(finding.text.removesuffix(".") for finding in self.findings)
        if not text:
            oldest = "age of the oldest message unknown"
            if self.oldest is not None:
                oldest = f"oldest message {duration(self.oldest)}"
            text = f"{self.channels} channels, largest lag {self.lag:,}, {oldest}"
        figures = f"lag={self.lag};{_shown(limits.lag)}"
        if self.oldest is not None:
            figures += f" oldest={self.oldest:.3f}s;{_shown(limits.oldest)}"
        return f"{self.verdict.name}: {text} | {figures}"


def _shown(bounds: Bounds) -> str:
    return ";".join("" if bound is None else f"{bound:g}" for bound in (bounds.warning, bounds.error))


def judge(
    view: ClusterView, limits: AlarmLimits, *, topic: str = "", channel: str = "", everything: bool = False
) -> Report:
    """Return the verdict on the cluster, or on one topic or channel of it: the worst of all findings.

    Of lapwing's own topics nothing is found unless one is named or `everything` is asked for: they need no consumer.
    """
    view = view if topic or everything else view.users()
    chosen = [found for found in view.channels(topic) if channel in ("", found["channel_name"])]
    findings = [
        Finding(_SEVERITIES[alarm.severity], alarm.text)
        for alarm in alarms(view, Past(view.ages), limits, own=True)
        if alarm.severity != "info" and _concerns(alarm, view, topic, channel)
    ]
    if not view.errors:
        if topic and topic not in view.topics:
            findings.append(Finding(Verdict.UNKNOWN, f"no topic {topic}"))
        elif channel and not chosen:
            findings.append(Finding(Verdict.UNKNOWN, f"no channel {channel} on {topic or 'any topic'}"))
    if limits.oldest != Bounds():
        findings += [Finding(Verdict.UNKNOWN, f"{state.node.name} does not report the age of messages: {_REASONS}")
                     for state in view.reachable if not state.lapwing]  # fmt: skip
    ages = [view.ages.get((each["topic_name"], each["channel_name"]), 0.0) for each in chosen]
    known = any(state.lapwing for state in view.reachable)
    # unknown is no worse than critical, although its number is higher
    order = [Verdict.OK, Verdict.WARNING, Verdict.UNKNOWN, Verdict.CRITICAL]
    worst = max((finding.verdict for finding in findings), key=order.index, default=Verdict.OK)
    return Report(worst, tuple(findings), len(chosen), max((lag(each) for each in chosen), default=0),
                  max(ages, default=0.0) if known else None)  # fmt: skip


def _concerns(alarm: Alarm, view: ClusterView, topic: str, channel: str) -> bool:
    """Return whether an alarm is about what was asked for; a daemon in trouble always is."""
    match alarm.kind:
        case "topic":
            return topic in ("", alarm.about) and not channel
        case "channel":
            own_topic, own_channel = alarm.about.split("/")
            return topic in ("", own_topic) and channel in ("", own_channel)
        case "pipeline":
            pipeline = next(each for each in view.pipelines or () if each.get("name") == alarm.about)
            return (not topic or topic in (pipeline.get("topics") or ())) and channel in ("", pipeline.get("channel"))
    return True
