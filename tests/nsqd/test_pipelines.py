"""`/pipelines`."""

import json

import pytest
from doors import Node

from lapwing.nsqd.http.pipelines import LIFETIME, LONG_LIFETIME, MOST, SILENT


async def test_the_last_status_of_each_pipeline_is_kept_with_its_time() -> None:
    node = Node()
    await node.ask("POST", "/pipelines/lake", b'{"state":"starting"}')
    await node.ask("POST", "/pipelines/a%20b", b'{"state":"running","updated_ms":1,"name":"x"}')
    node.wall.ns += 5_000_000
    done = await node.ask("POST", "/pipelines/lake", b'{"state":"running","rows":3}')

    at = node.wall.ns // 1_000_000
    assert done == (200, "")
    assert await node.json("/pipelines") == {
        "pipelines": [
            {"state": "running", "updated_ms": at - 5, "name": "a b"},
            {"state": "running", "rows": 3, "name": "lake", "updated_ms": at},
        ]
    }


async def test_a_pipeline_that_ended_well_is_dropped_after_ten_minutes_and_any_other_after_a_day() -> None:
    node = Node()
    for name, state in (("done", "finished"), ("bad", "failed"), ("dead", "running")):
        await node.ask("POST", f"/pipelines/{name}", json.dumps({"state": state}).encode())

    async def names() -> list[str]:
        return [pipeline["name"] for pipeline in (await node.json("/pipelines"))["pipelines"]]

    node.wall.ns += LIFETIME - 1
    assert await names() == ["bad", "dead", "done"]
    node.wall.ns += 1
    assert await names() == ["bad", "dead"]
    node.wall.ns += LONG_LIFETIME - LIFETIME
    assert await names() == []


async def test_a_pipeline_that_should_report_and_does_not_is_silent() -> None:
    node = Node()
    for name, state in (("running", "running"), ("stopped", "stopped"), ("failed", "failed")):
        status = {"state": state, "lag": 7, "input_rate": 3.5}
        await node.ask("POST", f"/pipelines/{name}", json.dumps(status).encode())
    node.wall.ns += SILENT

    async def states() -> dict[str, tuple[str, int | None, float]]:
        found = (await node.json("/pipelines"))["pipelines"]
        return {each["name"]: (each["state"], each["lag"], each["input_rate"]) for each in found}

    rest = {"stopped": ("stopped", 7, 3.5), "failed": ("failed", 7, 3.5)}
    assert await states() == {"running": ("running", 7, 3.5), **rest}
    node.wall.ns += 1
    assert await states() == {"running": ("silent", None, 0), **rest}


async def test_pipelines_are_metrics_with_what_they_report() -> None:
    node = Node()
    now = node.wall.ns // 1_000_000
    status = {"kind": "table", "state": "running", "rows_in": 10, "rows_out": 8, "rejected": 2, "late": 0, "lag": 5}
    status |= {"input_rate": 1.5, "batch_ms": 2500, "batch_at_ms": now - 4000}
    await node.ask("POST", "/pipelines/orders", json.dumps(status).encode())
    await node.ask("POST", "/pipelines/odd", b'{"rows_in":"many","batch_ms":[],"batch_at_ms":"x","state":"failed"}')
    _, text = await node.ask("GET", "/metrics")

    def of(name: str, kind: str) -> dict[str, float]:
        labels = f'{{pipeline="{name}",kind="{kind}"}} '
        lines = [line for line in text.splitlines() if labels in line]
        return {line.partition("{")[0].removeprefix("lapwing_pipeline_"): float(line.split()[-1]) for line in lines}

    assert of("orders", "table") == {
        "rows_in_total": 10, "rows_out_total": 8, "rejected_total": 2, "late_total": 0, "lag": 5, "input_rate": 1.5,
        "batch_seconds": 2.5, "batch_age_seconds": 4.0, "report_age_seconds": 0.0, "failed": 0,
    }  # fmt: skip
    assert of("odd", "") == {"report_age_seconds": 0.0, "failed": 1}
    node.wall.ns += SILENT + 1
    _, text = await node.ask("GET", "/metrics")
    assert of("orders", "table")["failed"] == 1
    assert "lag" not in of("orders", "table")


async def test_a_pipeline_that_was_removed_is_dropped() -> None:
    node = Node()
    await node.ask("POST", "/pipelines/lake", b'{"state":"failed"}')

    assert await node.ask("DELETE", "/pipelines/lake") == (200, "")
    assert await node.ask("DELETE", "/pipelines/lake") == (404, '{"message":"PIPELINE_NOT_FOUND"}')
    assert await node.json("/pipelines") == {"pipelines": []}


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b"3", b"[" * 100_000])
async def test_what_is_no_json_object_is_no_status(body: bytes) -> None:
    node = Node()

    assert await node.ask("POST", "/pipelines/p", body[:65536]) == (400, '{"message":"INVALID_STATUS"}')
    assert await node.json("/pipelines") == {"pipelines": []}


async def test_there_is_an_end_to_how_many_are_kept() -> None:
    node = Node()
    for number in range(MOST):
        await node.ask("POST", f"/pipelines/{number}", json.dumps({"n": number}).encode())

    assert await node.ask("POST", "/pipelines/more", b"{}") == (503, '{"message":"TOO_MANY_PIPELINES"}')
    assert await node.ask("POST", "/pipelines/7", b"{}") == (200, "")


async def test_a_name_that_cannot_be_shown_is_refused() -> None:
    node = Node()

    assert await node.ask("POST", "/pipelines/a%0ab", b"{}") == (400, '{"message":"INVALID_NAME"}')
    assert await node.ask("POST", "/pipelines/" + "n" * 129, b"{}") == (400, '{"message":"INVALID_NAME"}')
