"""What the archive pipeline costs, each figure beside what the same machine allows in the same run.

    python benchmarks/pipeline.py                             10 million messages of 200 bytes (about 5 GB of disk)
    python benchmarks/pipeline.py --messages 1000000          a smaller one
    python benchmarks/pipeline.py --soak 3600 --rate 20000    memory over an hour of input

`archive` is the pipeline, from the broker's log to a partitioned Delta table. `copy` is Spark reading the
archived rows and writing them again in the same layout: what plain Spark needs for the same files. `nsq_to_file` is the
tool that writes the same messages as lines. `latency` is the time from a publish until its row is in a file that
readers see, with a trigger of 1 s.

The soak prints a line a minute with the memory of each kind of process, then compares the last quarter of the time with
the second (the first is for warming up) and proves the archive; it ends with 1 if memory rose by more than a tenth, if
the archive fell behind by more than half a minute or if it lacks anything.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from footprint import Footprint, family, median, shown

from lapwing.spark.pipelines.kinds import archive
from lapwing.spark.pipelines.run.progress import PipelineProgress
from lapwing.spark.pipelines.run.runner import CONF, PipelineRun, RunRequest
from lapwing.spark.pipelines.settings import spec
from lapwing.spark.session import local_session
from lapwing.spark.tables.verify import verify

TOPIC = "bench"
TICK = os.sysconf("SC_CLK_TCK")
BESIDE = Path(sys.executable).parent


class Broker:
    """An nsqd of its own."""

    def __init__(self, directory: str) -> None:
        command = [
            str(BESIDE / "nsqd"), "--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={directory}",
            "--broadcast-address=127.0.0.1",
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.doors: dict[str, str] = {}
        for line in self.process.stderr:
            if found := re.search(r"(TCP|HTTP): listening on (\S+)", line):
                self.doors[found[1]] = found[2]
            if len(self.doors) == 2:
                break
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def publish(self, count: int, size: int, topic: str = TOPIC) -> int:
        """Bodies that hardly compress, as ids, numbers and hashes do; how many were published."""
        most = min(10_000, count, (4 << 20) // (size + 4))
        bodies = [os.urandom(size) for _ in range(most)]
        batch = struct.pack(">i", most) + b"".join(struct.pack(">i", size) + body for body in bodies)
        url = f"http://{self.doors['HTTP']}/mpub?topic={topic}&binary=true"
        for _ in range(count // most):
            urllib.request.urlopen(url, batch, timeout=60).close()
        return count // most * most


def cpu(pids: list[int]) -> float:
    """CPU seconds of these processes and of their children that have ended."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15])
    return total / TICK


