"""nsqadmin's `/metrics`: pure."""

from lapwing.admin.metrics import exposition
from lapwing.client.alarms import Alarm
from lapwing.client.cluster import Node
from lapwing.client.cluster_view import ClusterView, NodeState

NOW = 1_000_000.0
NODE = Node("a", "10.0.0.1", 4150, 4151, "1.3.0")
LAKE = {
    "name": "lake", "kind": "archive", "state": "running", "rows_in": 120, "rows_out": 100, "rejected": 3, "late": 0,
    "lag": 7, "input_rate": 12.5, "batch_ms": 834, "batch_at_ms": 999_990_000, "updated_ms": 999_999_000, "error": "",
}  # fmt: skip


def sample(text: str, name: str) -> str:
    [line] = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return line.rpartition(" ")[2]


def shown(*pipelines: dict[str, object]) -> str:
    return exposition(ClusterView(at=NOW, pipelines=pipelines), [], now=NOW)


def test_a_pipeline_has_its_figures():
    text = shown(LAKE)
    found = {
        name: sample(text, f"lapwing_pipeline_{name}")
        for name in ("rows_in_total", "rows_out_total", "rejected_total", "late_total", "lag", "batch_seconds")
    }

    assert found == {
        "rows_in_total": "120.0",
        "rows_out_total": "100.0",
        "rejected_total": "3.0",
        "late_total": "0.0",
        "lag": "7.0",
        "batch_seconds": "0.834",
    }
    assert sample(text, "lapwing_pipeline_batch_age_seconds") == "10.0"
    assert sample(text, "lapwing_pipeline_report_age_seconds") == "1.0"
    assert sample(text, "lapwing_pipeline_failed") == "0.0"
    assert 'lapwing_pipeline_lag{pipeline="lake",kind="archive"} 7.0\n' in text
    assert "# TYPE lapwing_pipeline_rows_in_total counter\n" in text


def test_a_pipeline_that_failed_or_fell_silent_has_failed_and_its_lag_is_not_known():
    failed = shown({**LAKE, "state": "failed", "error": "no such column"})
    silent = shown({**LAKE, "state": "silent", "updated_ms": 999_000_000})

    assert sample(failed, "lapwing_pipeline_failed") == sample(silent, "lapwing_pipeline_failed") == "1.0"
    assert "lapwing_pipeline_lag" not in silent
    assert sample(silent, "lapwing_pipeline_report_age_seconds") == "1000.0"


def test_what_a_pipeline_does_not_report_has_no_sample_and_strange_values_do_no_harm():
    text = shown({"name": 'a"b\nc', "state": "running", "rows_in": "many", "lag": True, "updated_ms": 999_999_500})

    assert "rows_in" not in text
    assert "lapwing_pipeline_lag" not in text
    assert 'pipeline="a\\"b\\nc",kind=""' in text


def test_alarms_and_daemons_are_counted():
    alarm = Alarm("warning", "orders", "text", "advice", "/")
    view = ClusterView(at=NOW, nodes=(NodeState(NODE),), lookupds=(("l:4161", "refused"),))
    text = exposition(view, [alarm, alarm], now=NOW)

    assert 'lapwing_alarms{severity="warning"} 2.0\n' in text
    assert 'lapwing_alarms{severity="error"} 0.0\n' in text
    assert 'lapwing_nsqd_up{node="10.0.0.1:4151"} 1.0\n' in text
    assert 'lapwing_nsqlookupd_up{address="l:4161"} 0.0\n' in text
