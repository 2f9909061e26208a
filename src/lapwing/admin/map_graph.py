"""The map of a cluster: who publishes to which topic, which channels read it, and who takes the messages: pure.

A box is in one of four columns (producers, topics, channels, readers). An edge leads to the next column and carries
messages a second.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lapwing import names
from lapwing.admin.history import FlowRates, History
from lapwing.admin.links import PageLinks
from lapwing.client.alarms import Alarm
from lapwing.client.cluster import DeadTopic, Json
from lapwing.client.cluster_view import ClusterView, CountRates
from lapwing.client.format import count, rate, several
from lapwing.client.pipeline_status import problem

COLUMNS: Final = ("Producers", "Topics", "Channels", "Readers")
MOST_TOPICS: Final = 25
MOST_CLIENTS: Final = 6  # hosts beside one topic or channel; the others are one box together
PRODUCERS, TOPICS, CHANNELS, READERS = range(4)


@dataclass(frozen=True, slots=True)
class MapNode:
    """One box."""

    id: str
    column: int
    kind: str  # producer, topic, channel, consumer, pipeline, dead
    name: str
    fact: str = ""
    tone: str = ""  # warning, error, or empty
    href: str = ""


@dataclass(slots=True)
class Map:
    """Boxes in the order of their column, edges as (from, to, messages a second), and the topics that are left out."""

    view: ClusterView
    history: History
    dead: Mapping[str, DeadTopic]
    tones: Mapping[str, str]  # severities of alarms, by what they are about
    links: PageLinks
    whole: bool = True  # the cluster, not one topic, whose hosts are drawn one by one
    left_out: int = 0
    nodes: dict[str, MapNode] = field(default_factory=dict)
    edges: list[tuple[str, str, float]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the map for the browser."""
        boxes = [
            [each.id, each.column, each.kind, each.name, each.fact, each.tone, each.href]
            for each in self.nodes.values()
        ]
        return {"columns": COLUMNS, "boxes": boxes, "edges": [[*ends, round(flow, 2)] for *ends, flow in self.edges]}

    def _add(self, node: MapNode) -> str:
        """Add a box, unless it is there, and return its id."""
        self.nodes.setdefault(node.id, node)
        return node.id

    def add_topic(self, topic: Json, hosts: Mapping[str, float]) -> None:
        """Add a topic with its channels, and with the hosts that publish to it."""
        name, came = topic["topic_name"], self.history.published(topic)
        fact = f"{rate(came)}/s" + (f" · {count(topic['depth'])} waiting" if topic["depth"] else "")
        tone, link = self.tones.get(name, ""), self.links.topic(name)
        box = self._add(MapNode(f"t {name}", TOPICS, "topic", name, fact, tone, link))
        self._add_producers(box, hosts, came)
        for channel in topic["channels"]:
            self._add_channel(box, channel)

    def _add_producers(self, box: str, hosts: Mapping[str, float], came: float) -> None:
        order = _most_first(hosts)
        for host in order[:MOST_CLIENTS]:
            self.edges.append((self._add(MapNode(f"p {host}", PRODUCERS, "producer", host)), box, hosts[host]))
        rest = order[MOST_CLIENTS:]
        if rest:
            other = self._add(MapNode(f"p+ {box}", PRODUCERS, "producer", several(len(rest), "other host")))
            self.edges.append((other, box, sum(hosts[host] for host in rest)))
        unknown = came - sum(hosts.values())
        if unknown > max(0.5, came / 20):  # HTTP and Redis clients are not counted one by one
            other = self._add(MapNode("p http", PRODUCERS, "producer", "HTTP and Redis"))
            self.edges.append((other, box, unknown))

    def _add_channel(self, box: str, channel: Json) -> None:
        topic, name = channel["topic_name"], channel["channel_name"]
        flow, about = self.history.channel_flow.get((topic, name), FlowRates()), f"{topic}/{name}"
        waiting = channel["depth"] + channel["in_flight_count"]
        facts = [f"{count(waiting)} unfinished"] if waiting else []
        facts += ["paused"] if channel["paused"] else []
        tone, link = self.tones.get(about, ""), self.links.topic(topic, name)
        node = self._add(MapNode(f"c {about}", CHANNELS, "channel", name, " · ".join(facts), tone, link))
        self.edges.append((box, node, flow.into))
        readers = [*self._consumers(about, channel, link), *self._pipelines(topic, name)]
        for reader in readers:
            self.edges.append((node, self._add(reader), flow.out / len(readers)))
        letters = self.dead.get(dead := f"{topic}.{name}.{names.DEAD}")
        if letters is not None and letters.letters:
            fact, tone = several(letters.letters, "dead letter"), self.tones.get(dead, "warning")
            self.edges.append(
                (node, self._add(MapNode(f"d {dead}", READERS, "dead", dead, fact, tone, self.links.dead(dead))), 0.0)
            )

    def _consumers(self, about: str, channel: Json, link: str) -> Iterator[MapNode]:
        hosts = _hosts(channel)
        order = _most_first(hosts)
        if self.whole and len(order) > 1:  # one box a channel, so that the picture of a cluster stays readable
            together = several(sum(hosts.values()), "connection")
            yield MapNode(f"r+ {about}", READERS, "consumer", several(len(order), "host"), together, "", link)
            return
        prefix = f"r {about}" if self.whole else "r"
        for host in order[:MOST_CLIENTS]:
            fact = several(hosts[host], "connection")
            yield MapNode(f"{prefix} {host}", READERS, "consumer", host, fact, "", link)
        if rest := order[MOST_CLIENTS:]:
            yield MapNode(f"r+ {about}", READERS, "consumer", several(len(rest), "other host"), "", "", link)

    def _pipelines(self, topic: str, channel: str) -> Iterator[MapNode]:
        for each in self.view.moving(topic, channel):
            name, tone = str(each["name"]), "error" if problem(each, now=self.view.at) else ""
            kind = str(each.get("kind") or "")
            yield MapNode(f"s {name}", READERS, "pipeline", name, kind, tone, self.links.pipeline(name))


