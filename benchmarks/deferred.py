"""A channel with a million deferred messages: memory, the longest turn, setting them aside, and a restart.

    python benchmarks/deferred.py [--messages 1000000]

The messages are published deferred by an hour or more, others that are finished come behind them, and the segments of
the deferred ones are deleted, so that each is copied to the side log. "Longest" is the longest call of the broker.
"""

import argparse
import gc
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lapwing import kernel
from lapwing.broker.broker import Broker
from lapwing.broker.keeper.storage import DiskStorage
from lapwing.broker.settings.options import Options
from lapwing.broker.topic import batch
from lapwing.log.log import Extra

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
BATCH = 1000


def megabytes() -> float:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


class Calls:
    """Times calls of the broker."""

    def __init__(self) -> None:
        self.longest = self.total = 0.0

    def __call__(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        began = time.process_time()
        result = call(*arguments, **named)
        took = time.process_time() - began
        self.longest = max(self.longest, took)
        self.total += took
        return result

    def show(self, what: str, before: float, count: int) -> None:
        each = (megabytes() - before) * 1e6 / count
        print(
            f"{what:36} {self.total:6.1f} s, longest {self.longest * 1e3:6.1f} ms, {megabytes():6.0f} MB "
            f"({each:.0f} bytes a message)",
            flush=True,
        )
        self.longest = self.total = 0.0


class Nothing:
    """A receipt that nobody waits for."""

    def settle(self, sequence: int, error: object) -> None:
        """Do nothing."""


def started(path: str, now: int) -> Broker:
    options = Options(max_bytes_per_file=10 << 20, max_req_timeout=24 * HOUR, max_defer=24 * HOUR, min_free_bytes=0)
    storage = DiskStorage(path, 1, options.log_options, now=lambda: now, report=print, boot_id="x")
    return Broker(options, storage, report=print)


def measure(path: str, messages: int) -> None:
    now = time.time_ns()
    calls = Calls()
    broker = started(path, now)
    topic = broker.topic("t")
    channel = topic.create_channel("c", now=now)
    before = megabytes()
    for first in range(0, messages, BATCH):
        extras = [Extra(first + place, defer=HOUR + (first + place) * 7919 % HOUR) for place in range(BATCH)]
        frames = kernel.frame_bodies([b"x" * 100] * BATCH, topic.id_base + first, now)
        topic.append(batch.Batch(frames, BATCH, 100 * BATCH, batch.rows_of(extras), deferred=True), Nothing(), now=now)
        calls(broker.commit, now)
        if first % (100 * BATCH) == 0:
            calls(broker.checkpoint, now=now)
    calls(broker.checkpoint, now=now)
    gc.collect()
    calls.show(f"defer {messages:,}", before, messages)
    for _ in range(120):  # others, which a consumer would finish: the cursor is behind them
        topic.append(batch.of_broker(topic, [b"y" * 1000] * 100, now=now), Nothing(), now=now)
        calls(broker.commit, now)
    channel.finish_ahead([(messages, topic.log.end)])
    calls(broker.checkpoint, now=now)
    while not calls(broker.trim, now=now, everywhere=True):
        pass
    gc.collect()
    copied = len(channel.side_logged.sequences)
    calls.show(f"set {copied:,} aside", before, messages)
    calls(broker.trim, now=now, everywhere=True)
    calls(broker.checkpoint, now=now)
    calls.show("trim again", before, messages)
    broker.close(now=now)
    del broker, topic, channel
    gc.collect()
    before = megabytes()
    broker = started(path, now)
    calls(broker.restore, now=now)
    channel = broker.existing("t").channels["c"]
    assert len(channel.ledger.deferred) == messages
    gc.collect()
    calls.show("restart", before, messages)
    later = now + 3 * HOUR
    while calls(broker.scan, later) or channel.ledger.deferred.next_due() is not None:
        pass
    assert channel.depth == messages
    calls.show("become ready", before, messages)
    broker.storage.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    arguments = parser.parse_args()
    path = tempfile.mkdtemp()
    try:
        measure(path, arguments.messages)
    finally:
        shutil.rmtree(path)


if __name__ == "__main__":
    sys.exit(main())
