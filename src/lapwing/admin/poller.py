"""Poll the cluster for all open pages together: as often as pages are open, and only for what they show."""

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lapwing import names
from lapwing.admin.error_texts import failure_reason
from lapwing.admin.history import History
from lapwing.admin.pipeline_history import PipelineHistory
from lapwing.client import cluster
from lapwing.client.alarms import Alarm, AlarmLimits, alarms, unread
from lapwing.client.cluster import DeadTopic, Json, Node, dead_topics
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.cluster_view import ClusterView, NodeState
from lapwing.client.http import Asked, Params
from lapwing.client.pipeline_status import newest

log = logging.getLogger("nsqadmin")

WATCHED: Final = 2.0  # seconds between samples while a browser is open
UNWATCHED: Final = 10.0  # seconds between samples otherwise, give or take a quarter: see `_pause`
SHARE: Final = 0.08  # of one core for the poller: it polls a huge cluster less often
DISCOVERY: Final = 5.0  # seconds between requests to nsqlookupd
SLOWLY: Final = 10.0  # seconds between requests for what rarely changes
GONE_FOR: Final = 3600.0  # seconds that a node which left is still shown
PIPELINE_FOR: Final = 86400.0  # seconds that a pipeline without reports is still shown

PATIENCE: Final = 0.5  # seconds that a page waits for a new view
FIRST_PATIENCE: Final = 1.5  # seconds that a page waits for the first view

EVERYWHERE: Final = "*"


@dataclass(eq=False, slots=True)
class Watcher:
    """An open page: the function that draws it again, and the details that it shows."""

    refresh: Callable[[], None]
    clients: str = ""  # a node whose clients are shown, or `EVERYWHERE`
    channel: tuple[str, str] | None = None  # a channel whose clients are shown
    resources: str = ""  # a node whose resources and options are shown
    dead: bool = False  # whether dead letters and redrives are shown


@dataclass(slots=True)
class _Known:
    """The endpoints that a node has, asked for once per start of the node."""

    started: int = -1
    lapwing: bool = False
    pipelines: bool = False