def measured(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process, its JVM and its Python workers; without nsqd."""
    mine = [pid for pid in family(os.getpid()) if pid not in NOT_OURS]
    before, begun = cpu(mine), time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    return seconds, cpu([pid for pid in family(os.getpid()) if pid not in NOT_OURS]) - before


NOT_OURS: set[int] = set()


def say(name: str, figure: str, limit: str = "") -> None:
    print(f"{name:34} {figure:>52}   {limit}", flush=True)


def rates(count: int, seconds: float, used: float) -> str:
    return f"{count / seconds:>12,.0f} rows/s {count / max(used, 0.01):>12,.0f} rows/CPU-s"


def run(spark: Any, broker: Broker, data: Path, *settings: str, once: bool = True) -> PipelineRun:
    """The archive pipeline as `lapwing pipeline run archive` runs it."""
    specs = spec.load("archive", [f"topics={TOPIC}", *settings], {"nsqd": [broker.doors["HTTP"]]})
    running = PipelineRun(specs, RunRequest(data, once))
    running.check()

    def show(progress: PipelineProgress) -> None:
        if progress.error:
            print(progress.error, file=sys.stderr)

    if once:
        assert running.run(spark, show)
    else:
        threading.Thread(target=running.run, args=(spark, show), daemon=True).start()
    return running


def throughput(spark: Any, broker: Broker, place: Path, count: int, size: int) -> None:
    for warming in range(2):  # the first run compiles classes and starts workers
        broker.publish(count if warming else 200_000, size)
        seconds, used = measured(lambda: run(spark, broker, place / "pipelines"))
    say("archive", rates(count, seconds, used))
    source = str(place / "archive")
    rows = archive.read(spark, source).count()

    def copy() -> None:
        copied = archive.read(spark, source)
        copied.write.partitionBy(*archive.PARTITIONS).mode("overwrite").parquet(str(place / "copy"))

    copy_seconds, copy_used = measured(copy)
    say("copy, Parquet to Parquet", rates(rows, copy_seconds, copy_used))
    ratio = (count / seconds) / (rows / copy_seconds)
    say("archive : copy", f"{ratio:.0%} of the rate, {count / used / (rows / copy_used):.0%} per CPU-s", "70 % wanted")
    begun = time.perf_counter()
    proof = verify(source)
    assert proof.sound
    say("verify", f"{proof.rows / (time.perf_counter() - begun):,.0f} rows/s in {proof.files} files")


def to_file(broker: Broker, place: Path, count: int, size: int) -> None:
    """The same messages with nsq_to_file."""
    out = place / "lines"
    out.mkdir()
    command = [
        str(BESIDE / "nsq_to_file"), "--topic=lines", "--channel=lines", f"--nsqd-tcp-address={broker.doors['TCP']}",
        f"--output-dir={out}", "--max-in-flight=2500",
    ]  # fmt: skip
    urllib.request.urlopen(f"http://{broker.doors['HTTP']}/topic/create?topic=lines", b"").close()
    urllib.request.urlopen(f"http://{broker.doors['HTTP']}/channel/create?topic=lines&channel=lines", b"").close()
    broker.publish(count, size, "lines")
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stats = f"http://{broker.doors['HTTP']}/stats?format=json&topic=lines&channel=lines"
    while True:
        channel = json.load(urllib.request.urlopen(stats))["topics"][0]["channels"][0]
        if not channel["depth"] and not channel["in_flight_count"]:
            break
        time.sleep(0.1)
    seconds = time.perf_counter() - begun
    used = cpu(family(process.pid))
    process.terminate()
    process.wait()
    say("nsq_to_file", rates(count, seconds, used))


def commits(table: Path) -> int:
    """Return the number of commits that readers of a table see."""
    return sum(1 for _ in (table / "_delta_log").glob("*.json"))


def latency(spark: Any, broker: Broker, place: Path, size: int) -> None:
    """From a publish to a file that readers see, with a trigger of 1 s."""
    running = run(spark, broker, place / "latency", f"out={place}/late", "trigger=1s", "start=latest", once=False)
    seen = 0
    found: list[float] = []
    while not running.jobs or running.jobs[0].progress.batch_id < 0:
        broker.publish(1, size)
        time.sleep(0.5)
    time.sleep(3)
    for number in range(20):
        time.sleep(0.137 * (number % 7))
        seen = commits(place / "late")
        begun = time.perf_counter()
        broker.publish(1, size)
        while commits(place / "late") <= seen:
            if time.perf_counter() - begun > 30:
                break
            time.sleep(0.01)
        found.append(time.perf_counter() - begun)
        if number % 10 == 9:
            seen = 0
    running.ask_to_stop()
    while not running.jobs[0].progress.ended:
        time.sleep(0.1)
    found.sort()
    text = f"p50 {found[len(found) // 2]:.2f} s, worst {found[-1]:.2f} s"
    say("latency, publish to a row that readers see", text, "trigger 1 s")


def soak(
    spark: Any, broker: Broker, place: Path, size: int, rate: int, seconds: float, settings: list[str]
) -> bool:
    """Memory while messages come at a steady rate; whether it is flat and everything was archived in time.

    The first quarter is for warming up: classes are loaded, code is compiled, the heap finds its size. After it the
    median of the last quarter is compared with that of the second.
    """
    running = run(spark, broker, place / "pipelines", *(settings or ["trigger=5s"]), once=False)
    early = broker.publish(1000, size)  # until the first batch is done nothing else comes, so that there is no backlog
    while not running.jobs or running.jobs[0].progress.batch_id < 0:
        if running.jobs and running.jobs[0].progress.ended:
            sys.exit(f"the archive has ended: {running.jobs[0].progress.error}")
        time.sleep(0.1)
    footprint = Footprint(spark, broker.process.pid)
    begun = time.perf_counter()
    sent, minute, lags = 0, min(60.0, seconds / 8), []
    looked = 0.0
    while (now := time.perf_counter() - begun) < seconds:
        if running.jobs and running.jobs[0].progress.ended:
            sys.exit(f"the archive has ended: {running.jobs[0].progress.error}")
        due = int(now * rate) - sent
        if due >= 1000:
            sent += broker.publish(due, size)
        if now >= looked + minute and running.jobs:
            lag = running.jobs[0].progress.lag
            lags.append(lag or 0)
            print(f"{now:6,.0f} s  {shown(footprint.between(looked, now))}; sent {sent:,}, lag {lag}", flush=True)
            looked = now
        time.sleep(0.02)
    footprint.close()
    over = time.perf_counter() + 60
    while running.jobs[0].progress.rows_in < early + sent and time.perf_counter() < over:
        time.sleep(0.1)
    running.ask_to_stop()
    while not running.jobs[0].progress.ended:
        time.sleep(0.1)
    second, last = footprint.between(seconds / 4, seconds / 2), footprint.between(seconds * 3 / 4, seconds)
    ratio = median(last) / median(second)
    say("memory, most", f"{max(sample.total for sample in footprint.samples):,.0f} MB")
    say("memory, last quarter : second", f"{median(last):,.0f} : {median(second):,.0f} MB = {ratio:.2f}", "1.1 or less")
    proof = verify(str(place / "archive"))
    say("archived", f"{proof.rows:,} of {early + sent:,} in {proof.files} files, each once: {proof.sound}")
    say("lag at the end of a minute, most", f"{max(lags):,} messages", f"{rate * 30:,} (30 s) or less")
    return ratio <= 1.1 and proof.sound and proof.rows == early + sent and max(lags) <= rate * 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=200)
    parser.add_argument("--soak", type=float, default=0, help="seconds")
    parser.add_argument("--rate", type=int, default=20_000, help="messages/s of --soak")
    parser.add_argument("--set", action="append", default=[], help="a setting of the archive during --soak")
    parser.add_argument("--conf", action="append", default=[], help="a setting of Spark")
    parser.add_argument("--only", default="archive,file,latency")
    chosen = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="lapwing-pipeline-"))
    (place / "nsqd").mkdir()
    broker = Broker(str(place / "nsqd"))
    NOT_OURS.add(broker.process.pid)
    try:
        spark = local_session("benchmark", conf={**CONF, **dict(each.split("=", 1) for each in chosen.conf)})
        count = chosen.messages // 10_000 * 10_000
        good = True
        if chosen.soak:
            good = soak(spark, broker, place, chosen.size, chosen.rate, chosen.soak, chosen.set)
        else:
            if "archive" in chosen.only:
                throughput(spark, broker, place, count, chosen.size)
            if "file" in chosen.only:
                to_file(broker, place, min(count, 1_000_000), chosen.size)
            if "latency" in chosen.only:
                latency(spark, broker, place, chosen.size)
        spark.stop()
    finally:
        broker.process.terminate()
        broker.process.wait()
        shutil.rmtree(place, ignore_errors=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
