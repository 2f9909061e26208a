"""The columns and rows of tables, from the objects of the API: pure.

A row is a list: its key, then the cell of each column. The kinds, and what a cell of each looks like:

    text code          a string             num rate dur bytes     a number (dur in seconds)
    time stamp         Unix seconds         mem                    [memory, disk]
    latency            [average, min, max] in ns, or None
    link               [text, href, line below, labels, tooltip]   labels    [[text, tone, tooltip], ...]
    links              [[text, href, tone], ...]                   share     [[name, percent], ...]
    actions            [[action, label, tone], ...]
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lapwing.admin.history import History
from lapwing.admin.links import PageLinks
from lapwing.client.cluster import SUM, Json
from lapwing.client.cluster_view import ClusterView, NodeState
from lapwing.client.format import duration, quantile, utc_time
from lapwing.names import own

Row = list[Any]
Label = list[str]


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a table: its heading, and the cell that it has for an object."""

    key: str
    label: str
    kind: str = "num"
    title: str | None = None
    wide: bool = False
    cell: str | Callable[[Any], Any] = ""  # a function of the object, or its member; empty: the member called `key`

    def to_json(self) -> dict[str, Any]:
        """Return the column for the browser."""
        return {"key": self.key, "label": self.label, "kind": self.kind, "title": self.title, "wide": self.wide}

    def of(self, each: Any) -> Any:
        """Return the cell for an object."""
        if callable(self.cell):
            return self.cell(each)
        member = self.cell or self.key
        return each[member] if isinstance(each, dict) else getattr(each, member)


Columns = Sequence[TableColumn]


def row_of(columns: Columns, key: str, each: Any) -> Row:
    """Return the row of an object."""
    return [key, *(column.of(each) for column in columns)]


PAUSED: Label = ["paused", "warn", "Nothing is delivered until it is unpaused"]
SPARK: Label = ["Spark", "info", "A Spark query moves this channel: see Pipelines"]


def linked(text: str, href: str, labels: Sequence[Label] = (), *, below: str = "") -> Row:
    """Return a cell that is a link."""
    return [text, href, below, list(labels)]


def paused_labels(each: Json) -> list[Label]:
    """Return the label of a topic or channel that is paused."""
    return [PAUSED] if each["paused"] else []


def memory_and_disk(each: Json) -> Row:
    """Return the cell of a queue."""
    return [each["memory_depth"], each["backend_depth"]]


def quantiles(objects: Iterable[Json]) -> list[float]:
    """Return the percentiles that any of the objects has, highest first."""
    found = {point["quantile"] for each in objects for point in each["e2e_processing_latency"]["percentiles"] or ()}
    return sorted(found, reverse=True)


def latency_columns(points: Sequence[float]) -> list[TableColumn]:
    """Return one column per percentile."""

    def latency(quantile: float) -> Callable[[Json], Row | None]:
        def cell(each: Json) -> Row | None:
            for point in each["e2e_processing_latency"]["percentiles"] or ():
                if point["quantile"] == quantile:
                    return [point["average"], point["min"], point["max"]]
            return None

        return cell

    title = "End-to-end latency, {} percentile: average over nodes"
    return [
        TableColumn(f"q{point}", quantile(point), "latency", title.format(quantile(point)), cell=latency(point))
        for point in points
    ]


def host_column(links: PageLinks) -> TableColumn:
    """Return the column of the node that a topic or channel is on."""

    def cell(part: Json) -> Row:
        """Return `hostname:port` with a link, and the broadcast address if it is another; or `Total`."""
        if part["node"] == SUM:
            return linked("Total", "")
        host, _, port = part["node"].rpartition(":")
        below = part["node"] if host.strip("[]") != part["hostname"] else ""
        return linked(f"{part['hostname']}:{port}", links.node(part["node"]), paused_labels(part), below=below)

    return TableColumn("host", "NSQd host", "link", wide=True, cell=cell)


# ---- topics ----


