"""Publish rows of an outbox: in their order, in batches of one topic, each with its message-id."""

import json
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from lapwing.client.headers import encode
from lapwing.client.publish_batches import checked
from lapwing.client.sync import SyncProducer

MESSAGE_ID = "message-id"


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message that waits in the database."""

    id: int
    topic: str
    body: bytes
    headers: str  # JSON
    message_id: str


def check(topic: str, body: bytes, headers: dict[str, str] | None) -> tuple[bytes, str]:
    """Return body and headers as a row has them. Raises `TypeError` or `ValueError` for what nsqd would refuse."""
    return checked(topic, body), encode(headers or {}).decode()


def publish(producer: SyncProducer, rows: Iterable[OutboxRow]) -> None:
    """Publish rows in their order, and return when nsqd has confirmed all. Raises `ClientError`."""
    for topic, group in groupby(rows, key=lambda row: row.topic):
        same = list(group)
        headers = [{MESSAGE_ID: row.message_id, **json.loads(row.headers)} for row in same]
        producer.publish_many(topic, [row.body for row in same], headers=headers)


def run(relay_some: Callable[[], int], stop: threading.Event, interval: float) -> None:
    """Relay until `stop` is set; look again after `interval` seconds when there was nothing."""
    while not stop.is_set():
        if not relay_some():
            stop.wait(interval)
