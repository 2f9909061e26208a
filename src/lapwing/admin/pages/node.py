"""The page of one nsqd: its state, resources and options, its topics and channels, and the connections to it."""

from typing import Final

from nicegui.element import Element

from lapwing.admin.pages.clients import ClientTable
from lapwing.admin.pages.dialogs import ask_act
from lapwing.admin.pages.elements import Table, element, notice, panel, set_text, show_notice, tile
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.own_topics import OwnTopics
from lapwing.admin.pages.table_rows import (
    CONNECTIONS,
    QUEUE,
    Label,
    Row,
    TableColumn,
    channel_key,
    linked,
    memory_and_disk,
    paused_labels,
    state_labels,
)
from lapwing.admin.pages.topic import node_actions
from lapwing.client.cluster import Json
from lapwing.client.format import count, duration, rate, size, utc_time

SET: Final = ["set", "info", "Differs from the default"]


def draw(view: PageView, name: str) -> None:
    """Draw `/nodes/<node>`."""
    own = OwnTopics(view)
    lost = _state(view, name)
    with element("div", None, "lw-stack") as known:
        _resources(view, name)
        _topics(view, name, own)
        _channels(view, name, own)
        _clients(view, name)
        _options(view, name)

    def refresh() -> None:
        state = view.cluster_view.node(name)
        answers = state is not None and state.reachable
        known.set_visibility(answers or name in view.cluster_view.lost_topics)
        for part in (known, lost):
            part.classes(remove="lw-lost") if answers else part.classes(add="lw-lost")

    view.live(refresh)


def parts_of(view: PageView, own: OwnTopics | None, node: str) -> list[Json]:
    """Return the topics of a node as it has them, or as it last had them if it does not answer."""
    topics = own.topics() if own is not None else view.cluster_view.topics
    lost = view.cluster_view.lost_topics.get(node)
    if lost is not None:
        return [part for part in lost if own is None or own.is_shown(part["topic_name"])]
    return [part for topic in topics.values() for part in topic["nodes"] if part["node"] == node]


def _state(view: PageView, name: str) -> Element:
    absent = notice("No nsqd of this name is known.", "warning")
    trouble = notice("", "error")
    with element("dl", None, "lw-tiles") as tiles:
        health = tile("Health")
        version = tile("NSQ version", "The release of NSQ whose protocol it speaks")
        uptime = tile("Up for")
        topics = tile("Topics")
        messages = tile("Messages", "Published since it started")
        flow = tile("Published", "Messages a second")
        clients = tile("Consumers")

    def refresh() -> None:
        state = view.cluster_view.node(name)
        absent.set_visibility(state is None)
        tiles.set_visibility(state is not None)
        wrong = ""
        if state is not None and not state.reachable:
            reason = f": {state.error}" if state.error else ", and nsqlookupd no longer names it"
            lasting = duration(round(view.cluster_view.at - state.lost_since))
            wrong = (
                f"This nsqd does not answer since {utc_time(state.lost_since)} UTC ({lasting}){reason}. "
                "The figures below are the last that it gave."
            )
        elif state is not None and state.health != "OK":
            wrong = state.health
        show_notice(trouble, wrong)
        if state is None:
            return
        set_text(health, state_labels(state, view.cluster_view.at)[0][0])
        set_text(version, state.node.version or "-")
        up = view.cluster_view.at if state.reachable else state.lost_since
        set_text(uptime, duration(round(up - state.started)) if state.started else "-")
        speed = f"{rate(view.admin.poller.history.node_flow.get(name, 0.0))}/s" if state.reachable else "-"
        numbers = (count(state.topics), count(state.messages), speed, count(state.clients))
        for shown, number in zip((topics, messages, flow, clients), numbers, strict=True):
            set_text(shown, number if state.reachable or state.started else "-")  # not known is not 0

    view.live(refresh)
    return tiles


