"""A connection that publishes: batches out, confirmations and refusals back."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final, Protocol

from lapwing.client.connection import Connection
from lapwing.client.publish_batches import PublishBatch
from lapwing.wire.nsq.connection import MessageRow

log: Final = logging.getLogger("lapwing.client")

_OK_MESSAGE_ID: Final = b"OK message-id"  # the topic recognises a repeated message-id
WINDOW: Final = 16  # unanswered commands of one connection; later publishes are batched meanwhile


class PublishOwner(Protocol):
    """The producer, as its connections see it."""

    def flush(self) -> None: ...
    def next_id(self) -> bytes: ...
    def refused(self, target: "PublishConnection", batch: PublishBatch, reason: str) -> None: ...
    def lost(self, target: "PublishConnection", reason: str) -> None: ...


class PublishConnection:
    """One nsqd of the pool: its connection and the batches that it has not answered. Answers come in order."""

    def __init__(self, connection: Connection, owner: PublishOwner) -> None:
        self.connection = connection
        self.address = str(connection.address)
        self.unanswered: deque[PublishBatch] = deque()
        self.gone: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._owner = owner
        self._recognises: dict[str, bool] = {}  # by topic: whether it recognises a repeated message-id

    @property
    def headers(self) -> bool:
        """Whether nsqd takes headers."""
        return self.connection.granted.headers

    @property
    def open(self) -> bool:
        """Whether one more command can be sent now."""
        return len(self.unanswered) < WINDOW and not self.connection.full and not self.connection.closed

    def publish(self, batch: PublishBatch, now: float) -> None:
        """Send a batch; it is written with the next flush."""
        if self.takes_ids(batch.topic):
            batch.make_ids(self._owner.next_id)
        batch.sent = now
        self.unanswered.append(batch)
        self.connection.send(batch.encode(headers=self.headers))

    def takes_ids(self, topic: str) -> bool:
        """Return whether the topic recognises a repeated message: by its last answer, else by what IDENTIFY granted."""
        if not self.headers:
            return False
        known = self._recognises.get(topic)
        if known is None:
            return any(fnmatchcase(topic, pattern) for pattern in self.connection.granted.message_ids)
        return known

    def messages(self, rows: Sequence[MessageRow]) -> None:
        self.connection.abort("a message arrived on a connection that never subscribed")

    def answered(self, payload: bytes) -> None:
        if payload not in (b"OK", _OK_MESSAGE_ID) or not self.unanswered:
            self.connection.abort(f"unexpected answer {payload[:80]!r}")
            return
        batch = self.unanswered.popleft()
        if self.headers:
            self._recognises[batch.topic] = payload == _OK_MESSAGE_ID
        batch.confirm()
        self._owner.flush()

    def refused(self, reason: str) -> None:
        if not self.unanswered:
            log.warning("(%s) %s", self.address, reason)
            return
        self._owner.refused(self, self.unanswered.popleft(), reason)

    def lost(self, reason: str) -> None:
        if not self.gone.done():
            self.gone.set_result(reason)
        self._owner.lost(self, reason)

    def writable(self) -> None:
        self._owner.flush()
