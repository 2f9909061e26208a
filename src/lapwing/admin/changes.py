"""What can be changed in a cluster: each change, on whom, and in which order."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from lapwing.client.cluster import Node
from lapwing.client.cluster_client import ClusterClient, NoSuchNode, UpstreamFailed, warning
from lapwing.client.http import CallFailed

ACTIONS: Final = ("pause", "unpause", "empty")


@dataclass(slots=True)
class Outcome:
    """How a change went: what failed on the way, while the rest was done all the same."""

    trouble: list[list[str]] = field(default_factory=list)

    @property
    def message(self) -> str:
        """The API's warning: empty when everything worked."""
        return warning(self.trouble)


class Changes:
    """Carries changes out on nsqlookupds and nsqds, one after the other; later steps run though earlier ones failed.

    `node` limits a change to one nsqd where that makes sense. Raises `UpstreamFailed` only when it could not be found
    out whom to tell.
    """

    def __init__(self, queries: ClusterClient) -> None:
        self._queries = queries
        self._http = queries.http

    async def create(self, topic: str, channel: str = "", *, node: str = "") -> Outcome:
        """Make a topic, and a channel of it: known to nsqlookupd ahead of use, or on one nsqd."""
        if node:
            contacts = [(await self._queries.node_named(node)).value.contact]
            outcome = Outcome([await self._tell(contacts, "/topic/create", topic)])
            if channel:
                outcome.trouble.append(await self._tell(contacts, "/channel/create", topic, channel))
            return outcome
        lookupds = self._queries.lookupds
        outcome = Outcome([await self._tell(lookupds, "/topic/create", topic)])
        if channel:
            outcome.trouble.append(await self._tell(lookupds, "/channel/create", topic, channel))
            if self._queries.direct:
                raise UpstreamFailed("failed to query any nsqlookupd: no nsqlookupd is configured")
            nodes = await self._queries.holders(topic)
            outcome.trouble += nodes.trouble
            outcome.trouble.append(await self._tell(_contacts(nodes.value), "/channel/create", topic, channel))
        return outcome

    async def act(self, action: str, topic: str, channel: str = "", *, node: str = "") -> Outcome:
        """Pause, unpause or empty a topic or a channel on its nsqds."""
        nodes, outcome = await self._concerned(topic, node)
        kind = "channel" if channel else "topic"
        outcome.trouble.append(await self._tell(_contacts(nodes), f"/{kind}/{action}", topic, channel))
        return outcome

    async def delete(self, topic: str, channel: str = "", *, node: str = "") -> Outcome:
        """Delete a topic or a channel everywhere, or on one nsqd only."""
        nodes, outcome = await self._concerned(topic, node)
        path = "/channel/delete" if channel else "/topic/delete"
        if not node:
            outcome.trouble.append(await self._tell(self._queries.lookupds, path, topic, channel))
        outcome.trouble.append(await self._tell(_contacts(nodes), path, topic, channel))
        return outcome

    async def tombstone(self, topic: str, node: str) -> Outcome:
        """Hide the topic's producer `node` from discovery, then delete the topic there."""
        found = await self._queries.node_named(node)
        outcome = Outcome(list(found.trouble))
        # nsqlookupd compares with the two joined by a bare colon, without the brackets of IPv6
        told = f"{found.value.broadcast_address}:{found.value.http_port}"
        errors: list[str] = []
        for lookupd in self._queries.lookupds:
            errors += await self._post(lookupd, "/topic/tombstone", {"topic": topic, "node": told})
        outcome.trouble.append(errors)
        outcome.trouble.append(await self._tell([found.value.contact], "/topic/delete", topic))
        return outcome

    async def publish(self, topic: str, body: bytes, *, node: str, headers: dict[str, str], defer: int = 0) -> Outcome:
        """Publish one message to one nsqd, with headers where the nsqd knows them; `defer` in milliseconds.

        Raises `CallFailed` when the nsqd refuses.
        """
        found = await self._queries.node_named(node)
        params = {"topic": topic} | ({"defer": str(defer)} if defer else {})
        extra = {"X-Lapwing-Headers": json.dumps(headers)} if headers else None
        await self._http.post(found.value.contact, "/pub", params, body=body, headers=extra)
        return Outcome(list(found.trouble))

    async def _concerned(self, topic: str, node: str) -> tuple[list[Node], Outcome]:
        holders = await self._queries.holders(topic)
        if not node:
            return holders.value, Outcome(list(holders.trouble))
        only = [holder for holder in holders.value if holder.name == node]
        if not only:
            raise NoSuchNode(node)
        return only, Outcome(list(holders.trouble))

    async def _tell(self, addresses: Iterable[str], path: str, topic: str, channel: str = "") -> list[str]:
        params = {"topic": topic, "channel": channel} if channel else {"topic": topic}
        errors: list[str] = []
        for address in addresses:
            errors += await self._post(address, path, params)
        return errors

    async def _post(self, address: str, path: str, params: dict[str, str]) -> list[str]:
        try:
            await self._http.post(address, path, params)
        except CallFailed as error:
            return [str(error)]
        return []


def _contacts(nodes: Iterable[Node]) -> list[str]:
    return [node.contact for node in nodes]
