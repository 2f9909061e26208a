"""Celery and Kombu on lapwing: importing this package makes `broker_url = "lapwing://127.0.0.1:4150"` work.

A worker reads its queues on Celery's own event loop. docs/reference/celery.md has what becomes of each feature.
"""

import threading
import time
from typing import Any, Final

from celery import signals
from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES["lapwing"] = "lapwing.contrib.celery.transport:Transport"

_STAY: Final = 15.0  # s between answers to heartbeats while a task blocks the event loop


@signals.worker_init.connect  # type: ignore[untyped-decorator]
def _join(**_: Any) -> None:
    """Have workers follow each other's events, which Celery does on the transports that it knows."""
    from celery.worker.consumer.gossip import Gossip
    from celery.worker.consumer.mingle import Mingle

    for step in (Gossip, Mingle):
        step.compatible_transports = {*step.compatible_transports, "lapwing"}
    import lapwing.contrib.celery.inspecting  # noqa: F401  it registers its command


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _answer_heartbeats(sender: Any, **_: Any) -> None:
    """Keep the connections of a worker whose tasks run on its event loop: `--pool=solo`."""
    if type(sender.pool).__module__ == "celery.concurrency.solo":
        threading.Thread(target=_stay, name="lapwing heartbeats", daemon=True).start()


def _stay() -> None:
    from lapwing.contrib.celery.transport import Transport

    while True:
        time.sleep(_STAY)
        for transport in list(Transport.alive):
            transport.stay()