def topic_columns(history: History, links: PageLinks) -> Columns:
    """Return the columns of topics, summed over nodes."""

    def name(topic: Json) -> Row:
        labels = paused_labels(topic)
        if not topic["channels"]:
            tone = "warn" if topic["depth"] else ""
            labels.append(["no channel", tone, "Messages wait in the topic until there is one"])
        return linked(topic["topic_name"], links.topic(topic["topic_name"]), labels)

    def summed(key: str) -> Callable[[Json], int]:
        return lambda topic: sum(channel[key] for channel in topic["channels"])

    depth = "Messages that wait in the topic itself, because it is paused or has no channel"
    backlog = "Messages that wait in its channels, summed"
    in_flight = "Delivered and not yet finished"
    return (
        TableColumn("topic", "Topic", "link", wide=True, cell=name),
        TableColumn("depth", "Depth", title=depth),
        TableColumn("backlog", "In channels", title=backlog, cell=summed("depth")),
        TableColumn("in_flight", "In flight", title=in_flight, cell=summed("in_flight_count")),
        TableColumn("rate", "Rate", "rate", "Messages published a second", cell=history.published),
        TableColumn("messages", "Messages", title="Published since the nodes started", cell="message_count"),
        TableColumn("channels", "Channels", cell=lambda topic: len(topic["channels"])),
        TableColumn("clients", "Connections", cell=summed("client_count")),
        TableColumn("nodes", "Nodes", title="nsqds that have the topic", cell=lambda topic: len(topic["nodes"])),
    )


def idle_topic_rows(idle_topics: Iterable[str], away: set[str], links: PageLinks) -> list[Row]:
    """Return the rows of topics without a node; `away` are topics of nsqds that do not answer."""
    idle: Label = ["no producer", "", "nsqlookupd knows it, no nsqd has it"]
    gone: Label = ["does not answer", "bad", "Every nsqd that has it"]
    return [
        [name, linked(name, links.topic(name), [gone if name in away else idle]), *[None if name in away else 0] * 8]
        for name in idle_topics  # not known is not 0
    ]


def lost_label(state: NodeState | None) -> Label:
    """Return the label of an nsqd that does not answer, with the time since when."""
    since = f" since {utc_time(state.lost_since)[11:]}" if state is not None and state.lost_since else ""
    return [f"no answer{since}", "bad", f"{state.error if state else ''}. These are its last figures."]


Actions = Callable[[Json], Row]  # that a part on one node has


def topic_node_columns(points: Sequence[float], history: History, links: PageLinks, actions: Actions) -> Columns:
    """Return the columns of a topic on each node, and of the total."""
    rate = "Messages published a second, over all nodes in the last row"
    return [
        host_column(links),
        TableColumn("depth", "Depth"),
        TableColumn("queue", "Memory + disk", "mem", cell=memory_and_disk),
        TableColumn("messages", "Messages", cell="message_count"),
        TableColumn("rate", "Rate", "rate", rate, cell=history.published),
        TableColumn("channels", "Channels", cell=lambda part: len(part["channels"])),
        *latency_columns(points),
        TableColumn("actions", "Actions", "actions", cell=actions),
    ]


# ---- channels ----


def channel_key(channel: Json) -> str:
    """Return the key of the row of a channel, where there are those of several topics."""
    return f"{channel['topic_name']}/{channel['channel_name']}"


QUEUE: Final = (
    TableColumn("depth", "Depth", title="Waiting; not in flight, not deferred"),
    TableColumn("queue", "Memory + disk", "mem", cell=memory_and_disk),
    TableColumn("in_flight", "In flight", title="Delivered and not yet finished", cell="in_flight_count"),
    TableColumn("deferred", "Deferred", title="Waiting for their time", cell="deferred_count"),
    TableColumn("requeued", "Requeued", cell="requeue_count"),
    TableColumn("timed_out", "Timed out", cell="timeout_count"),
    TableColumn("messages", "Messages", cell="message_count"),
)
CONNECTIONS: Final = TableColumn("clients", "Connections", cell="client_count")


def channel_columns(
    points: Sequence[float],
    history: History,
    links: PageLinks,
    now: float,
    fed: Collection[tuple[str, str]],
    *,
    with_topic: bool = False,
) -> Columns:
    """Return the columns of channels, summed over nodes; those in `fed` are moved by a Spark query."""

    def name(channel: Json) -> Row:
        place = channel["topic_name"], channel["channel_name"]
        labels = paused_labels(channel) + ([SPARK] if place in fed else [])
        return linked("/".join(place) if with_topic else place[1], links.topic(*place), labels)

    def age(channel: Json) -> int:
        found = history.age(channel, now)
        return round(found.seconds) if found else 0

    oldest = "How long the oldest unfinished message has waited, as far as we watched"
    return [
        TableColumn("channel", "Channel", "link", wide=True, cell=name),
        *QUEUE,
        TableColumn("rate", "Rate", "rate", "Messages finished a second", cell=history.finished),
        TableColumn("age", "Oldest", "dur", oldest, cell=age),
        CONNECTIONS,
        *latency_columns(points),
    ]


