"""lapwing schedule: messages that the broker publishes by itself."""

import sys
from typing import TYPE_CHECKING, Annotated

from lapwing.cli import administer, shared
from lapwing.cli.administer import NODES, NodeFlags, Yes
from lapwing.cli.commands import Argument, Group, Option
from lapwing.cli.pub import parse_headers
from lapwing.errors import ConfigError

if TYPE_CHECKING:
    from lapwing.client.admin_results import Schedule

app = Group(
    "schedule",
    """Publish messages at a time, every so often, or by a cron expression.

    A schedule lives on one node, and each of its times is published once, also when that node is killed.""",
    example="lapwing schedule put nightly reports '{\"kind\": \"daily\"}' --cron '30 2 * * *' --zone Europe/Berlin",
)

Name = Annotated[str, Argument(help="The name of the schedule.")]
_ADVICE = "`lapwing schedule list` lists them"


@app.command("list", example="lapwing schedule list")
def list_(flags: NodeFlags = NODES) -> None:
    """List the schedules of each node with their next times."""
    results = administer.carry_out(flags, lambda admin: admin.schedules())
    if flags.as_json:
        administer.report(results, "", as_json=True)
        return
    rows = [
        (each.name, each.topic, each.when, each.state, (*each.next, "-")[0], each.last or "-", result.node)
        for result in results
        for each in (result.answer.schedules if result.answer else ())
    ]
    administer.print_table(("SCHEDULE", "TOPIC", "WHEN", "STATE", "NEXT", "LAST", "NODE"), rows)
    administer.end_quietly(results, "" if rows else "no schedules; `lapwing schedule put --help` shows how to make one")


@app.command(example="lapwing schedule show nightly")
def show(
    name: Name,
    count: Annotated[int, Option("--count", "-n", min=1, max=100, help="Show this many of the next times.")] = 10,
    flags: NodeFlags = NODES,
) -> None:
    """Show a schedule and its next times."""
    results = administer.carry_out(flags, lambda admin: admin.schedule(name, count=count), advice=_ADVICE)
    administer.report(results, _whole, as_json=flags.as_json)


@app.command(example="lapwing schedule put cleanup jobs '{\"job\": \"cleanup\"}' --every 5m")
def put(
    name: Name,
    topic: shared.Topic,
    body: Annotated[str, Argument(metavar="BODY", help="What each message carries; - reads it from stdin.")],
    every: Annotated[str, Option(metavar="DURATION", help="Publish this often: 30s, 5m, 1d.")] = "",
    cron: Annotated[
        str, Option(metavar="EXPRESSION", help="Publish by minute, hour, day, month and weekday: '30 8 * * MON-FRI'.")
    ] = "",
    zone: Annotated[str, Option(help="The time zone of --cron, such as Europe/Berlin.")] = "UTC",
    at: Annotated[str, Option(metavar="TIME", help="Publish once: 2030-01-31T12:00:00Z, or 2h from now.")] = "",
    misfire: Annotated[
        str,
        Option(help="Times at which the node did not run: one message for all (once), none (skip), or all of them."),
    ] = "once",
    header: Annotated[
        list[str] | None, Option("--header", "-H", metavar="NAME=VALUE", help="A header of the messages.")
    ] = None,
    paused: Annotated[bool, Option("--paused", help="Put it without publishing; `resume` begins.")] = False,
    flags: NodeFlags = NODES,
) -> None:
    """Add a schedule, or change the one of that name, which continues where its times are the same."""
    if sum(map(bool, (every, cron, at))) != 1:
        raise ConfigError("when? give one of --every, --cron and --at")
    content: str | bytes = sys.stdin.buffer.read() if body == "-" else body
    headers = parse_headers(header or [])
    results = administer.carry_out(
        flags,
        lambda admin: admin.put_schedule(
            name, topic, content, every=every, cron=cron, at=at, zone=zone, misfire=misfire, headers=headers,
            paused=paused,
        ),
    )  # fmt: skip
    administer.report(results, _state, as_json=flags.as_json)


@app.command(example="lapwing schedule run nightly")
def run(name: Name, flags: NodeFlags = NODES) -> None:
    """Publish the message of a schedule now, beside its times."""
    results = administer.carry_out(flags, lambda admin: admin.run_schedule(name), advice=_ADVICE)
    administer.report(results, "published", as_json=flags.as_json)


@app.command(example="lapwing schedule pause nightly")
def pause(name: Name, flags: NodeFlags = NODES) -> None:
    """Leave out the times of a schedule from now on."""
    results = administer.carry_out(flags, lambda admin: admin.pause_schedule(name), advice=_ADVICE)
    administer.report(results, _state, as_json=flags.as_json)


@app.command(example="lapwing schedule resume nightly")
def resume(name: Name, flags: NodeFlags = NODES) -> None:
    """Publish again; times that came during the pause are left out."""
    results = administer.carry_out(flags, lambda admin: admin.resume_schedule(name), advice=_ADVICE)
    administer.report(results, _state, as_json=flags.as_json)


@app.command(example="lapwing schedule remove nightly")
def remove(name: Name, yes: Yes = False, flags: NodeFlags = NODES) -> None:
    """Remove a schedule."""
    administer.confirm(f"This will remove the schedule {name}. Continue?", yes=yes)
    results = administer.carry_out(flags, lambda admin: admin.remove_schedule(name), advice=_ADVICE)
    administer.report(results, "removed", as_json=flags.as_json)


def _state(schedule: "Schedule") -> str:
    following = f", next {schedule.next[0]}" if schedule.next else ""
    return f"{schedule.state}: {schedule.when} to {schedule.topic}{following}"


def _whole(schedule: "Schedule") -> str:
    counts = f"{schedule.published} published and {schedule.missed} missed since the node has started"
    lines = [_state(schedule), counts]
    lines += [f"last {schedule.last}"] if schedule.last else []
    lines += [f"problem: {schedule.problem}"] if schedule.problem else []
    return "\n  ".join([*lines, *(f"next {each}" for each in schedule.next)])
