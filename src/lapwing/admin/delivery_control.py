"""Settings, policies, cursors and pending messages of channels, on every nsqd concerned."""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from lapwing.client.cluster import Json, Node
from lapwing.client.cluster_changes import NodeResult, on_each
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.http import Asked, DaemonHttp

Results = list[NodeResult[Any]]


class DeliveryControl:
    """Calls of lapwing's nsqds that plain NSQ lacks. Each returns one result per node; a refusal is a result too.

    `UpstreamFailed` is raised only if the nodes themselves are not known.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._client = client
        self._http = client.http

    async def holders(self, topic: str) -> list[Node]:
        """Return the nsqds that have the topic."""
        return (await self._client.holders(topic)).value

    # ---- settings ----

    async def describe_settings(self, nodes: Iterable[Node]) -> Json:
        """Return all settings that there are, by `topic` and `channel`, from the first node that knows them."""
        for node in nodes:
            (result,) = await on_each([node], lambda node: self._http.get(node.contact, "/settings"))
            if result.answer is not None:
                return dict(result.answer)
        return {}

    async def settings(self, topic: str, channel: str = "") -> Results:
        """Read the settings of a topic or channel, with their origin."""
        path, params = _settings_of(topic, channel)
        return await on_each(await self.holders(topic), lambda node: self._http.get(node.contact, path, params))

    async def change_settings(self, topic: str, channel: str, changes: Json) -> Results:
        """Change settings of a topic or channel; null removes one."""
        path, params = _settings_of(topic, channel)
        return await on_each(
            await self.holders(topic),
            lambda node: self._http.call("PATCH", node.contact, path, params, document=changes),
        )

    # ---- policies ----

    async def policies(self, nodes: Iterable[Node]) -> Results:
        """Read the policies of these nodes."""
        return await on_each(nodes, lambda node: self._http.get(node.contact, "/policies"))

    async def put_policy(self, nodes: Iterable[Node], name: str, document: Json) -> Results:
        """Add or replace a policy on these nodes."""
        path = f"/policies/{quote(name, safe='')}"
        return await on_each(nodes, lambda node: self._http.call("PUT", node.contact, path, document=document))

    async def remove_policy(self, nodes: Iterable[Node], name: str) -> Results:
        """Remove a policy from these nodes."""
        path = f"/policies/{quote(name, safe='')}"
        return await on_each(nodes, lambda node: self._http.call("DELETE", node.contact, path))

    # ---- cursors ----

    async def seek(self, topic: str, channel: str, to: Any, *, dry_run: bool) -> Results:
        """Move the cursor of a channel, or with `dry_run` only read what that would do."""
        document = {"to": to, "dry_run": dry_run}
        return await self._post(await self.holders(topic), "/channel/seek", topic, channel, document)

    # ---- pending messages ----

    async def pending(
        self, nodes: Iterable[Node], topic: str, channel: str, state: str, *, after: Mapping[str, int], limit: int
    ) -> Asked[Any]:
        """List pending messages in one state, by node name; `after` has the last one shown, by node name."""
        query = {"topic": topic, "channel": channel, "state": state, "limit": str(limit)}
        return await ask_nodes(self._http, nodes, "/channel/pending", query, after=after)

    async def pending_message(self, node: Node, topic: str, channel: str, sequence: int) -> Json | None:
        """Read one pending message with its body; None when it is not pending any more. Raises `CallFailed`."""
        query = {"topic": topic, "channel": channel, "limit": "1", "body": "true"}
        if sequence > 0:
            query["after"] = str(sequence - 1)
        found = (await self._http.get(node.contact, "/channel/pending", query))["entries"]
        return {**found[0], "in": node.name} if found and found[0]["sequence"] == sequence else None

    async def claim(self, nodes: Iterable[Node], topic: str, channel: str, document: Json) -> Results:
        """Take messages from their holders: make them ready, finish, reject or defer them."""
        return await self._post(nodes, "/channel/claim", topic, channel, document)

    async def _post(self, nodes: Iterable[Node], path: str, topic: str, channel: str, document: Json) -> Results:
        names = {"topic": topic, "channel": channel}  # in the query, by which permissions are checked
        return await on_each(nodes, lambda node: self._http.call("POST", node.contact, path, names, document=document))


async def ask_nodes(
    http: DaemonHttp, nodes: Iterable[Node], path: str, query: dict[str, str], *, after: Mapping[str, int] | None = None
) -> Asked[Any]:
    """Read from all nodes at the same time, and return the answers by node name.

    `after` has the last entry of the page before, by node name.
    """
    contacts = {node.name: node.contact for node in nodes}

    async def read(name: str) -> Any:
        edge = (after or {}).get(name)
        return await http.get(contacts[name], path, query if edge is None else {**query, "after": str(edge)})

    return await http.ask_all(contacts, read)


def _settings_of(topic: str, channel: str) -> tuple[str, dict[str, str]]:
    if channel:
        return "/channel/settings", {"topic": topic, "channel": channel}
    return "/topic/settings", {"topic": topic}


def failures(results: Results) -> list[str]:
    """Return the refusals as texts."""
    return [f"{result.node}: {result.error}" for result in results if not result.done]
