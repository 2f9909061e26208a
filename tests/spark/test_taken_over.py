"""A query whose broker's machine is lost: it goes on at the machine that takes over, and every message comes once."""

import http.client
import shutil
import threading
import time
import urllib.error

import pytest
from queries import Query

from daemons import until

pytestmark = pytest.mark.spark

MACHINES = 3
NONE = {"batchId": -1}


class Publisher(threading.Thread):
    """Publishes batches all the time, and notes which were acknowledged."""

    def __init__(self, broker):
        super().__init__(daemon=True)
        self.broker = broker
        self.over = threading.Event()
        self.acknowledged: set[str] = set()

    def run(self):
        number = 0
        while not self.over.is_set():
            bodies = [f"{number}.{each}" for each in range(20)]
            number += 1
            try:
                self.broker.publish("orders", *(body.encode() for body in bodies))
            except (urllib.error.URLError, http.client.HTTPException, OSError):
                time.sleep(0.05)  # the machine is lost; the batch may be there or not
                continue
            self.acknowledged.update(bodies)


def test_a_query_goes_on_where_its_machine_was_lost(spark, start_broker, tmp_path):
    (tmp_path / "remote").mkdir()
    flags = [
        "--durability=replicated", f"--remote=file://{tmp_path}/remote", "--take-over=always",
        "--remote-checkpoint=1048576",
    ]  # fmt: skip
    broker = start_broker(*flags, data_path=tmp_path / "data0")
    addresses = [f"--tcp-address={broker.daemon.tcp}", f"--http-address={broker.daemon.http}"]
    publisher = Publisher(broker)
    publisher.start()
    query = Query(spark, tmp_path, [broker], channel="lake", retryTimeout="60s")
    until(lambda: publisher.acknowledged)
    running = query.start(processingTime="0 seconds")
    try:
        for number in range(1, MACHINES + 1):
            batches = (running.lastProgress or NONE)["batchId"]
            until(lambda seen=batches: (running.lastProgress or NONE)["batchId"] > seen + 1, seconds=120)
            broker.daemon.kill()
            shutil.rmtree(tmp_path / f"data{number - 1}")
            broker.daemon = start_broker(*flags, *addresses, data_path=tmp_path / f"data{number}").daemon
        publisher.over.set()
        publisher.join()
        broker.publish("orders", b"last")
        until(lambda: broker.depth("orders", "lake") == 0, seconds=120)
    finally:
        publisher.over.set()
        running.stop()

    found = query.bodies()
    assert len(found) == len(set(found))
    assert publisher.acknowledged | {"last"} <= set(found)