def channel_node_columns(
    points: Sequence[float], history: History, links: PageLinks, actions: Actions, *, delivery: bool
) -> Columns:
    """Return the columns of a channel on each node, and of the total."""
    share = TableColumn("delivery", "Delivery", "share", "Zone-local, region-local and other share", cell=_share)
    return [
        host_column(links),
        *QUEUE,
        TableColumn("rate", "Rate", "rate", "Messages finished a second", cell=history.finished),
        CONNECTIONS,
        *([share] if delivery else []),
        *latency_columns(points),
        TableColumn("actions", "Actions", "actions", cell=actions),
    ]


def _share(part: Json) -> Row | None:
    whole = part.get("delivery_msg_count", 0)
    if not whole:
        return None
    zone, region = part.get("zone_local_msg_count", 0), part.get("region_local_msg_count", 0)
    counts = (("zone", zone), ("region", region), ("other", whole - zone - region))
    return [[name, round(100 * number / whole, 1)] for name, number in counts]


# ---- consumers ----


def _consumer_name(consumer: Json) -> str:
    return f"{consumer['name']} (active)" if consumer.get("active") else str(consumer["name"])


def consumer_columns(links: PageLinks) -> Columns:
    """Return the columns of consumers that have a name, connected or not."""
    oldest = "Time since the oldest of them was delivered"
    return (
        TableColumn("name", "Consumer", "text", wide=True, cell=_consumer_name),
        TableColumn("node", "NSQd host", "link", cell=lambda each: linked(each["node"], links.node(each["node"]))),
        TableColumn("pending", "Pending", title="Messages that it holds", cell="in_flight_count"),
        TableColumn("oldest", "Oldest", "dur", oldest, cell=lambda each: int(each["oldest_seconds"])),
        TableColumn("idle", "Idle", "dur", "Time since its last request", cell=lambda each: int(each["idle_seconds"])),
    )


# ---- nodes ----


def is_placed(cluster_view: ClusterView) -> bool:
    """Return whether any node has a region or zone."""
    return any(state.node.region or state.node.zone for state in cluster_view.nodes)


_MOST_TOPICS: Final = 3


def node_columns(cluster_view: ClusterView, history: History, links: PageLinks) -> Columns:
    """Return the columns of nsqds; one that does not answer has its last figures, and none where they are not known."""
    now = cluster_view.at

    def known(value: Callable[[NodeState], Any]) -> Callable[[NodeState], Any]:
        return lambda state: value(state) if state.reachable or state.started else None

    def up(value: Callable[[NodeState], Any]) -> Callable[[NodeState], Any]:
        return lambda state: value(state) if state.reachable else None

    def address(state: NodeState) -> Row:
        return linked(state.node.name, links.node(state.node.name), below=f"TCP {state.node.tcp_port}")

    def lookupds(state: NodeState) -> list[Label]:
        addresses, all_ = state.node.remote_addresses or (), len(cluster_view.lookupds)
        return [[f"{len(addresses)} of {all_}", "" if len(addresses) == all_ else "warn", "\n".join(addresses)]]

    def topics(state: NodeState) -> Row:
        found = sorted((name, tombstoned) for name, tombstoned in state.node.topics if not own(name))
        shown = [[name, links.topic(name), "warn" if tombstoned else ""] for name, tombstoned in found[:_MOST_TOPICS]]
        if len(found) > _MOST_TOPICS:
            shown.append([f"{len(found) - _MOST_TOPICS} more", links.node(state.node.name), "info"])
        return shown

    place = TableColumn("place", "Region / zone", "text", cell=_place)
    who = TableColumn("lookupds", "Lookupd conns.", "labels", "nsqlookupds that know it", cell=lookupds)
    rate = up(lambda state: round(history.node_flow.get(state.node.name, 0.0), 2))
    return [
        TableColumn("host", "Hostname", "text", cell=lambda state: state.node.hostname),
        TableColumn("state", "State", "labels", cell=lambda state: state_labels(state, now)),
        TableColumn(
            "address", "Address", "link", "Broadcast address and HTTP port; below it the TCP port", cell=address
        ),
        TableColumn("version", "Version", "text", cell=lambda state: state.node.version),
        *([place] if is_placed(cluster_view) else []),
        *([] if cluster_view.direct else [who]),
        TableColumn(
            "uptime", "Up for", "dur", cell=up(lambda each: round(now - each.started) if each.started else None)
        ),
        TableColumn("depth", "Depth", title="In its topics and channels", cell=known(lambda state: state.depth)),
        TableColumn("rate", "Rate", "rate", "Messages published a second", cell=rate),
        TableColumn("clients", "Connections", cell=known(lambda state: state.clients)),
        TableColumn("topics", "Topics", "links", cell=topics),
    ]


def _place(state: NodeState) -> str:
    return " / ".join(text for text in (state.node.region, state.node.zone) if text)


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