@dataclass(slots=True)
class Poller:
    """Keep `cluster_view`, `alarms` and `history` up to date."""

    cluster_client: ClusterClient
    history: History = field(default_factory=History)
    pipeline_history: PipelineHistory = field(default_factory=PipelineHistory)
    limits: AlarmLimits = field(default_factory=AlarmLimits)
    cluster_view: ClusterView = field(default_factory=ClusterView)
    alarms: list[Alarm] = field(default_factory=list)
    unread: int = 0  # messages in channels that nobody reads yet
    channels: dict[tuple[str, str], Json] = field(default_factory=dict)  # channels that pages show, with clients
    producers: list[Json] = field(default_factory=list)  # connections that have published, while clients are shown
    resources: dict[str, Json] = field(default_factory=dict)  # of nodes that pages show, by name
    dead: dict[str, DeadTopic] = field(default_factory=dict)  # dead-letter topics by name
    busy: float = 0.0  # seconds of CPU that the last poll took
    _watchers: set[Watcher] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _turn: asyncio.Event = field(default_factory=asyncio.Event)  # set and replaced after every poll
    _nodes: dict[str, Node] = field(default_factory=dict)  # by contact
    _gone: dict[str, tuple[Node, float]] = field(default_factory=dict)  # by contact: since when
    _lost: dict[str, float] = field(default_factory=dict)  # by contact: since when it does not answer
    _known: dict[str, _Known] = field(default_factory=lambda: defaultdict(_Known))  # by contact
    _lookupds: tuple[tuple[str, str], ...] = ()
    _idle: tuple[str, ...] = ()
    _pipelines: list[Json] = field(default_factory=list)
    _pipelines_kept: bool = False
    _due: dict[str, float] = field(default_factory=dict)

    # ---- pages ----

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher.refresh` after every poll from now on, and poll at once."""
        self._watchers.add(watcher)
        self.soon()

    def unwatch(self, watcher: Watcher) -> None:
        """Stop calling `watcher.refresh`. Calling this twice does no harm."""
        self._watchers.discard(watcher)

    def soon(self) -> None:
        """Poll at once."""
        self._wake.set()

    async def fresh(self, *, age: float = WATCHED) -> ClusterView:
        """Return a view no older than `age` seconds, or an older one if the cluster takes long to answer.

        A page is drawn again with the next view, so an older one for a moment is better than a wait.
        """
        if self.cluster_client.clock() - self.cluster_view.at > age:
            turn = self._turn
            self.soon()
            try:
                async with asyncio.timeout(PATIENCE if self.cluster_view.at else FIRST_PATIENCE):
                    await turn.wait()
            except TimeoutError:
                log.debug("the cluster answers slowly")
        return self.cluster_view

    # ---- the loop ----

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.poll()
            except Exception as error:  # a malformed answer of one daemon must not end the polling
                log.exception("a poll failed")
                self.cluster_view = replace(self.cluster_view, failure=f"an answer could not be understood ({error!r})")
            turn, self._turn = self._turn, asyncio.Event()
            turn.set()
            self._refresh_pages()
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next poll is due. A page that opens, or a change, ends the wait early."""
        fresh = self.history.cluster.ends() == 0.0  # rates need a second sample
        # at even intervals, a channel that is worked off every 10 seconds would always be seen at the same depth
        unwatched = UNWATCHED * random.uniform(0.75, 1.25)
        usual = 1.0 if fresh else WATCHED if self._watchers else unwatched
        until = time.monotonic() + max(usual, self.busy / SHARE)
        soonest = time.monotonic() + max(0.1, self.busy / SHARE / 4)
        try:
            async with asyncio.timeout(until - time.monotonic()):
                await self._wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(0.0, soonest - time.monotonic()))

    def _refresh_pages(self) -> None:
        for watcher in list(self._watchers):
            try:
                watcher.refresh()
            except Exception:  # a failing page must not keep the others from being drawn
                log.exception("a page could not be drawn")

    async def poll(self) -> None:
        """Ask every daemon once, and build a new view."""
        now = self.cluster_client.clock()
        failure = await self._discover(now)
        asked = await self._ask_nodes(failure)
        began = time.process_time()
        topics = asked.combined(lambda answers: self._topics(answers, now))
        self.busy = time.process_time() - began
        answers = asked.answers
        self.producers = [each for answer in answers.values() for each in answer.get("producers") or ()]
        await self._explore_new(answers)
        began = time.process_time()
        await asyncio.sleep(0)  # with thousands of topics each step takes long: serve requests in between
        self.history.sample(now, topics)
        await asyncio.sleep(0)
        states = self._states(asked, now)
        self.busy += time.process_time() - began
        await self._details(answers, topics, now)
        began = time.process_time()
        self.cluster_view = ClusterView(
            at=now,
            direct=self.cluster_client.direct,
            lookupds=self._lookupds,
            nodes=tuple(sorted(states, key=lambda state: (state.node.hostname, state.node.name))),
            topics=topics,
            lost_topics=self._lost_topics(states),
            idle_topics=tuple(name for name in self._idle if name not in topics),
            failure=failure,
            pipelines=tuple(self._pipelines) if self._pipelines_kept else None,
        )
        self.alarms = alarms(self.cluster_view, self.history, self.limits, self.dead)
        self.unread = unread(self.cluster_view, self.history, self.limits)
        self.busy += time.process_time() - began

    # ---- discovery ----

    async def _discover(self, now: float) -> str:
        if self.cluster_client.direct:
            return await self._describe_configured()
        if not self._is_due("discovery", DISCOVERY):
            return ""
        asked = await self._ask(self.cluster_client.lookupds, "/nodes")
        nodes = asked.combined(cluster.nodes_of_lookup)
        self._lookupds = tuple((address, _error(asked, address)) for address in self.cluster_client.lookupds)
        if asked.nobody:
            self._due.pop("discovery", None)
            return "" if self._nodes else "no nsqlookupd answers"
        self._replace_nodes({node.contact: node for node in nodes}, now)
        if self._is_due("topics", SLOWLY):
            topics = await self._ask(asked.answers, "/topics")
            self._idle = tuple(
                sorted({name for answer in topics.answers.values() for name in answer.get("topics") or ()})
            )
        return ""

    def _replace_nodes(self, nodes: dict[str, Node], now: float) -> None:
        for contact, node in self._nodes.items():
            if contact not in nodes:
                self._gone[contact] = (node, now)
        self._gone = {
            contact: (node, since)
            for contact, (node, since) in self._gone.items()
            if contact not in nodes and now - since < GONE_FOR
        }
        self._nodes = nodes

    async def _describe_configured(self) -> str:
        """Ask the configured nsqds for their `/info`: now and then, and those that have not answered yet."""
        again = self._is_due("info", 3 * SLOWLY)
        asking = [
            address for address in self.cluster_client.nsqds if again or not self._nodes.get(address, _UNKNOWN).version
        ]
        asked = await self._ask(asking, "/info")
        for address, info in asked.answers.items():
            self._nodes[address] = cluster.node_of_info(address, info)
        for address in asked.failures:
            self._nodes.setdefault(address, cluster.node_of_info(address, {}))
        return ""

    # ---- figures ----

    async def _ask_nodes(self, failure: str) -> Asked[Any]:
        wanted = {watcher.clients for watcher in self._watchers if watcher.clients}

        async def stats(contact: str) -> Any:
            shown = EVERYWHERE in wanted or self._nodes[contact].name in wanted
            params = {"format": "json", "include_clients": "true" if shown else "false", "include_mem": "false"}
            return await self.cluster_client.http.get(contact, "/stats", params)

        return await self.cluster_client.http.ask_all(() if failure else self._nodes, stats)

    def _states(self, asked: Asked[Any], now: float) -> list[NodeState]:
        answers = asked.answers
        known = {state.node.name: state for state in self.cluster_view.nodes}
        self._lost = {
            contact: self._lost.get(contact, now) for contact in (*self._nodes, *self._gone) if contact not in answers
        }
        states: list[NodeState] = []
        for contact, node in self._nodes.items():
            answer = answers.get(contact)
            if answer is not None:
                states.append(self._answered(contact, node, answer))
            else:
                before = replace(known.get(node.name) or NodeState(node), node=node, gone_since=0.0)
                error = _error(asked, contact) or "no answer"
                states.append(replace(before, error=error, lost_since=self._lost[contact]))
        for contact, (node, since) in self._gone.items():
            before = known.get(node.name) or NodeState(node)
            states.append(replace(before, gone_since=since, lost_since=self._lost[contact]))
        return states

    def _answered(self, contact: str, node: Node, answer: Json) -> NodeState:
        if self.cluster_client.direct:
            node = replace(node, topics=tuple((topic["topic_name"], False) for topic in answer.get("topics") or ()))
        return NodeState.of(node, answer, lapwing=self._known[contact].lapwing)

    def _lost_topics(self, states: list[NodeState]) -> dict[str, tuple[Json, ...]]:
        """Return the topics of nodes that do not answer, as they were in the last view with an answer."""
        before = self.cluster_view
        lost = [state.node.name for state in states if not state.reachable]
        found = {name: before.lost_topics[name] for name in lost if name in before.lost_topics}
        for name in lost:
            if name not in found:
                parts = (part for topic in before.topics.values() for part in topic["nodes"] if part["node"] == name)
                found[name] = tuple(parts)
        return found

    # ---- details ----

    async def _details(self, answers: dict[str, Json], topics: dict[str, Json], now: float) -> None:
        if self._is_due("pipelines", DISCOVERY):
            await self._ask_pipelines(answers, now)
        wanted = {watcher.channel for watcher in self._watchers if watcher.channel is not None}
        found = await asyncio.gather(*(self._channel(key, answers, topics, now) for key in wanted))
        self.channels = {key: channel for key, channel in zip(wanted, found, strict=True) if channel is not None}
        await self._ask_resources()
        if self._is_due("dead", SLOWLY) or any(watcher.dead for watcher in self._watchers):
            await self._ask_dead(topics)

    async def _ask_dead(self, topics: dict[str, Json]) -> None:
        """Ask the nodes that have dead-letter topics for them. Those that do not answer are left out."""
        named = (channel for topic in topics.values() for channel in topic["channels"])
        keeping = {part["node"] for each in named if each["channel_name"] == names.DEAD for part in each["nodes"]}
        keepers = {
            contact: node.name
            for contact, node in self._nodes.items()
            if node.name in keeping and self._known[contact].lapwing
        }
        asked = await self._ask(keepers, "/dead")
        self.dead = dead_topics({keepers[contact]: answer for contact, answer in asked.answers.items()})

    async def _ask_resources(self) -> None:
        """Ask the nodes that pages show for their memory, disk and options. Those that do not answer keep the last."""
        wanted = {watcher.resources for watcher in self._watchers if watcher.resources}
        self.resources = {name: found for name, found in self.resources.items() if name in wanted}
        lapwing = {
            node.name: contact
            for contact, node in self._nodes.items()
            if node.name in wanted and self._known[contact].lapwing
        }
        asked = await self._ask(lapwing.values(), "/node")
        for name, contact in lapwing.items():
            if contact in asked.answers:
                self.resources[name] = asked.answers[contact]

    async def _explore_new(self, answers: dict[str, Json]) -> None:
        """Ask new and restarted nodes which of lapwing's endpoints they have."""
        for contact, answer in answers.items():
            known = self._known[contact]
            if known.started != answer.get("start_time", 0):
                # hardly any topic has this name, so the answer is short
                known.lapwing = await self._has(contact, "/log/offsets", {"topic": "."})
                known.pipelines = known.lapwing and await self._has(contact, "/pipelines")
                known.started = answer.get("start_time", 0)

    async def _has(self, contact: str, path: str, params: Params = ()) -> bool:
        return not (await self._ask([contact], path, params)).nobody

    async def _ask_pipelines(self, answers: dict[str, Json], now: float) -> None:
        keepers = [contact for contact in answers if self._known[contact].pipelines]
        asked = await self._ask(keepers, "/pipelines")
        reported = [each for answer in asked.answers.values() for each in answer.get("pipelines") or ()]
        self._pipelines = [
            pipeline
            for pipeline in newest([*self._pipelines, *reported])
            if now - (pipeline.get("updated_ms") or 0) / 1000 < PIPELINE_FOR
        ]
        self._pipelines_kept = self._pipelines_kept or bool(keepers)
        self.pipeline_history.sample(self._pipelines)

    async def _channel(
        self, key: tuple[str, str], answers: dict[str, Json], topics: dict[str, Json], now: float
    ) -> Json | None:
        topic, channel = key
        holders = {part["node"] for part in (topics.get(topic) or {}).get("nodes") or ()}
        contacts = [contact for contact in answers if self._nodes[contact].name in holders]
        params = {"format": "json", "topic": topic, "channel": channel, "include_mem": "false"}
        found = (await self._ask(contacts, "/stats", params)).combined(lambda answers: self._topics(answers, now))
        channels = found[topic]["channels"] if topic in found else ()
        return next((each for each in channels if each["channel_name"] == channel), None)

    def _topics(self, answers: dict[str, Json], now: float) -> dict[str, Json]:
        return cluster.topics_of_stats(((self._nodes[contact], each) for contact, each in answers.items()), now=now)

    async def _ask(self, addresses: Iterable[str], path: str, params: Params = ()) -> Asked[Any]:
        http = self.cluster_client.http
        return await http.ask_all(addresses, lambda address: http.get(address, path, params))

    def _is_due(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._due.get(what, 0.0):
            return False
        self._due[what] = now + every * 0.9
        return True


_UNKNOWN: Final = Node("", "", 0, 0, "")


def _error(asked: Asked[Any], address: str) -> str:
    failure = asked.failures.get(address)
    return failure_reason(failure) if failure is not None else ""
