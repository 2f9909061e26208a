"""lapwing check: health and lag for monitoring."""

import json
import sys
from typing import Annotated

from lapwing.cli import shared
from lapwing.cli.commands import Option, command
from lapwing.errors import ConfigError

Lag = Annotated[int, Option(min=0, help="Unfinished messages that a channel may have; 0: any number.")]
Age = Annotated[str, Option(help="How long the oldest message may have waited: 90s, 10m.")]
Held = Annotated[str, Option(help="How long a named consumer, of a Redis client, may hold a message; 0s: any time.")]


@command(
    usage_error=3,
    example="lapwing check --topic orders --lag-warning 1000 --lag-critical 100000 --age-critical 10m",
)
def app(
    topic: Annotated[str, Option(help="Only this topic.", complete=shared.known_topics)] = "",
    channel: Annotated[str, Option(help="Only channels of this name.", complete=shared.known_channels)] = "",
    lag_warning: Lag = 0,
    lag_critical: Lag = 0,
    age_warning: Age = "",
    age_critical: Age = "",
    held_warning: Held = "15m",
    held_critical: Held = "",
    everything: shared.All = False,
    cluster: shared.ClusterFlags = shared.ClusterFlags(),  # noqa: B008  frozen
    as_json: shared.Json = False,
) -> None:
    """Check the health of every node, and the lag and the oldest message of every channel, in one line.

    A named consumer (of a Redis client) has no timeout, so a message that it has held for long is a finding, too.

    Exit codes are those of monitoring plugins: 0 OK, 1 warning, 2 critical (also when a node does not answer or
    cannot write), 3 unknown (no such topic or channel, a server that does not report ages, or a bad option).
    """
    from lapwing.client.alarms import Bounds
    from lapwing.client.format import SECOND, parse_span
    from lapwing.tools.checks import Verdict, check_limits, judge

    def seconds(text: str, flag: str) -> float | None:
        return parse_span(text, flag) / SECOND if text else None

    try:
        limits = check_limits(
            lag=Bounds(lag_warning or None, lag_critical or None),
            oldest=Bounds(seconds(age_warning, "--age-warning"), seconds(age_critical, "--age-critical")),
            held=Bounds(
                seconds(held_warning, "--held-warning") or None, seconds(held_critical, "--held-critical") or None
            ),
        )
        view = shared.asked(cluster, lambda client: client.look(ages=True, pipelines=True))
    except ConfigError as error:
        print(f"UNKNOWN: {error}")
        sys.exit(int(Verdict.UNKNOWN))
    report = judge(view, limits, topic=topic, channel=channel, everything=everything)
    if as_json:
        findings = [{"verdict": finding.verdict.name, "text": finding.text} for finding in report.findings]
        print(json.dumps({"verdict": report.verdict.name, "lag": report.lag, "oldest_seconds": report.oldest,
                          "findings": findings}, indent=2))  # fmt: skip
    else:
        print(report.text(limits))
    sys.exit(int(report.verdict))
