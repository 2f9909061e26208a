"""taskiq over lapwing: a broker, and a source that keeps schedules in nsqd.

    broker = LapwingBroker("127.0.0.1:4150")

    @broker.task(retry_on_error=True)
    async def add(one: int, two: int) -> int:
        return one + two

    await add.kicker().with_labels(delay=60, priority=5).kiq(1, 2)

`taskiq worker module:broker` runs the tasks. The labels `delay` (seconds), `priority` (above or below 0) and
`queue_name` are obeyed; a task that fails for good is a dead letter.
"""

import asyncio
import heapq
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, Unpack

from taskiq import AsyncBroker, BrokerMessage, TaskiqMessage, TaskiqMiddleware, TaskiqResult
from taskiq.abc.schedule_source import ScheduleSource
from taskiq.acks import AckableMessage
from taskiq.exceptions import NoResultError
from taskiq.kicker import AsyncKicker
from taskiq.scheduler.scheduled_task import ScheduledTask

from lapwing.client.admin import Admin
from lapwing.client.app import App
from lapwing.client.channel_settings import ChannelSettings
from lapwing.client.message import Hold, Message, Reject, describe
from lapwing.client.options import ClientOptions
from lapwing.contrib.priorities import topic_of, topics_of

_TASK_ID = "task-id"  # header


class LapwingBroker(AsyncBroker):
    """Sends tasks to a topic, and gives a worker those of the highest priority first.

    `queues` are those that a worker serves, the first one is that of tasks without the label `queue_name`. A worker
    has up to `max_in_flight` messages of each topic, running or waiting. All other keywords are settings of the
    channel; by default a message is held while its worker is connected, and given up after five workers died of it.
    """

    def __init__(
        self,
        nsqd: str = "",
        *,
        lookupd: str = "",
        nsqd_http: str = "",
        queues: tuple[str, ...] = ("taskiq",),
        channel: str = "workers",
        max_in_flight: int = 100,
        options: ClientOptions | None = None,
        **settings: Unpack[ChannelSettings],
    ) -> None:
        super().__init__()
        self.queues = queues
        own = (options or ClientOptions()).but(max_backoff_duration=0.0)  # a failed task does not slow the others
        self._new_app = partial(
            App, nsqd or ("" if lookupd else "127.0.0.1:4150"), lookupd=lookupd, nsqd_http=nsqd_http, options=own
        )
        self._channel = channel
        self._max_in_flight = max_in_flight
        self._settings: ChannelSettings = {"max_attempts": 5, "hold": "connection", **settings}
        self._app: App | None = None
        self._ready: list[tuple[int, int, _Held]] = []  # by urgency, then as they came
        self._numbers = count()
        self._arrived = asyncio.Event()
        self._held: dict[str, _Held] = {}  # by the task's id, until it is acknowledged
        self.add_middlewares(_Failures(self._held))

    async def startup(self) -> None:
        """Connect, and begin to receive if this is a worker. Raises `Unreachable`."""
        self._app = self._new_app()
        if self.is_worker_process:
            topics = topics_of(self.queues)
            for number, topic in enumerate(topics):
                declare = self._app.consumer(topic, self._channel, concurrency=self._max_in_flight, **self._settings)
                declare(self._receiver(number * 3 // len(topics)))
        await self._app.start()
        await super().startup()

    async def shutdown(self) -> None:
        """Give back what no task has begun with, and disconnect when the tasks that run are acknowledged."""
        for _, _, held in self._ready:
            held.done.set_exception(Hold(0))
        self._ready.clear()
        if self._app is not None:
            await self._app.stop()
        await super().shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a task. Raises `lapwing.ClientError`."""
        assert self._app is not None, "the broker is not started: await broker.startup() first"
        delay = message.labels.get("delay")
        await self._app.publish(
            self.topic(message.labels),
            message.message,
            headers={_TASK_ID: message.task_id},
            defer=None if delay is None else float(delay),
        )

    def topic(self, labels: dict[str, Any]) -> str:
        """Return the topic of a task with these labels."""
        return topic_of(str(labels.get("queue_name") or self.queues[0]), int(labels.get("priority") or 0))

    def _receiver(self, band: int) -> Any:
        async def receive(body: bytes, message: Message) -> None:
            held = _Held(message)
            heapq.heappush(self._ready, (band, next(self._numbers), held))
            self._held[held.task_id] = held
            self._arrived.set()
            try:
                await held.done  # the message is answered as this ends
            finally:
                if self._held.get(held.task_id) is held:  # and not the retry, which has the same id
                    del self._held[held.task_id]

        return receive

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yield what has come, the most urgent message first."""
        while True:
            while not self._ready:
                self._arrived.clear()
                await self._arrived.wait()
            _, _, held = heapq.heappop(self._ready)
            yield AckableMessage(data=held.message.body, ack=held.acknowledge)


class _Held:
    """A message whose task has not been acknowledged."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self.task_id = message.headers.get(_TASK_ID, message.id)
        self.error: BaseException | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def acknowledge(self) -> None:
        """Finish the message, or make it a dead letter if its task has failed for good."""
        if self.done.done():
            return
        if self.error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(Reject("failed", describe(self.error)))


class _Failures(TaskiqMiddleware):
    """Notes which tasks have failed and are not retried by a middleware of taskiq."""

    def __init__(self, held: dict[str, _Held]) -> None:
        super().__init__()
        self._held = held

    def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        """Note the error of a task."""
        held = self._held.get(message.task_id)
        if held is not None and result.is_err and not isinstance(result.error, NoResultError):
            held.error = result.error


class LapwingScheduleSource(ScheduleSource):
    """Schedules that nsqd keeps: it publishes the task at each time, and there is no scheduler to run.

        source = LapwingScheduleSource(broker)
        await report.schedule_by_cron(source, "0 8 * * MON-FRI")

    `nsqd` and `lookupd` are HTTP addresses, one of them. A schedule stays until it is deleted.
    """

    def __init__(self, broker: LapwingBroker, nsqd: str = "", *, lookupd: str = "") -> None:
        self._broker = broker
        self._admin = partial(Admin, nsqd or (() if lookupd else "127.0.0.1:4151"), lookupd=lookupd or ())

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return none: nsqd publishes them, and a scheduler would do it a second time."""
        return []

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Keep a schedule. Raises `ValueError` for an offset that is no zone, and `lapwing.ClientError`."""
        zone = schedule.cron_offset or "UTC"
        if isinstance(zone, timedelta):
            raise ValueError(f"cron_offset is {zone}, expected the name of a time zone such as Europe/Berlin")
        labels = {**schedule.labels, "schedule_id": schedule.schedule_id}
        kicker: AsyncKicker[Any, Any] = AsyncKicker(schedule.task_name, self._broker, labels)
        task = kicker.with_task_id(schedule.task_id)._prepare_message(*schedule.args, **schedule.kwargs)
        message = self._broker.formatter.dumps(task)
        async with self._admin() as admin:
            await admin.put_schedule(
                schedule.schedule_id,
                self._broker.topic(labels),
                message.message,
                cron=schedule.cron or "",
                every=_seconds(schedule.interval),
                at=_moment(schedule.time),
                zone=zone,
            )

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule. Raises `lapwing.NothingThere`."""
        async with self._admin() as admin:
            await admin.remove_schedule(schedule_id)


def _seconds(span: int | timedelta | None) -> str:
    if span is None:
        return ""
    return f"{int(span.total_seconds() if isinstance(span, timedelta) else span)}s"


def _moment(time: datetime | None) -> str:
    if time is None:
        return ""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return aware.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
