"""The page of one channel: its figures on each node, its connections, its charts."""

from typing import Final

from lapwing.admin.graphite import statsd_name
from lapwing.admin.pages.charts import FAILURES, LATENCY, Lines, LongAgo, charts, graphite_links
from lapwing.admin.pages.clients import ClientTable
from lapwing.admin.pages.dialogs import act_buttons, ask_act
from lapwing.admin.pages.elements import Table, button, element, link_button, notice, panel, show_notice
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.pending import PendingPanel
from lapwing.admin.pages.seek import ask_seek
from lapwing.admin.pages.table_rows import channel_node_columns, consumer_columns, is_placed, quantiles, row_of
from lapwing.admin.pages.topic import mark_lost, node_actions, node_rows
from lapwing.client.cluster import Json
from lapwing.client.format import duration, messages, several
from lapwing.client.pipeline_status import ENDED, problem

CHARTS: Final = (
    Lines("Messages a second", "rate", (("in", "arrived", "c1"), ("out", "finished", "c2"))),
    Lines("Waiting messages", "count", (("depth", "ready", "c1"), ("in_flight", "in flight", "c2")), stack=True),
)
PAST: Final = (
    Lines("Messages a second", "rate", (("in", "arrived", "c1"), ("out", "finished", "c2"))),
    Lines(
        "Waiting messages",
        "count",
        (("depth", "ready", "c1"), ("in_flight", "in flight", "c2"), ("deferred", "deferred", "c4")),
        stack=True,
    ),
    LATENCY,
    FAILURES,
)


def draw(view: PageView, topic: str, channel: str) -> None:
    """Draw `/topics/<topic>/<channel>`."""
    _buttons(view, topic, channel)
    _nodes(view, topic, channel)
    _clients(view, topic, channel)
    _consumers(view, topic, channel)
    if view.cluster_view.lapwing:
        PendingPanel(view, topic, channel)
    history, ago = view.admin.poller.history, LongAgo((topic, channel), PAST)
    with element("div", None, "lw-stack") as drawn:
        charts(view, lambda: history.channels.get((topic, channel)), CHARTS, ago=ago)

    def refresh() -> None:
        known = view.cluster_view.channel(topic, channel) is not None
        drawn.set_visibility(known or bool(lost_parts(view, topic, channel)))

    view.live(refresh)


def _buttons(view: PageView, topic: str, channel: str) -> None:
    absent = notice("")
    spark = notice("")
    keys = notice("")
    with view.buttons, element("div", None, "lw-buttons") as buttons:
        link_button("Messages of the topic", view.links.messages(topic), sign="mail_outline")
        graphite_links(view, f"topic.{statsd_name(topic)}.channel.{statsd_name(channel)}")
        if view.cluster_view.lapwing:
            link_button("Settings", view.links.settings(topic, channel), sign="tune")
        if view.visitor.may_change:
            if view.cluster_view.lapwing:
                button("Seek", lambda: ask_seek(view, topic, channel), sign="fast_rewind")
            act_buttons(view, topic, channel, back=view.links.topic(topic))

    def refresh() -> None:
        found = view.cluster_view.channel(topic, channel)
        show_notice(absent, _nowhere(view, topic, channel) if found is None else "")
        buttons.set_visibility(found is not None or not view.cluster_view.whole)
        moving = view.cluster_view.moving(topic, channel)
        show_notice(spark, " ".join(_moved_by(each, view.cluster_view.at) for each in moving))
        show_notice(keys, blocked_keys(found) if found is not None else "")

    view.live(refresh)


def blocked_keys(channel: Json) -> str:
    """Return a sentence about the keys of a channel that delivers by key; nothing of any other, or if none waits."""
    keys = channel.get("keys")
    if keys is None or not keys["blocked"]:
        return ""
    oldest = keys["oldest"]
    longest = "" if oldest is None else f" {oldest['key']} is blocked for longest, {duration(oldest['seconds'])}."
    return f"{several(keys['blocked'], 'key')} blocked: {messages(keys['waiting'])} wait for their keys.{longest}"


def lost_parts(view: PageView, topic: str, channel: str) -> list[Json]:
    """Return the channel as nsqds that do not answer last had it."""
    return [
        each
        for part in view.cluster_view.lost_parts(topic)
        for each in part["channels"]
        if each["channel_name"] == channel
    ]


def _nowhere(view: PageView, topic: str, channel: str) -> str:
    if lost_parts(view, topic, channel):
        return "No nsqd that answers has this channel. These are the last figures of those that do not answer."
    if not view.cluster_view.whole:
        return "No nsqd that answers has this channel; one that does not answer may have it."
    return f"There is no channel {topic}/{channel}. It is created with its first consumer."


def _moved_by(pipeline: Json, now: float) -> str:
    """Return a sentence about the Spark query that moves a channel, or moved it while it worked."""
    name = pipeline.get("name")
    if trouble := problem(pipeline, now=now):
        return f"Moved by the Spark query {name} until it stopped working ({trouble})."
    if pipeline.get("state") in ENDED:
        return f"Moved by the Spark query {name}, which is {pipeline.get('state')}: nothing moves this channel now."
    return f"Moved by the Spark query {name}: it reads the log and has no connection here."


def _nodes(view: PageView, topic: str, channel: str) -> None:
    with panel("Channel", "on each nsqd") as box:
        table = Table(
            "nodes",
            f"{topic}/{channel} on each nsqd",
            (),
            plain=True,
            empty="On no node.",
            on_act=lambda action, node: ask_act(view, action, topic, channel, node),
        )

    def refresh() -> None:
        found = view.cluster_view.channel(topic, channel)
        parts = lost_parts(view, topic, channel)
        box.set_visibility(found is not None or bool(parts))
        delivery = found is not None and "delivery_msg_count" in found and is_placed(view.cluster_view)
        columns = channel_node_columns(
            quantiles([found] if found else parts),
            view.admin.poller.history,
            view.links,
            lambda part: node_actions(view, part),
            delivery=delivery,
        )
        table.set_columns(columns)
        lost = mark_lost(view, node_rows(columns, parts))
        rows = node_rows(columns, found["nodes"]) if found is not None else []
        total = row_of(columns, found["node"], found) if found is not None else None
        table.show(rows + lost, total=total, tint={row[0]: "lost" for row in lost})

    view.live(refresh)


def _clients(view: PageView, topic: str, channel: str) -> None:
    with panel("Client connections") as box:
        table = ClientTable(view, f"Connections to {topic}/{channel}", where=False)

    def refresh() -> None:
        box.set_visibility(view.cluster_view.channel(topic, channel) is not None)
        found = view.admin.poller.channels.get((topic, channel))
        if found is not None:
            table.show([found])

    view.live(refresh, channel=(topic, channel))


def _consumers(view: PageView, topic: str, channel: str) -> None:
    """Show the consumers that have a name (Redis clients); the panel appears with the first of them."""
    with panel("Named consumers") as place:
        columns = consumer_columns(view.links)
        table = Table("consumers", f"Named consumers of {topic}/{channel}", columns, order="pending:down")
    place.set_visibility(False)

    def refresh() -> None:
        found = view.admin.poller.channels.get((topic, channel))
        consumers = (found or {}).get("consumers", ())
        place.set_visibility(bool(consumers))
        table.show_each(consumers, lambda each: f"{each['node']} {each['name']}")

    view.live(refresh, channel=(topic, channel))
