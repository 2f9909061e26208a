"""The page of all nsqds."""

from fastapi import Request
from nicegui import ui

from lapwing.admin.pages.elements import Table, panel, set_text
from lapwing.admin.pages.frame import PATIENCE, frame
from lapwing.admin.pages.table_rows import is_placed, node_columns, node_row
from lapwing.admin.services import Admin


def install(admin: Admin) -> None:
    """`/nodes`"""

    @ui.page("/nodes", response_timeout=PATIENCE)
    async def page(request: Request) -> None:
        await admin.poller.fresh()
        with frame(admin, request, f"Nodes ({len(admin.poller.cluster_view.nodes)})", "/nodes") as view:
            with panel():
                table = Table(
                    "nodes",
                    "Nodes",
                    node_columns(direct=view.cluster_view.direct, placed=is_placed(view.cluster_view)),
                    order="host",
                    empty="No nsqd is known.",
                )

            def refresh() -> None:
                cluster_view = view.cluster_view
                set_text(view.heading, f"Nodes ({len(cluster_view.nodes)})")
                table.set_columns(node_columns(direct=cluster_view.direct, placed=is_placed(cluster_view)))
                tint = {
                    state.node.name: "lost" if not state.reachable else "warn"
                    for state in cluster_view.nodes
                    if not state.reachable or state.node.out_of_date
                }
                table.show(
                    [node_row(state, cluster_view, admin.poller.history, view.links) for state in cluster_view.nodes],
                    tint=tint,
                )

            view.live(refresh)
