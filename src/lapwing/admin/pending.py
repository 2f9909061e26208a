"""Pending messages of a channel on several nsqds: list them, and take them from their holders."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lapwing.client.cluster import Json, Node
from lapwing.client.cluster_changes import NodeResult, on_each
from lapwing.client.http import Asked, DaemonHttp

IN_FLIGHT: Final = "in_flight"
READY: Final = "ready"
DEFERRED: Final = "deferred"

Results = list[NodeResult[Any]]


class PendingControl:
    """Calls about messages of a channel that are in flight, ready to be delivered again, or deferred."""

    def __init__(self, http: DaemonHttp) -> None:
        self._http = http

    async def entries(
        self, nodes: Iterable[Node], topic: str, channel: str, state: str, *, after: Mapping[str, int], limit: int
    ) -> Asked[Any]:
        """List pending messages in one state, by contact of the node; `after` has the last one shown, by node name."""
        by_contact = {node.contact: node.name for node in nodes}
        query = {"topic": topic, "channel": channel, "state": state, "limit": str(limit)}

        async def read(contact: str) -> Any:
            edge = after.get(by_contact[contact])
            asked = query if edge is None else {**query, "after": str(edge)}
            return await self._http.get(contact, "/channel/pending", asked)

        return await self._http.ask_all(by_contact, read)

    async def entry(self, node: Node, topic: str, channel: str, sequence: int) -> Json | None:
        """Read one pending message with its body; None when it is not pending any more. Raises `CallFailed`."""
        query = {"topic": topic, "channel": channel, "limit": "1", "body": "true"}
        if sequence > 0:
            query["after"] = str(sequence - 1)
        found = (await self._http.get(node.contact, "/channel/pending", query))["entries"]
        return {**found[0], "in": node.name} if found and found[0]["sequence"] == sequence else None

    async def claim(self, nodes: Iterable[Node], topic: str, channel: str, document: Json) -> Results:
        """Take messages from their holders: make them ready, finish, reject or defer them."""
        names = {"topic": topic, "channel": channel}  # in the query, by which permissions are checked
        return await on_each(
            nodes, lambda node: self._http.call("POST", node.contact, "/channel/claim", names, document=document)
        )
