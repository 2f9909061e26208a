"""`/schedules`: put, looked at, run, paused and removed; and real processes that are killed."""

import asyncio
import json
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from doors import Node

import asking
from daemons import Daemon, nsqd, until

DOCUMENT = b'{"topic": "t", "body": "tick", "every": "1m"}'


async def test_a_schedule_is_put_shown_run_paused_and_removed():
    node = Node()
    status, answer = await node.ask("PUT", "/schedules/nightly?next=2", DOCUMENT)
    assert status == 200
    assert json.loads(answer) == {
        "name": "nightly", "topic": "t", "body": "tick", "headers": {}, "every": "1m", "zone": "UTC",
        "misfire": "once", "paused": False, "state": "active", "last": "", "published": 0, "missed": 0, "problem": "",
        "next": ["2027-01-15T08:01:00Z", "2027-01-15T08:02:00Z"],
    }  # fmt: skip
    assert await node.json("/schedules/nightly?next=2") == json.loads(answer)
    assert [each["name"] for each in (await node.json("/schedules"))["schedules"]] == ["nightly"]

    assert await node.ask("POST", "/schedules/run/nightly") == (200, "OK")
    log = node.broker.existing("t").log
    assert log.extras(0, 1)[0].headers["schedule-run"] == "manual"
    assert json.loads((await node.ask("POST", "/schedules/pause/nightly"))[1])["state"] == "paused"
    assert json.loads((await node.ask("POST", "/schedules/resume/nightly"))[1])["state"] == "active"
    assert await node.ask("DELETE", "/schedules/nightly") == (200, "")
    assert await node.json("/schedules") == {"schedules": []}
    await node.api.schedules.stop()


async def test_the_runner_publishes_when_the_time_has_come():
    node = Node()
    await node.ask("PUT", "/schedules/often", b'{"topic": "t", "body": "tick", "every": "1s"}')
    node.wall.ns += 1_000_000_000
    published = asyncio.Event()
    node.broker.schedules.on_change = published.set
    node.api.schedules.wake()
    await asyncio.wait_for(published.wait(), 60)
    assert (await node.json("/schedules/often"))["last"] == "2027-01-15T08:00:01Z"
    await node.api.schedules.stop()


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "message"),
    [
        ("GET", "/schedules/none", b"", 404, "SCHEDULE_NOT_FOUND"),
        ("DELETE", "/schedules/none", b"", 404, "SCHEDULE_NOT_FOUND"),
        ("POST", "/schedules/run/none", b"", 404, "SCHEDULE_NOT_FOUND"),
        ("PUT", "/schedules/s", b"{", 400, "a JSON object expected in the body, such as"),
        ("PUT", "/schedules/s", b"[]", 400, "an object expected"),
        ("PUT", "/schedules/s", b'{"topic": "t", "body": "b"}', 400, "one of at, every, cron expected"),
        ("PUT", "/schedules/a%20b", DOCUMENT, 400, "a schedule is named like a topic"),
        ("PUT", "/schedules/s", b'{"topic": "t", "body": "b", "cron": "x"}', 400, "no cron expression"),
        ("GET", "/schedules?next=many", b"", 400, "next: a whole number expected"),
    ],
)
async def test_bad_input_is_answered_with_one_sentence(
    method: str, target: str, body: bytes, status: int, message: str
):
    node = Node()
    found, answer = await node.ask(method, target, body)
    assert (found, message in json.loads(answer)["message"]) == (status, True), answer
    assert len(node.broker.schedules) == 0


def ticks(daemon: Daemon, topic: str = "t") -> list[float]:
    """The Unix times of the ticks in a topic of a real nsqd."""
    status, answer = asking.ask(daemon, "GET", f"/log/read?topic={topic}&limit=10000")
    found = [each["headers"]["schedule-time"] for each in answer["messages"]] if status == 200 else []
    return [datetime.fromisoformat(each).timestamp() for each in found]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_killed_node_publishes_each_tick_once(tmp_path: Path, durability: str):
    with nsqd(f"--data-path={tmp_path}", f"--durability={durability}") as daemon:
        document = {"topic": "t", "body": "tick", "every": "1s", "misfire": "all"}
        assert asking.ask(daemon, "PUT", "/schedules/s", document)[0] == 200
        for kills in range(1, 4):
            until(lambda: len(ticks(daemon)) >= kills, what="a few ticks")  # noqa: B023
            daemon.kill()
            daemon.restart()
        assert asking.ask(daemon, "POST", "/schedules/pause/s")[1]["state"] == "paused"
        found = ticks(daemon)
    assert [b - a for a, b in pairwise(found)] == [1.0] * (len(found) - 1)


def test_a_stopped_node_continues_with_what_was_put(tmp_path: Path):
    with nsqd(f"--data-path={tmp_path}") as daemon:
        asking.ask(daemon, "PUT", "/schedules/daily", {"topic": "t", "body": "b", "cron": "0 9 * * *"})
        shown = asking.ask(daemon, "GET", "/schedules/daily")
        daemon.stop()
        daemon.restart()
        assert asking.ask(daemon, "GET", "/schedules/daily") == shown
        assert ticks(daemon) == []
