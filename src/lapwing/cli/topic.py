"""lapwing topic: create, delete, pause, unpause and empty topics."""

from typing import TYPE_CHECKING, Annotated, Any

from lapwing.cli import administer, shared
from lapwing.cli.administer import CHANGE, NODES, ChangeFlags, NodeFlags
from lapwing.cli.commands import Argument, Group, Option

if TYPE_CHECKING:
    from lapwing.client.cluster_client import ClusterClient
    from lapwing.client.http import DaemonHttp

app = Group(
    "topic",
    """Create, delete, pause, unpause and empty topics, on every node that has the topic.

    A line for each node shows whether it took the change; the exit code is 1 if one refused.""",
    example="lapwing topic create orders",
)

NewTopic = Annotated[str, Argument(help="The topic.")]


@app.command(example="lapwing topic create orders")
def create(
    topic: NewTopic,
    channel: Annotated[list[str] | None, Option("--channel", help="Create this channel too.")] = None,
    flags: NodeFlags = NODES,
) -> None:
    """Create a topic on every node. A topic that exists is left as it is."""

    async def made(http: "DaemonHttp", at: str) -> None:
        await http.post(at, "/topic/create", {"topic": topic})
        for name in channel or ():
            await http.post(at, "/channel/create", {"topic": topic, "channel": name})

    administer.report(administer.on_all(flags, made), "created", as_json=flags.as_json)


@app.command(example="lapwing topic delete orders --dry-run")
def delete(topic: shared.Topic, flags: ChangeFlags = CHANGE) -> None:
    """Delete a topic with its channels and all messages, on every node and in nsqlookupd."""
    destroy("delete", "deleted", topic, "", flags)


@app.command(example="lapwing topic empty orders --yes")
def empty(topic: shared.Topic, flags: ChangeFlags = CHANGE) -> None:
    """Drop the messages that wait in the topic and are not in a channel yet. Channels keep theirs."""
    destroy("empty", "emptied", topic, "", flags)


@app.command(example="lapwing topic pause orders")
def pause(topic: shared.Topic, flags: NodeFlags = NODES) -> None:
    """Stop handing messages to channels. Publishing continues; the messages wait in the topic."""
    act("pause", "paused", topic, "", flags)


@app.command(example="lapwing topic unpause orders")
def unpause(topic: shared.Topic, flags: NodeFlags = NODES) -> None:
    """Hand messages to channels again."""
    act("unpause", "unpaused", topic, "", flags)


def act(action: str, done: str, topic: str, channel: str, flags: NodeFlags) -> None:
    """Pause or unpause a topic, or a channel of it."""
    path, params = _request(action, topic, channel)
    results = administer.on_topic(flags, topic, lambda http, at: http.post(at, path, params))
    administer.report(results, done, as_json=flags.as_json)


def destroy(action: str, done: str, topic: str, channel: str, flags: ChangeFlags) -> None:
    """Delete or empty a topic, or a channel of it, after asking."""
    path, params = _request(action, topic, channel)
    name = f"channel {topic}/{channel}" if channel else f"topic {topic}"

    async def look(client: "ClusterClient") -> list[tuple[str, str]]:
        nodes = await administer.topic_nodes(client, topic, flags.node)
        return [(each.name, await _held(client.http, each.contact, topic, channel, action)) for each in nodes]

    held = shared.asked(flags, look)
    if flags.dry_run:
        for where, what in held:
            print(f"{where}  would {action} {name}: {what}")
        return
    places = "\n".join(f"  {where}: {what}" for where, what in held)
    administer.confirm(f"This will {action} {name}:\n{places}\nContinue?", yes=flags.yes)

    async def nodes(client: "ClusterClient") -> administer.PerNode:
        found = await administer.topic_nodes(client, topic, flags.node)
        if action == "delete" and not flags.node:
            await _forget(client, path, params)
        return found

    results = administer.on_each(flags, nodes, lambda http, at: http.post(at, path, params))
    administer.report(results, done, as_json=flags.as_json)


async def _forget(client: "ClusterClient", path: str, params: dict[str, str]) -> None:
    """Delete in nsqlookupd first, so that no consumer is sent to a topic that goes."""
    from lapwing.client.http import CallFailed

    for lookupd in client.lookupds:
        try:
            await client.http.post(lookupd, path, params)
        except CallFailed as error:
            if error.status != 404:
                shared.warn(f"nsqlookupd {lookupd}: {error.reason}")


def _request(action: str, topic: str, channel: str) -> tuple[str, dict[str, str]]:
    if channel:
        return f"/channel/{action}", {"topic": topic, "channel": channel}
    return f"/topic/{action}", {"topic": topic}


async def _held(http: "DaemonHttp", at: str, name: str, channel: str, action: str) -> str:
    """Return what is at stake on one node, in words."""
    params = {"format": "json", "topic": name, "include_clients": "false", "include_mem": "false"}
    answer = await http.get(at, "/stats", params)
    topic: Any = next((each for each in answer["topics"] if each["topic_name"] == name), {"channels": []})
    if channel:
        found = next((each for each in topic["channels"] if each["channel_name"] == channel), None)
        if found is None:
            return "not there"
        waiting = found["depth"] + found.get("deferred_count", 0)
        return f"{waiting:,} messages, {found['in_flight_count']:,} in flight, {found['client_count']} consumers"
    if action == "empty":
        return f"{topic.get('depth', 0):,} messages"
    waiting = topic.get("depth", 0) + sum(each["depth"] for each in topic["channels"])
    consumers = sum(each["client_count"] for each in topic["channels"])
    return f"{waiting:,} messages waiting, {len(topic['channels'])} channels, {consumers} consumers"
