"""The batches of pipelines over time, from their reports."""

import time

from admin_browser import Ui
from admin_stage import Cluster
from playwright.sync_api import Page, expect

from daemons import Daemon
from lapwing.admin.pipeline_history import Batch, PipelineHistory
from lapwing.client.cluster import Json


def report(at: int, rows: int, *, name: str = "lake", took: int = 800, lag: int = 5) -> Json:
    return {
        "name": name, "batch_at_ms": at * 1000, "rows_in": rows, "rows_out": rows // 2, "batch_ms": took, "lag": lag
    }  # fmt: skip


def test_each_batch_is_one_point_with_the_rows_since_the_one_before():
    history = PipelineHistory()
    for status in (report(10, 100), report(10, 100), report(12, 160, lag=0), report(20, 30)):
        history.sample([status])

    assert list(history.batches["lake"]) == [
        Batch(10.0, None, None, 0.8, 5),
        Batch(12.0, 60.0, 30.0, 0.8, 0),
        Batch(20.0, 30.0, 15.0, 0.8, 5),  # a run that began again
    ]


def test_a_pipeline_without_a_batch_has_no_point_and_one_that_is_gone_is_forgotten():
    history = PipelineHistory()
    history.sample([report(10, 1), report(0, 0, name="new")])
    assert set(history.batches) == {"lake"}

    history.sample([])
    assert history.batches == {}


def test_the_page_shows_the_batches_and_where_the_rows_land(cluster: Cluster, nsqadmin: Daemon, page: Page) -> None:
    status = {"topics": ["orders"], "channel": "billing", "state": "running", "batch_id": 3}
    status |= {"updated_ms": int(time.time() * 1000)}
    cluster.a.pipelines.append(
        {**report(1_700_000_000, 100), **status, "lands": ["/srv/lapwing-data/lake", "topic orders.gross"]}
    )
    ui = Ui(page, nsqadmin.url)
    ui.open("/pipelines?name=lake")

    expect(page.get_by_text("…/lapwing-data/lake")).to_be_visible()
    expect(page.get_by_text("topic orders.gross")).to_be_visible()
    expect(page.get_by_role("group", name="Duration of a batch: took 800ms")).to_be_visible()
    expect(page.get_by_role("group", name="Lag after a batch: unread 5")).to_be_visible()
