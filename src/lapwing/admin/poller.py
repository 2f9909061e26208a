"""One poller for all browsers: asks the cluster as often as somebody looks, and for no more than they look at."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lapwing import names
from lapwing.admin.alarms import Alarm, Limits, alarms
from lapwing.admin.error_texts import failure_reason
from lapwing.admin.history import History
from lapwing.client import cluster
from lapwing.client.cluster import Json, Node
from lapwing.client.cluster_client import ClusterClient
from lapwing.client.cluster_view import ClusterView, NodeState
from lapwing.client.http import Asked, CallFailed

log = logging.getLogger("nsqadmin")

WATCHED: Final = 2.0  # seconds between samples while a browser is open
UNWATCHED: Final = 15.0  # enough for the history and the alarms
SHARE: Final = 0.08  # of one core that the poller may use: a huge cluster is polled more slowly
DISCOVERY: Final = 5.0  # seconds between questions to nsqlookupd
SLOWLY: Final = 10.0  # seconds between questions about what rarely changes
GONE_FOR: Final = 3600.0  # seconds that a node which left is still shown
PIPELINE_FOR: Final = 86400.0  # seconds that a pipeline which fell silent is still shown

PATIENCE: Final = 0.5  # seconds that a page waits for a new picture
FIRST_PATIENCE: Final = 1.5  # seconds that a page waits for the first picture

EVERYWHERE: Final = "*"


@dataclass(eq=False, slots=True)
class Watcher:
    """An open page: what to call with each new picture, and which details it shows."""

    refresh: Callable[[], None]
    clients: str = ""  # a node whose clients are shown, or `EVERYWHERE`
    channel: tuple[str, str] | None = None  # a channel whose clients are shown


@dataclass(slots=True)
class _Known:
    """What is remembered of a node between polls."""

    started: int = -1
    lapwing: bool = False
    pipelines: bool = False


@dataclass(slots=True)
class Poller:
    """Keeps `picture`, `alarms` and `history` up to date while it runs."""

    queries: ClusterClient
    history: History = field(default_factory=History)
    limits: Limits = field(default_factory=Limits)
    picture: ClusterView = field(default_factory=ClusterView)
    alarms: list[Alarm] = field(default_factory=list)
    channels: dict[tuple[str, str], Json] = field(default_factory=dict)  # watched ones, with clients
    busy: float = 0.0  # seconds of CPU that the last poll took
    _watchers: set[Watcher] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _turn: asyncio.Event = field(default_factory=asyncio.Event)  # set, and replaced, when a poll is done
    _nodes: dict[str, Node] = field(default_factory=dict)  # by contact
    _gone: dict[str, tuple[Node, float]] = field(default_factory=dict)  # by contact: since when
    _known: dict[str, _Known] = field(default_factory=dict)
    _lookupds: tuple[tuple[str, str], ...] = ()
    _idle: tuple[str, ...] = ()
    _pipelines: dict[str, Json] = field(default_factory=dict)
    _pipelines_kept: bool = False
    _due: dict[str, float] = field(default_factory=dict)

    # ---- who looks ----

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher.refresh` after every poll from now on; details it wants are fetched at once."""
        self._watchers.add(watcher)
        self.soon()

    def unwatch(self, watcher: Watcher) -> None:
        """Stop; harmless twice."""
        self._watchers.discard(watcher)

    def soon(self) -> None:
        """Poll now: somebody came, or changed something."""
        self._wake.set()

    async def fresh(self, *, age: float = WATCHED) -> ClusterView:
        """Return a picture no older than `age` seconds, or an older one when the cluster takes long to answer.

        An open page is drawn again with the next picture, so an older one for a moment is better than a wait.
        """
        if self.queries.clock() - self.picture.at > age:
            turn = self._turn
            self.soon()
            try:
                await asyncio.wait_for(turn.wait(), PATIENCE if self.picture.at else FIRST_PATIENCE)
            except TimeoutError:
                log.debug("the cluster takes its time")
        return self.picture

    # ---- the loop ----

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.poll()
            except Exception as error:  # a daemon that answers nonsense must not stop the watch over the others
                log.exception("a poll failed")
                self.picture = replace(self.picture, failure=f"an answer could not be understood ({error!r})")
            turn, self._turn = self._turn, asyncio.Event()
            turn.set()
            self._tell()
            await self._pause()

    async def _pause(self) -> None:
        """Wait for the next turn; a page that opens, or a change, ends the wait early."""
        fresh = self.history.cluster.ends() == 0.0  # rates need a second look
        usual = 1.0 if fresh else WATCHED if self._watchers else UNWATCHED
        until = time.monotonic() + max(usual, self.busy / SHARE)
        soonest = time.monotonic() + max(0.1, self.busy / SHARE / 4)
        try:
            await asyncio.wait_for(self._wake.wait(), until - time.monotonic())
        except TimeoutError:
            return
        await asyncio.sleep(max(0.0, soonest - time.monotonic()))

    def _tell(self) -> None:
        for watcher in list(self._watchers):
            try:
                watcher.refresh()
            except Exception:  # one page must not keep the others from being drawn
                log.exception("a page could not be drawn anew")

    async def poll(self) -> None:
        """Ask once, and make a new picture."""
        now = self.queries.clock()
        failure = await self._discover(now)
        answers, errors = await self._ask_nodes(failure)
        await self._explore_new(answers)
        began = time.process_time()
        topics = cluster.topics_of_stats(
            ((self._nodes[contact], answer) for contact, answer in answers.items()), now=now
        )
        await asyncio.sleep(0)  # with thousands of topics each step takes long: requests have their turn between
        self.history.sample(now, topics)
        await asyncio.sleep(0)
        states = [
            self._state(contact, node, answers.get(contact), errors.get(contact, ""))
            for contact, node in self._nodes.items()
        ]
        states += [NodeState(node, gone_since=since) for node, since in self._gone.values()]
        self.busy = time.process_time() - began
        await self._details(answers, topics, now)
        began = time.process_time()
        self.picture = ClusterView(
            at=now,
            direct=self.queries.direct,
            lookupds=self._lookupds,
            nodes=tuple(sorted(states, key=lambda state: (state.node.hostname, state.node.name))),
            topics=topics,
            idle_topics=tuple(name for name in self._idle if name not in topics),
            failure=failure,
            pipelines=tuple(self._pipelines[name] for name in sorted(self._pipelines))
            if self._pipelines_kept
            else None,
        )
        self.alarms = alarms(self.picture, self.history, self.limits)
        self.busy += time.process_time() - began

    # ---- who is there ----

    async def _discover(self, now: float) -> str:
        if self.queries.direct:
            return await self._describe_configured()
        if not self._is_due("discovery", DISCOVERY):
            return ""
        http = self.queries.http
        asked: Asked[Any] = await http.ask_all(self.queries.lookupds, lambda address: http.get(address, "/nodes"))
        self._lookupds = tuple((address, _error(asked, address)) for address in self.queries.lookupds)
        good = asked.answers
        if asked.nobody:
            self._due.pop("discovery", None)
            return "" if self._nodes else "no nsqlookupd answers"
        self._replace_nodes({node.contact: node for node in cluster.nodes_of_lookup(good)}, now)
        if self._is_due("topics", SLOWLY):
            topics: Asked[Any] = await http.ask_all(good, lambda address: http.get(address, "/topics"))
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
        """Direct mode: each nsqd describes itself, again from time to time, and as long as it has not."""
        again = self._is_due("info", 3 * SLOWLY)
        asking = [address for address in self.queries.nsqds if again or not self._nodes.get(address, _UNKNOWN).version]
        http = self.queries.http
        asked: Asked[Any] = await http.ask_all(asking, lambda address: http.get(address, "/info"))
        for address, info in asked.answers.items():
            self._nodes[address] = cluster.node_of_info(address, info)
        for address in asked.failures:
            self._nodes.setdefault(address, cluster.node_of_info(address, {}))
        return ""

    # ---- numbers ----

    async def _ask_nodes(self, failure: str) -> tuple[dict[str, Json], dict[str, str]]:
        wanted = {watcher.clients for watcher in self._watchers if watcher.clients}

        async def stats(contact: str) -> Any:
            shown = EVERYWHERE in wanted or self._nodes[contact].name in wanted
            params = {"format": "json", "include_clients": "true" if shown else "false", "include_mem": "false"}
            return await self.queries.http.get(contact, "/stats", params)

        asked: Asked[Any] = await self.queries.http.ask_all(() if failure else self._nodes, stats)
        return asked.answers, {contact: failure_reason(failure) for contact, failure in asked.failures.items()}

    def _state(self, contact: str, node: Node, answer: Json | None, error: str) -> NodeState:
        if answer is None:
            return NodeState(node, error=error or "no answer")
        raw = answer.get("topics") or ()
        if self.queries.direct:
            node = replace(node, topics=tuple((topic["topic_name"], False) for topic in raw))
        raw = [topic for topic in raw if not names.own(topic["topic_name"])]
        channels = [channel for topic in raw for channel in topic.get("channels") or ()]
        return NodeState(
            node,
            health=str(answer.get("health", "OK")),
            started=int(answer.get("start_time") or 0),
            topics=len(raw),
            channels=len(channels),
            clients=sum(channel.get("client_count", 0) for channel in channels),
            depth=sum(topic.get("depth", 0) for topic in raw) + sum(channel.get("depth", 0) for channel in channels),
            messages=sum(topic.get("message_count", 0) for topic in raw),
            lapwing=self._known.get(contact, _Known()).lapwing,
        )

    # ---- what is looked at ----

    async def _details(self, answers: dict[str, Json], topics: dict[str, Json], now: float) -> None:
        if self._is_due("pipelines", DISCOVERY):
            await self._ask_pipelines(answers, now)
        wanted = {watcher.channel for watcher in self._watchers if watcher.channel is not None}
        found = await asyncio.gather(*(self._channel(key, answers, topics, now) for key in wanted))
        self.channels = {key: channel for key, channel in zip(wanted, found, strict=True) if channel is not None}

    async def _explore_new(self, answers: dict[str, Json]) -> None:
        """Find out, once per start of a node, which of lapwing's own answers it has."""
        for contact, answer in answers.items():
            known = self._known.setdefault(contact, _Known())
            if known.started != answer.get("start_time", 0):
                await self._explore(contact, known)
                known.started = answer.get("start_time", 0)

    async def _explore(self, contact: str, known: _Known) -> None:
        # a name that hardly anybody uses: a short answer
        known.lapwing = await self._has(contact, "/log/offsets", {"topic": "."})
        known.pipelines = known.lapwing and await self._has(contact, "/pipelines")

    async def _has(self, contact: str, path: str, params: dict[str, str] | None = None) -> bool:
        try:
            await self.queries.http.get(contact, path, params or {})
        except CallFailed:
            return False
        return True

    async def _ask_pipelines(self, answers: dict[str, Json], now: float) -> None:
        keepers = [contact for contact in answers if self._known[contact].pipelines]
        http = self.queries.http
        asked: Asked[Any] = await http.ask_all(keepers, lambda contact: http.get(contact, "/pipelines"))
        for answer in asked.answers.values():
            for pipeline in answer.get("pipelines") or ():
                known = self._pipelines.get(pipeline["name"])
                if known is None or (pipeline.get("updated_ms") or 0) >= (known.get("updated_ms") or 0):
                    self._pipelines[pipeline["name"]] = pipeline
        self._pipelines = {
            name: pipeline
            for name, pipeline in self._pipelines.items()
            if now - (pipeline.get("updated_ms") or 0) / 1000 < PIPELINE_FOR
        }
        self._pipelines_kept = self._pipelines_kept or bool(keepers)

    async def _channel(
        self, key: tuple[str, str], answers: dict[str, Json], topics: dict[str, Json], now: float
    ) -> Json | None:
        topic, channel = key
        holders = {part["node"] for part in (topics.get(topic) or {}).get("nodes") or ()}
        contacts = [contact for contact in answers if self._nodes[contact].name in holders]
        params = {"format": "json", "topic": topic, "channel": channel, "include_mem": "false"}
        asked: Asked[Any] = await self.queries.http.ask_all(
            contacts, lambda contact: self.queries.http.get(contact, "/stats", params)
        )
        found = cluster.topics_of_stats(
            ((self._nodes[contact], answer) for contact, answer in asked.answers.items()), now=now
        )
        return next(
            (each for each in (found.get(topic) or {}).get("channels") or () if each["channel_name"] == channel), None
        )

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
