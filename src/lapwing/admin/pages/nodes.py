"""All nsqds."""

from typing import TYPE_CHECKING

from fastapi import Request
from nicegui import ui

from lapwing.admin.pages.columns import is_placed, node_columns, node_row
from lapwing.admin.pages.frame import PATIENCE, frame
from lapwing.admin.pages.parts import Table, panel, say

if TYPE_CHECKING:
    from lapwing.admin.services import Admin


def install(admin: "Admin") -> None:
    """`/nodes`"""

    @ui.page("/nodes", response_timeout=PATIENCE)
    async def page(request: Request) -> None:
        await admin.poller.fresh()
        with frame(admin, request, f"Nodes ({len(admin.poller.picture.nodes)})", "/nodes") as view:
            with panel():
                table = Table(
                    "nodes",
                    "Nodes",
                    node_columns(direct=view.picture.direct, placed=is_placed(view.picture)),
                    order="host",
                    empty="No nsqd is known.",
                )

            def refresh() -> None:
                picture = view.picture
                say(view.heading, f"Nodes ({len(picture.nodes)})")
                table.set_columns(node_columns(direct=picture.direct, placed=is_placed(picture)))
                tint = {state.node.name: "warn" for state in picture.nodes if state.node.out_of_date}
                table.show(
                    [node_row(state, picture, admin.poller.history, view.links) for state in picture.nodes], tint=tint
                )

            view.live(refresh)
