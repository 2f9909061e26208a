"""`/pipelines`."""

import json

import pytest
from doors import Node

from lapwing.nsqd.pipelines import LIFETIME, MOST


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


async def test_a_pipeline_that_says_nothing_for_ten_minutes_is_forgotten() -> None:
    node = Node()
    await node.ask("POST", "/pipelines/old", b"{}")
    node.wall.ns += LIFETIME // 2
    await node.ask("POST", "/pipelines/young", b"{}")
    node.wall.ns += LIFETIME // 2

    assert [pipeline["name"] for pipeline in (await node.json("/pipelines"))["pipelines"]] == ["young"]


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
