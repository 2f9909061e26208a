"""Changes that visitors make: check the permission, carry the change out, write it to the audit, announce it.

The API and the pages change the cluster only through this module.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from lapwing.admin.access import Visitor
from lapwing.admin.audit import PARTLY, Audit
from lapwing.admin.delivery_control import Results, failures
from lapwing.client.change_origin import change_by
from lapwing.client.cluster_changes import ClusterChanges, Outcome
from lapwing.client.cluster_client import UpstreamFailed
from lapwing.client.format import duration, size
from lapwing.errors import LapwingError

T = TypeVar("T")


class Forbidden(LapwingError):
    """The visitor may read, but not change anything."""


@dataclass(frozen=True, slots=True)
class Action:
    """One change to a topic or a channel, on one node or on all."""

    kind: str
    topic: str
    channel: str = ""
    node: str = ""


Announce = Callable[[Action, Visitor, str], None]  # to the endpoint for notifications; the text is the URL


class Actions:
    """Carry out the changes of visitors. Refused changes are written to the audit too."""

    def __init__(self, changes: ClusterChanges, audit: Audit, announce: Announce | None = None) -> None:
        self._changes = changes
        self._announce = announce
        self.audit = audit

    async def create(
        self, visitor: Visitor, topic: str, channel: str = "", *, node: str = "", url: str = ""
    ) -> Outcome:
        """Create a topic, and a channel of it if one is named."""
        actions = [Action("create_topic", topic, "", node)]
        if channel:
            actions.append(Action("create_channel", topic, channel, node))
        return await self._announced(visitor, actions, url, lambda: self._changes.create(topic, channel, node=node))

    async def act(
        self, visitor: Visitor, verb: str, topic: str, channel: str = "", *, node: str = "", url: str = ""
    ) -> Outcome:
        """Pause, unpause or empty a topic or channel."""
        actions = [Action(f"{verb}_{'channel' if channel else 'topic'}", topic, channel, node)]
        return await self._announced(
            visitor, actions, url, lambda: self._changes.act(verb, topic, channel, node=node), even_if_failed=True
        )

    async def delete(
        self, visitor: Visitor, topic: str, channel: str = "", *, node: str = "", url: str = ""
    ) -> Outcome:
        """Delete a topic or a channel."""
        actions = [Action("delete_channel" if channel else "delete_topic", topic, channel, node)]
        return await self._announced(visitor, actions, url, lambda: self._changes.delete(topic, channel, node=node))

    async def tombstone(self, visitor: Visitor, topic: str, node: str, *, url: str = "") -> Outcome:
        """Hide the topic of one node from discovery, and delete it there."""
        actions = [Action("tombstone_topic_producer", topic, "", node)]
        return await self._announced(visitor, actions, url, lambda: self._changes.tombstone(topic, node))

    async def publish(
        self, visitor: Visitor, topic: str, body: bytes, *, node: str, headers: dict[str, str], defer: int = 0
    ) -> Outcome:
        """Publish one message to one node; `defer` in milliseconds."""
        detail = f"{size(len(body))}" + (f", deferred {duration(defer / 1000)}" if defer else "")
        return await self._audited(
            visitor,
            [Action("publish_message", topic, "", node)],
            detail,
            lambda: self._changes.publish(topic, body, node=node, headers=headers, defer=defer),
            lambda outcome: outcome.message,
        )

    async def apply(
        self, visitor: Visitor, action: Action, detail: str, change: Callable[[], Awaitable[Results]]
    ) -> Results:
        """Carry out a change of lapwing's own on several nodes, and return the result of each."""
        return await self._audited(visitor, [action], detail, change, _outcome)

    def set_option(self, visitor: Visitor, key: str, text: str, change: Callable[[str, str], object]) -> None:
        """Change an option of this nsqadmin with `change`, which raises for an unknown key or a bad value."""
        actions, detail = [Action("set_option", "")], f"{key}={text[:200]}"
        self._check(visitor, actions, detail)
        change(key, text)
        self._write(visitor, actions, "", detail)

    async def _announced(
        self,
        visitor: Visitor,
        actions: list[Action],
        url: str,
        change: Callable[[], Awaitable[Outcome]],
        *,
        even_if_failed: bool = False,
    ) -> Outcome:
        """Carry out a change that NSQ's nsqadmin announces."""
        try:
            outcome = await self._audited(visitor, actions, "", change, lambda outcome: outcome.message)
        except UpstreamFailed:
            if even_if_failed:
                self._announce_all(actions, visitor, url)
            raise
        self._announce_all(actions, visitor, url)
        return outcome

    def _announce_all(self, actions: list[Action], visitor: Visitor, url: str) -> None:
        if self._announce is not None:
            for action in actions:
                self._announce(action, visitor, url)

    def _check(self, visitor: Visitor, actions: list[Action], detail: str) -> None:
        if not visitor.may_change:
            self._write(visitor, actions, "refused: may not change anything", detail)
            raise Forbidden

    async def _audited(
        self,
        visitor: Visitor,
        actions: list[Action],
        detail: str,
        change: Callable[[], Awaitable[T]],
        outcome_of: Callable[[T], str],
    ) -> T:
        self._check(visitor, actions, detail)
        with change_by(visitor.user or visitor.address) as identifier:
            try:
                result = await change()
            except LapwingError as error:
                self._write(visitor, actions, str(error) or type(error).__name__, detail, identifier)
                raise
        self._write(visitor, actions, outcome_of(result), detail, identifier)
        return result

    def _write(
        self, visitor: Visitor, actions: list[Action], outcome: str, detail: str, change: str = ""
    ) -> None:
        about = {"outcome": outcome, "detail": detail, "change": change}
        for action in actions:
            where = {"topic": action.topic, "channel": action.channel, "node": action.node}
            self.audit.write(visitor.user, visitor.address, action.kind, **where, **about)


def _outcome(results: Results) -> str:
    """Return the outcome of a change on several nodes, for the audit."""
    refused = failures(results)
    if refused:
        return (PARTLY if len(refused) < len(results) else "") + "; ".join(refused)
    return "" if results else "no nsqd has it"
