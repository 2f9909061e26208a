"""Dramatiq over lapwing, with `dramatiq` as its users start it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from scene import PATIENCE, Scene, scene, until

import daemons

WORKER = ("dramatiq", "dramatiq_jobs", "--processes=1", "--threads=4")
CLIENT = "import time\nfrom dramatiq_jobs import QUEUE, block, broker, due, fail, note\n"


@pytest.fixture(scope="module")
def nsqd() -> Iterator[daemons.Daemon]:
    with daemons.nsqd() as daemon:
        yield daemon


@pytest.fixture
def actors(nsqd: daemons.Daemon, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene(nsqd, tmp_path, f"dramatiq{abs(hash(request.node.name)) % 10**8}") as made:
        yield made


def test_a_delayed_message_runs_when_it_is_due(actors: Scene) -> None:
    actors.run(CLIENT + "due.send_with_options(args=[time.time() + 2], delay=2000)\nnote.send('now')")
    actors.start(*WORKER)

    until(lambda: actors.noted() == ["now", "due"])


def test_a_message_that_fails_for_good_is_a_dead_letter(actors: Scene) -> None:
    actors.start(*WORKER)
    actors.run(CLIENT + "fail.send()")

    until(lambda: actors.letters(actors.queue))
    assert actors.noted() == ["failed"] * 3
    assert [error.partition(" (")[0] for error in actors.letters(actors.queue)] == ["failed: ValueError: no such card"]


def test_messages_survive_the_kills_of_their_workers(actors: Scene) -> None:
    actors.run(CLIENT + "for number in range(200): note.send(str(number))")
    for done in (20, 60, 100):
        worker = actors.start(*WORKER)
        until(lambda done=done: len(set(actors.noted())) >= done)
        actors.kill(worker)
    actors.start(*WORKER)

    until(lambda: set(actors.noted()) == {str(number) for number in range(200)})
    assert len(actors.noted()) <= 200 + 3 * 4  # twice at most what a killed worker had begun


def test_a_worker_finishes_what_it_has_begun(actors: Scene) -> None:
    worker = actors.start(*WORKER)
    actors.run(CLIENT + "block.send(2)")
    until(lambda: actors.noted() == ["begun"])
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(PATIENCE) == 0
    assert actors.noted() == ["begun", "ended"]


def test_a_queue_is_flushed_and_joined(actors: Scene) -> None:
    actors.run(
        CLIENT
        + """
import dramatiq
note.send("never")
try:
    broker.join(QUEUE, timeout=300)
except dramatiq.QueueJoinTimeout:
    broker.flush_all()
broker.join(QUEUE)
"""
    )
    actors.start(*WORKER)
    actors.run(CLIENT + "note.send('once')\nbroker.join(QUEUE)")

    assert actors.noted() == ["once"]


def test_a_queue_that_nothing_was_sent_to_is_empty(actors: Scene) -> None:
    actors.run(CLIENT + "broker.flush_all()\nbroker.join(QUEUE)")

    assert not actors.get(f"/stats?format=json&topic={actors.queue}")["topics"]


def test_without_nsqd_a_message_is_not_enqueued(actors: Scene) -> None:
    actors.environment["TASKS_NSQD"] = "127.0.0.1:1"

    assert actors.run(
        CLIENT + "import dramatiq.errors\ntry: note.send('x')\nexcept dramatiq.errors.ConnectionError: print('refused')"
    ) == "refused\n"
