"""A Celery application for tests: each task writes down when it begins and ends."""

import os
import signal
import time

from celery import Celery

import lapwing.contrib.celery

assert lapwing.contrib.celery  # registers lapwing://

app = Celery("tests", broker=os.environ["CELERY_BROKER"], backend=os.environ.get("CELERY_BACKEND", "rpc://"))
app.conf.broker_transport_options = {
    "nsqd_http": os.environ["CELERY_NSQD_HTTP"], "max_attempts": 3, "retry_first": "100ms"
}  # fmt: skip
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_connection_max_retries = None
app.conf.worker_prefetch_multiplier = int(os.environ.get("CELERY_PREFETCH", "4"))


def note(*words: object) -> None:
    """Append a line to the book; one write, so that lines of several processes do not mix."""
    book = os.open(os.environ["CELERY_BOOK"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(book, (" ".join(map(str, words)) + "\n").encode())
    os.close(book)


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task(bind=True, acks_late=True)
def work(self, number: int, due: float) -> None:
    redelivered = self.request.delivery_info["redelivered"]
    note("begin", number, time.time(), os.getppid(), int(bool(redelivered)), due)
    time.sleep(0.01)
    note("end", number, time.time())


@app.task(bind=True, acks_late=True)
def long(self, seconds: float) -> None:
    note("begin", 0, time.time(), os.getppid(), int(bool(self.request.delivery_info["redelivered"])), 0.0)
    time.sleep(seconds)
    note("end", 0, time.time())


@app.task(acks_late=True, reject_on_worker_lost=True)
def poison() -> None:
    if os.path.exists(os.environ["CELERY_BOOK"] + ".cured"):
        note("cured")
        return
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def quick(number: int) -> None:
    note("quick", number, time.time())
