"""The page of all topics."""

from lapwing.admin.pages.dialogs import ask_create
from lapwing.admin.pages.elements import Table, button, panel
from lapwing.admin.pages.frame import PageView
from lapwing.admin.pages.own_topics import OwnTopics
from lapwing.admin.pages.table_rows import idle_topic_rows, row_of, topic_columns


def draw(view: PageView) -> None:
    """Draw `/topics`."""
    own = OwnTopics(view)
    if view.visitor.may_change:
        with view.buttons:
            nodes = [state.node.name for state in view.cluster_view.reachable]
            button("New topic", lambda: ask_create(view, nodes=nodes), tone="main", sign="add")
    columns = topic_columns(view.admin.poller.history, view.links)
    with panel():
        empty = "No topics yet. A topic is created with its first message."
        table = Table("topics", "Topics", columns, order="topic", empty=empty)

    def refresh() -> None:
        idle = [name for name in view.cluster_view.idle_topics if own.is_shown(name)]
        away = view.cluster_view.away_topics()
        rows = [row_of(columns, name, topic) for name, topic in own.topics().items()]
        table.show(rows + idle_topic_rows(idle, away, view.links))

    view.live(refresh)