def _resources(view: PageView, name: str) -> None:
    with element("dl", None, "lw-tiles") as tiles:
        lapwing = tile("lapwing version")
        memory = tile("Memory", "Physical memory of the process")
        disk = tile("Free disk", "Of the file system with the data path")
        files = tile("File handles", "Open, of those that may be open")
        durability = tile("Durability", "--durability: when a publish is acknowledged")
        path = tile("Data path")
        remote = tile("Remote log", "Epoch, last record, lag, and what the last hour took, of --durability=replicated")

    def refresh() -> None:
        found = view.admin.poller.resources.get(name)
        tiles.set_visibility(found is not None)
        if found is None:
            return
        set_text(lapwing, str(found.get("lapwing") or "-"))
        set_text(memory, size(found["memory_bytes"]))
        free, whole = found.get("disk_free_bytes"), found.get("disk_bytes")
        set_text(disk, f"{size(free)} of {size(whole)}" if free is not None and whole else "-")
        opened, most = found.get("open_files"), found.get("max_files")
        set_text(files, f"{count(opened)} of {count(most)}" if opened is not None and most else "-")
        options = {option["flag"]: option["value"] for option in found.get("options") or ()}
        set_text(durability, str(options.get("--durability", "-")))
        set_text(path, str(found.get("data_path") or "-"))
        set_text(remote, remote_text(found.get("remote")))

    view.live(refresh, resources=name)


def remote_text(found: Json | None) -> str:
    """Return the figures of a remote log as one line."""
    if found is None:
        return "-"
    hour = f"{count(found['requests_last_hour'])} requests, {size(found['bytes_last_hour'])} in an hour"
    state = f"{found['lag_ms']} ms behind"
    if found["fenced"] or found["problem"]:  # which is above, as the reason why the node is unhealthy
        state = "replaced" if found["fenced"] else "takes nothing"
    return f"epoch {found['epoch']}, record {found['index']}, {state}; {hour}"


def _options(view: PageView, name: str) -> None:
    everything = False

    def turn() -> None:
        nonlocal everything
        everything = not everything
        refresh()

    def labels(option: Json) -> list[Label]:
        return [SET] if everything and not option["default"] else []

    columns = (
        TableColumn("flag", "Option", "text"),
        TableColumn("value", "Value", "code"),
        TableColumn("origin", "Set", "labels", cell=labels),
    )
    with panel("Options in force", "flags of this nsqd that differ from their default") as box:
        table = Table("options", f"Options of {name}", columns, empty="Every flag has its default.")
        with element("div", None, "lw-pad"):
            more = element("button", "", "lw-button", type="button")
            more.on("click", turn, args=[])

    def refresh() -> None:
        found = view.admin.poller.resources.get(name)
        box.set_visibility(found is not None)
        options = sorted((found or {}).get("options") or (), key=lambda option: bool(option["default"]))
        table.show_each((each for each in options if everything or not each["default"]), "flag")
        set_text(more, "Show only those that differ" if everything else f"Show all {len(options)}")

    view.live(refresh)


def _topics(view: PageView, name: str, own: OwnTopics) -> None:
    def link(part: Json) -> Row:
        return linked(part["topic_name"], view.links.topic(part["topic_name"]), paused_labels(part))

    columns = (
        TableColumn("topic", "Topic", "link", wide=True, cell=link),
        TableColumn("depth", "Depth", cell="depth"),
        TableColumn("queue", "Memory + disk", "mem", cell=memory_and_disk),
        TableColumn("messages", "Messages", cell="message_count"),
        TableColumn("channels", "Channels", cell=lambda part: len(part["channels"])),
        TableColumn("actions", "Actions", "actions", cell=lambda part: node_actions(view, part)),
    )
    with panel("Topics"):
        table = Table(
            "topics",
            f"Topics on {name}",
            columns,
            order="topic",
            empty="This node has no topics.",
            on_act=lambda action, topic: ask_act(view, action, topic, node=name),
        )

    view.live(lambda: table.show_each(parts_of(view, own, name), "topic_name"))


def _channels(view: PageView, name: str, own: OwnTopics) -> None:
    def link(channel: Json) -> Row:
        href = view.links.topic(channel["topic_name"], channel["channel_name"])
        return linked(channel["channel_name"], href, paused_labels(channel))

    def topic(channel: Json) -> Row:
        return linked(channel["topic_name"], view.links.topic(channel["topic_name"]))

    columns = (
        TableColumn("channel", "Channel", "link", wide=True, cell=link),
        TableColumn("topic", "Topic", "link", cell=topic),
        *QUEUE,
        CONNECTIONS,
    )
    with panel("Channels"):
        table = Table("channels", f"Channels on {name}", columns, order="topic", empty="This node has no channels.")

    def refresh() -> None:
        found = [channel for part in parts_of(view, own, name) for channel in part["channels"]]
        table.show_each(found, channel_key)

    view.live(refresh)


def _clients(view: PageView, name: str) -> None:
    with panel("Client connections"):
        table = ClientTable(view, f"Connections to {name}", node=False)

    def refresh() -> None:
        table.show(channel for part in parts_of(view, None, name) for channel in part["channels"])

    view.live(refresh, clients=name)
