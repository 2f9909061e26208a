"""lapwing drain: empty a node before it is taken away."""

from typing import TYPE_CHECKING, Annotated

from lapwing.cli import administer
from lapwing.cli.administer import NODES, NodeFlags, Yes
from lapwing.cli.commands import Group, Option

if TYPE_CHECKING:
    from lapwing.client.admin_results import Drain, Results

app = Group(
    "drain",
    """Empty a node before it is taken away: it takes no new messages, and its consumers continue until it is empty.

    Publishers get an error that makes them use another node.""",
    example="lapwing drain start --node 10.0.0.7:4151 --deadline 10m",
)


@app.command(example="lapwing drain start --node 10.0.0.7:4151 --deadline 10m")
def start(
    deadline: Annotated[str, Option(metavar="DURATION", help="Stop delivering after this time: 10m.")] = "",
    yes: Yes = False,
    flags: NodeFlags = NODES,
) -> None:
    """Begin to drain a node."""
    if not flags.node:
        administer.confirm("This drains every node: nothing can be published. Continue?", yes=yes)
    _report(administer.carry_out(flags, lambda admin: admin.drain(deadline)), flags)


@app.command(example="lapwing drain status")
def status(flags: NodeFlags = NODES) -> None:
    """Show how far each node is."""
    _report(administer.carry_out(flags, lambda admin: admin.drain_status()), flags)


@app.command(example="lapwing drain stop --node 10.0.0.7:4151")
def stop(flags: NodeFlags = NODES) -> None:
    """Take messages again."""
    _report(administer.carry_out(flags, lambda admin: admin.undrain()), flags)


def _report(results: "Results[Drain]", flags: NodeFlags) -> None:
    administer.report(results, _state, as_json=flags.as_json)


def _state(answer: "Drain") -> str:
    if answer.state == "none":
        return "not draining"
    until = f", until {answer.deadline}" if answer.deadline else ""
    return f"{answer.state} since {answer.since}{until}: {answer.messages:,} messages left"
