"""The page of all nsqds."""

from lapwing.admin.pages.elements import Table, panel, set_text
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.table_rows import node_columns, row_of


def draw(view: PageView) -> None:
    """Draw `/nodes`."""
    view.client.title = f"Nodes ({len(view.cluster_view.nodes)}) · nsqadmin"
    with panel():
        table = Table("nodes", "Nodes", (), order="host", empty="No nsqd is known.")

    def refresh() -> None:
        cluster_view = view.cluster_view
        set_text(view.heading, f"Nodes ({len(cluster_view.nodes)})")
        columns = node_columns(cluster_view, view.admin.poller.history, view.links)
        table.set_columns(columns)
        tint = {
            state.node.name: "lost" if not state.reachable else "warn"
            for state in cluster_view.nodes
            if not state.reachable or state.node.out_of_date
        }
        table.show([row_of(columns, state.node.name, state) for state in cluster_view.nodes], tint=tint)

    view.live(refresh)
