"""Dagster runs a job for each message: dagster dev -f dagster_sensor.py (in this folder)

The sensor reads the log and consumes nothing; its cursor is the next sequence, and the id of a message is the key of
its run, so no message starts two. Made with Dagster 1.13.28.
"""

import asyncio
import os
from collections.abc import Iterator

from dagster import Config, Definitions, RunConfig, RunRequest, SensorEvaluationContext, job, op, sensor

from lapwing import LogMessage, LogReader


class Order(Config):
    body: str


@op
def bill(config: Order) -> None:
    print("billed", config.body)


@job
def billing() -> None:
    bill()


async def read(start: int) -> list[LogMessage]:
    async with LogReader("orders", nsqd_http=os.environ.get("LAPWING_NSQD_HTTP", "127.0.0.1:4151")) as reader:
        return await reader.read(100, sequence=start)


@sensor(job=billing, minimum_interval_seconds=5)
def new_orders(context: SensorEvaluationContext) -> Iterator[RunRequest]:
    for message in asyncio.run(read(int(context.cursor or 0))):
        config = RunConfig(ops={"bill": Order(body=message.body.decode())})
        yield RunRequest(run_key=message.id, run_config=config)
        context.update_cursor(str(message.sequence + 1))


definitions = Definitions(jobs=[billing], sensors=[new_orders])
