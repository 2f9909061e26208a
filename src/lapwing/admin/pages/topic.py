"""The page of one topic: its figures on each node, its channels, its charts."""

from collections.abc import Iterable
from typing import Final

from lapwing.admin.graphite import statsd_name
from lapwing.admin.pages.charts import Lines, LongAgo, charts, graphite_links
from lapwing.admin.pages.dialogs import act_buttons, ask_act, ask_create
from lapwing.admin.pages.elements import Table, button, element, link_button, notice, panel, show_notice
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.publish import Draft, ask_publish
from lapwing.admin.pages.table_rows import (
    Columns,
    Row,
    channel_columns,
    lost_label,
    quantiles,
    row_of,
    topic_node_columns,
)
from lapwing.client.cluster import Json, sum_topic

CHARTS: Final = (
    Lines("Messages a second", "rate", (("in", "published", "c1"),)),
    Lines(
        "Waiting messages", "count", (("backlog", "in channels", "c1"), ("waiting", "in the topic", "c3")), stack=True
    ),
)

def draw(view: PageView, topic: str) -> None:
    """Draw `/topics/<topic>`."""
    _buttons(view, topic)
    _absent(view, topic)
    _nodes(view, topic)
    _channels(view, topic)
    with element("div", None, "lw-stack") as drawn:
        charts(view, lambda: view.admin.poller.history.topics.get(topic), CHARTS, ago=LongAgo((topic, ""), CHARTS))
    view.live(lambda: drawn.set_visibility(is_known(view, topic)))


def is_known(view: PageView, topic: str) -> bool:
    """Return whether any nsqd or nsqlookupd has the topic, also one that does not answer at the moment."""
    cluster_view = view.cluster_view
    return (
        topic in cluster_view.topics
        or topic in cluster_view.idle_topics
        or topic in cluster_view.away_topics()
        or bool(cluster_view.lost_parts(topic))
    )


def _buttons(view: PageView, topic: str) -> None:
    with view.buttons, element("div", None, "lw-buttons") as buttons:
        link_button("Messages", view.links.messages(topic), sign="mail_outline")
        if view.cluster_view.lapwing:
            link_button("Settings", view.links.settings(topic), sign="tune")
        graphite_links(view, f"topic.{statsd_name(topic)}")
        view.live(lambda: buttons.set_visibility(is_known(view, topic)))
        if not view.visitor.may_change:
            return
        nodes = [state.node.name for state in view.cluster_view.reachable]
        button("Publish", lambda: ask_publish(view, Draft(topic, _any_holder(view, topic))), sign="send")
        button("New channel", lambda: ask_create(view, topic=topic, nodes=nodes), sign="add")
        act_buttons(view, topic, back=view.links.page("/topics"))


def _any_holder(view: PageView, topic: str) -> str:
    """Return the name of an nsqd that has the topic, or an empty string."""
    found = view.cluster_view.topics.get(topic)
    return str(found["nodes"][0]["node"]) if found and found["nodes"] else ""


def _absent(view: PageView, topic: str) -> None:
    words = notice("")
    lonely = notice(
        "This topic has no channel: messages wait in it until there is one, and the first channel gets all of them.",
        "warning",
    )

    def refresh() -> None:
        found = view.cluster_view.topics.get(topic)
        show_notice(words, _nowhere(view, topic) if found is None else "")
        lonely.set_visibility(found is not None and not found["channels"])

    view.live(refresh)


def _nowhere(view: PageView, topic: str) -> str:
    if view.cluster_view.lost_parts(topic):
        return "No nsqd that answers has this topic. These are the last figures of those that do not answer."
    if not view.cluster_view.whole:
        return "No nsqd that answers has this topic; one that does not answer may have it."
    if topic in view.cluster_view.idle_topics:
        return "nsqlookupd knows this topic, but no nsqd has it. It can be deleted under Lookup."
    return f"There is no topic {topic}. It is created with its first message."


def node_actions(view: PageView, part: Json) -> Row:
    """Return the actions for a topic or channel on one node alone."""
    node = view.cluster_view.node(part["node"])
    if not view.visitor.may_change or node is None or not node.reachable:
        return []
    pause = ["unpause", "Unpause here", ""] if part["paused"] else ["pause", "Pause here", ""]
    rest = [["empty", "Empty here …", "danger"], ["delete", "Delete here …", "danger"]]
    return [pause, *rest] if "channel_name" in part else [pause, *rest, ["tombstone", "Tombstone …", "danger"]]


def _nodes(view: PageView, topic: str) -> None:
    with panel("Topic message queue", "on each nsqd") as box:
        table = Table(
            "nodes",
            f"{topic} on each nsqd",
            (),
            plain=True,
            empty="On no node.",
            on_act=lambda action, node: ask_act(view, action, topic, node=node),
        )

    def refresh() -> None:
        found: Json = view.cluster_view.topics.get(topic) or sum_topic(topic, [])
        history = view.admin.poller.history
        columns = topic_node_columns(quantiles([found]), history, view.links, lambda part: node_actions(view, part))
        table.set_columns(columns)
        rows = node_rows(columns, found["nodes"])
        lost = mark_lost(view, node_rows(columns, view.cluster_view.lost_parts(topic)))
        total = row_of(columns, found["node"], found) if rows else None
        table.show(rows + lost, total=total, tint={row[0]: "lost" for row in lost})
        box.set_visibility(is_known(view, topic))

    view.live(refresh)


def node_rows(columns: Columns, parts: Iterable[Json]) -> list[Row]:
    """Return the rows of a topic or channel on its nodes."""
    return [row_of(columns, part["node"], part) for part in parts]


def mark_lost(view: PageView, rows: list[Row]) -> list[Row]:
    """Return the rows of nsqds that do not answer, with a label that shows since when."""
    for row in rows:
        row[1][3] = [lost_label(view.cluster_view.node(row[0]))]
    return rows


def _channels(view: PageView, topic: str) -> None:
    with panel("Channel message queues", "summed over all nodes") as box:
        table = Table(
            "channels",
            f"Channels of {topic}",
            (),
            order="channel",
            empty="No channels: messages wait in the topic until there is one.",
        )

    def refresh() -> None:
        found: Json = view.cluster_view.topics.get(topic) or sum_topic(topic, [])
        points = quantiles(found["channels"])
        fed = view.cluster_view.pipeline_channels()
        columns = channel_columns(points, view.admin.poller.history, view.links, view.cluster_view.at, fed)
        table.set_columns(columns)
        table.show_each(found["channels"], "channel_name")
        box.set_visibility(topic in view.cluster_view.topics)

    view.live(refresh)
