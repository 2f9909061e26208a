"""lapwing policy: settings for every topic or channel whose name matches."""

import json
from typing import Annotated

from lapwing import names
from lapwing.cli import administer
from lapwing.cli.administer import NODES, NodeFlags, Yes
from lapwing.cli.commands import Argument, Group, Option, UsageError
from lapwing.cli.settings import parse_pairs

app = Group(
    "policy",
    """Settings for every topic or channel whose name matches a pattern, on every node.

    A setting of a channel itself beats a policy; of several policies the one with the highest priority holds.""",
    example="lapwing policy set retries --topics 'orders.*' --channels '*' max_attempts=5 retry_first=1s",
)

Name = Annotated[str, Argument(help="The name of the policy.")]


@app.command("list", example="lapwing policy list")
def list_(flags: NodeFlags = NODES) -> None:
    """List the policies of each node, the one that wins first."""
    results = administer.carry_out(flags, lambda admin: admin.policies())
    if flags.as_json:
        administer.report(results, "", as_json=True)
        return
    for result in results:
        print(f"{result.node}:" if result.done else f"{result.node}: refused: {administer.explained(result.error)}")
        for policy in result.answer.policies if result.answer else ():
            settings = " ".join(f"{key}={json.dumps(value)}" for key, value in policy.settings.items())
            matches = f"{policy.matching_topics} topics, {policy.matching_channels} channels"
            where = f"{policy.topics}/{policy.channels}"
            print(f"  {policy.name:<16} priority {policy.priority:<4} {where:<24} {matches}  {settings}")
    administer.end_with(results)


@app.command("set", example="lapwing policy set retries --topics 'orders.*' --priority 10 max_attempts=5")
def set_(
    name: Name,
    pairs: Annotated[list[str], Argument(metavar="KEY=VALUE", help="The settings.")],
    topics: Annotated[str, Option(metavar="PATTERN", help="Topics that it holds for; * matches any text.")] = "*",
    channels: Annotated[str, Option(metavar="PATTERN", help="Channels that it holds for.")] = "*",
    priority: Annotated[int, Option(help="Of several policies that match, the highest priority wins.")] = 0,
    flags: NodeFlags = NODES,
) -> None:
    """Add a policy, or replace the one of that name."""
    if not names.valid_policy(name):
        raise UsageError(names.POLICY)
    settings = parse_pairs(pairs)
    results = administer.carry_out(
        flags, lambda admin: admin.set_policy(name, settings, topics=topics, channels=channels, priority=priority)
    )
    administer.report(
        results,
        lambda answer: f"set; matches {answer.matching_topics} topics and {answer.matching_channels} channels",
        as_json=flags.as_json,
    )


@app.command(example="lapwing policy remove retries")
def remove(name: Name, yes: Yes = False, flags: NodeFlags = NODES) -> None:
    """Remove a policy. Channels that it held for go back to other policies or to the defaults."""
    if not names.valid_policy(name):
        raise UsageError(names.POLICY)
    administer.confirm(f"This will remove the policy {name}. Continue?", yes=yes)
    results = administer.carry_out(flags, lambda admin: admin.remove_policy(name))
    administer.report(results, "removed", as_json=flags.as_json)
