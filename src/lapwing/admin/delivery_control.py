"""Settings, policies, cursors, pending messages and dead letters of channels, on every nsqd concerned."""

from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

from lapwing.admin.dead_letters import LetterFilter, LetterPage, merge_letters
from lapwing.client.cluster import Json, Node
from lapwing.client.cluster_changes import NodeResult, on_each
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.http import Asked

LETTERS: Final = 50  # of one page
_NO_EDGES: Final[Mapping[str, int]] = {}
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
        return await self._ask(nodes, "/channel/pending", query, after=after)

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

    # ---- dead letters ----

    async def dead_groups(self, nodes: Iterable[Node], topic: str, wanted: LetterFilter) -> Asked[Any]:
        """Count the letters of a topic by origin, reason and error, by node name."""
        return await self._ask(nodes, "/dead/groups", {"topic": topic, **wanted.to_query()})

    async def dead_letters(
        self, nodes: Iterable[Node], topic: str, wanted: LetterFilter, *, after: Mapping[str, int]
    ) -> LetterPage:
        """Read one page of letters that match; `after` has the last letter of the page before, by node name."""
        query = {"topic": topic, "limit": str(LETTERS), **wanted.to_query()}
        asked = await self._ask(nodes, "/dead/letters", query, after=after)
        return merge_letters(asked.answers, after=after, limit=LETTERS)

    async def dead_letter(self, node: Node, topic: str, sequence: int) -> Json | None:
        """Read one letter; None when it has been dealt with. Raises `CallFailed`."""
        query = {"topic": topic, "sequences": f"[{sequence}]", "limit": "1"}
        found = (await self._http.get(node.contact, "/dead/letters", query))["letters"]
        return {**found[0], "in": node.name} if found else None

    async def redrive(self, nodes: Iterable[Node], topic: str, document: Json) -> Results:
        """Start a redrive on these nodes, or with `dry_run` only read what it would take."""
        return await self._post(nodes, "/dead/redrive", topic, "", document)

    async def purge(self, nodes: Iterable[Node], topic: str, document: Json) -> Results:
        """Drop letters on these nodes for good, or with `dry_run` only read how many."""
        return await self._post(nodes, "/dead/purge", topic, "", document)

    async def cancel_redrive(self, nodes: Iterable[Node], topic: str) -> Results:
        """End the redrives of these nodes."""
        return await self._post(nodes, "/dead/cancel", topic, "", {})

    # ---- calls ----

    async def _ask(
        self, nodes: Iterable[Node], path: str, query: dict[str, str], *, after: Mapping[str, int] = _NO_EDGES
    ) -> Asked[Any]:
        """Read from all nodes at the same time, by node name; `after` has the last entry of the page before."""
        contacts = {node.name: node.contact for node in nodes}

        async def read(name: str) -> Any:
            asked = {**query, "after": str(after[name])} if name in after else query
            return await self._http.get(contacts[name], path, asked)

        return await self._http.ask_all(contacts, read)

    async def _post(self, nodes: Iterable[Node], path: str, topic: str, channel: str, document: Json) -> Results:
        names = _names(topic, channel)  # in the query, by which permissions are checked
        return await on_each(nodes, lambda node: self._http.call("POST", node.contact, path, names, document=document))


def _names(topic: str, channel: str) -> dict[str, str]:
    return {"topic": topic, "channel": channel} if channel else {"topic": topic}


def _settings_of(topic: str, channel: str) -> tuple[str, dict[str, str]]:
    return f"/{'channel' if channel else 'topic'}/settings", _names(topic, channel)


def failures(results: Results) -> list[str]:
    """Return the refusals as texts."""
    return [f"{result.node}: {result.error}" for result in results if not result.done]
