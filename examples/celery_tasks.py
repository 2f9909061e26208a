"""Tasks of Celery on lapwing: celery -A celery_tasks worker (in this folder), then python celery_tasks.py

    lapwing dead show celery.celery.dead
"""

import os

from celery import Celery

import lapwing.contrib.celery

assert lapwing.contrib.celery  # makes lapwing:// known

app = Celery("celery_tasks", broker="lapwing://" + os.environ.get("LAPWING_NSQD_TCP", "127.0.0.1:4150"), backend="rpc://")
app.conf.broker_transport_options = {"max_attempts": 3, "nsqd_http": os.environ.get("LAPWING_NSQD_HTTP", "")}
app.conf.broker_connection_retry_on_startup = True


@app.task  # type: ignore[untyped-decorator]
def remind(order: int) -> str:
    return f"order {order} waits for its payment"


@app.task(acks_late=True, acks_on_failure_or_timeout=False)  # type: ignore[untyped-decorator]
def bill(order: int) -> None:
    raise ValueError(f"order {order} has no card")  # a dead letter, which can be sent back


if __name__ == "__main__":
    bill.delay(7)
    print(remind.apply_async((8,), countdown=0.5).get(timeout=60), flush=True)
