"""Changes that visitors make: check the permission, carry the change out, write it to the audit, announce it.

The API and the pages change the cluster only through this module.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from lapwing.admin.access import Visitor
from lapwing.admin.audit import Audit
from lapwing.admin.delivery_control import Results, failures
from lapwing.client.cluster_changes import ClusterChanges, Outcome
from lapwing.client.cluster_client import UpstreamFailed
from lapwing.client.format import duration, size
from lapwing.errors import LapwingError

ANNOUNCED: Final = frozenset(
    {
        "create_topic",
        "create_channel",
        "delete_topic",
        "delete_channel",
        "empty_topic",
        "empty_channel",
        "pause_topic",
        "pause_channel",
        "unpause_topic",
        "unpause_channel",
        "tombstone_topic_producer",
    }
)  # the actions that NSQ's nsqadmin announces
_REFUSED: Final = "refused: may not change anything"


class Forbidden(LapwingError):
    """The visitor may read, but not change anything."""


@dataclass(frozen=True, slots=True)
class Action:
    """One change to a topic or a channel, on one node or on all."""

    kind: str
    topic: str
    channel: str = ""
    node: str = ""


class Announce(Protocol):
    """Announce an action to the endpoint for notifications."""

    def __call__(self, action: Action, visitor: Visitor, url: str) -> None:
        """Return at once and raise nothing."""


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
        return await self._perform(visitor, actions, lambda: self._changes.create(topic, channel, node=node), url)

    async def act(
        self, visitor: Visitor, verb: str, topic: str, channel: str = "", *, node: str = "", url: str = ""
    ) -> Outcome:
        """Pause, unpause or empty a topic or channel."""
        action = Action(f"{verb}_{'channel' if channel else 'topic'}", topic, channel, node)
        return await self._perform(
            visitor, [action], lambda: self._changes.act(verb, topic, channel, node=node), url, even_if_failed=True
        )

    async def delete(
        self, visitor: Visitor, topic: str, channel: str = "", *, node: str = "", url: str = ""
    ) -> Outcome:
        """Delete a topic or a channel."""
        action = Action("delete_channel" if channel else "delete_topic", topic, channel, node)
        return await self._perform(visitor, [action], lambda: self._changes.delete(topic, channel, node=node), url)

    async def tombstone(self, visitor: Visitor, topic: str, node: str, *, url: str = "") -> Outcome:
        """Hide the topic of one node from discovery, and delete it there."""
        action = Action("tombstone_topic_producer", topic, "", node)
        return await self._perform(visitor, [action], lambda: self._changes.tombstone(topic, node), url)

    async def publish(
        self, visitor: Visitor, topic: str, body: bytes, *, node: str, headers: dict[str, str], defer: int = 0
    ) -> Outcome:
        """Publish one message to one node; `defer` in milliseconds."""
        action = Action("publish_message", topic, "", node)
        detail = f"{size(len(body))}" + (f", deferred {duration(defer / 1000)}" if defer else "")
        return await self._perform(
            visitor,
            [action],
            lambda: self._changes.publish(topic, body, node=node, headers=headers, defer=defer),
            "",
            detail=detail,
        )

    async def apply(
        self, visitor: Visitor, action: Action, detail: str, change: Callable[[], Awaitable[Results]]
    ) -> Results:
        """Carry out a change of lapwing's own on several nodes, and return the result of each."""
        if not visitor.may_change:
            self._write(visitor, action, _REFUSED, detail)
            raise Forbidden
        try:
            results = await change()
        except LapwingError as error:
            self._write(visitor, action, str(error) or type(error).__name__, detail)
            raise
        refused = failures(results)
        partly = "WARNING: " if len(refused) < len(results) else ""
        outcome = partly + "; ".join(refused) if refused else "" if results else "no nsqd has it"
        self._write(visitor, action, outcome, detail)
        return results

    def set_option(self, visitor: Visitor, key: str, text: str, change: Callable[[str, str], object]) -> None:
        """Change an option of this nsqadmin with `change`, which raises for an unknown key or a bad value."""
        action, detail = Action("set_option", ""), f"{key}={text[:200]}"
        if not visitor.may_change:
            self._write(visitor, action, _REFUSED, detail)
            raise Forbidden
        change(key, text)
        self._write(visitor, action, "", detail)

    async def _perform(
        self,
        visitor: Visitor,
        actions: list[Action],
        change: Callable[[], Awaitable[Outcome]],
        url: str,
        *,
        even_if_failed: bool = False,
        detail: str = "",
    ) -> Outcome:
        if not visitor.may_change:
            for action in actions:
                self._write(visitor, action, _REFUSED, detail)
            raise Forbidden
        try:
            outcome = await change()
        except LapwingError as error:
            for action in actions:
                self._write(visitor, action, str(error) or type(error).__name__, detail)
                if even_if_failed and isinstance(error, UpstreamFailed):
                    self._announce_change(action, visitor, url)
            raise
        for action in actions:
            self._write(visitor, action, outcome.message, detail)
            self._announce_change(action, visitor, url)
        return outcome

    def _write(self, visitor: Visitor, action: Action, outcome: str, detail: str = "") -> None:
        self.audit.write(
            visitor.user,
            visitor.address,
            action.kind,
            topic=action.topic,
            channel=action.channel,
            node=action.node,
            outcome=outcome,
            detail=detail,
        )

    def _announce_change(self, action: Action, visitor: Visitor, url: str) -> None:
        if self._announce is not None and action.kind in ANNOUNCED:
            self._announce(action, visitor, url)
