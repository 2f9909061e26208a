"""lapwing check: is all well?"""

import json
from dataclasses import replace
from typing import Annotated, Any, Final

import typer
import typer.core

from lapwing.cli import shared
from lapwing.errors import ConfigError

app = shared.app()

UsageError: Final[Any] = typer.BadParameter.__mro__[1]  # of whichever click typer brings along

Lag = Annotated[int, typer.Option(min=0, help="Messages that a channel may be behind; 0: any number.")]
Age = Annotated[str, typer.Option(help="How long its oldest message may have waited: 90s, 10m.")]


class Plugin(typer.core.TyperCommand):
    """A command whose every outcome is one that monitoring understands: a bad option is unknown, not critical."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Like any command, but what cannot be understood ends with 3."""
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            print(f"UNKNOWN: {error.format_message()}")
            raise typer.Exit(3) from None


@app.command(
    cls=Plugin,
    epilog="Example: lapwing check --topic orders --lag-warning 1000 --lag-critical 100000 --age-critical 10m",
)
def check(
    topic: Annotated[str, typer.Option(help="Only this topic.")] = "",
    channel: Annotated[str, typer.Option(help="Only channels of this name.")] = "",
    lag_warning: Lag = 0,
    lag_critical: Lag = 0,
    age_warning: Age = "",
    age_critical: Age = "",
    http: shared.NsqdHttp = None,
    lookupd: shared.LookupdHttp = None,
    as_json: shared.Json = False,
) -> None:
    """Say in one line whether all is well: health of every node, lag and oldest message of every channel.

    Exit codes are those of monitoring plugins: 0 OK, 1 warning, 2 critical (also when a node cannot be asked or its
    disk refuses writes), 3 unknown (no such topic or channel, or a bad option).
    """
    from lapwing.client.format import SECOND, parse_span
    from lapwing.tools.checks import Limits, Verdict, judge

    try:
        limits = Limits(lag_warning or None, lag_critical or None,
                        parse_span(age_warning, "--age-warning") / SECOND if age_warning else None,
                        parse_span(age_critical, "--age-critical") / SECOND if age_critical else None)
        picture = shared.asked(http, lookupd, lambda cluster: cluster.look(ages=True))
    except ConfigError as error:
        print(f"UNKNOWN: {error}")
        raise typer.Exit(int(Verdict.UNKNOWN)) from None
    if not picture.nodes and not picture.errors:
        picture = replace(picture, errors=("nsqlookupd knows no nsqd",))
    report = judge(picture, limits, topic=topic, channel=channel)
    if as_json:
        print(json.dumps({"verdict": report.verdict.name, "lag": report.lag, "oldest_seconds": report.oldest,
                          "findings": [{"verdict": finding.verdict.name, "text": finding.text}
                                       for finding in report.findings]}, indent=2))
    else:
        print(report.text(limits))
    raise typer.Exit(int(report.verdict))
