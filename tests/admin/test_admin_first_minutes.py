"""The first minutes of a cluster: what pages show before its consumers and pipelines have begun."""

from typing import Any

import pytest

from lapwing.admin.history import History
from lapwing.admin.links import PageLinks
from lapwing.admin.pages.frame import found
from lapwing.admin.pages.pipelines import COLUMNS, pipeline_row
from lapwing.client.alarms import AlarmLimits, unread
from lapwing.client.cluster import Node, topics_of_stats
from lapwing.client.cluster_view import ClusterView

NODE = Node("a", "10.0.0.1", 4150, 4151, "1.3.0")
NOW = 1_000_000.0


def view(names: dict[str, dict[str, Any]], **about: Any) -> ClusterView:
    """A cluster with these channels by topic; each has the fields given."""
    known = {"depth": 0, "in_flight_count": 0, "deferred_count": 0, "message_count": 0, "client_count": 0}
    topics = [
        {
            "topic_name": topic, "depth": 0, "message_count": 0, "paused": False,
            "channels": [{"channel_name": name, "paused": False, **known, **given} for name, given in channels.items()],
        }
        for topic, channels in names.items()
    ]  # fmt: skip
    return ClusterView(at=NOW, topics=topics_of_stats([(NODE, {"topics": topics})], now=NOW), **about)


def test_messages_that_nobody_reads_yet_are_counted_before_they_are_an_alarm():
    waiting = view(
        {
            "orders": {"lake": {"depth": 15000}, "billing": {"depth": 900, "client_count": 1}},
            "orders.billing.dead": {"dead": {"depth": 400}},
            "paused": {"c": {"depth": 500, "paused": True}},
        }
    )

    assert unread(waiting, History(), AlarmLimits()) == 15000
    assert unread(view({"orders": {"lake": {"depth": 99}}}), History(), AlarmLimits()) == 0


@pytest.mark.parametrize("state", ["starting", "running"])
def test_a_pipeline_that_starts_shows_no_pattern_and_no_batch(state):
    pipeline = {
        "name": "lake", "kind": "archive", "state": state, "batch_id": -1, "topics": ["shop.*|orders"],
        "channel": "lake", "updated_ms": NOW * 1000, "batch_ms": 0,
    }  # fmt: skip
    cluster_view = view({"orders": {"lake": {}}, "other": {"c": {}}}, pipelines=(pipeline,))
    row = pipeline_row(pipeline, cluster_view, PageLinks())
    cells = dict(zip([column.key for column in COLUMNS], row[1:], strict=True))

    assert [label[0] for label in cells["state"]] == ["starting"]
    assert cells["channels"] == [["orders/lake", "/topics/orders/lake", ""]]
    assert (cells["batch"], cells["took"]) == (None, None)


def test_a_search_finds_a_channel_before_its_dead_letters():
    dead = "orders.billing.dead"
    cluster_view = view({"orders": {"billing": {}}, dead: {"dead": {}}, "bills": {}, "mobile": {"rebill": {}}})

    def names(text: str) -> list[str]:
        return [name for name, _, _ in found(cluster_view, text, PageLinks())]

    assert names("bill") == ["bills", "orders/billing", "mobile/rebill", dead, f"{dead}/dead"]
    assert names("orders") == ["orders", "orders/billing", dead, f"{dead}/dead"]
    assert names("bill dead")[0] == dead
