"""The table of tasks: what was enqueued, how far it is, and what it returned."""

from typing import ClassVar

from django.db import models


class TaskRow(models.Model):
    """A task that was enqueued."""

    id = models.CharField(max_length=64, primary_key=True)
    task = models.TextField()  # where its function is: module and name
    backend = models.CharField(max_length=80)
    queue_name = models.CharField(max_length=80)
    priority = models.SmallIntegerField()
    arguments = models.JSONField()  # {"args": [..], "kwargs": {..}}
    run_after = models.DateTimeField(null=True)
    status = models.CharField(max_length=10)
    enqueued_at = models.DateTimeField(db_index=True)
    started_at = models.DateTimeField(null=True)
    last_attempted_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    worker_ids = models.JSONField(default=list)
    errors = models.JSONField(default=list)  # [[path of the exception's class, traceback], ..]
    return_value = models.JSONField(null=True)

    class Meta:
        """The name of the table."""

        db_table = "lapwing_task"
        ordering: ClassVar = ["enqueued_at"]
