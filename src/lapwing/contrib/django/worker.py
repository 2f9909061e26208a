"""Run the tasks that a backend has enqueued."""

import asyncio
import logging
import socket
import traceback
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Final

from django.db import close_old_connections, transaction
from django.db.models import F
from django.utils import timezone
from django.utils.crypto import get_random_string
from django.utils.dateparse import parse_datetime

from lapwing.client.app import App
from lapwing.client.message import Hold, Message, Reject, Requeue, describe
from lapwing.contrib.django.backend import LapwingBackend, result_of, seconds_until
from lapwing.contrib.django.interface import TaskContext, TaskResultStatus, task_finished, task_started
from lapwing.contrib.django.models import TaskRow
from lapwing.contrib.priorities import PriorityGate, topics_of
from lapwing.contrib.producers import LONGEST_DEFER

log: Final = logging.getLogger("lapwing.django")

MAX_KILLS: Final = 4  # workers that may die of a task before it is given up


class Worker:
    """Runs the tasks of some queues, `concurrency` at a time, each in a thread."""

    def __init__(self, backend: LapwingBackend, queues: Iterable[str], *, concurrency: int = 1) -> None:
        self.id = f"{socket.gethostname()[:40]}-{get_random_string(12)}"
        self._backend = backend
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="lapwing-task")
        self._gate = PriorityGate(concurrency, self._resize)
        client = {"max_backoff_duration": 0.0, **backend.client}  # a task that fails is no reason to run others later
        self.app = App(backend.nsqd, lookupd=backend.lookupd, nsqd_http=backend.nsqd_http, **client)
        settings = {  # a task may take hours, so its message is held while its worker is there
            "max_attempts": backend.max_attempts + MAX_KILLS + 1,
            "hold": "connection",
            **backend.channel_settings,
        }
        topics = topics_of(backend.prefix + queue for queue in queues)
        for number, topic in enumerate(topics):
            declare = self.app.consumer(topic, backend.channel, concurrency=self._gate.in_flight, **settings)
            declare(self._handler(number * 3 // len(topics)))

    def _resize(self, count: int) -> None:
        for consumer in self.app.consumers:
            consumer.rdy.resize(count)

    def _handler(self, band: int) -> Any:
        async def handle(job: dict[str, Any], message: Message) -> None:
            if (run_after := _time(job["run_after"])) is not None and (rest := seconds_until(run_after)) > 0:
                raise Hold(min(rest, LONGEST_DEFER))
            async with self._gate.entered(band):
                await asyncio.get_running_loop().run_in_executor(self._threads, self._run, job)

        return handle

    def _run(self, job: dict[str, Any]) -> None:
        close_old_connections()
        try:
            row = self._begin(job)
            if row is not None:
                self._carry_out(row)
        finally:
            close_old_connections()

    def _begin(self, job: dict[str, Any]) -> TaskRow | None:
        """Note that this worker has begun; return None if the task is done. Raises `Reject` if it kills workers."""
        rows = TaskRow.objects.using(self._backend.database)
        fields = {name: job[name] for name in ("task", "backend", "queue_name", "priority", "arguments")}
        fields |= {"run_after": _time(job["run_after"]), "enqueued_at": _time(job["enqueued_at"])}
        now = timezone.now()
        with transaction.atomic(using=self._backend.database):
            rows.filter(id=job["id"]).update(status=F("status"))  # first a write: SQLite lets no reader wait for one
            rows.get_or_create(id=job["id"], defaults=fields | {"status": TaskResultStatus.READY.value})
            row: TaskRow = rows.select_for_update().get(id=job["id"])
            if row.status == TaskResultStatus.SUCCESSFUL.value:
                return None  # a worker ended before its answer came to nsqd
            if row.status == TaskResultStatus.FAILED.value:
                row.worker_ids, row.errors, row.finished_at = [], [], None  # somebody has returned the dead letter
            killed = len(row.worker_ids) - len(row.errors) > MAX_KILLS
            if killed:
                row.status, row.finished_at = TaskResultStatus.FAILED.value, now
            else:
                row.status, row.last_attempted_at = TaskResultStatus.RUNNING.value, now
                row.started_at = row.started_at or now
                row.worker_ids = [*row.worker_ids, self.id]
            row.save(using=self._backend.database)
        if killed:
            raise Reject("killed its workers", f"{MAX_KILLS + 1} workers ended while they ran {row.task}")
        return row

    def _carry_out(self, row: TaskRow) -> None:
        result = result_of(row)
        task_started.send(type(self._backend), task_result=result)
        try:
            arguments = [TaskContext(task_result=result)] if result.task.takes_context else []
            row.return_value = _json(result.task.call(*arguments, *result.args, **result.kwargs))
        except BaseException as error:  # SystemExit too: it is the task that has ended
            self._fail(row, error)
        else:
            self._finish(row, TaskResultStatus.SUCCESSFUL)

    def _fail(self, row: TaskRow, error: BaseException) -> None:
        path, trace = _described(error)
        row.errors = [*row.errors, [path, trace]]
        if len(row.errors) < self._backend.max_attempts:
            row.status = TaskResultStatus.READY.value
            row.save(using=self._backend.database)
            raise Requeue(backoff=False, error=describe(error))
        self._finish(row, TaskResultStatus.FAILED)
        raise Reject("failed", describe(error))

    def _finish(self, row: TaskRow, status: TaskResultStatus) -> None:
        row.status, row.finished_at = status.value, timezone.now()
        row.save(using=self._backend.database)
        task_finished.send(type(self._backend), task_result=result_of(row))

    def run(self) -> None:
        """Run until SIGTERM or Ctrl-C; tasks that have begun finish first."""
        log.info("worker %s: %s", self.id, ", ".join(each.topic for each in self.app.declared))
        try:
            self.app.run()
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _time(text: str | None) -> datetime | None:
    return None if text is None else parse_datetime(text)


def _described(error: BaseException) -> tuple[str, str]:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}", "".join(traceback.format_exception(error))


def _json(value: Any) -> Any:
    """Return what a task returned, as it is stored. Raises `TypeError` or `ValueError` for what JSON has not."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Mapping):
        return {_json(name): _json(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json(each) for each in value]
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    raise TypeError(f"Unsupported type: the task returned {type(value).__name__}, expected what JSON has")
