"""A taskiq worker for `test_redis_clients`: `taskiq worker` with this module's broker, a stream of the Redis door.

The environment names the address, the stream, and the file to which each task adds a line.
"""

import os

from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(
    f"redis://{os.environ['TASKIQ_REDIS']}",
    queue_name=os.environ["TASKIQ_STREAM"],
    consumer_group_name="g",
    consumer_id="0",
    xread_count=10,
    xread_block=200,
    idle_timeout=1000,
    unacknowledged_lock_timeout=5,
)


@broker.task(task_name="note")
def note(number: int) -> None:
    with open(os.environ["TASKIQ_NOTES"], "a") as notes:
        notes.write(f"{number}\n")
