"""What nsqd does by itself from time to time."""

import asyncio
import os

from doors import options

from lapwing.net.logs import Level, Log
from lapwing.nsqd.daemon import Daemon


async def test_a_job_that_fails_says_so_and_is_done_again() -> None:
    reading, writing = os.pipe()
    daemon = Daemon(options(), Log("", Level.ERROR, writing))
    again = asyncio.Event()
    done = []

    async def checkpoint() -> None:
        done.append(1)
        if len(done) == 1:
            raise ZeroDivisionError("what nobody thought of")
        again.set()

    daemon._every(0.001, checkpoint)
    await asyncio.wait_for(again.wait(), 10)
    for task in daemon._tasks:
        task.cancel()

    assert os.read(reading, 1000).endswith(b" ERROR: checkpoint: ZeroDivisionError: what nobody thought of\n")
    os.close(reading)
    os.close(writing)
