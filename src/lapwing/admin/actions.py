"""A change as somebody's deed: may they, do it, note it, tell others. The API and the pages both act through here."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from lapwing.admin.access import Visitor
from lapwing.admin.audit import Audit
from lapwing.client.cluster_changes import ClusterChanges, Outcome
from lapwing.client.cluster_client import UpstreamFailed
from lapwing.client.format import duration, size
from lapwing.errors import LapwingError

KINDS: Final = frozenset(
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
)


_REFUSED: Final = "refused: may not change anything"


class Forbidden(LapwingError):
    """The visitor may look, not touch."""


@dataclass(frozen=True, slots=True)
class Deed:
    """One change: of `KINDS`, to a topic, perhaps a channel of it, perhaps on one node only."""

    kind: str
    topic: str
    channel: str = ""
    node: str = ""


class Announce(Protocol):
    """Tells the outside world of a deed."""

    def __call__(self, deed: Deed, visitor: Visitor, url: str) -> None:
        """Never waits, never fails."""


class Actions:
    """Carries deeds out for visitors who may, and keeps account of all of them, the refused ones too."""

    def __init__(self, changes: ClusterChanges, audit: Audit, announce: Announce | None = None) -> None:
        self._changes = changes
        self._announce = announce
        self.audit = audit

    async def create(
        self, visitor: Visitor, topic: str, channel: str = "", *, node: str = "", url: str = ""
    ) -> Outcome:
        """Create a topic, and a channel of it."""
        deeds = [Deed("create_topic", topic, "", node)]
        if channel:
            deeds.append(Deed("create_channel", topic, channel, node))
        return await self._perform(visitor, deeds, lambda: self._changes.create(topic, channel, node=node), url)

    async def act(
        self, visitor: Visitor, action: str, topic: str, channel: str = "", *, node: str = "", url: str = ""
    ) -> Outcome:
        """Pause, unpause or empty."""
        deed = Deed(f"{action}_{'channel' if channel else 'topic'}", topic, channel, node)
        return await self._perform(
            visitor, [deed], lambda: self._changes.act(action, topic, channel, node=node), url, even_if_failed=True
        )

    async def delete(
        self, visitor: Visitor, topic: str, channel: str = "", *, node: str = "", url: str = ""
    ) -> Outcome:
        """Delete a topic or a channel."""
        deed = Deed("delete_channel" if channel else "delete_topic", topic, channel, node)
        return await self._perform(visitor, [deed], lambda: self._changes.delete(topic, channel, node=node), url)

    async def tombstone(self, visitor: Visitor, topic: str, node: str, *, url: str = "") -> Outcome:
        """Take a topic away from one node."""
        deed = Deed("tombstone_topic_producer", topic, "", node)
        return await self._perform(visitor, [deed], lambda: self._changes.tombstone(topic, node), url)

    async def publish(
        self, visitor: Visitor, topic: str, body: bytes, *, node: str, headers: dict[str, str], defer: int = 0
    ) -> Outcome:
        """Publish one message to one node; `defer` in milliseconds."""
        deed = Deed("publish_message", topic, "", node)
        detail = f"{size(len(body))}" + (f", deferred {duration(defer / 1000)}" if defer else "")
        return await self._perform(
            visitor,
            [deed],
            lambda: self._changes.publish(topic, body, node=node, headers=headers, defer=defer),
            "",
            detail=detail,
        )

    def set_option(self, visitor: Visitor, key: str, text: str, put: Callable[[str, str], object]) -> None:
        """Change an option of this nsqadmin with `put`, which raises for an unknown key or a bad value."""
        deed, detail = Deed("set_option", ""), f"{key}={text[:200]}"
        if not visitor.may_change:
            self._note(visitor, deed, _REFUSED, detail)
            raise Forbidden
        put(key, text)
        self._note(visitor, deed, "", detail)

    async def _perform(
        self,
        visitor: Visitor,
        deeds: list[Deed],
        change: Callable[[], Awaitable[Outcome]],
        url: str,
        *,
        even_if_failed: bool = False,
        detail: str = "",
    ) -> Outcome:
        if not visitor.may_change:
            for deed in deeds:
                self._note(visitor, deed, _REFUSED, detail)
            raise Forbidden
        try:
            outcome = await change()
        except LapwingError as error:
            for deed in deeds:
                self._note(visitor, deed, str(error) or type(error).__name__, detail)
                if even_if_failed and isinstance(error, UpstreamFailed):
                    self._tell(deed, visitor, url)
            raise
        for deed in deeds:
            self._note(visitor, deed, outcome.message, detail)
            self._tell(deed, visitor, url)
        return outcome

    def _note(self, visitor: Visitor, deed: Deed, outcome: str, detail: str = "") -> None:
        self.audit.write(
            visitor.user,
            visitor.address,
            deed.kind,
            topic=deed.topic,
            channel=deed.channel,
            node=deed.node,
            outcome=outcome,
            detail=detail,
        )

    def _tell(self, deed: Deed, visitor: Visitor, url: str) -> None:
        if self._announce is not None and deed.kind in KINDS:
            self._announce(deed, visitor, url)
