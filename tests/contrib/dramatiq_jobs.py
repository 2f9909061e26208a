"""Actors of `test_dramatiq`; the environment names nsqd, the queue and the file to which actors add lines."""

import os
import time
from pathlib import Path

import dramatiq

from lapwing.contrib.dramatiq import LapwingBroker

QUEUE = os.environ["TASKS_QUEUE"]
broker = LapwingBroker(os.environ["TASKS_NSQD"], nsqd_http=os.environ["TASKS_NSQD_HTTP"])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=QUEUE)
def note(text: str) -> None:
    """Add a line to the notes."""
    with Path(os.environ["TASKS_NOTES"]).open("a") as notes:
        notes.write(f"{text}\n")


@dramatiq.actor(queue_name=QUEUE)
def due(moment: float) -> None:
    """Note whether the time has come."""
    note.fn("due" if time.time() >= moment else "early")


@dramatiq.actor(queue_name=QUEUE)
def block(seconds: float) -> None:
    """Take long."""
    note.fn("begun")
    time.sleep(seconds)
    note.fn("ended")


@dramatiq.actor(queue_name=QUEUE, max_retries=2, min_backoff=50, max_backoff=100)
def fail() -> None:
    """Fail."""
    note.fn("failed")
    raise ValueError("no such card")
