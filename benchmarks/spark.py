"""What Spark costs on a topic: each figure beside the limit that the same machine, in the same run, allows.

    python benchmarks/spark.py [--messages 5000000] [--size 200] [--only read,stream,sink,idle,topics]

One nsqd holds the messages. `read` counts a batch read into a no-op sink, against the same source with Arrow batches
that lie ready in memory, which is the ceiling of Spark's API, and against Spark's read of the same rows from Parquet.
It is done once as it comes, where executors on the broker's machine read its files, and once as on other machines, with
every message through the network; and once more from files without the bodies. `stream` copies the topic into Parquet,
against Spark's own copy from Parquet to Parquet.
`sink` writes rows into a topic, once each. `idle` is a query with nothing to do. `topics` are micro-batches of 2,000
messages of one topic, of 16 and of 200.
"""

import argparse
import contextlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lapwing.spark.data_source import columns
from lapwing.spark.session import local_session

TOPIC = "bench"
BLOCK = 4 << 20  # bytes of a block, as the broker sends them
IN_MEMORY = 64 << 20  # bytes of ready batches: more than fits a processor's cache, as with real data
RUNS = 3
TICK = os.sysconf("SC_CLK_TCK")


class Ready(DataSource):
    """Batches that lie ready in memory, cut exactly as the range reader cuts them."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType:
        return columns({})

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyReader(int(self.options["tasks"]), int(self.options["messages"]), int(self.options["size"]))


class ReadyReader(DataSourceReader):
    def __init__(self, tasks: int, messages: int, size: int) -> None:
        self.tasks, self.messages, self.size = tasks, messages, size

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from lapwing import kernel
        from lapwing.spark.source.blocks import RangeBlock, arrow_schema, to_batch

        count = BLOCK // (self.size + kernel.HEAD)
        schema = arrow_schema(columns({}).fieldNames())
        ready: list[Any] = sys.__dict__.setdefault("lapwing_ready", [])  # kept by the worker from task to task
        while len(ready) < IN_MEMORY // BLOCK:
            frames = kernel.frame_bodies([os.urandom(self.size) for _ in range(count)], 0, 1)
            ready.append(to_batch(RangeBlock(0, count, bare=frames), TOPIC, 1, schema))
        left = self.messages // self.tasks
        for batch in cycle(ready):
            yield batch if left >= count else batch.slice(0, left)
            left -= count
            if left <= 0:
                return


class Broker:
    """An nsqd of its own."""

    def __init__(self, directory: str) -> None:
        nsqd = Path(sys.executable).parent / "nsqd"
        command = [str(nsqd), "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={directory}"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"HTTP: listening on (\S+)", line):
                self.address = found[1]
                break

    def publish(self, messages: int, size: int) -> None:
        """Bodies of random bytes: Parquet would make nothing of equal ones."""
        count = min(10_000, messages, (4 << 20) // (size + 4))
        bodies = [os.urandom(size) for _ in range(count)]
        batch = struct.pack(">i", count) + b"".join(struct.pack(">i", size) + body for body in bodies)
        for _ in range(messages // count):
            urllib.request.urlopen(f"http://{self.address}/mpub?topic={TOPIC}&binary=true", batch, timeout=60).close()
        self.messages = messages // count * count

    def cpu(self) -> float:
        return cpu_of(self.process.pid)


def cpu_of(*pids: int) -> float:
    """CPU seconds that these processes have used."""
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
    return total / TICK


def descendants(pid: int) -> list[int]:
    """The process and all that it has started, and those that these have."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(path.parent.name))
    found, waiting = [], [pid]
    while waiting:
        found.append(waiting.pop())
        waiting += parents.get(found[-1], [])
    return found


def timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def in_turns(*works: Callable[[], object]) -> list[float]:
    """The best time of each, measured in turns so that a noisy neighbour troubles all of them alike."""
    times = [[timed(work) for work in works] for _ in range(RUNS)]
    return [min(column) for column in zip(*times, strict=True)]


