"""Changes that visitors make: check the permission, carry the change out, write it to the audit, announce it.

The API and the pages change the cluster only through this module.
"""

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lapwing.admin.access import Visitor
from lapwing.admin.audit import PARTLY, Audit
from lapwing.client.admin import Admin
from lapwing.client.admin_results import Results, settled
from lapwing.client.change_origin import change_by
from lapwing.client.cluster_client import NothingThere, UpstreamFailed, warning
from lapwing.client.format import duration, size
from lapwing.errors import LapwingError

T = TypeVar("T")
ACTS: Final = {"pause": Admin.pause, "unpause": Admin.unpause, "empty": Admin.empty}


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

    def __init__(self, brokers: Admin, audit: Audit, announce: Announce | None = None) -> None:
        self._brokers = brokers
        self._announce = announce
        self.audit = audit

    async def create(
        self, visitor: Visitor, topic: str, channel: str = "", *, node: str = "", url: str = ""
    ) -> Results[None]:
        """Create a topic, and a channel of it if one is named: in nsqlookupd ahead of use, or on one node."""
        actions = [Action("create_topic", topic, "", node)]
        channels = [channel] if channel else []
        if channel:
            actions.append(Action("create_channel", topic, channel, node))
        create = self._brokers.only(node).create if node else self._brokers.register
        return await self._announced(visitor, actions, url, lambda: create(topic, *channels))

    async def act(
        self, visitor: Visitor, verb: str, topic: str, channel: str = "", *, node: str = "", url: str = ""
    ) -> Results[None]:
        """Pause, unpause or empty a topic or channel."""
        actions = [Action(f"{verb}_{'channel' if channel else 'topic'}", topic, channel, node)]
        brokers = self._brokers.only(node)
        return await self._announced(
            visitor, actions, url, lambda: ACTS[verb](brokers, topic, channel), even_if_failed=True
        )

    async def delete(
        self, visitor: Visitor, topic: str, channel: str = "", *, node: str = "", url: str = ""
    ) -> Results[None]:
        """Delete a topic or a channel."""
        actions = [Action("delete_channel" if channel else "delete_topic", topic, channel, node)]
        brokers = self._brokers.only(node)
        return await self._announced(visitor, actions, url, lambda: brokers.delete(topic, channel))

    async def tombstone(self, visitor: Visitor, topic: str, node: str, *, url: str = "") -> Results[None]:
        """Hide the topic of one node from discovery, and delete it there."""
        actions = [Action("tombstone_topic_producer", topic, "", node)]
        return await self._announced(visitor, actions, url, lambda: self._brokers.tombstone(topic, node))

    async def publish(
        self, visitor: Visitor, topic: str, body: bytes, *, node: str, headers: dict[str, str], defer: int = 0
    ) -> str:
        """Publish one message to one node, `defer` in milliseconds; return a warning, or an empty text."""

        async def send() -> str:
            found = await self._brokers.cluster.node_named(node)
            params = {"topic": topic} | ({"defer": str(defer)} if defer else {})
            extra = {"X-Lapwing-Headers": json.dumps(headers)} if headers else None
            await self._brokers.cluster.http.post(found.value.contact, "/pub", params, body=body, headers=extra)
            return found.message

        detail = f"{size(len(body))}" + (f", deferred {duration(defer / 1000)}" if defer else "")
        return await self._audited(visitor, [Action("publish_message", topic, "", node)], detail, send, str)

    async def apply(
        self, visitor: Visitor, action: Action, detail: str, change: Callable[[], Awaitable[Results[T]]]
    ) -> Results[T]:
        """Carry out a change of lapwing's own on several nodes, and return the result of each."""
        return await self._audited(visitor, [action], detail, lambda: settled(change()), _outcome)

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
        change: Callable[[], Awaitable[Results[None]]],
        *,
        even_if_failed: bool = False,
    ) -> Results[None]:
        """Carry out a change that NSQ's nsqadmin announces. As there, a topic without nodes is no error."""

        async def carry_out() -> Results[None]:
            try:
                return await settled(change())
            except NothingThere as error:
                if isinstance(error.__cause__, UpstreamFailed):
                    raise error.__cause__ from None
                return Results((), tuple(error.errors))

        try:
            results = await self._audited(visitor, actions, "", carry_out, warning_of)
        except UpstreamFailed:
            if even_if_failed:
                self._announce_all(actions, visitor, url)
            raise
        self._announce_all(actions, visitor, url)
        return results

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

    def _write(self, visitor: Visitor, actions: list[Action], outcome: str, detail: str, change: str = "") -> None:
        about = {"outcome": outcome, "detail": detail, "change": change}
        for action in actions:
            where = {"topic": action.topic, "channel": action.channel, "node": action.node}
            self.audit.write(visitor.user, visitor.address, action.kind, **where, **about)


def warning_of(results: Results[None]) -> str:
    """Return the warning of nsqadmin's API: empty when every daemon did it."""
    refused = [str(result.failure or result.error) for result in results if not result.done]
    return warning([list(results.missing), refused])


def _outcome(results: Results[Any]) -> str:
    """Return the outcome of a change on several nodes, for the audit."""
    if results.errors:
        return (PARTLY if any(result.done for result in results) else "") + "; ".join(results.errors)
    return "" if len(results) else "no nsqd has it"
