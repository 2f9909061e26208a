"""Read the state of a cluster: nodes, topics, channels, clients, health, from whichever daemon knows."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from lapwing.client import cluster
from lapwing.client.cluster import Json, Node
from lapwing.client.cluster_view import ClusterView, NodeState, ages_in
from lapwing.client.http import Asked, CallFailed, DaemonHttp
from lapwing.client.pipeline_status import newest
from lapwing.errors import LapwingError

T = TypeVar("T")
U = TypeVar("U")
AT_ONCE: Final = 16  # questions about inactive topics: there may be thousands
NO_CLIENTS: Final = {"format": "json", "include_clients": "false", "include_mem": "false"}


class UpstreamFailed(LapwingError):
    """None of the daemons that know the answer could be reached. `errors` has the reason of each."""

    def __init__(self, text: str, errors: Sequence[str] = ()) -> None:
        super().__init__(text + "\n".join(errors))
        self.errors = list(errors)


class NoSuchNode(LapwingError):
    """No known node has the name `node`; or it does not have the topic."""

    def __init__(self, node: str, others: Iterable[str] = ()) -> None:
        known = ", ".join(others)
        super().__init__(f"{node}: expected one of {known}" if known else node)
        self.node = node


class NothingThere(LapwingError):
    """No node has the topic or the channel. `errors` has the reason of each daemon that may know one that has."""

    def __init__(self, text: str, errors: Sequence[str] = ()) -> None:
        super().__init__("; ".join([text, *errors]))
        self.errors = list(errors)


@dataclass(slots=True)
class Found(Generic[T]):
    """A result, and the errors of daemons that could not contribute to it: one list per group of requests."""

    value: T
    trouble: list[list[str]] = field(default_factory=list)

    @property
    def message(self) -> str:
        """The warning of nsqadmin's API: empty when every daemon answered."""
        return warning(self.trouble)

    @property
    def errors(self) -> list[str]:
        """All errors in one list."""
        return [error for group in self.trouble for error in group]


def warning(trouble: Iterable[list[str]]) -> str:
    """Join errors of one group by newline, groups by `; `."""
    groups = ["\n".join(errors) for errors in trouble if errors]
    return "WARNING: " + "; ".join(groups) if groups else ""


