"""An archive and the brokers' logs as one table, counted at random moments while both change.

    python tests/soak/spark_one_table.py [--moments 10] [--seed 1]

One process archives a topic and merges its files, nsqd deletes what is archived, and messages are published all the
time. At every moment a query over `option("archive", ...)` has to have each acknowledged message once. At the end a
stream over the same table has to have every message once. Exits with 1 if a count is wrong, or if nothing was merged
or deleted meanwhile.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from deltalake import DeltaTable
from pipeline_kills import Driver, batches, publish, say
from pyspark.sql import DataFrame, SparkSession

from daemons import start_nsqd, until
from lapwing.spark.session import local_session

TOPIC = "orders"
SUM = "count(*), count(distinct sequence), min(sequence), max(sequence)"


class Producer:
    """Messages with the numbers 0, 1, ... in the order of their sequences; all of them are acknowledged."""

    def __init__(self, url: str) -> None:
        self.begun = 0  # messages that may be there
        self.acknowledged = 0
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._produce)
        self._thread.start()

    def _produce(self) -> None:
        while not self._stop.is_set():
            self.begun += 50
            publish(self._url, TOPIC, [b"%08d" % n + b"." * 200 for n in range(self.acknowledged, self.begun)])
            self.acknowledged = self.begun
            self._stop.wait(0.03)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def table(spark: SparkSession, address: str, archive: Path) -> DataFrame:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW whole USING lapwing "
        f"OPTIONS (topic '{TOPIC}', archive '{archive}', nsqd '{address}')"
    )
    return spark.sql(f"SELECT {SUM} FROM whole")


def first_on_broker(url: str) -> int:
    with urllib.request.urlopen(f"{url}/log/offsets?topic={TOPIC}", timeout=30) as answer:
        return int(json.load(answer)["topics"][0]["first"])


def files(archive: Path) -> set[Path]:
    return {Path(path) for path in DeltaTable(str(archive)).file_uris()}


def show(moments: int, chance: random.Random, scratch: Path) -> bool:
    """Count at random moments; return whether every count was right."""
    (scratch / "broker").mkdir()
    broker = start_nsqd(scratch / "broker", "--node-id=1", "--max-bytes-per-file=65536")
    archive, data = scratch / "archive", scratch / "data"
    run = ["run", "archive", "--nsqd", broker.http, "--data", str(data), "--out", str(archive), "--master", "local[1]"]
    run += ["--set", f"topics={TOPIC}", "--set", "trigger=300ms", "--set", "max_messages=5000"]
    run += ["--set", "compact_after=4"]
    producer = Producer(broker.url)
    driver = Driver(run, scratch / "driver.log")
    spark = local_session("one table", cores=1)
    wrong: list[str] = []
    gone: set[Path] = set()  # files that were merged away
    firsts: list[int] = []
    try:
        until(lambda: batches(data, ["archive"])[0] >= 2, seconds=300, what="the first batches")
        seen = files(archive)
        for moment in range(moments):
            threading.Event().wait(chance.random() * 6)
            before = producer.acknowledged
            found = tuple(table(spark, broker.http, archive).first() or ())
            count, after = found[0], producer.begun
            now = files(archive)
            gone |= seen - now
            seen = now
            firsts.append(first_on_broker(broker.url))
            say(
                f"moment {moment + 1}: {before:,} acknowledged before, {count:,} rows, {after:,} sent after; "
                f"nsqd begins at {firsts[-1]:,}, {len(now)} files, {len(gone)} merged away"
            )
            if found != (count, count, 0, count - 1) or not before <= count <= after:
                wrong.append(f"moment {moment + 1}: {found}, {before} to {after} expected")
        producer.stop()
        out = str(scratch / "copy")
        rows = spark.readStream.format("lapwing").options(
            topic=TOPIC, archive=str(archive), nsqd=broker.http, startingOffsets="earliest", maxMessagesPerTrigger=20000
        ).load()  # fmt: skip
        writer = rows.writeStream.format("parquet").option("checkpointLocation", str(scratch / "checkpoint"))
        writer.trigger(availableNow=True).start(out).awaitTermination()
        total = producer.acknowledged
        copied = tuple(spark.read.parquet(out).selectExpr(*SUM.split(", ")).first() or ())
        say(f"stream: {copied[0]:,} rows of {total:,} messages")
        if copied != (total, total, 0, total - 1):
            wrong.append(f"stream: {copied}, {total} expected")
    finally:
        producer.stop()
        driver.kill()
        spark.stop()
        broker.kill()
    if not gone or not firsts[0] < firsts[-1]:
        wrong.append(f"{len(gone)} files were merged, and nsqd began at {firsts[0]} and then at {firsts[-1]}")
    for text in wrong:
        say(f"WRONG: {text}")
    return not wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="lapwing-table-"))
    good = show(arguments.moments, random.Random(arguments.seed), scratch)
    say("every count was exact" if good else f"FAILED, see {scratch}")
    if good:
        shutil.rmtree(scratch)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
