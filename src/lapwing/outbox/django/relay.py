"""Add messages to the outbox in your transaction, and publish them."""

from contextlib import nullcontext

from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction

from lapwing.client.bodies import Body
from lapwing.client.sync import SyncProducer
from lapwing.outbox import publishing
from lapwing.outbox.django.models import OutboxMessage
from lapwing.outbox.publishing import OutboxRow


def add(
    topic: str,
    body: Body,
    *,
    headers: dict[str, str] | None = None,
    message_id: str | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> str:
    """Add a message to the outbox in the current transaction, and return its message-id.

    Raises `ConfigError`, `TypeError` or `ValueError` for a message that nsqd would refuse.
    """
    content, text, name = publishing.check(topic, body, headers, message_id)
    OutboxMessage.objects.using(using).create(topic=topic, body=content, headers=text, message_id=name)
    return name


class Relay(publishing.OutboxRelay):
    """Publishes the rows of the outbox to one nsqd, oldest first, and deletes them; see `OutboxRelay`."""

    database_errors = (Error,)

    def __init__(
        self,
        nsqd: str,
        *,
        batch: int = 500,
        using: str = DEFAULT_DB_ALIAS,
        producer: SyncProducer | None = None,
    ) -> None:
        super().__init__(nsqd, batch, producer)
        self._using = using

    def relay_some(self) -> int:
        """Publish the oldest rows and return how many. Raises `ClientError` or `django.db.Error`; rows stay then."""
        connections[self._using].close_if_unusable_or_obsolete()  # Django does that for requests alone
        locks = connections[self._using].features.has_select_for_update_skip_locked
        # without locks of rows a transaction keeps no other relay away, and SQLite would refuse to write in it
        with transaction.atomic(using=self._using) if locks else nullcontext():
            waiting = OutboxMessage.objects.using(self._using).exclude(id__in=self._refused).order_by("id")
            if locks:
                waiting = waiting.select_for_update(skip_locked=True)
            columns = waiting.values_list("id", "topic", "body", "headers", "message_id")[: self._batch]
            rows = [OutboxRow(key, topic, bytes(body), headers, name) for key, topic, body, headers, name in columns]
            done = self._published(rows)
            if done:
                OutboxMessage.objects.using(self._using).filter(id__in=done).delete()
        return len(done)
