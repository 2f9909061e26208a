"""A stage with dead letters, and redrives of them that are worked off at once."""

from typing import Any

from failing import reject
from lapwing.broker.failures import dead_filter
from lapwing.broker.operations.redrive_task import RedriveTask
from lapwing.broker.settings.definitions import UNLIMITED, Rate
from play import Client, Stage, numbered

DEAD = "t.c.dead"


def buried(stage: Stage, count: int = 3) -> Client:
    """Have the channel give up that many messages; return its consumer."""
    consumer = stage.consumer()
    stage.client().publish(*numbered(count), b"fine")
    for sequence in range(count):
        reject(consumer, sequence, f"reason {sequence % 2}")
    consumer.take()
    return consumer


def start(stage: Stage, to: str = "channel", rate: Rate = UNLIMITED, limit: int = 0, **wanted: Any) -> RedriveTask:
    """Begin a redrive of the letters that are wanted."""
    edited = wanted.pop("edited", None)
    return stage.broker.redrives.start(
        stage.broker.existing(DEAD),
        to=to,
        wanted=dead_filter.parse(wanted),
        rate=rate,
        limit=limit,
        edited=edited,
        now=stage.now,
    )


def run(stage: Stage) -> RedriveTask:
    """Step until the task is over, or waits for a time that does not come."""
    for _ in range(100):
        due = stage.broker.redrives.step(now=stage.now)
        stage.commit()
        if due is None or due > stage.now:
            break
    link = stage.channel("dead", DEAD).dead
    assert link is not None
    assert link.redrive is not None
    return link.redrive


def waiting(stage: Stage) -> int:
    """Return how many letters nobody has dealt with."""
    channel = stage.channel("dead", DEAD)
    return channel.depth + channel.in_flight_count + len(channel.ledger.deferred)
