"""`celery inspect scheduled` for tasks that wait for their time in nsqd, and not in a worker."""

from collections.abc import Iterator
from typing import Any, Final

from celery.worker import control
from celery.worker.request import Request

from lapwing.contrib.celery import queues
from lapwing.contrib.celery.channels import Channel

_PRIORITY: Final = 6  # that Celery's timer has for tasks
_held = control.scheduled


@control.inspect_command(name="scheduled", alias="dump_schedule")  # type: ignore[untyped-decorator]
def scheduled(state: Any, **options: Any) -> list[dict[str, Any]]:
    """List the tasks that wait for their time, of the queues that this worker consumes."""
    return [*_held(state, **options), *_waiting(state)]


def _waiting(state: Any) -> Iterator[dict[str, Any]]:
    channel = state.consumer.task_consumer.channel
    for message in channel.scheduled() if isinstance(channel, Channel) else ():
        if message.headers.get("task") in state.app.tasks:
            request = Request(message, app=state.app, hostname=state.hostname)
            yield {"eta": message.headers[queues.ETA], "priority": _PRIORITY, "request": request.info()}
