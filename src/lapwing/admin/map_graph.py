"""The map of a cluster: who publishes to which topic, which channels read it, and who takes the messages: pure.

A box is in one of four columns (producers, topics, channels, readers). An edge leads to the next column and carries
messages a second.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from lapwing import names
from lapwing.admin.alarms import Alarm, topic_link
from lapwing.admin.dead_letters import DeadTopic
from lapwing.admin.history import History
from lapwing.client.cluster import Json
from lapwing.client.cluster_view import ClusterView
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

    nodes: dict[str, MapNode] = field(default_factory=dict)
    edges: list[tuple[str, str, float]] = field(default_factory=list)
    whole: bool = True  # the cluster, not one topic, whose hosts are drawn one by one
    left_out: int = 0

    def add(self, node: MapNode) -> str:
        """Add a box, unless it is there, and return its id."""
        self.nodes.setdefault(node.id, node)
        return node.id

    def to_json(self, base: str) -> dict[str, Any]:
        """Return the map for the browser."""
        boxes = [
            [each.id, each.column, each.kind, each.name, each.fact, each.tone, base + each.href if each.href else ""]
            for each in self.nodes.values()
        ]
        return {"columns": COLUMNS, "boxes": boxes, "edges": [[*ends, round(flow, 2)] for *ends, flow in self.edges]}


@dataclass(slots=True)
class Publishing:
    """The messages a second that each host publishes to each topic, from one view to the next."""

    _before: dict[tuple[str, str, str], tuple[float, int]] = field(default_factory=dict)

    def rates(self, producers: Iterable[Json], at: float) -> dict[str, dict[str, float]]:
        """Return rates by topic and host; 0 at the first sight of a connection."""
        found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        seen: dict[tuple[str, str, str], tuple[float, int]] = {}
        for each in producers:
            host = str(each.get("hostname") or each.get("client_id") or "?")
            for published in each.get("pub_counts") or ():
                key = (str(each.get("remote_address")), host, published["topic"])
                since, counted = self._before.get(key, (at, published["count"]))
                seen[key] = at, published["count"]
                grown = max(0, published["count"] - counted) / (at - since) if at > since else 0.0
                found[published["topic"]][host] += grown
        self._before = seen
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
) -> Map:
    """Return the map of all topics, or of one."""
    made = Map(whole=not topic)
    tones = {alarm.about: alarm.severity for alarm in reversed(alarms) if alarm.severity != "info"}
    topics, made.left_out = chosen_topics(view, history, topic)
    for each in topics:
        name = each["topic_name"]
        came = history.published(each)
        fact = f"{rate(came)}/s" + (f" · {count(each['depth'])} waiting" if each["depth"] else "")
        box = made.add(
            MapNode(f"t {name}", TOPICS, "topic", name, fact, tones.get(name, ""), topic_link(name))
        )
        _add_producers(made, box, published.get(name, {}), came)
        for channel in each["channels"]:
            _add_channel(made, box, channel, view, history, dead, tones)
    return made


def _holds_letters(topic: Json) -> bool:
    """Return whether a topic holds dead letters only: it is drawn beside the channel that they come from."""
    return any(names.dead_letters(topic["topic_name"], each["channel_name"]) for each in topic["channels"])


def _add_producers(made: Map, box: str, hosts: Mapping[str, float], came: float) -> None:
    order = sorted(hosts, key=lambda host: (-hosts[host], host))
    for host in order[:MOST_CLIENTS]:
        made.edges.append((made.add(MapNode(f"p {host}", PRODUCERS, "producer", host)), box, hosts[host]))
    rest = order[MOST_CLIENTS:]
    if rest:
        other = made.add(MapNode(f"p+ {box}", PRODUCERS, "producer", several(len(rest), "other host")))
        made.edges.append((other, box, sum(hosts[host] for host in rest)))
    unknown = came - sum(hosts.values())
    if unknown > max(0.5, came / 20):  # HTTP and Redis clients are not counted one by one
        other = made.add(MapNode("p http", PRODUCERS, "producer", "HTTP and Redis"))
        made.edges.append((other, box, unknown))


def _add_channel(
    made: Map,
    box: str,
    channel: Json,
    view: ClusterView,
    history: History,
    dead: Mapping[str, DeadTopic],
    tones: Mapping[str, str],
) -> None:
    topic, name = channel["topic_name"], channel["channel_name"]
    flow, about = history.channel_flow.get((topic, name)), f"{topic}/{name}"
    waiting = channel["depth"] + channel["in_flight_count"]
    facts = [f"{count(waiting)} unfinished"] if waiting else []
    facts += ["paused"] if channel["paused"] else []
    tone, link = tones.get(about, ""), topic_link(topic, name)
    node = made.add(MapNode(f"c {about}", CHANNELS, "channel", name, " · ".join(facts), tone, link))
    into, out = (flow.into, flow.out) if flow is not None else (0.0, 0.0)
    made.edges.append((box, node, into))
    pipelines = [each for each in view.pipelines or () if _moves(each, topic, name)]
    hosts = _hosts(channel)
    order = sorted(hosts, key=lambda host: (-hosts[host], host))
    readers: list[MapNode] = []
    if made.whole and len(order) > 1:  # one box a channel, so that the picture of a cluster stays readable
        together = several(sum(hosts.values()), "connection")
        readers.append(MapNode(f"r+ {about}", READERS, "consumer", several(len(order), "host"), together, "", link))
    else:
        shown, rest = order[:MOST_CLIENTS], order[MOST_CLIENTS:]
        prefix = f"r {about}" if made.whole else "r"
        readers += [
            MapNode(f"{prefix} {host}", READERS, "consumer", host, several(hosts[host], "connection"), "", link)
            for host in shown
        ]
        if rest:
            readers.append(MapNode(f"r+ {about}", READERS, "consumer", several(len(rest), "other host"), "", "", link))
    for each in pipelines:
        title, link = str(each["name"]), f"/pipelines?name={quote(each['name'], safe='')}"
        tone = "error" if problem(each, now=view.at) else ""
        readers.append(MapNode(f"s {title}", READERS, "pipeline", title, str(each.get("kind") or ""), tone, link))
    for reader in readers:
        made.edges.append((node, made.add(reader), out / len(readers)))
    _add_letters(made, node, f"{topic}.{name}.{names.DEAD}", dead, tones)


def _add_letters(
    made: Map, node: str, name: str, dead: Mapping[str, DeadTopic], tones: Mapping[str, str]
) -> None:
    letters = dead.get(name)
    if letters is not None and letters.letters:
        fact = several(letters.letters, "dead letter")
        tone, link = tones.get(name, "warning"), f"/dead?topic={quote(name)}"
        box = MapNode(f"d {name}", READERS, "dead", name, fact, tone, link)
        made.edges.append((node, made.add(box), 0.0))


def _moves(pipeline: Json, topic: str, channel: str) -> bool:
    topics: Collection[str] = pipeline.get("topics") or ()
    return pipeline.get("channel") == channel and topic in topics


def _hosts(channel: Json) -> dict[str, int]:
    """Return the connections of a channel by host, and named consumers of Redis clients by name."""
    found: dict[str, int] = defaultdict(int)
    for each in channel.get("clients") or ():
        found[str(each.get("hostname") or each.get("client_id") or "?")] += 1
    for each in channel.get("consumers") or ():
        found[str(each["name"])] += 1
    return found
