"""The page of all nsqds."""

from lapwing.admin.pages.elements import Table, panel, set_text
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import is_placed, node_columns, node_row


def draw(view: PageView) -> None:
    """Draw `/nodes`."""
    view.client.title = f"Nodes ({len(view.cluster_view.nodes)}) · nsqadmin"
    with panel():
        table = Table("nodes", "Nodes", (), order="host", empty="No nsqd is known.")

    def refresh() -> None:
        cluster_view, history = view.cluster_view, view.admin.poller.history
        set_text(view.heading, f"Nodes ({len(cluster_view.nodes)})")
        table.set_columns(node_columns(direct=cluster_view.direct, placed=is_placed(cluster_view)))
        tint = {
            state.node.name: "lost" if not state.reachable else "warn"
            for state in cluster_view.nodes
            if not state.reachable or state.node.out_of_date
        }
        table.show([node_row(state, cluster_view, history, view.links) for state in cluster_view.nodes], tint=tint)

    view.live(refresh)
