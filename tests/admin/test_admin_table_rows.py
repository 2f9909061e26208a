"""Rows of tables: pure."""

from lapwing.admin.history import History
from lapwing.admin.links import PageLinks
from lapwing.admin.pages.table_rows import consumer_columns, node_columns, row_of
from lapwing.client.cluster import Node
from lapwing.client.cluster_view import ClusterView, NodeState


def test_a_node_lists_the_topics_of_users():
    topics = (("_lapwing_flow", False), ("orders", False), ("returns", True))
    state = NodeState(Node("a", "10.0.0.1", 4150, 4151, "1.3.0", topics=topics), started=900)
    columns = node_columns(ClusterView(at=1000.0, nodes=(state,)), History(), PageLinks("/nsq"))

    shown = [["orders", "/nsq/topics/orders", ""], ["returns", "/nsq/topics/returns", "warn"]]
    assert row_of(columns, "a", state)[-1] == shown


def test_a_named_consumer_is_shown_with_what_it_holds():
    consumer = {"node": "a:4151", "name": "c1", "in_flight_count": 3, "oldest_seconds": 12.7, "idle_seconds": 0.4}

    assert row_of(consumer_columns(PageLinks()), "key", consumer) == [
        "key",
        "c1",
        ["a:4151", "/nodes/a:4151", "", []],
        3,
        12,
        0,
    ]
