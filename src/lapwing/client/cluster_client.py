"""What can be asked of a cluster: every read of the API and of the pages, whoever has the answer."""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, TypeVar

from lapwing.client import cluster
from lapwing.client.cluster import Json, Node
from lapwing.client.http import Asked, DaemonHttp
from lapwing.errors import LapwingError

T = TypeVar("T")
AT_ONCE: Final = 16  # questions about inactive topics: there may be thousands
NO_CLIENTS: Final = {"format": "json", "include_clients": "false", "include_mem": "false"}


class UpstreamFailed(LapwingError):
    """Nobody of those who had to be asked could answer."""


class NoSuchNode(LapwingError):
    """The named node is not among the known ones."""


class NothingThere(LapwingError):
    """The topic is known, the channel is on none of its nodes."""


@dataclass(slots=True)
class Found(Generic[T]):
    """What was found, and what could not be asked: one list of errors per group of requests."""

    value: T
    trouble: list[list[str]] = field(default_factory=list)

    @property
    def message(self) -> str:
        """The API's warning: empty when everybody answered."""
        return warning(self.trouble)


def warning(trouble: Iterable[list[str]]) -> str:
    """Errors of one group joined by newline, groups by `; `."""
    groups = ["\n".join(errors) for errors in trouble if errors]
    return "WARNING: " + "; ".join(groups) if groups else ""


