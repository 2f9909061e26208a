"""lapwing channel: create, delete, pause, unpause and empty channels."""

from typing import TYPE_CHECKING, Annotated

from lapwing.cli import administer, shared, topic
from lapwing.cli.administer import CHANGE, NODES, ChangeFlags, NodeFlags, Place
from lapwing.cli.commands import Argument, Group

if TYPE_CHECKING:
    from lapwing.client.cluster import Node
    from lapwing.client.cluster_client import ClusterClient

app = Group(
    "channel",
    """Create, delete, pause, unpause and empty channels, on every node that has the topic.

    A line for each node shows whether it took the change; the exit code is 1 if one refused.""",
    example="lapwing channel pause orders/billing",
)

NewPlace = Annotated[
    str,
    Argument(metavar="TOPIC/CHANNEL", help="The channel.",
             complete=lambda text: [f"{name}/" for name in shared.known_topics(text)]),
]  # fmt: skip


@app.command(example="lapwing channel create orders/billing")
def create(place: NewPlace, flags: NodeFlags = NODES) -> None:
    """Create a channel. The first of a topic gets the messages that wait in the topic, a later one only new ones."""
    name, channel = administer.split_place(place)

    async def made(client: "ClusterClient", at: "Node") -> None:
        await client.http.post(at.contact, "/channel/create", {"topic": name, "channel": channel})

    both = f"`lapwing topic create {name} --channel {channel}` creates both"
    results = administer.changed(
        flags, lambda client: administer.topic_nodes(client, name, flags.node, advice=both), made
    )
    administer.report(results, "created", as_json=flags.as_json)


@app.command(example="lapwing channel delete orders/billing --dry-run")
def delete(
    place: Place,
    flags: ChangeFlags = CHANGE,
) -> None:
    """Delete a channel with the messages that it has not finished. Its consumers are disconnected."""
    name, channel = administer.split_place(place)
    topic.destroy("delete", "deleted", name, channel, flags)


@app.command(example="lapwing channel empty orders/billing --yes")
def empty(
    place: Place,
    flags: ChangeFlags = CHANGE,
) -> None:
    """Drop all messages of a channel. `lapwing seek` can bring them back as long as the log holds them."""
    name, channel = administer.split_place(place)
    topic.destroy("empty", "emptied", name, channel, flags)


@app.command(example="lapwing channel pause orders/billing")
def pause(place: Place, flags: NodeFlags = NODES) -> None:
    """Stop delivering. Messages wait in the channel until it is unpaused."""
    name, channel = administer.split_place(place)
    topic.act("pause", "paused", name, channel, flags)


@app.command(example="lapwing channel unpause orders/billing")
def unpause(place: Place, flags: NodeFlags = NODES) -> None:
    """Deliver again."""
    name, channel = administer.split_place(place)
    topic.act("unpause", "unpaused", name, channel, flags)
