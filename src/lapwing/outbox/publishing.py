"""Publish rows of an outbox: in their order, in batches of one topic, each with its message-id."""

import json
import threading
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from types import TracebackType
from typing import Self

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


class OutboxRelay:
    """Publishes the rows of an outbox to one nsqd, oldest first, and deletes them.

    Several relays may run on PostgreSQL: each takes rows that no other one has.
    """

    def __init__(self, nsqd: str, batch: int, producer: SyncProducer | None) -> None:
        self._batch = batch
        self._producer = producer if producer is not None else SyncProducer(nsqd)

    @abstractmethod
    def relay_some(self) -> int:
        """Publish the oldest rows and return how many. Raises `ClientError`; the rows then stay."""

    def run(self, stop: threading.Event | None = None, *, interval: float = 0.5) -> None:
        """Publish rows as they come until `stop` is set; look again after `interval` seconds."""
        stop = stop or threading.Event()
        while not stop.is_set():
            if not self.relay_some():
                stop.wait(interval)

    def close(self) -> None:
        """Close the connection to nsqd."""
        self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
