"""The overview: the state of the cluster, alarms, charts, and the deepest channels."""

from typing import Final

from lapwing.admin.pages.charts import Lines, charts
from lapwing.admin.pages.elements import Table, element, icon, panel, set_attributes, set_text, tile
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import channel_columns, channel_key
from lapwing.client.alarms import Alarm
from lapwing.client.format import count, duration, messages_are, rate, several

CHARTS: Final = (
    Lines("Messages a second", "rate", (("in", "published", "c1"), ("out", "finished", "c2"))),
    Lines(
        "Waiting messages",
        "count",
        (
            ("ready", "in channels", "c1"),
            ("waiting", "in topics", "c3"),
            ("in_flight", "in flight", "c2"),
            ("deferred", "deferred", "c4"),
        ),
        stack=True,
    ),
    Lines("Oldest message", "duration", (("oldest", "waits for", "c3"),)),
    Lines("Lag of the slowest channel", "count", (("lag", "unfinished", "c4"),)),
)
FEW_ALARMS: Final = 5  # more on request, so that the charts stay in sight
MOST_ALARMS: Final = 100
BUSIEST: Final = 8


def draw(view: PageView) -> None:
    """Draw `/`."""
    _health(view)
    _tiles(view)
    _alarms(view)
    charts(view, lambda: view.admin.poller.history.cluster, CHARTS)
    _busiest(view)


def _health(view: PageView) -> None:
    with element("div", None, "lw-health lw-good", role="status") as box:
        sign = icon("check_circle")
        with element("div"):
            verdict = element("h2", "")
            facts = element("p", "", "lw-faint")

    def refresh() -> None:
        cluster_view, alarms = view.cluster_view, view.admin.poller.alarms
        worst = alarms[0].severity if alarms else "info"
        serious = sum(alarm.severity != "info" for alarm in alarms)
        unread = view.admin.poller.unread
        tone = worst if serious else "good" if cluster_view.at and not unread else "info"
        set_text(sign, {"error": "error", "warning": "warning", "info": "pending"}.get(tone, "check_circle"))
        box.classes(replace=f"lw-health lw-{tone}")
        set_text(
            verdict,
            "Waiting for the first answers"
            if not cluster_view.at
            else several(serious, "problem")
            if serious
            else f"{messages_are(unread)} waiting for a reader"
            if unread
            else "No problems",
        )
        up = sum(state.reachable for state in cluster_view.nodes)
        parts = [f"{up} of {len(cluster_view.nodes)} nsqd up"]
        if cluster_view.lookupds:
            answering = sum(not error for _, error in cluster_view.lookupds)
            parts.append(f"{answering} of {len(cluster_view.lookupds)} nsqlookupd up")
        topics = cluster_view.users_topics()
        channels = sum(len(topic["channels"]) for topic in topics.values())
        parts += [several(len(topics), "topic"), several(channels, "channel")]
        set_text(facts, " · ".join(parts))

    view.live(refresh)


def _tiles(view: PageView) -> None:
    last = view.admin.poller.history.cluster.last
    with element("dl", None, "lw-tiles"):
        into = tile("Published", "Messages published a second, all topics")
        out = tile("Finished", "Messages finished a second, all channels")
        waiting = tile("Waiting", "Messages in topics and channels, not in flight and not deferred")
        in_flight = tile("In flight", "Delivered and not yet finished")
        deferred = tile("Deferred", "Waiting for their time")
        oldest = tile("Oldest", "How long the oldest unfinished message has waited, as far as nsqadmin has watched")
        clients = tile("Consumers", "Connections that are subscribed")

    def refresh() -> None:
        set_text(into, f"{rate(last('in'))}/s")
        set_text(out, f"{rate(last('out'))}/s")
        set_text(waiting, count(last("waiting") + last("ready")))
        set_text(in_flight, count(last("in_flight")))
        set_text(deferred, count(last("deferred")))
        set_text(oldest, duration(round(last("oldest"))) if last("oldest") else "-")
        set_text(clients, count(sum(channel["client_count"] for channel in view.cluster_view.users_channels())))

    view.live(refresh)


def _alarms(view: PageView) -> None:
    most = [FEW_ALARMS]

    def show_all() -> None:
        most[0] = MOST_ALARMS
        refresh()

    with panel() as box:
        with element("header"):
            title = element("h2", "")
        listed = element("ul", None, "lw-alarms")
        with element("div", None, "lw-more") as more:
            words = element("button", "", "lw-quiet", type="button")
            words.on("click", show_all, args=[])
    shown: list[list[Alarm]] = [[]]

    def refresh() -> None:
        alarms = view.admin.poller.alarms
        box.set_visibility(bool(alarms))
        serious = any(alarm.severity != "info" for alarm in alarms)
        set_text(title, "Alarms" if serious else "Notes")
        if alarms[: most[0]] != shown[0]:
            shown[0] = alarms[: most[0]]
            listed.clear()
            with listed:
                for alarm in shown[0]:
                    _alarm(view, alarm)
        hidden = len(alarms) - most[0]
        set_text(
            words, f"Show {hidden} more" if most[0] < MOST_ALARMS else f"{hidden} more: GET /api/alarms has them all"
        )
        set_attributes(words, disabled=most[0] >= MOST_ALARMS)
        more.set_visibility(hidden > 0)

    view.live(refresh)


def _alarm(view: PageView, alarm: Alarm) -> None:
    with element("li", None, f"lw-{alarm.severity}"):
        icon(alarm.severity)
        with element("div"):
            element("span", f"{alarm.severity}: ", "lw-hidden")
            element("a", alarm.text, "lw-what", href=view.links.alarm(alarm))
            element("p", alarm.advice)


def _busiest(view: PageView) -> None:
    history = view.admin.poller.history
    with panel("Deepest channels", "with the most waiting messages"):
        empty = "No channel has a message waiting."
        table = Table("deepest", "Deepest channels", (), plain=True, empty=empty)

    def refresh() -> None:
        cluster_view = view.cluster_view
        deep = sorted(
            (channel for channel in cluster_view.users_channels() if channel["depth"]),
            key=lambda channel: -channel["depth"],
        )
        moved = cluster_view.pipeline_channels()
        columns = channel_columns([], history, view.links, cluster_view.at, moved, with_topic=True)
        table.set_columns(columns)
        table.show_each(deep[:BUSIEST], channel_key)

    view.live(refresh)
