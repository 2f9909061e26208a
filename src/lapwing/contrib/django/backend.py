"""The task backend: a task becomes a row in the database and a message."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, transaction
from django.utils import timezone
from django.utils.crypto import get_random_string
from django.utils.module_loading import import_string

from lapwing.contrib.django.interface import (
    BaseTaskBackend,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from lapwing.contrib.priorities import topic_of
from lapwing.contrib.producers import LONGEST_DEFER, producer_of


class LapwingBackend(BaseTaskBackend):
    """Enqueues tasks as messages.

    OPTIONS: `nsqd` (127.0.0.1:4150) or `lookupd`, addresses; `nsqd_http`, where it is not the next port; `prefix` of
    topics (`tasks.`); `channel` (`workers`); `database`, the alias; `outbox`, whether the message is a row of
    `lapwing.outbox` that commits with your own; `max_attempts` (1), how often a task that raises is run;
    `retry_first` and the other settings of a channel; `client`, a dict of client options.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        self.lookupd = options.pop("lookupd", "")
        self.nsqd = options.pop("nsqd", "" if self.lookupd else "127.0.0.1:4150")
        self.nsqd_http = options.pop("nsqd_http", "")
        self.prefix = options.pop("prefix", "tasks.")
        self.channel = options.pop("channel", "workers")
        self.database = options.pop("database", DEFAULT_DB_ALIAS)
        self.outbox = options.pop("outbox", False)
        self.max_attempts = options.pop("max_attempts", 1)
        self.client = options.pop("client", {})
        self.channel_settings = options
        if self.outbox and not self.nsqd:
            raise ImproperlyConfigured(f"TASKS {alias!r}: the outbox publishes to one nsqd, which OPTIONS has to name")

    def topic(self, task: Task) -> str:
        """Return the topic of a task."""
        return topic_of(self.prefix + task.queue_name, task.priority)

    def enqueue(self, task: Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Enqueue a task; within a transaction its message leaves with the commit.

        Raises `lapwing.ClientError` when nsqd cannot be reached; there is no row then. With the outbox it is not asked.
        """
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id=get_random_string(32),
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        fields = {
            "id": result.id,
            "task": task.module_path,
            "backend": self.alias,
            "queue_name": task.queue_name,
            "priority": task.priority,
            "arguments": {"args": result.args, "kwargs": result.kwargs},
            "run_after": task.run_after,
            "enqueued_at": result.enqueued_at,
        }
        body = json.dumps(fields, default=datetime.isoformat).encode()
        self._store(task, fields, body)
        task_enqueued.send(type(self), task_result=result)
        return result

    def _store(self, task: Task, fields: dict[str, Any], body: bytes) -> None:
        from lapwing.contrib.django.models import TaskRow

        with transaction.atomic(using=self.database):
            TaskRow.objects.using(self.database).create(status=TaskResultStatus.READY.value, **fields)
            if self.outbox:
                from lapwing.outbox.django.relay import add

                add(self.topic(task), body, message_id=fields["id"], using=self.database)
            else:
                transaction.on_commit(partial(self._publish, task, fields["id"], body), using=self.database)

    def _publish(self, task: Task, name: str, body: bytes) -> None:
        from lapwing.contrib.django.models import TaskRow

        defer = None
        if task.run_after is not None:
            defer = min(seconds_until(task.run_after), LONGEST_DEFER)
        try:
            producer = producer_of(self.nsqd, self.lookupd, self.client)
            producer.publish(self.topic(task), body, headers={"message-id": name}, defer=defer)
        except BaseException:
            TaskRow.objects.using(self.database).filter(id=name, status=TaskResultStatus.READY.value).delete()
            raise

    def get_result(self, result_id: str) -> TaskResult:
        """Return the result of a task. Raises `TaskResultDoesNotExist`."""
        from lapwing.contrib.django.models import TaskRow

        row = TaskRow.objects.using(self.database).filter(id=str(result_id)).first()
        if row is None:
            raise TaskResultDoesNotExist(result_id)
        return result_of(row)


def result_of(row: Any) -> TaskResult:
    """Return a row as Django's result of a task."""
    task = import_string(row.task)
    changes = {"priority": row.priority, "queue_name": row.queue_name, "backend": row.backend}
    result = TaskResult(
        task=task.using(**changes, run_after=row.run_after),
        id=row.id,
        status=TaskResultStatus(row.status),
        enqueued_at=row.enqueued_at,
        started_at=row.started_at,
        last_attempted_at=row.last_attempted_at,
        finished_at=row.finished_at,
        args=row.arguments["args"],
        kwargs=row.arguments["kwargs"],
        backend=row.backend,
        errors=[TaskError(exception_class_path=path, traceback=trace) for path, trace in row.errors],
        worker_ids=list(row.worker_ids),
    )
    object.__setattr__(result, "_return_value", row.return_value)
    return result


def seconds_until(moment: datetime) -> float:
    """Return the seconds until a time, which may be naive, as Django's settings have it."""
    now = timezone.now() if timezone.is_aware(moment) else datetime.now()
    return (moment - now).total_seconds()
