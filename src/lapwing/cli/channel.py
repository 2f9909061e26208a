"""lapwing channel: create, delete, pause, unpause and empty channels."""

from typing import Annotated

from lapwing.cli import administer, shared, topic
from lapwing.cli.administer import CHANGE, NODES, ChangeFlags, NodeFlags, Place
from lapwing.cli.commands import Argument, Group

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
    both = f"`lapwing topic create {name} --channel {channel}` creates both"
    results = administer.carry_out(flags, lambda admin: admin.create_channel(name, channel), advice=both)
    administer.report(results, "created", as_json=flags.as_json)


@app.command(example="lapwing channel delete orders/billing --dry-run")
def delete(place: Place, flags: ChangeFlags = CHANGE) -> None:
    """Delete a channel with the messages that it has not finished. Its consumers are disconnected."""
    topic.destroy("delete", "deleted", *administer.split_place(place), flags)


@app.command(example="lapwing channel empty orders/billing --yes")
def empty(place: Place, flags: ChangeFlags = CHANGE) -> None:
    """Drop all messages of a channel. `lapwing seek` can bring them back as long as the log holds them."""
    topic.destroy("empty", "emptied", *administer.split_place(place), flags)


@app.command(example="lapwing channel pause orders/billing")
def pause(place: Place, flags: NodeFlags = NODES) -> None:
    """Stop delivering. Messages wait in the channel until it is unpaused."""
    topic.act("pause", "paused", *administer.split_place(place), flags)


@app.command(example="lapwing channel unpause orders/billing")
def unpause(place: Place, flags: NodeFlags = NODES) -> None:
    """Deliver again."""
    topic.act("unpause", "unpaused", *administer.split_place(place), flags)
