"""taskiq over lapwing, with `taskiq worker` as its users start it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from scene import PATIENCE, Scene, scene, until

import daemons

WORKER = ("taskiq", "worker", "--workers=1", "taskiq_jobs:broker", "--log-level=WARNING")
CLIENT = """
import asyncio
from datetime import timedelta
from taskiq_jobs import block, broker, fail, note, source

async def main():
    await broker.startup()
    {}
    await broker.shutdown()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd() as daemon:
        yield daemon


@pytest.fixture
def tasks(nsqd: daemons.Daemon, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene(nsqd, tmp_path, f"taskiq{abs(hash(request.node.name)) % 10**8}") as made:
        yield made


def test_a_delayed_task_comes_last_and_an_urgent_one_first(tasks: Scene) -> None:
    tasks.environment["TASKS_MOST"] = "1"
    tasks.run(
        CLIENT.format(
            """
    await note.kicker().with_labels(delay=1).kiq("delayed")
    for number in range(3):
        await note.kiq("usual")
        await note.kicker().with_labels(priority=9).kiq("high")
"""
        )
    )
    tasks.start(*WORKER)

    until(lambda: len(tasks.noted()) == 7)
    assert sorted(tasks.noted()) == ["delayed", "high", "high", "high", "usual", "usual", "usual"]


def test_a_task_that_fails_for_good_is_a_dead_letter(tasks: Scene) -> None:
    tasks.start(*WORKER)
    tasks.run(CLIENT.format("await fail.kiq()"))

    until(lambda: tasks.letters(tasks.queue))
    assert tasks.noted() == ["failed", "failed"]  # by taskiq's retries
    assert [error.partition(" (")[0] for error in tasks.letters(tasks.queue)] == ["failed: ValueError: no such card"]


def test_tasks_survive_the_kills_of_their_workers(tasks: Scene) -> None:
    tasks.run(CLIENT.format("[await note.kiq(str(number)) for number in range(200)]"))
    for done in (20, 60, 100):
        worker = tasks.start(*WORKER)
        until(lambda done=done: len(set(tasks.noted())) >= done)
        tasks.kill(worker)
    tasks.start(*WORKER)

    until(lambda: set(tasks.noted()) == {str(number) for number in range(200)})
    assert len(tasks.noted()) <= 200 + 3 * 5  # twice at most what a killed worker had in flight


def test_a_worker_finishes_what_it_has_begun(tasks: Scene) -> None:
    worker = tasks.start(*WORKER)
    tasks.run(CLIENT.format("await block.kiq(2)"))
    until(lambda: tasks.noted() == ["begun"])
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(PATIENCE) == 0
    assert tasks.noted() == ["begun", "ended"]


def test_nsqd_keeps_schedules(tasks: Scene) -> None:
    tasks.start(*WORKER)
    tasks.run(
        CLIENT.format(
            """
    await note.schedule_by_interval(source, timedelta(seconds=1), "tick")
    created = await note.schedule_by_cron(source, "0 8 * * MON-FRI", "never")
    assert await source.get_schedules() == []
"""
        )
    )

    until(lambda: tasks.noted()[:2] == ["tick", "tick"])
    kept = [each for each in tasks.get("/schedules")["schedules"] if each["topic"] == tasks.queue]
    assert sorted(each.get("cron", "") for each in kept) == ["", "0 8 * * MON-FRI"]
    for each in kept:
        tasks.run(CLIENT.format(f"await source.delete_schedule({each['name']!r})"))
    assert [each for each in tasks.get("/schedules")["schedules"] if each["topic"] == tasks.queue] == []