class ClusterClient:
    """Ask the configured daemons and the nsqds that they name, and no others.

    In lookup mode nsqlookupds name the nsqds; in direct mode the caller does.
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
        """Whether the caller named the nsqds."""
        return not self.lookupds

    # ---- nodes ----

    async def nodes(self, *, topics: bool = True) -> Found[list[Node]]:
        """Return every known nsqd; in direct mode with its topics only if asked for. Raises `UpstreamFailed`."""
        if self.direct:
            return await self._each_nsqd(self._described if topics else self._info, _by_hostname)
        return await self._each_lookupd(lambda address: self.http.get(address, "/nodes"), cluster.nodes_of_lookup)

    async def _described(self, address: str) -> tuple[Json, Json]:
        return await self.http.get(address, "/info"), await self.http.get(address, "/stats", NO_CLIENTS)

    async def _info(self, address: str) -> tuple[Json, None]:
        return await self.http.get(address, "/info"), None

    async def holders(self, topic: str) -> Found[list[Node]]:
        """Return the nsqds that have the topic. Raises `UpstreamFailed`, also when no nsqlookupd knows the topic."""
        if not self.direct:
            return await self._each_lookupd(
                lambda address: self.http.get(address, "/lookup", {"topic": topic}), cluster.nodes_of_lookup
            )

        def having(answers: dict[str, Json]) -> list[str]:
            return [address for address, stats in answers.items() if topic in _topic_names(stats)]

        stats = {**NO_CLIENTS, "topic": topic}
        holders = await self._each_nsqd(lambda address: self.http.get(address, "/stats", stats), having)
        infos: Asked[tuple[Json, None]] = await self.http.ask_all(holders.value, self._info)
        nodes = infos.combined(_nodes)
        if holders.value and infos.nobody:
            raise UpstreamFailed("failed to query any nsqd: ", infos.errors)
        return Found(nodes, [*holders.trouble, infos.errors])

    async def node_named(self, name: str) -> Found[Node]:
        """Return the node of that name. Raises `NoSuchNode`, `UpstreamFailed`."""
        nodes = await self.nodes()
        for node in nodes.value:
            if node.name == name:
                return Found(node, nodes.trouble)
        raise NoSuchNode(name)

    async def stats(
        self, nodes: Iterable[Node], params: dict[str, str], combine: Callable[[list[tuple[Node, Json]]], U]
    ) -> Found[U]:
        """Combine the `/stats` of the nodes. Raises `UpstreamFailed` if there are nodes and none can be used."""
        by_contact = {node.contact: node for node in nodes}
        asked: Asked[Any] = await self.http.ask_all(
            by_contact, lambda address: self.http.get(address, "/stats", {"format": "json", **params})
        )
        found = asked.combined(lambda answers: combine([(by_contact[key], answer) for key, answer in answers.items()]))
        if by_contact and asked.nobody:
            raise UpstreamFailed("failed to query any nsqd: ", asked.errors)
        return Found(found, [asked.errors])

    # ---- nsqadmin's API ----

    async def topics(self) -> Found[list[str]]:
        """Return the name of every topic, in order."""
        if self.direct:
            return await self._each_nsqd(
                lambda address: self.http.get(address, "/stats", NO_CLIENTS),
                lambda answers: sorted({name for answer in answers.values() for name in _topic_names(answer)}),
            )
        return await self._each_lookupd(
            lambda address: self.http.get(address, "/topics"),
            lambda answers: sorted({name for answer in answers.values() for name in answer.get("topics") or ()}),
        )

    async def inactive_topics(self) -> Found[dict[str, list[str] | None]]:
        """Return the topics that nsqlookupd knows and no nsqd has, with their channels; none in direct mode."""
        if self.direct:
            return Found({})
        topics = await self._each_lookupd(
            lambda address: self.http.get(address, "/topics", {"channels": "true"}), _topics_and_channels
        )
        nodes = await self._each_lookupd(lambda address: self.http.get(address, "/nodes"), cluster.nodes_of_lookup)
        produced = {topic for node in nodes.value for topic, _ in node.topics}
        wanted = sorted({name for names, _ in topics.value.values() for name in names} - produced)
        channels: dict[str, set[str]] = {topic: set() for topic in wanted}
        trouble = topics.trouble + nodes.trouble
        for lookupd, (here, given) in topics.value.items():
            if given is None:  # NSQ's own nsqlookupd has to be asked topic by topic
                given, errors = await self._channels_of(lookupd, [topic for topic in wanted if topic in here])
                trouble.append(errors)
            for topic in wanted:
                channels[topic].update(given.get(topic) or ())
        return Found({topic: sorted(names) or None for topic, names in channels.items()}, trouble)

    async def _channels_of(self, lookupd: str, topics: list[str]) -> tuple[dict[str, list[str]], list[str]]:
        """Ask one nsqlookupd for the channels of each topic, some topics at a time."""
        found: dict[str, list[str]] = {}
        errors: list[str] = []
        waiting = iter(topics)

        async def work() -> None:
            for topic in waiting:
                try:
                    found[topic] = (await self.http.get(lookupd, "/channels", {"topic": topic})).get("channels") or []
                except CallFailed as error:
                    errors.append(str(error))

        await asyncio.gather(*(work() for _ in range(min(AT_ONCE, len(topics)))))
        return found, errors

    async def topic(self, topic: str) -> Found[Json]:
        """Return the topic summed over its nodes, without clients; one that only nsqlookupd knows has no nodes."""
        holders = await self.holders(topic)
        stats = await self.stats(holders.value, {"topic": topic, "include_clients": "false"}, self._topics)
        found = stats.value.get(topic)
        return Found(found or cluster.sum_topic(topic, []), holders.trouble + stats.trouble)

    async def channel(self, topic: str, channel: str) -> Found[Json]:
        """Return the channel summed over its nodes, with clients. Raises `NothingThere`."""
        holders = await self.holders(topic)
        stats = await self.stats(holders.value, {"topic": topic, "channel": channel}, self._topics)
        found = stats.value.get(topic)
        for candidate in found["channels"] if found else ():
            if candidate["channel_name"] == channel:
                return Found(candidate, holders.trouble + stats.trouble)
        raise NothingThere(f"{topic}/{channel}")

    async def node(self, name: str) -> Found[Json]:
        """Return the topics, channels and clients of one node. Raises `NoSuchNode`."""
        node = await self.node_named(name)

        def reported(stats: Iterable[tuple[Node, Json]]) -> list[Json]:
            return [cluster.node_report(each, answer, now=self.clock()) for each, answer in stats]

        reports = await self.stats([node.value], {}, reported)
        return Found(reports.value[0], node.trouble + reports.trouble)

    def _topics(self, stats: Iterable[tuple[Node, Json]]) -> dict[str, Json]:
        return cluster.topics_of_stats(stats, now=self.clock())

    async def counter(self) -> Found[Json]:
        """Return the messages per channel and node, over the whole cluster."""
        nodes = await self.nodes()
        params = {"include_clients": "false", "include_mem": "false"}
        stats = await self.stats(nodes.value, params, cluster.counter_of_stats)
        return Found(stats.value, nodes.trouble + stats.trouble)

    # ---- the whole cluster ----

    async def look(self, *, ages: bool = False, pipelines: bool = False) -> ClusterView:
        """Return a view of everything. A daemon that does not answer is an error in the view.

        `ages` and `pipelines` cost a further request to each nsqd; a plain NSQ server has neither.
        """
        lookupds, known, silent, errors = await self._known_nodes()
        stats = await self.http.ask_all(
            (node.contact for node in known if node.contact not in silent),
            lambda address: self.http.get(address, "/stats", NO_CLIENTS),
        )
        topics = stats.combined(
            lambda answers: self._topics([(node, answers[node.contact]) for node in known if node.contact in answers])
        )
        found = _Additions()
        if ages or pipelines:
            await asyncio.gather(*(self._add(found, address, ages, pipelines) for address in stats.answers))
        return ClusterView(
            at=self.clock(),
            taken=time.monotonic(),
            direct=self.direct,
            lookupds=lookupds,
            nodes=tuple(_node_state(node, stats, silent | found.silent, found) for node in known),
            topics=topics,
            pipelines=newest(found.pipelines) if pipelines else None,
            ages=found.ages,
            errors=(*errors, *stats.named_errors, *found.errors),
        )

    async def look_twice(
        self, *, apart: float, ages: bool = False, pipelines: bool = False
    ) -> tuple[ClusterView | None, ClusterView]:
        """Return a view and one from `apart` seconds before, unless that is 0. Raises `UpstreamFailed`."""
        before = None
        if apart:
            before = await self.look()
            await asyncio.sleep(apart)
        after = await self.look(ages=ages, pipelines=pipelines)
        if not after.reachable:
            raise UpstreamFailed("no nsqd answered: ", after.errors or ["nsqlookupd knows no nsqd"])
        return before, after

    async def _known_nodes(self) -> tuple[tuple[tuple[str, str], ...], list[Node], dict[str, str], list[str]]:
        """Return nsqlookupds with their errors, all nodes, why some of them did not answer, and the failed calls."""
        if self.direct:
            infos: Asked[tuple[Json, None]] = await self.http.ask_all(self.nsqds, self._info)
            known = infos.combined(_nodes)
            silent = {address: failure.reason for address, failure in infos.failures.items()}
            return (), [*known, *(cluster.node_of_info(address, {}) for address in silent)], silent, infos.named_errors
        asked: Asked[Any] = await self.http.ask_all(self.lookupds, lambda address: self.http.get(address, "/nodes"))
        nodes = asked.combined(cluster.nodes_of_lookup)
        lookupds = tuple(
            (address, asked.failures[address].reason if address in asked.failures else "") for address in self.lookupds
        )
        return lookupds, nodes, {}, asked.named_errors

    async def _add(self, found: "_Additions", address: str, ages: bool, pipelines: bool) -> None:
        """Ask one nsqd for the figures that only lapwing has."""
        try:
            if ages:
                metrics = await self.http.text(address, "/metrics")
                found.aged.add(address)
                for key, age in ages_in(metrics):
                    found.ages[key] = max(age, found.ages.get(key, 0.0))
            if pipelines:
                answer = await self.http.get(address, "/pipelines")
                found.pipelines += answer.get("pipelines") or []
        except CallFailed as error:
            if error.status is None:
                found.silent[address] = error.reason
                found.errors.append(str(error))

    # ---- groups of requests ----

    async def _each_lookupd(self, question: Callable[[str], Any], combine: Callable[[dict[str, Any]], U]) -> Found[U]:
        asked: Asked[Any] = await self.http.ask_all(self.lookupds, question)
        found = asked.combined(combine)
        if asked.nobody:
            raise UpstreamFailed("failed to query any nsqlookupd: ", asked.errors)
        return Found(found, [asked.errors])

    async def _each_nsqd(self, question: Callable[[str], Any], combine: Callable[[dict[str, Any]], U]) -> Found[U]:
        asked: Asked[Any] = await self.http.ask_all(self.nsqds, question)
        found = asked.combined(combine)
        if asked.nobody:
            raise UpstreamFailed("failed to query any nsqd: ", asked.errors)
        return Found(found, [asked.errors])


def _nodes(answers: Mapping[str, tuple[Json, Json | None]]) -> list[Node]:
    """Return the nodes that `/info`, and `/stats` for their topics, describe."""
    return [cluster.node_of_info(address, info, stats) for address, (info, stats) in answers.items()]


def _by_hostname(answers: Mapping[str, tuple[Json, Json | None]]) -> list[Node]:
    return sorted(_nodes(answers), key=lambda node: node.hostname)


def _topic_names(stats: Json) -> list[str]:
    return [raw["topic_name"] for raw in stats.get("topics") or ()]


def _topics_and_channels(answers: Mapping[str, Json]) -> dict[str, tuple[set[str], dict[str, list[str]] | None]]:
    """Return the topics that each nsqlookupd knows, and the channels of each where it gives them."""
    found: dict[str, tuple[set[str], dict[str, list[str]] | None]] = {}
    for lookupd, answer in answers.items():
        given = answer.get("channels")
        channels = None if given is None else {topic: list(names or ()) for topic, names in given.items()}
        found[lookupd] = set(answer.get("topics") or ()), channels
    return found


@dataclass(slots=True)
class _Additions:
    """The figures of a view that only lapwing's nsqd has."""

    ages: dict[tuple[str, str], float] = field(default_factory=dict)
    pipelines: list[Json] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)  # why nsqds did not answer any more, by address
    aged: set[str] = field(default_factory=set)  # addresses of the nsqds that know ages


def _node_state(node: Node, stats: Asked[Any], silent: Mapping[str, str], found: _Additions) -> NodeState:
    answer, contact = stats.answers.get(node.contact), node.contact
    if answer is None or contact in silent:
        return NodeState(node, error=silent[contact] if contact in silent else stats.failures[contact].reason)
    return NodeState.of(node, answer, lapwing=contact in found.aged)
