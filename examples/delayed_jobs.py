"""Jobs that run later, also after a restart: python examples/delayed_jobs.py

A job is a message that is deferred. nsqd keeps it on disk and delivers it when it is due; a job that fails is tried
again later, and a job that should wait longer is held without counting as a failure.
"""

import asyncio
import json
import sys
import time

from lapwing import Consumer, Hold, Message, Producer

CLOSED = 0.5  # s after the start until which the mail server is closed
started = time.monotonic()


async def schedule(producer: Producer, job: str, seconds: float) -> None:
    """Run `job` after so many seconds; up to --max-defer, which may be months."""
    body = json.dumps({"job": job, "due": time.time() + seconds}).encode()
    await producer.publish("jobs", body, defer=seconds)


async def work(message: Message) -> None:
    job = json.loads(message.body)
    if job["job"].startswith("mail") and time.monotonic() < started + CLOSED:
        raise Hold(0.2)  # not now; no failure is counted
    late = time.time() - job["due"]
    print(f"{job['job']}, {max(0, round(late * 1000))} ms late", flush=True)


async def main(nsqd: str = "127.0.0.1:4150") -> None:
    async with Producer(nsqd) as producer, Consumer("jobs", "worker", work, nsqd=nsqd, max_in_flight=10):
        await schedule(producer, "report", 1.0)
        await schedule(producer, "mail ann", 0.2)
        await schedule(producer, "clean up", 0.6)
        await asyncio.sleep(2.0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
