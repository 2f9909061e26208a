"""The page of all topics."""

from fastapi import Request
from nicegui import ui

from lapwing import names
from lapwing.admin.pages.dialogs import ask_create
from lapwing.admin.pages.elements import Table, button, panel
from lapwing.admin.pages.frame import PATIENCE, frame
from lapwing.admin.pages.own_topics import OwnTopics
from lapwing.admin.pages.table_rows import TOPICS, topic_rows
from lapwing.admin.services import Admin


def install(admin: Admin) -> None:
    """`/topics`"""

    @ui.page("/topics", response_timeout=PATIENCE)
    async def topics(request: Request) -> None:
        await admin.poller.fresh()
        with frame(admin, request, "Topics", "/topics") as view:
            own = OwnTopics(view)
            if view.visitor.may_change:
                with view.buttons:
                    nodes = [state.node.name for state in view.cluster_view.nodes if state.reachable]
                    button("New topic", lambda: ask_create(view, nodes=nodes), tone="main", sign="add")
            with panel():
                table = Table(
                    "topics",
                    "Topics",
                    TOPICS,
                    order="topic",
                    empty="No topics yet. A topic is created with its first message.",
                )

            def refresh() -> None:
                idle = [name for name in view.cluster_view.idle_topics if own.shown or not names.own(name)]
                away = view.cluster_view.away_topics()
                table.show(topic_rows(own.topics(), idle, away, admin.poller.history, view.links))

            view.live(refresh)
