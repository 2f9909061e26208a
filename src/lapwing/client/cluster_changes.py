"""Change a cluster: create, delete, pause, empty and publish, on the daemons concerned and in the right order."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from lapwing.client.cluster import Node
from lapwing.client.cluster_client import ClusterClient, Found, NoSuchNode, UpstreamFailed
from lapwing.client.http import NONSENSE, CallFailed

ACTIONS: Final = ("pause", "unpause", "empty")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeResult(Generic[T]):
    """The answer of one daemon to a change, or the reason why it did not carry the change out."""

    node: str
    answer: T | None
    error: str = ""
    failure: CallFailed | None = None  # the request that failed

    @property
    def done(self) -> bool:
        """Whether the daemon carried the change out."""
        return not self.error


Outcome = Found[None]  # the failures of a change; the steps that did not fail were carried out


class ClusterChanges:
    """Carry changes out on nsqlookupds, then on nsqds; a step that fails does not stop the later ones.

    `node` limits a change to one nsqd where that makes sense. Raises `UpstreamFailed` only if the daemons concerned are
    not known.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._http = client.http

    async def create(self, topic: str, channel: str = "", *, node: str = "") -> Outcome:
        """Create a topic, and a channel of it: in nsqlookupd ahead of use, or on one nsqd."""
        where = [(await self._client.node_named(node)).value.contact] if node else self._client.lookupds
        outcome = Outcome(None, [await self._post_all(where, "/topic/create", topic)])
        if channel:
            outcome.trouble.append(await self._post_all(where, "/channel/create", topic, channel))
        if channel and not node:
            if self._client.direct:
                raise UpstreamFailed("failed to query any nsqlookupd: no nsqlookupd is configured")
            nodes = await self._client.holders(topic)
            outcome.trouble += nodes.trouble
            outcome.trouble.append(await self._post_all(_contacts(nodes.value), "/channel/create", topic, channel))
        return outcome

    async def act(self, action: str, topic: str, channel: str = "", *, node: str = "") -> Outcome:
        """Pause, unpause or empty a topic or a channel on its nsqds."""
        nodes, outcome = await self._concerned(topic, node)
        kind = "channel" if channel else "topic"
        outcome.trouble.append(await self._post_all(_contacts(nodes), f"/{kind}/{action}", topic, channel))
        return outcome

    async def delete(self, topic: str, channel: str = "", *, node: str = "") -> Outcome:
        """Delete a topic or a channel everywhere, or on one nsqd only."""
        nodes, outcome = await self._concerned(topic, node)
        path = "/channel/delete" if channel else "/topic/delete"
        if not node:
            outcome.trouble.append(await self._post_all(self._client.lookupds, path, topic, channel))
        outcome.trouble.append(await self._post_all(_contacts(nodes), path, topic, channel))
        return outcome

    async def tombstone(self, topic: str, node: str) -> Outcome:
        """Tombstone the topic of `node` in nsqlookupd, then delete the topic there."""
        found = await self._client.node_named(node)
        outcome = Outcome(None, list(found.trouble))
        # nsqlookupd compares with the two joined by a bare colon, without the brackets of IPv6
        name = f"{found.value.broadcast_address}:{found.value.http_port}"
        outcome.trouble.append(await self._post_all(self._client.lookupds, "/topic/tombstone", topic, node=name))
        outcome.trouble.append(await self._post_all([found.value.contact], "/topic/delete", topic))
        return outcome

    async def publish(self, topic: str, body: bytes, *, node: str, headers: dict[str, str], defer: int = 0) -> Outcome:
        """Publish one message to one nsqd, with headers where the nsqd knows them; `defer` in milliseconds.

        Raises `CallFailed` when the nsqd refuses.
        """
        found = await self._client.node_named(node)
        params = {"topic": topic} | ({"defer": str(defer)} if defer else {})
        extra = {"X-Lapwing-Headers": json.dumps(headers)} if headers else None
        await self._http.post(found.value.contact, "/pub", params, body=body, headers=extra)
        return Outcome(None, list(found.trouble))

    async def _concerned(self, topic: str, node: str) -> tuple[list[Node], Outcome]:
        holders = await self._client.holders(topic)
        if not node:
            return holders.value, Outcome(None, list(holders.trouble))
        only = [holder for holder in holders.value if holder.name == node]
        if not only:
            raise NoSuchNode(node)
        return only, Outcome(None, list(holders.trouble))

    async def _post_all(
        self, addresses: Iterable[str], path: str, topic: str, channel: str = "", **more: str
    ) -> list[str]:
        """Post to all daemons at the same time, and return the failures."""
        params = {"topic": topic, **({"channel": channel} if channel else {}), **more}
        asked = await self._http.ask_all(addresses, lambda address: self._http.post(address, path, params))
        return asked.errors


def _contacts(nodes: Iterable[Node]) -> list[str]:
    return [node.contact for node in nodes]


async def on_each(nodes: Iterable[Node], change: Callable[[Node], Awaitable[T]]) -> list[NodeResult[T]]:
    """Carry a change out on every node at the same time, and return what each answered."""

    async def carry_out(node: Node) -> NodeResult[T]:
        try:
            return NodeResult(node.name, await change(node))
        except CallFailed as error:
            text = "a plain NSQ server cannot do this" if error.unsupported else error.code or error.reason
            return NodeResult(node.name, None, text, error)
        except NONSENSE as error:
            return NodeResult(node.name, None, f"its answer could not be understood ({error!r})")

    return list(await asyncio.gather(*(carry_out(node) for node in nodes)))