def to_nothing(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def say(name: str, figure: str, limit: str = "") -> None:
    print(f"{name:44} {figure:>24}   {limit}", flush=True)


def read(spark: SparkSession, broker: Broker, scratch: str, size: int) -> None:
    source = spark.read.format("lapwing").options(nsqd=broker.address, topic=TOPIC)
    network = spark.read.format("lapwing").options(nsqd=broker.address, topic=TOPIC, localFiles="false")
    bare = spark.read.format("lapwing").options(nsqd=broker.address, topic=TOPIC, includeBody="false")
    tasks = source.load().rdd.getNumPartitions()
    spark.dataSource.register(Ready)
    ready = spark.read.format("ready").options(tasks=tasks, messages=broker.messages, size=size)
    parquet = f"{scratch}/read"
    source.load().write.parquet(parquet)
    to_nothing(ready.load())  # the first one of each is for warming up
    to_nothing(spark.read.parquet(parquet))
    to_nothing(source.load())
    to_nothing(network.load())
    to_nothing(bare.load())
    spent: list[float] = []

    def through_network() -> None:
        before = broker.cpu()
        to_nothing(network.load())
        spent.append(broker.cpu() - before)

    ceiling, theirs, ours, remote, without = in_turns(
        lambda: to_nothing(ready.load()),
        lambda: to_nothing(spark.read.parquet(parquet)),
        lambda: to_nothing(source.load()),
        through_network,
        lambda: to_nothing(bare.load()),
    )
    cpu = sum(spent) / RUNS
    say("batch read, the ceiling", f"{broker.messages / ceiling:,.0f}/s")
    say("batch read", f"{broker.messages / ours:,.0f}/s", f"{ceiling / ours:.0%} of the ceiling (70 % wanted)")
    rate = f"{broker.messages / theirs:,.0f}/s"
    say("Spark's read of the same rows from Parquet", rate, f"the topic has {theirs / ours:.2f} of that (0.8 wanted)")
    shutil.rmtree(parquet)
    rate = f"{broker.messages / without:,.0f}/s"
    say("batch read, includeBody=false", rate, f"{ours / without:.2f} times that with bodies (1 wanted)")
    say("batch read through the network", f"{broker.messages / remote:,.0f}/s", f"{ceiling / remote:.0%} of it")
    say("broker CPU per message of that", f"{cpu / broker.messages * 1e6:.3f} us", "0.15 us allowed")


def stream(spark: SparkSession, broker: Broker, scratch: str) -> None:
    stored = f"{scratch}/stored"
    spark.read.format("lapwing").options(nsqd=broker.address, topic=TOPIC).load().write.parquet(stored)
    schema = spark.read.parquet(stored).schema
    sources: dict[str, Callable[[], DataFrame]] = {
        "Parquet": lambda: spark.readStream.schema(schema).parquet(stored),
        "lapwing": lambda: spark.readStream.format("lapwing")
        .options(nsqd=broker.address, topic=TOPIC, startingOffsets="earliest")
        .load(),
    }

    def copy(name: str) -> None:
        out, checkpoint = f"{scratch}/copy", f"{scratch}/checkpoint"
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(checkpoint, ignore_errors=True)
        writer = sources[name]().writeStream.format("parquet").option("path", out)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()

    copy("Parquet")
    copy("lapwing")
    theirs, ours = in_turns(lambda: copy("Parquet"), lambda: copy("lapwing"))
    say("streaming, Parquet to Parquet", f"{broker.messages / theirs:,.0f}/s")
    say("streaming, topic to Parquet", f"{broker.messages / ours:,.0f}/s", f"{theirs / ours:.0%} of that (70 % wanted)")


def sink(spark: SparkSession, broker: Broker, messages: int, size: int) -> None:
    rows = spark.range(messages).selectExpr(f"cast(repeat('x', {size}) as binary) as body").coalesce(2).cache()
    rows.count()

    def write() -> None:
        rows.write.format("lapwing").mode("append").options(nsqd=broker.address, topic="copy").save()

    write()
    say("sink, exactly once", f"{messages / in_turns(write)[0]:,.0f}/s", "200,000/s wanted")
    rows.unpersist()


def idle(spark: SparkSession, broker: Broker, scratch: str, seconds: float) -> None:
    frame = spark.readStream.format("lapwing").options(nsqd=broker.address, topic=TOPIC, channel="idle").load()
    query = frame.writeStream.format("noop").option("checkpointLocation", f"{scratch}/idle")
    running = query.trigger(processingTime="1 second").start()
    time.sleep(5)
    pids = [broker.process.pid, *descendants(os.getpid())]
    before = cpu_of(*pids)
    time.sleep(seconds)
    used = cpu_of(*pids) - before
    running.stop()
    say("idle query, trigger of 1 s", f"{used / seconds:.1%} of a core", "5 % allowed")


def topics(spark: SparkSession, broker: Broker, scratch: str, size: int, messages: int = 2_000) -> None:
    """The time of a micro-batch with a channel, by how many topics its messages are spread over."""
    alone = 0.0
    for count in (1, 16, 200):
        names = [f"small{count}_{number}" for number in range(count)]
        each = messages // count
        batch = struct.pack(">i", each) + (struct.pack(">i", size) + os.urandom(size)) * each
        options = {"nsqd": broker.address, "topicPattern": f"small{count}_.*", "channel": "lake"}
        options |= {"startingOffsets": "earliest", "minMessagesPerTrigger": str(each * count)}
        for name in names:
            urllib.request.urlopen(f"http://{broker.address}/topic/create?topic={name}", b"", timeout=60).close()
        frame = spark.readStream.format("lapwing").options(**options).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", f"{scratch}/{count}")
        query = writer.trigger(processingTime="0 seconds").start()
        times: list[float] = []
        try:
            while len(times) < 8:
                for name in names:
                    url = f"http://{broker.address}/mpub?topic={name}&binary=true"
                    urllib.request.urlopen(url, batch, timeout=60).close()
                rounds = len(times) + 1
                while len(done := [p for p in query.recentProgress if p["numInputRows"]]) < rounds:
                    time.sleep(0.05)
                times.append(done[-1]["batchDuration"] / 1000)
        finally:
            query.stop()
        median = sorted(times[2:])[len(times[2:]) // 2]
        alone = alone or median
        limit = "" if count == 1 else f"{median / alone:.2f} times one topic" + (" (1.5 allowed)" if count > 16 else "")
        say(f"a batch of {each * count:,} messages, topics: {count}", f"{median * 1000:.0f} ms", limit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--only", default="read,stream,sink,idle,topics")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    scratch = tempfile.mkdtemp(prefix="lapwing-bench-")
    os.mkdir(f"{scratch}/broker")
    broker = Broker(f"{scratch}/broker")
    spark = local_session("benchmark", cores=arguments.cores)
    try:
        broker.publish(arguments.messages, arguments.size)
        if "read" in wanted:
            read(spark, broker, scratch, arguments.size)
        if "stream" in wanted:
            stream(spark, broker, scratch)
        if "sink" in wanted:
            sink(spark, broker, min(arguments.messages, 1_000_000), arguments.size)
        if "idle" in wanted:
            idle(spark, broker, scratch, 20.0)
        if "topics" in wanted:
            topics(spark, broker, scratch, arguments.size)
    finally:
        spark.stop()
        broker.process.terminate()
        broker.process.wait()
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
