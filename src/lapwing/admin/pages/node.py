"""One nsqd: its topics, their channels, and who is connected."""

from typing import TYPE_CHECKING

from fastapi import Request
from nicegui import ui

from lapwing.admin.pages.clients import Finishing, client_table_rows
from lapwing.admin.pages.dialogs import ask_act
from lapwing.admin.pages.elements import Table, element, notice, panel, set_text, tile
from lapwing.admin.pages.frame import PATIENCE, PageView, frame
from lapwing.admin.pages.own_topics import OwnTopics
from lapwing.admin.pages.table_rows import PAUSED, PageLinks, Row, TableColumn, client_columns, state_labels
from lapwing.admin.pages.topic import node_actions
from lapwing.client.cluster import Json
from lapwing.client.format import count, duration, rate

if TYPE_CHECKING:
    from lapwing.admin.services import Admin

TOPIC_COLUMNS = (
    TableColumn("topic", "Topic", "link", wide=True),
    TableColumn("depth", "Depth"),
    TableColumn("queue", "Memory + disk", "mem"),
    TableColumn("messages", "Messages"),
    TableColumn("channels", "Channels"),
    TableColumn("actions", "Actions", "actions"),
)
CHANNEL_COLUMNS = (
    TableColumn("channel", "Channel", "link", wide=True),
    TableColumn("topic", "Topic", "link"),
    TableColumn("depth", "Depth"),
    TableColumn("queue", "Memory + disk", "mem"),
    TableColumn("in_flight", "In flight"),
    TableColumn("deferred", "Deferred"),
    TableColumn("requeued", "Requeued"),
    TableColumn("timed_out", "Timed out"),
    TableColumn("messages", "Messages"),
    TableColumn("clients", "Connections"),
)


def install(admin: "Admin") -> None:
    """`/nodes/<node>`"""

    @ui.page("/nodes/{name}", response_timeout=PATIENCE)
    async def page(request: Request, name: str) -> None:
        await admin.poller.fresh()
        with frame(admin, request, name, "/nodes", crumbs=(("Nodes", f"{admin.base}/nodes"),)) as view:
            own = OwnTopics(view)
            _state(view, name)
            with element("div", None, "lw-stack") as known:
                _topics(view, name, own)
                _channels(view, name, own)
                _clients(view, name)

            def refresh() -> None:
                known.set_visibility(_answers(view, name))

            view.live(refresh)


def _answers(view: PageView, name: str) -> bool:
    """Whether there is anything to say of the node: nothing known is not nothing there."""
    state = view.cluster_view.node(name)
    return state is not None and state.reachable


def parts_of(topics: dict[str, Json], node: str) -> list[Json]:
    """Those of the topics that a node has, as it has them."""
    return [part for topic in topics.values() for part in topic["nodes"] if part["node"] == node]


def _state(view: PageView, name: str) -> None:
    absent = notice("No nsqd of this name is known.", "warning")
    trouble = notice("", "error")
    with element("dl", None, "lw-tiles") as tiles:
        health = tile("Health")
        version = tile("Version")
        uptime = tile("Up for")
        topics = tile("Topics")
        messages = tile("Messages", "Published since it started")
        flow = tile("Published", "Messages a second")
        clients = tile("Consumers")

    def refresh() -> None:
        state = view.cluster_view.node(name)
        absent.set_visibility(state is None)
        tiles.set_visibility(state is not None)
        if state is None:
            trouble.set_visibility(False)
            return
        wrong = state.error or (state.health if state.health != "OK" else "")
        set_text(trouble, wrong)
        trouble.set_visibility(bool(wrong))
        set_text(health, state_labels(state, view.cluster_view.at)[0][0])
        set_text(version, state.node.version or "-")
        set_text(uptime, duration(round(view.cluster_view.at - state.started)) if state.started else "-")
        speed = f"{rate(view.admin.poller.history.node_flow.get(name, 0.0))}/s"
        numbers = (count(state.topics), count(state.messages), speed, count(state.clients))
        for shown, number in zip((topics, messages, flow, clients), numbers, strict=True):
            set_text(shown, number if state.reachable else "-")  # not known, which is not 0

    view.live(refresh)


def _queue_cells(each: Json) -> Row:
    return [each["depth"], [each["memory_depth"], each["backend_depth"]]]


def _topics(view: PageView, name: str, own: OwnTopics) -> None:
    with panel("Topics"):
        table = Table(
            "topics",
            f"Topics on {name}",
            TOPIC_COLUMNS,
            order="topic",
            empty="This node has no topics.",
            on_act=lambda action, topic: ask_act(view, action, topic, node=name),
        )

    def refresh() -> None:
        table.show(
            [
                [
                    part["topic_name"],
                    [part["topic_name"], view.links.topic(part["topic_name"]), "", [PAUSED] if part["paused"] else []],
                    *_queue_cells(part),
                    part["message_count"],
                    len(part["channels"]),
                    node_actions(view, part["topic_name"], paused=part["paused"]),
                ]
                for part in parts_of(own.topics(), name)
            ]
        )

    view.live(refresh)


def _channel_row(channel: Json, links: PageLinks) -> Row:
    topic, name = channel["topic_name"], channel["channel_name"]
    return [
        f"{topic}/{name}",
        [name, links.topic(topic, name), "", [PAUSED] if channel["paused"] else []],
        [topic, links.topic(topic), "", []],
        *_queue_cells(channel),
        channel["in_flight_count"],
        channel["deferred_count"],
        channel["requeue_count"],
        channel["timeout_count"],
        channel["message_count"],
        channel["client_count"],
    ]


def _channels(view: PageView, name: str, own: OwnTopics) -> None:
    with panel("Channels"):
        table = Table(
            "channels", f"Channels on {name}", CHANNEL_COLUMNS, order="topic", empty="This node has no channels."
        )
    view.live(
        lambda: table.show(
            [_channel_row(channel, view.links) for part in parts_of(own.topics(), name) for channel in part["channels"]]
        )
    )


def _clients(view: PageView, name: str) -> None:
    with panel("Client connections"):
        table = Table(
            "clients", f"Connections to {name}", client_columns(where=True), order="host", empty="Nobody is connected."
        )
    finishing = Finishing()

    def refresh() -> None:
        clients = [
            (client, channel["topic_name"], channel["channel_name"])
            for part in parts_of(view.cluster_view.topics, name)
            for channel in part["channels"]
            for client in channel["clients"] or ()
        ]
        table.show(client_table_rows(clients, finishing, view.links, view.cluster_view.at, where=True))

    view.live(refresh, clients=name)
