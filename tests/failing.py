"""A stage on which messages fail: settings, answers of consumers, and dead letters to look at."""

from typing import Any

from lapwing import kernel
from lapwing.wire.nsq.commands import Rej, Req
from play import Client, Stage, identity


def configure(stage: Stage, channel: str = "c", topic: str = "t", **own: Any) -> None:
    """Change a channel's own settings."""
    stage.broker.settings.change_channel(stage.channel(channel, topic), own, now=stage.now)
    stage.commit()


def fail(client: Client, sequence: int, *, delay: int = 0, error: str = "") -> None:
    """Fail at a message."""
    client.say(Req(identity(sequence), delay, error=error))


def release(client: Client, sequence: int, *, delay: int = 0) -> None:
    """Release a message through no fault of its."""
    client.say(Req(identity(sequence), delay, free=True))


def reject(client: Client, sequence: int, reason: str = "", error: str = "") -> None:
    """Reject a message."""
    client.say(Rej.of(identity(sequence), reason, error))


def letters(stage: Stage, topic: str = "t.c.dead") -> list[tuple[bytes, dict[str, str]]]:
    """Return the body and the headers of each message in the log of a topic."""
    if topic not in stage.broker.topics:
        return []
    log = stage.broker.existing(topic).log
    headers = {extra.sequence: extra.headers for extra in log.extras(log.first, log.end)}
    return [(log.frame(each)[kernel.HEAD :], headers.get(each, {})) for each in range(log.first, log.end)]


def failures(stage: Stage, sequence: int) -> int:
    """Return how often a message failed in the channel."""
    return stage.channel().ledger.failures.get(sequence).failures
