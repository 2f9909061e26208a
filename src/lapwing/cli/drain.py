"""lapwing drain: empty a node before it is taken away."""

from typing import TYPE_CHECKING, Annotated, Any

from lapwing.cli import administer
from lapwing.cli.administer import NODES, NodeFlags, Yes
from lapwing.cli.commands import Group, Option

if TYPE_CHECKING:
    from lapwing.client.cluster import Node
    from lapwing.client.cluster_client import ClusterClient

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
        administer.confirm("This will drain every node, so that nothing can be published. Continue?", yes=yes)
    document = {"deadline": deadline} if deadline else {}

    async def begin(client: "ClusterClient", at: "Node") -> Any:
        return await client.http.call("POST", at.contact, "/drain", document=document)

    _report(flags, begin)


@app.command(example="lapwing drain status")
def status(flags: NodeFlags = NODES) -> None:
    """Show how far each node is."""

    async def show(client: "ClusterClient", at: "Node") -> Any:
        return await client.http.get(at.contact, "/drain")

    _report(flags, show)


@app.command(example="lapwing drain stop --node 10.0.0.7:4151")
def stop(flags: NodeFlags = NODES) -> None:
    """Take messages again."""

    async def end(client: "ClusterClient", at: "Node") -> Any:
        return await client.http.call("POST", at.contact, "/undrain")

    _report(flags, end)


def _report(flags: NodeFlags, change: Any) -> None:
    results = administer.changed(flags, lambda client: administer.all_nodes(client, flags.node), change)
    administer.report(results, _state, as_json=flags.as_json)


def _state(answer: Any) -> str:
    if answer["state"] == "none":
        return "not draining"
    until = f", until {answer['deadline']}" if answer.get("deadline") else ""
    return f"{answer['state']} since {answer['since']}{until}: {answer['messages']:,} messages left"
