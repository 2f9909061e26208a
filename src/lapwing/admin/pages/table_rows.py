"""The columns and rows of tables, from the objects of the API: pure.

A row is a list: its key, then one value per column. The kinds, and what a value of each looks like:

    text code          a string             num rate dur bytes     a number (dur in seconds)
    time stamp         Unix seconds         mem                    [memory, disk]
    latency            [average, min, max] in ns, or None
    link               [text, href, line below, labels, tooltip]   labels    [[text, tone, tooltip], ...]
    links              [[text, href, tone], ...]                   share     [[name, percent], ...]
    actions            [[action, label, tone], ...]
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from lapwing.admin.alarms import node_link, topic_link
from lapwing.admin.history import History
from lapwing.client.cluster import SUM, Json
from lapwing.client.cluster_view import ClusterView, NodeState
from lapwing.client.format import duration, quantile, utc_time
from lapwing.names import own

Row = list[Any]
Label = list[str]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a table."""

    key: str
    label: str
    kind: str = "num"
    title: str | None = None
    wide: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the column for the browser."""
        return {"key": self.key, "label": self.label, "kind": self.kind, "title": self.title, "wide": self.wide}


@dataclass(frozen=True, slots=True)
class PageLinks:
    """The addresses of pages, below the base path."""

    base: str = ""

    def topic(self, topic: str, channel: str = "") -> str:
        """Return the page of a topic or channel."""
        return self.base + topic_link(topic, channel)

    def node(self, name: str) -> str:
        """Return the page of a node."""
        return self.base + node_link(name)

    def messages(self, topic: str) -> str:
        """Return the page with the messages of a topic."""
        return self.page("/messages", topic=topic)

    def settings(self, topic: str, channel: str = "") -> str:
        """Return the page with the settings of a topic or channel."""
        return self.page("/settings", topic=topic, channel=channel)

    def page(self, path: str, **asked: str) -> str:
        """Return any page, with those parameters that are not empty."""
        query = urlencode({name: value for name, value in asked.items() if value}, quote_via=quote)
        path = self.base + path if path != "/" else self.base or "/"
        return f"{path}?{query}" if query else path


PAUSED: Label = ["paused", "warn", "Nothing is delivered until it is unpaused"]
SPARK: Label = ["Spark", "info", "A Spark query moves this channel: see Pipelines"]


def quantiles(objects: Iterable[Json]) -> list[float]:
    """Return the percentiles that any of the objects has, highest first."""
    found = {point["quantile"] for each in objects for point in each["e2e_processing_latency"]["percentiles"] or ()}
    return sorted(found, reverse=True)


def latency_columns(points: Sequence[float]) -> list[TableColumn]:
    """Return one column per percentile."""
    return [
        TableColumn(
            f"q{point}",
            quantile(point),
            "latency",
            f"End-to-end latency, {quantile(point)} percentile: average over nodes",
        )
        for point in points
    ]


def latencies(each: Json, points: Sequence[float]) -> Row:
    """Return the cells of `latency_columns`."""
    known = {point["quantile"]: point for point in each["e2e_processing_latency"]["percentiles"] or ()}
    return [[known[q]["average"], known[q]["min"], known[q]["max"]] if q in known else None for q in points]


def host_cell(part: Json, links: PageLinks) -> Row:
    """Return `hostname:port` with a link to the node, and the broadcast address if it is another; or `Total`."""
    if part["node"] == SUM:
        return ["Total", "", "", []]
    host, _, port = part["node"].rpartition(":")
    below = part["node"] if host.strip("[]") != part["hostname"] else ""
    return [f"{part['hostname']}:{port}", links.node(part["node"]), below, [PAUSED] if part["paused"] else []]


# ---- topics ----

TOPICS = (
    TableColumn("topic", "Topic", "link", wide=True),
    TableColumn(
        "depth", "Depth", title="Messages that wait in the topic itself, because it is paused or has no channel"
    ),
    TableColumn("backlog", "In channels", title="Messages that wait in its channels, summed"),
    TableColumn("in_flight", "In flight", title="Delivered and not yet finished"),
    TableColumn("rate", "Rate", "rate", "Messages published a second"),
    TableColumn("messages", "Messages", title="Published since the nodes started"),
    TableColumn("channels", "Channels"),
    TableColumn("clients", "Connections"),
    TableColumn("nodes", "Nodes", title="nsqds that have the topic"),
)


def topic_rows(
    topics: dict[str, Json], idle_topics: Iterable[str], away: set[str], history: History, links: PageLinks
) -> list[Row]:
    """Return the rows of topics, those without a node last; `away` are topics of nsqds that do not answer."""
    rows: list[Row] = []
    for name, topic in topics.items():
        channels = topic["channels"]
        labels = [PAUSED] if topic["paused"] else []
        if not channels:
            labels.append(
                ["no channel", "warn" if topic["depth"] else "", "Messages wait in the topic until there is one"]
            )
        flow = history.topic_flow.get(name)
        rows.append(
            [
                name,
                [name, links.topic(name), "", labels],
                topic["depth"],
                sum(channel["depth"] for channel in channels),
                sum(channel["in_flight_count"] for channel in channels),
                round(flow.into, 2) if flow else 0,
                topic["message_count"],
                len(channels),
                sum(channel["client_count"] for channel in channels),
                len(topic["nodes"]),
            ]
        )
    idle: Label = ["no producer", "", "nsqlookupd knows it, no nsqd has it"]
    gone: Label = ["does not answer", "bad", "Every nsqd that has it"]
    for name in idle_topics:
        numbers = [None] * 8 if name in away else [0] * 8  # not known is not 0
        rows.append([name, [name, links.topic(name), "", [gone if name in away else idle]], *numbers])
    return rows


def lost_label(state: NodeState | None) -> Label:
    """Return the label of an nsqd that does not answer, with the time since when."""
    since = f" since {utc_time(state.lost_since)[11:]}" if state is not None and state.lost_since else ""
    return [f"no answer{since}", "bad", f"{state.error if state else ''}. These are its last figures."]


def topic_node_columns(points: Sequence[float]) -> list[TableColumn]:
    """Return the columns of a topic on each node."""
    return [
        TableColumn("host", "NSQd host", "link", wide=True),
        TableColumn("depth", "Depth"),
        TableColumn("queue", "Memory + disk", "mem"),
        TableColumn("messages", "Messages"),
        TableColumn("rate", "Rate", "rate", "Messages published a second, over all nodes in the last row"),
        TableColumn("channels", "Channels"),
        *latency_columns(points),
        TableColumn("actions", "Actions", "actions"),
    ]


def topic_node_row(part: Json, rate: float, links: PageLinks, points: Sequence[float], actions: Row) -> Row:
    """Return the row of a topic on one nsqd, or of the total."""
    return [
        part["node"],
        host_cell(part, links),
        part["depth"],
        [part["memory_depth"], part["backend_depth"]],
        part["message_count"],
        round(rate, 2),
        len(part["channels"]),
        *latencies(part, points),
        actions,
    ]


# ---- channels ----

QUEUE = (
    TableColumn("depth", "Depth", title="Waiting; not in flight, not deferred"),
    TableColumn("queue", "Memory + disk", "mem"),
    TableColumn("in_flight", "In flight", title="Delivered and not yet finished"),
    TableColumn("deferred", "Deferred", title="Waiting for their time"),
    TableColumn("requeued", "Requeued"),
    TableColumn("timed_out", "Timed out"),
    TableColumn("messages", "Messages"),
)


def queue_cells(channel: Json) -> Row:
    """Return the cells of `QUEUE`."""
    return [
        channel["depth"],
        [channel["memory_depth"], channel["backend_depth"]],
        channel["in_flight_count"],
        channel["deferred_count"],
        channel["requeue_count"],
        channel["timeout_count"],
        channel["message_count"],
    ]


def channel_columns(points: Sequence[float]) -> list[TableColumn]:
    """Return the columns of channels."""
    return [
        TableColumn("channel", "Channel", "link", wide=True),
        *QUEUE,
        TableColumn("rate", "Rate", "rate", "Messages finished a second"),
        TableColumn("age", "Oldest", "dur", "How long the oldest unfinished message has waited, as far as we watched"),
        TableColumn("clients", "Connections"),
        *latency_columns(points),
    ]


def channel_rows(
    channels: Iterable[Json],
    history: History,
    links: PageLinks,
    points: Sequence[float],
    now: float,
    fed: Collection[tuple[str, str]] = (),
) -> list[Row]:
    """Return one row per channel, summed over nodes; those in `fed` are moved by a Spark query."""
    rows: list[Row] = []
    for channel in channels:
        topic, name = channel["topic_name"], channel["channel_name"]
        flow = history.channel_flow.get((topic, name))
        age = history.age(channel, now)
        labels = [PAUSED] if channel["paused"] else []
        if (topic, name) in fed:
            labels.append(SPARK)
        rows.append(
            [
                name,
                [name, links.topic(topic, name), "", labels],
                *queue_cells(channel),
                round(flow.out, 2) if flow else 0,
                round(age.seconds) if age else 0,
                channel["client_count"],
                *latencies(channel, points),
            ]
        )
    return rows


def channel_node_columns(points: Sequence[float], *, delivery: bool) -> list[TableColumn]:
    """Return the columns of a channel on each node."""
    return [
        TableColumn("host", "NSQd host", "link", wide=True),
        *QUEUE,
        TableColumn("rate", "Rate", "rate", "Messages finished a second"),
        TableColumn("clients", "Connections"),
        *(
            [TableColumn("delivery", "Delivery", "share", "Zone-local, region-local and other share")]
            if delivery
            else []
        ),
        *latency_columns(points),
        TableColumn("actions", "Actions", "actions"),
    ]


def channel_node_row(
    part: Json, rate: float, links: PageLinks, points: Sequence[float], actions: Row, *, delivery: bool
) -> Row:
    """Return the row of a channel on one nsqd, or of the total."""
    return [
        part["node"],
        host_cell(part, links),
        *queue_cells(part),
        round(rate, 2),
        part["client_count"],
        *([_share(part)] if delivery else []),
        *latencies(part, points),
        actions,
    ]


def _share(part: Json) -> Row | None:
    whole = part.get("delivery_msg_count", 0)
    if not whole:
        return None
    zone, region = part.get("zone_local_msg_count", 0), part.get("region_local_msg_count", 0)
    counts = (("zone", zone), ("region", region), ("other", whole - zone - region))
    return [[name, round(100 * number / whole, 1)] for name, number in counts]


# ---- consumers ----

CONSUMERS = (
    TableColumn("name", "Consumer", "text", wide=True),
    TableColumn("node", "NSQd host", "link"),
    TableColumn("pending", "Pending", title="Messages that it holds"),
    TableColumn("oldest", "Oldest", "dur", "Time since the oldest of them was delivered"),
    TableColumn("idle", "Idle", "dur", "Time since its last request"),
)  # that have a name, connected or not


def consumer_row(consumer: Json, links: PageLinks) -> Row:
    """Return the row of one named consumer."""
    return [
        f"{consumer['node']} {consumer['name']}",
        consumer["name"],
        [consumer["node"], links.node(consumer["node"]), "", []],
        consumer["in_flight_count"],
        int(consumer["oldest_seconds"]),
        int(consumer["idle_seconds"]),
    ]


# ---- nodes ----


def is_placed(cluster_view: ClusterView) -> bool:
    """Return whether any node has a region or zone."""
    return any(state.node.region or state.node.zone for state in cluster_view.nodes)


def node_columns(*, direct: bool, placed: bool) -> list[TableColumn]:
    """Return the columns of nsqds."""
    return [
        TableColumn("host", "Hostname", "text"),
        TableColumn("state", "State", "labels"),
        TableColumn("address", "Address", "link", "Broadcast address and HTTP port; below it the TCP port"),
        TableColumn("version", "Version", "text"),
        *([TableColumn("place", "Region / zone", "text")] if placed else []),
        *([] if direct else [TableColumn("lookupds", "Lookupd conns.", "labels", "nsqlookupds that know it")]),
        TableColumn("uptime", "Up for", "dur"),
        TableColumn("depth", "Depth", title="In its topics and channels"),
        TableColumn("rate", "Rate", "rate", "Messages published a second"),
        TableColumn("clients", "Connections"),
        TableColumn("topics", "Topics", "links"),
    ]


_MOST_TOPICS = 3


def node_row(state: NodeState, cluster_view: ClusterView, history: History, links: PageLinks) -> Row:
    """Return the row of an nsqd; one that does not answer has its last figures."""
    node = state.node
    topics = sorted((name, tombstoned) for name, tombstoned in node.topics if not own(name))
    shown = [[name, links.topic(name), "warn" if tombstoned else ""] for name, tombstoned in topics[:_MOST_TOPICS]]
    if len(topics) > _MOST_TOPICS:
        shown.append([f"{len(topics) - _MOST_TOPICS} more", links.node(node.name), "info"])
    known = node.remote_addresses or ()
    complete = len(known) == len(cluster_view.lookupds)
    known_figures = state.reachable or state.started
    return [
        node.name,
        node.hostname,
        state_labels(state, cluster_view.at),
        [node.name, links.node(node.name), f"TCP {node.tcp_port}", []],
        node.version,
        *([" / ".join(text for text in (node.region, node.zone) if text)] if is_placed(cluster_view) else []),
        *(
            []
            if cluster_view.direct
            else [[[f"{len(known)} of {len(cluster_view.lookupds)}", "" if complete else "warn", "\n".join(known)]]]
        ),
        round(cluster_view.at - state.started) if state.started and state.reachable else None,
        state.depth if known_figures else None,  # not known is not 0
        round(history.node_flow.get(node.name, 0.0), 2) if state.reachable else None,
        state.clients if known_figures else None,
        shown,
    ]


def state_labels(state: NodeState, now: float) -> list[Label]:
    """Return the labels of an nsqd: healthy or its problem, and whether it is out of date."""
    if state.gone_since:
        left = f"left {duration(now - state.gone_since)} ago"
        labels: list[Label] = [[left, "bad", "nsqlookupd no longer names it. These are its last figures."]]
    elif state.error:
        labels = [lost_label(state)]
    elif state.health != "OK":
        labels = [["unhealthy", "bad", state.health]]
    else:
        labels = [["healthy", "good", state.health]]
    if state.node.out_of_date:
        labels.append(["out of date", "warn", "Others run a newer version"])
    return labels
