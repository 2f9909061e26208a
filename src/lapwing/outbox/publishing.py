"""Publish rows of an outbox: in their order, in batches of one topic, each with its message-id."""

import json
import logging
import queue
import uuid
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, Final, Self

from lapwing.client.backoff import Delays
from lapwing.client.bodies import Body
from lapwing.client.bodies import encode as encode_body
from lapwing.client.errors import ClientError, PublishFailed
from lapwing.client.headers import CONTENT_TYPE, encode
from lapwing.client.options import check_name
from lapwing.client.publish_batches import checked
from lapwing.client.sync import SyncProducer
from lapwing.errors import ConfigError

log: Final = logging.getLogger("lapwing.outbox")

MESSAGE_ID: Final = "message-id"


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message that waits in the database."""

    id: int
    topic: str
    body: bytes
    headers: str  # JSON
    message_id: str


def check(topic: str, body: Body, headers: dict[str, str] | None, message_id: str | None) -> tuple[bytes, str, str]:
    """Return body, headers and message-id as a row has them.

    Raises `ConfigError`, `TypeError` or `ValueError` for a message that nsqd would refuse.
    """
    check_name("topic", topic)
    data, kind = encode_body(body)
    own, name = ({CONTENT_TYPE: kind} if kind else {}) | (headers or {}), message_id or uuid.uuid4().hex
    encode({MESSAGE_ID: name, **own})
    return checked(topic, data), encode(own).decode(), name


class OutboxRelay:
    """Publishes the rows of an outbox to one nsqd, oldest first, and deletes them.

    Several relays may run on PostgreSQL: each takes rows that no other one has. A row that nsqd refuses for what it is
    stays, with an error in the log, and does not stop those behind it; another process tries it again.
    """

    database_errors: ClassVar[tuple[type[Exception], ...]]  # after which `run` tries again

    def __init__(self, nsqd: str, batch: int, producer: SyncProducer | None) -> None:
        self._nsqd = nsqd
        self._batch = batch
        self._producer = producer  # else connected to at the first rows, as nsqd may start later than we do
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()  # safe in a signal handler, unlike threading.Event
        self._refused: set[int] = set()  # ids of rows

    @abstractmethod
    def relay_some(self) -> int:
        """Publish the oldest rows and return how many. Raises `ClientError` or a database error; rows stay then."""

    def _published(self, rows: Iterable[OutboxRow]) -> list[int]:
        """Publish rows in their order; return the ids of those that nsqd has confirmed. Raises `ClientError`."""
        done: list[int] = []
        if self._producer is None:
            self._producer = SyncProducer(self._nsqd)
        for topic, group in groupby(rows, key=lambda row: row.topic):
            waiting = [list(group)]
            while waiting:
                some = waiting.pop()
                try:
                    headers = [{MESSAGE_ID: row.message_id, **json.loads(row.headers)} for row in some]
                    self._producer.publish_many(topic, [row.body for row in some], headers=headers)
                except (PublishFailed, ConfigError, TypeError, ValueError) as error:
                    if isinstance(error, PublishFailed) and not error.code.startswith("E_BAD_"):
                        raise  # nsqd cannot take anything now
                    if len(some) > 1:
                        middle = len(some) // 2
                        waiting += [some[middle:], some[:middle]]
                        continue
                    self._refused.add(some[0].id)
                    log.error("outbox: row %d, topic %s, stays: %s", some[0].id, some[0].topic, error)
                else:
                    done += [row.id for row in some]
        return done

    def run(self, *, interval: float = 0.5) -> None:
        """Publish rows as they come until `stop` is called; look again after `interval` seconds.

        While nsqd cannot be reached, or refuses for a reason of its own, or the database fails, rows stay and are tried
        again after growing pauses of up to 15 s; each failure is a warning in the log.
        """
        failures: tuple[type[Exception], ...] = (ClientError, *self.database_errors)
        delays = Delays(first=max(interval, 0.1))
        pause = 0.0
        while not self._stopped_within(pause):
            try:
                count = self.relay_some()
            except failures as error:
                pause = delays.next()
                log.warning("outbox: nothing is published, trying again in %.1f s: %s", pause, error)
            else:
                delays.reset()
                pause = 0.0 if count else interval

    def _stopped_within(self, seconds: float) -> bool:
        try:
            self._stops.get(timeout=seconds)
        except queue.Empty:
            return False
        self._stops.put(None)  # for every other thread that runs it
        return True

    def stop(self) -> None:
        """Have `run` return after the rows that it is publishing; also from other threads and signal handlers."""
        self._stops.put(None)

    def close(self) -> None:
        """Stop, and close the connection to nsqd."""
        self.stop()
        if self._producer is not None:
            self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
