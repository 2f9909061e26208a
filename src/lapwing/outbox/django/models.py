"""The table of the outbox."""

from typing import ClassVar

from django.db import models


class OutboxMessage(models.Model):
    """A message that waits to be published."""

    topic = models.CharField(max_length=80)
    body = models.BinaryField()
    headers = models.TextField()
    message_id = models.CharField(max_length=128, unique=True)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        """The name of the table, which the SQLAlchemy outbox has too."""

        db_table = "lapwing_outbox"
        ordering: ClassVar = ["id"]
