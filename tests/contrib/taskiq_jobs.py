"""Tasks of `test_taskiq`; the environment names nsqd, the queue and the file to which tasks add lines."""

import asyncio
import os
from pathlib import Path

from taskiq import SimpleRetryMiddleware

from lapwing.contrib.taskiq import LapwingBroker, LapwingScheduleSource

broker = LapwingBroker(
    os.environ["TASKS_NSQD"],
    nsqd_http=os.environ["TASKS_NSQD_HTTP"],
    queues=(os.environ["TASKS_QUEUE"],),
    max_in_flight=int(os.environ.get("TASKS_MOST", "5")),
)
broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=2))
source = LapwingScheduleSource(broker, os.environ["TASKS_NSQD_HTTP"])


@broker.task
def note(text: str) -> None:
    """Add a line to the notes."""
    with Path(os.environ["TASKS_NOTES"]).open("a") as notes:
        notes.write(f"{text}\n")


@broker.task
async def block(seconds: float) -> None:
    """Take long."""
    note.original_func("begun")
    await asyncio.sleep(seconds)
    note.original_func("ended")


@broker.task(retry_on_error=True)
async def fail() -> None:
    """Fail."""
    note.original_func("failed")
    raise ValueError("no such card")
