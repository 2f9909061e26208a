"""lapwing channel: create, delete, pause, unpause and empty channels."""

from typing import TYPE_CHECKING, Annotated

from lapwing.cli import administer, shared, topic
from lapwing.cli.administer import DryRun, OnNode, Place, Yes
from lapwing.cli.commands import Argument, Group

if TYPE_CHECKING:
    from lapwing.client.cluster import Node
    from lapwing.client.cluster_client import ClusterClient

app = Group(
    "channel",
    """Create, delete, pause, unpause and empty channels, on every node that has the topic.

    A line for each node says whether it took the change; the exit code is 1 if one refused.""",
    example="lapwing channel pause orders/billing",
)

NewPlace = Annotated[
    str,
    Argument(metavar="TOPIC/CHANNEL", help="The channel.",
             complete=lambda text: [f"{name}/" for name in shared.known_topics(text)]),
]  # fmt: skip
Flags = shared.ClusterFlags
_FLAGS = shared.ClusterFlags()


@app.command(example="lapwing channel create orders/billing")
def create(place: NewPlace, node: OnNode = "", cluster: Flags = _FLAGS, as_json: shared.Json = False) -> None:
    """Create a channel. The first of a topic gets the messages that wait in the topic, a later one only new ones."""
    name, channel = administer.split_place(place)

    async def made(client: "ClusterClient", at: "Node") -> None:
        await client.http.post(at.contact, "/channel/create", {"topic": name, "channel": channel})

    both = f"`lapwing topic create {name} --channel {channel}` creates both"
    results = administer.changed(cluster, lambda client: administer.topic_nodes(client, name, node, advice=both), made)
    administer.report(results, "created", as_json=as_json)


@app.command(example="lapwing channel delete orders/billing --dry-run")
def delete(
    place: Place,
    node: OnNode = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    cluster: Flags = _FLAGS,
    as_json: shared.Json = False,
) -> None:
    """Delete a channel with the messages that it has not finished. Its consumers are disconnected."""
    name, channel = administer.split_place(place)
    topic.destroy("delete", "deleted", name, channel, node, yes=yes, dry_run=dry_run, cluster=cluster, as_json=as_json)


@app.command(example="lapwing channel empty orders/billing --yes")
def empty(
    place: Place,
    node: OnNode = "",
    yes: Yes = False,
    dry_run: DryRun = False,
    cluster: Flags = _FLAGS,
    as_json: shared.Json = False,
) -> None:
    """Drop all messages of a channel. `lapwing seek` can bring them back as long as the log holds them."""
    name, channel = administer.split_place(place)
    topic.destroy("empty", "emptied", name, channel, node, yes=yes, dry_run=dry_run, cluster=cluster, as_json=as_json)


@app.command(example="lapwing channel pause orders/billing")
def pause(place: Place, node: OnNode = "", cluster: Flags = _FLAGS, as_json: shared.Json = False) -> None:
    """Stop delivering. Messages wait in the channel until it is unpaused."""
    name, channel = administer.split_place(place)
    topic.act("pause", "paused", name, channel, node, cluster, as_json)


@app.command(example="lapwing channel unpause orders/billing")
def unpause(place: Place, node: OnNode = "", cluster: Flags = _FLAGS, as_json: shared.Json = False) -> None:
    """Deliver again."""
    name, channel = administer.split_place(place)
    topic.act("unpause", "unpaused", name, channel, node, cluster, as_json)
