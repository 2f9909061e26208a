"""The page of discovery: the nsqlookupds, and topics that no nsqd has."""

from nicegui import ui

from lapwing.admin.pages.dialogs import ask_act, ask_create
from lapwing.admin.pages.elements import Table, button, element, notice, panel, set_attributes, show_notice
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import Row, TableColumn
from lapwing.client.cluster_client import UpstreamFailed

HOSTS = (TableColumn("host", "nsqlookupd host", "text", wide=True), TableColumn("state", "State", "labels"))
INACTIVE = (
    TableColumn("topic", "Topic", "link", wide=True),
    TableColumn("channel", "Channel", "text"),
    TableColumn("actions", "Actions", "actions"),
)


def draw(view: PageView) -> None:
    """Draw `/lookup`."""
    if view.cluster_view.direct:
        notice("nsqadmin asks the nsqds themselves (--nsqd-http-address): there is no nsqlookupd to show.")
        return
    with panel("nsqlookupd hosts"):
        hosts = Table("hosts", "nsqlookupd hosts", HOSTS, plain=True)

    def refresh() -> None:
        hosts.show(
            [
                [address, address, [["does not answer", "bad", error] if error else ["answers", "good", ""]]]
                for address, error in view.cluster_view.lookupds
            ]
        )

    view.live(refresh)
    _inactive(view)


def _inactive(view: PageView) -> None:
    async def change(action: str, row: str) -> None:
        topic, _, channel = row.partition("/")
        ask_act(view, action, topic, channel, then=lambda: again())

    with panel("Inactive topics", "known to nsqlookupd, on no nsqd"):
        with element("div", None, "lw-buttons lw-pad"):
            if view.visitor.may_change:
                button("Create topic or channel", lambda: ask_create(view), tone="main", sign="add")
            button("Refresh", lambda: load(), sign="refresh")
        failure = notice("", "error")
        table = Table("inactive", "Inactive topics", INACTIVE, order="topic", empty="Loading …", on_act=change)

    async def load() -> None:
        try:
            found = await view.admin.cluster_client.inactive_topics()
        except UpstreamFailed as error:
            show_notice(failure, str(error))
            set_attributes(table, empty="Not known.")
            return
        show_notice(failure, "")
        set_attributes(table, empty="Every topic has a producer.")
        rows: list[Row] = []
        delete = [["delete", "Delete …", "danger"]] if view.visitor.may_change else []
        for topic, channels in found.value.items():
            rows.append([topic, [topic, view.links.topic(topic), "", []], "", delete])
            rows += [
                [f"{topic}/{channel}", [topic, view.links.topic(topic), "", []], channel, delete]
                for channel in channels or ()
            ]
        table.show(rows)

    def again() -> None:
        ui.timer(0.1, load, once=True)

    known: list[tuple[str, ...]] = [()]

    def refresh() -> None:
        if view.cluster_view.idle_topics != known[0]:  # topics were added or removed
            known[0] = view.cluster_view.idle_topics
            if view.client.has_socket_connection:
                with table:
                    again()

    again()  # after the page is drawn, as this may take seconds
    view.live(refresh)
