"""Is all well? Pure rules over one picture, in the manner of Nagios plugins."""

import enum
from dataclasses import dataclass

from lapwing.client.cluster import Json
from lapwing.client.cluster_view import ClusterView
from lapwing.client.format import duration


class Verdict(enum.IntEnum):
    """How it is; the number is the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on something counts; None: never."""

    lag_warning: int | None = None  # messages that a channel has not finished
    lag_critical: int | None = None
    age_warning: float | None = None  # s that the oldest of them has waited
    age_critical: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was seen."""

    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class Report:
    """All of it."""

    verdict: Verdict
    findings: tuple[Finding, ...]
    channels: int
    lag: int  # of the channel that is furthest behind
    oldest: float  # s

    def text(self, limits: Limits) -> str:
        """One line for people, and after the bar the figures for graphs."""
        said = "; ".join(finding.text for finding in self.findings if finding.verdict)
        said = said or f"{self.channels} channels, largest lag {self.lag:,}, oldest message {duration(self.oldest)}"
        figures = (f"lag={self.lag};{_shown(limits.lag_warning)};{_shown(limits.lag_critical)} "
                   f"oldest={self.oldest:.3f}s;{_shown(limits.age_warning)};{_shown(limits.age_critical)}")
        return f"{self.verdict.name}: {said} | {figures}"


def _shown(limit: float | None) -> str:
    return "" if limit is None else f"{limit:g}"


def lag(channel: Json) -> int:
    """Messages that a channel has not finished."""
    return int(channel["depth"] + channel["in_flight_count"] + channel["deferred_count"])


def judge(picture: ClusterView, limits: Limits, *, topic: str = "", channel: str = "") -> Report:
    """The verdict on the cluster, or on one topic or channel of it: the worst of all findings.

    Of lapwing's own topics nothing is found unless one is named: nobody has to consume them.
    """
    picture = picture if topic else picture.users()
    findings = [Finding(Verdict.CRITICAL, error) for error in picture.errors]
    findings += [Finding(Verdict.CRITICAL, f"{state.node.name} is not healthy: {state.health}")
                 for state in picture.reachable if state.health != "OK"]
    chosen = [found for found in picture.channels(topic) if channel in ("", found["channel_name"])]
    if not picture.errors:
        if topic and topic not in picture.topics:
            findings.append(Finding(Verdict.UNKNOWN, f"no topic {topic}"))
        elif channel and not chosen:
            findings.append(Finding(Verdict.UNKNOWN, f"no channel {channel} on {topic or 'any topic'}"))
    for each in chosen:
        findings += _of_channel(each, picture, limits)
    if not channel:
        findings += [finding for name, found in picture.topics.items() if topic in ("", name)
                     for finding in _of_topic(found, limits)]
    ages = [picture.ages.get((each["topic_name"], each["channel_name"]), 0.0) for each in chosen]
    # unknown is no worse than critical, whatever its number says
    order = [Verdict.OK, Verdict.WARNING, Verdict.UNKNOWN, Verdict.CRITICAL]
    worst = max((finding.verdict for finding in findings), key=order.index, default=Verdict.OK)
    return Report(worst, tuple(findings), len(chosen), max((lag(each) for each in chosen), default=0),
                  max(ages, default=0.0))


def _of_channel(channel: Json, picture: ClusterView, limits: Limits) -> list[Finding]:
    name = f"{channel['topic_name']}/{channel['channel_name']}"
    findings = []
    behind = lag(channel)
    if (verdict := _over(behind, limits.lag_warning, limits.lag_critical)) is not Verdict.OK:
        more = ", and it is paused" if channel["paused"] else "" if channel["client_count"] else ", and nobody consumes"
        findings.append(Finding(verdict, f"{name} is {behind:,} messages behind{more}"))
    age = picture.ages.get((channel["topic_name"], channel["channel_name"]), 0.0)
    if (verdict := _over(age, limits.age_warning, limits.age_critical)) is not Verdict.OK:
        findings.append(Finding(verdict, f"the oldest message of {name} has waited {duration(age)}"))
    return findings


def _of_topic(topic: Json, limits: Limits) -> list[Finding]:
    """A topic that nobody has a channel on keeps everything: the same limit counts."""
    verdict = Verdict.OK if topic["channels"] else _over(topic["depth"], limits.lag_warning, limits.lag_critical)
    text = f"{topic['topic_name']} has no channel and keeps {topic['depth']:,} messages"
    return [Finding(verdict, text)] if verdict is not Verdict.OK else []


def _over(value: float, warning: float | None, critical: float | None) -> Verdict:
    if critical is not None and value >= critical:
        return Verdict.CRITICAL
    return Verdict.WARNING if warning is not None and value >= warning else Verdict.OK