class ClusterClient:
    """Asks the configured daemons, and the nsqds they name; nobody else.

    With nsqlookupds ("lookup mode") they say which nsqds there are; otherwise the nsqds are given ("direct mode").
    """

    def __init__(
        self,
        http: DaemonHttp,
        *,
        lookupds: Iterable[str] = (),
        nsqds: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.http = http
        self.lookupds = list(lookupds)
        self.nsqds = list(nsqds)
        self.clock = clock

    @property
    def direct(self) -> bool:
        """Whether the nsqds themselves were configured."""
        return not self.lookupds

    # ---- who is there ----

    async def nodes(self) -> Found[list[Node]]:
        """Every nsqd that is known; raises `UpstreamFailed` when nobody could be asked."""
        if self.direct:
            infos = await self._each_nsqd(self._described)
            return Found(
                [node for node, _ in sorted(infos.answers.values(), key=lambda pair: pair[0].hostname)], [infos.errors]
            )
        answers = await self._each_lookupd(lambda address: self.http.get(address, "/nodes"))
        return Found(cluster.nodes_of_lookup(answers.answers), [answers.errors])

    async def _described(self, address: str) -> tuple[Node, Json]:
        info = await self.http.get(address, "/info")
        stats = await self.http.get(address, "/stats", NO_CLIENTS)
        return cluster.node_of_info(address, info, stats), stats

    async def holders(self, topic: str) -> Found[list[Node]]:
        """The nsqds that have the topic; raises `UpstreamFailed`, also when no nsqlookupd knows it."""
        if not self.direct:
            answers = await self._each_lookupd(lambda address: self.http.get(address, "/lookup", {"topic": topic}))
            return Found(cluster.nodes_of_lookup(answers.answers), [answers.errors])

        async def has(address: str) -> Node | None:
            stats = await self.http.get(address, "/stats", {**NO_CLIENTS, "topic": topic})
            if not any(raw["topic_name"] == topic for raw in stats.get("topics") or ()):
                return None
            return cluster.node_of_info(address, await self.http.get(address, "/info"))

        asked = await self._each_nsqd(has)
        return Found([node for node in asked.answers.values() if node is not None], [asked.errors])

    async def node_named(self, name: str) -> Found[Node]:
        """The node of that name; raises `NoSuchNode`, `UpstreamFailed`."""
        nodes = await self.nodes()
        for node in nodes.value:
            if node.name == name:
                return Found(node, nodes.trouble)
        raise NoSuchNode(name)

    async def stats(self, nodes: Iterable[Node], params: dict[str, str]) -> Found[list[tuple[Node, Json]]]:
        """The `/stats` of those nodes; nobody to ask is no trouble, nobody answering is `UpstreamFailed`."""
        by_contact = {node.contact: node for node in nodes}
        asked: Asked[Any] = await self.http.ask_all(
            by_contact, lambda address: self.http.get(address, "/stats", {"format": "json", **params})
        )
        if by_contact and asked.nobody:
            raise UpstreamFailed("failed to query any nsqd: " + "\n".join(asked.errors))
        return Found([(by_contact[contact], answer) for contact, answer in asked.answers.items()], [asked.errors])

    # ---- the API's questions ----

    async def topics(self) -> Found[list[str]]:
        """Every topic's name, in order."""
        if self.direct:
            stats = await self._each_nsqd(lambda address: self.http.get(address, "/stats", NO_CLIENTS))
            names = {raw["topic_name"] for answer in stats.answers.values() for raw in answer.get("topics") or ()}
            return Found(sorted(names), [stats.errors])
        asked = await self._each_lookupd(lambda address: self.http.get(address, "/topics"))
        return Found(
            sorted({name for answer in asked.answers.values() for name in answer.get("topics") or ()}), [asked.errors]
        )

    async def inactive_topics(self) -> Found[dict[str, list[str] | None]]:
        """Topics that nsqlookupd knows and no nsqd has, with the channels it knows; none in direct mode."""
        if self.direct:
            return Found({})
        topics = await self.topics()
        nodes = await self._each_lookupd(lambda address: self.http.get(address, "/nodes"))
        produced = {topic for node in cluster.nodes_of_lookup(nodes.answers) for topic, _ in node.topics}
        wanted = [topic for topic in topics.value if topic not in produced]
        inactive: dict[str, list[str] | None] = {}
        trouble = [*topics.trouble, nodes.errors]
        for begin in range(0, len(wanted), AT_ONCE):
            some = wanted[begin : begin + AT_ONCE]
            asked = [self._each_lookupd(partial(self._channels_known, topic)) for topic in some]
            for topic, channels in zip(some, await asyncio.gather(*asked), strict=True):
                names = sorted({name for answer in channels.answers.values() for name in answer.get("channels") or ()})
                inactive[topic] = names or None
                trouble.append(channels.errors)
        return Found(inactive, trouble)

    async def _channels_known(self, topic: str, address: str) -> Any:
        return await self.http.get(address, "/channels", {"topic": topic})

    async def topic(self, topic: str) -> Found[Json]:
        """The topic summed over its nodes, without clients; one that only nsqlookupd knows has no nodes."""
        holders = await self.holders(topic)
        stats = await self.stats(holders.value, {"topic": topic, "include_clients": "false"})
        found = cluster.topics_of_stats(stats.value, now=self.clock()).get(topic)
        return Found(found or cluster.sum_topic(topic, []), holders.trouble + stats.trouble)

    async def channel(self, topic: str, channel: str) -> Found[Json]:
        """The channel summed over its nodes, with clients; raises `NothingThere`."""
        holders = await self.holders(topic)
        stats = await self.stats(holders.value, {"topic": topic, "channel": channel})
        found = cluster.topics_of_stats(stats.value, now=self.clock()).get(topic)
        for candidate in found["channels"] if found else ():
            if candidate["channel_name"] == channel:
                return Found(candidate, holders.trouble + stats.trouble)
        raise NothingThere(f"{topic}/{channel}")

    async def node(self, name: str) -> Found[Json]:
        """One node's topics, channels and clients; raises `NoSuchNode`."""
        node = await self.node_named(name)
        stats = await self.stats([node.value], {})
        return Found(cluster.node_report(*stats.value[0], now=self.clock()), node.trouble + stats.trouble)

    async def counter(self) -> Found[Json]:
        """Messages per channel and node, over the whole cluster."""
        nodes = await self.nodes()
        stats = await self.stats(nodes.value, {"include_clients": "false", "include_mem": "false"})
        topics = cluster.topics_of_stats(stats.value, now=self.clock())
        return Found(cluster.counter_of_topics(topics.values()), nodes.trouble + stats.trouble)

    # ---- groups of requests ----

    async def _each_lookupd(self, question: Callable[[str], Any]) -> Asked[Any]:
        asked: Asked[Any] = await self.http.ask_all(self.lookupds, question)
        if asked.nobody:
            raise UpstreamFailed("failed to query any nsqlookupd: " + "\n".join(asked.errors))
        return asked

    async def _each_nsqd(self, question: Callable[[str], Any]) -> Asked[Any]:
        asked: Asked[Any] = await self.http.ask_all(self.nsqds, question)
        if asked.nobody:
            raise UpstreamFailed("failed to query any nsqd: " + "\n".join(asked.errors))
        return asked
