"""The dead letters that a command means: which topics on which nodes, and which letters in them."""

import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from lapwing.cli import administer, shared
from lapwing.cli.commands import Argument, Option, UsageError
from lapwing.errors import LapwingError

if TYPE_CHECKING:
    from lapwing.client.cluster import Node
    from lapwing.client.cluster_changes import NodeResult
    from lapwing.client.cluster_client import ClusterClient

T = TypeVar("T")

_CHANNEL: Final = "dead"  # the channel that holds the letters of a dead-letter topic
_TIMEOUT: Final = 120.0  # s; a node may read through all its letters for an answer
_REASONS: Final = ("attempts", "rejected", "expired", "overflow")


def known_dead(incomplete: str) -> list[str]:
    """Return the dead-letter topics of the cluster, and the channels that letters may come from."""
    places = shared.known_places(incomplete)
    ending = f"/{_CHANNEL}"
    return [place.removesuffix(ending) if place.endswith(ending) else place for place in places]


Dead = Annotated[
    str,
    Argument(metavar="DEAD", complete=known_dead,
             help="A dead-letter topic; or TOPIC/CHANNEL: the letters of this channel, wherever they are."),
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LetterFlags:
    """The selection of letters; all of them if nothing is given."""

    reason: Annotated[str | None, Option(choices=_REASONS, help="Letters that were given up for this reason.")] = None
    error: Annotated[str | None, Option(help="Letters whose error contains this text.")] = None
    text: Annotated[str | None, Option(help="Letters whose body contains this text.")] = None
    pattern: Annotated[
        str | None, Option(metavar="REGEX", help="Letters whose body has this regular expression (RE2).")
    ] = None
    field: Annotated[
        list[str] | None,
        Option(metavar="POINTER=VALUE", help="Letters whose JSON body has this value, such as /customer/id=17."),
    ] = None
    since: Annotated[
        str | None, Option(metavar="TIME", help="Letters given up since then: 2h (ago), 2026-11-15T09:30Z.")
    ] = None
    until: Annotated[str | None, Option(metavar="TIME", help="Letters given up before.")] = None
    source: Annotated[
        str | None, Option(metavar="TOPIC", complete=shared.known_topics, help="Letters of this topic.")
    ] = None
    channel: Annotated[
        str | None, Option(complete=shared.known_channels, help="Letters that this channel gave up.")
    ] = None
    sequence: Annotated[
        list[int] | None, Option(min=0, help="The letter with this sequence in the dead-letter topic of one node.")
    ] = None

    def filter(self, name: str) -> dict[str, Any]:
        """Return the filter as nsqd takes it. Raises `UsageError`."""
        words = ("reason", "error", "text", "pattern", "since", "until", "channel", "source")
        found: dict[str, Any] = {key: getattr(self, key) for key in words if getattr(self, key) is not None}
        for key, value in found.items():
            if not value:  # an empty shell variable must not mean all letters
                raise UsageError(f"--{key} is empty: give a value, or leave it out for all letters")
        if "source" in found:
            found["topic"] = found.pop("source")
        if "/" in name:
            topic, channel = administer.split_place(name)
            if found.setdefault("topic", topic) != topic or found.setdefault("channel", channel) != channel:
                raise UsageError(f"{name} names topic and channel: leave --source and --channel out")
        if self.field:
            found["fields"] = dict(_field(each) for each in self.field)
        if self.sequence:
            found["sequences"] = self.sequence
        return found


def _field(text: str) -> tuple[str, Any]:
    pointer, equals, value = text.partition("=")
    if not equals or not pointer.startswith("/"):
        raise UsageError(f"--field {text}: expected POINTER=VALUE, such as /customer/id=17")
    try:
        return pointer, json.loads(value)
    except ValueError:
        return pointer, value


def parameters(wanted: dict[str, Any]) -> dict[str, str]:
    """Return a filter as parameters of `/dead/letters`."""
    found = {key: value if isinstance(value, str) else json.dumps(value) for key, value in wanted.items()}
    if "topic" in found:
        found["source"] = found.pop("topic")
    return found


@dataclass(frozen=True, slots=True)
class DeadNode:
    """A node with a dead-letter topic."""

    client: "ClusterClient"
    node: "Node"
    topic: str

    async def get(self, path: str, **params: str) -> Any:
        """Return the answer to a question about the topic. Raises `CallFailed`."""
        return await self.client.http.get(self.node.contact, path, {"topic": self.topic, **params}, timeout=_TIMEOUT)

    async def post(self, path: str, document: Any = None) -> Any:
        """Return the answer to a change of the topic. Raises `CallFailed`."""
        params = {"topic": self.topic}
        return await self.client.http.call("POST", self.node.contact, path, params, document=document, timeout=_TIMEOUT)


def on_each(
    flags: administer.NodeFlags, name: str, change: Callable[[DeadNode], Awaitable[T]], *,
    one: bool = False, only: Collection[str] | None = None,
) -> "list[NodeResult[T]]":  # fmt: skip
    """Carry `change` out on every node that has the dead letters, or on those of them that `only` names.

    With `one`, raises `LapwingError` if several nodes have the dead letters.
    """

    async def carry_out(client: "ClusterClient") -> "list[NodeResult[T]]":
        from lapwing.client import cluster_changes

        found, complete = await _found(client, name, flags.node)
        if one and len(found) > 1:
            names = ", ".join(each.node.name for each in found.values())
            raise LapwingError(f"--sequence names a letter of one node, and several have {name}: give --node ({names})")
        nodes = [each.node for each in found.values() if only is None or each.node.name in only]
        results = await cluster_changes.on_each(nodes, lambda at: change(found[at.name]))
        return administer.PerNode(results, complete=complete)

    return shared.asked(flags, carry_out)


async def _found(client: "ClusterClient", name: str, node: str) -> tuple[dict[str, DeadNode], bool]:
    """Return the nodes by name, and whether all of them answered.

    A node that has the channel, but no letters of it, is left out.
    """
    if "/" not in name:
        advice = "the first dead letter of a channel creates it, and `lapwing dead list` lists all"
        nodes = await administer.topic_nodes(client, name, node, advice=advice)
        return {each.name: DeadNode(client, each, name) for each in nodes}, nodes.complete
    topic, channel = administer.split_place(name)
    found: dict[str, DeadNode] = {}
    nodes = await administer.topic_nodes(client, topic, node)
    complete = nodes.complete
    for each in nodes:
        dead = await _dead_topic(client, each, topic, channel)
        complete &= dead is not None
        if dead:
            found[each.name] = DeadNode(client, each, dead)
    return found, complete


async def _dead_topic(client: "ClusterClient", node: "Node", topic: str, channel: str) -> str | None:
    """Return the dead-letter topic of a channel on a node; empty if the node has none, None if it refuses."""
    from lapwing.client.http import CallFailed

    try:
        answer = await client.http.get(node.contact, "/channel/settings", {"topic": topic, "channel": channel})
        name = str(answer["settings"]["dead_topic"]["value"])
        there = await client.http.get(node.contact, "/dead")
    except CallFailed as error:
        shared.warn(f"{node.name}: {administer.explained(error.code or error.reason)}")
        return None
    return name if any(each["topic"] == name for each in there["topics"]) else ""
