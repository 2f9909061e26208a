"""Append messages to a topic as a door does."""

from collections.abc import Mapping, Sequence

from lapwing.broker.topic import batch
from lapwing.broker.topic.receipt import Receipt
from lapwing.broker.topic.topic import Topic


def append(
    topic: Topic,
    bodies: bytes | Sequence[bytes],
    receipt: Receipt,
    *,
    now: int,
    defer: int = 0,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Append one message, or several that share their headers."""
    if isinstance(bodies, bytes):
        messages = batch.single(topic, bodies, now=now, defer=defer, headers=headers)
    else:
        messages = batch.sharing(topic, bodies, headers, now=now)
    topic.append(messages, receipt, now=now)