def _most_first(hosts: Mapping[str, float]) -> list[str]:
    return sorted(hosts, key=lambda host: (-hosts[host], host))


def published_by_host(producers: Iterable[Json], counts: CountRates, at: float) -> dict[str, dict[str, float]]:
    """Return the messages a second by topic and publishing host; 0 at the first sight of a connection."""
    found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for each in producers:
        host = str(each.get("hostname") or each.get("client_id") or "?")
        for published in each.get("pub_counts") or ():
            key = " ".join((str(each.get("remote_address")), host, published["topic"]))
            found[published["topic"]][host] += counts.rate(key, published["count"], at) or 0.0
    return found


def chosen_topics(view: ClusterView, history: History, topic: str) -> tuple[list[Json], int]:
    """Return the topics to draw, the busiest of a large cluster, and how many are left out."""
    if topic:
        return [found for name, found in view.topics.items() if name == topic], 0
    found = [each for name, each in view.users_topics().items() if not _holds_letters(each)]
    found.sort(key=lambda each: (-history.published(each), -each["depth"], each["topic_name"]))
    shown = found[:MOST_TOPICS]
    return sorted(shown, key=lambda each: str(each["topic_name"])), len(found) - len(shown)


def draw_map(
    view: ClusterView,
    history: History,
    published: Mapping[str, Mapping[str, float]],
    dead: Mapping[str, DeadTopic],
    alarms: Sequence[Alarm],
    *,
    topic: str = "",
    links: PageLinks = PageLinks(),  # noqa: B008  frozen
) -> Map:
    """Return the map of all topics, or of one; `published` has messages a second by topic and host."""
    tones = {alarm.about: alarm.severity for alarm in reversed(alarms) if alarm.severity != "info"}
    made = Map(view, history, dead, tones, links, whole=not topic)
    topics, made.left_out = chosen_topics(view, history, topic)
    for each in topics:
        made.add_topic(each, published.get(each["topic_name"], {}))
    return made


def _holds_letters(topic: Json) -> bool:
    """Return whether a topic holds dead letters only: it is drawn beside the channel that they come from."""
    return any(names.dead_letters(topic["topic_name"], each["channel_name"]) for each in topic["channels"])


def _hosts(channel: Json) -> dict[str, int]:
    """Return the connections of a channel by host, and named consumers of Redis clients by name."""
    found: dict[str, int] = defaultdict(int)
    for each in channel.get("clients") or ():
        found[str(each.get("hostname") or each.get("client_id") or "?")] += 1
    for each in channel.get("consumers") or ():
        found[str(each["name"])] += 1
    return found
