"""Source, sink and a pipeline on several versions of PySpark and Python, classic and by Spark Connect.

    python tests/soak/spark_versions.py --pyspark DIR ... --python PROGRAM ...

Each DIR has one version (`pip install --target DIR --no-deps pyspark==4.1.*`), each PROGRAM is a Python with the other
packages that Spark and lapwing need. Every combination is a process of its own; the broker runs on the Python that runs
this. Prints a line for each step that is not as it should be, and a table; exits with 1 if there was such a step.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SOURCES = HERE.parents[2] / "src"
COUNT = 1000
PIPELINES = ("archive", "table", "transform", "replay")
STEPS = ("batch read", "batch write", "stream into a topic", "stream from a topic", *PIPELINES)
NO_STREAMS = "streams from topics need PySpark 4.2 or later"


def cell(kind: str, broker: str, place: Path) -> dict[str, str]:
    """Try everything in the session of this process; return for each step `yes`, `no` or what went wrong."""
    spark = connected() if kind == "connect" else classic()
    topic = place.name
    found: dict[str, str] = {}

    def step(name: str, work: Callable[[], int], expected: int = COUNT) -> None:
        try:
            count = work()
            found[name] = "yes" if count == expected else f"{count} of {expected}"
        except Exception as error:
            text = str(error)
            found[name] = "no" if NO_STREAMS in text else " ".join(text.split())[-600:]

    def read(name: str) -> int:
        frame = spark.read.format("lapwing").options(nsqd=broker, topic=name).load()
        return len({row.body for row in frame.select(frame.body.cast("string").alias("body")).collect()})

    def write() -> int:
        rows = spark.range(COUNT).selectExpr("string(id) as body", "map('a', 'b') as headers")
        rows.write.format("lapwing").options(nsqd=broker, topic=f"{topic}-written").mode("append").save()
        return read(f"{topic}-written")

    def sink() -> int:
        files = str(place / "rows")
        spark.range(COUNT).selectExpr("string(id) as body").write.parquet(files)
        stream = spark.readStream.schema("body string").parquet(files)
        finish(stream.writeStream.format("lapwing").options(nsqd=broker, topic=f"{topic}-streamed"), "sink")
        return read(f"{topic}-streamed")

    def source() -> int:
        options = {"nsqd": broker, "topic": topic, "startingOffsets": "earliest", "channel": "versions"}
        stream = spark.readStream.format("lapwing").options(**options).load()
        files = str(place / "copied")
        for _ in range(2):  # the second run begins where the first has ended
            finish(stream.writeStream.format("parquet").option("path", files), "source")
        return int(spark.read.parquet(files).count())

    def finish(writer: Any, name: str) -> None:
        writer = writer.option("checkpointLocation", str(place / f"checkpoint-{name}")).trigger(availableNow=True)
        writer.start().awaitTermination()

    def archive() -> int:
        from deltalake import DeltaTable

        pipeline(spark, broker, place, "archive", f"topics={topic}", f"out={place / 'archive'}")
        return len(DeltaTable(str(place / "archive")).to_pyarrow_table())

    def table() -> int:
        from deltalake import DeltaTable

        settings = ("format=csv", "schema=number bigint", "rejects=none", f"out={place / 'table'}")
        pipeline(spark, broker, place, "table", f"topics={topic}", *settings)
        return len(DeltaTable(str(place / "table")).to_pyarrow_table())

    def transform() -> int:
        settings = ("format=text", "sql=select body from input where length(body) > 0", f"to={topic}-transformed")
        pipeline(spark, broker, place, "transform", f"topics={topic}", *settings)
        return read(f"{topic}-transformed")

    def replay() -> int:
        pipeline(spark, broker, place, "replay", f"topics={topic}", f"to={topic}-again")
        return read(f"{topic}-again")

    step("batch read", lambda: read(topic))
    step("batch write", write)
    step("stream into a topic", sink)
    step("stream from a topic", source)
    if kind == "classic":
        for name, work in zip(PIPELINES, (archive, table, transform, replay), strict=True):
            step(name, work)
    spark.stop()
    return found


def classic() -> Any:
    from lapwing.spark.session import local_session

    return local_session("versions", cores=2)


def connected() -> Any:
    from lapwing.spark.session import environment

    os.environ.update(environment())
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()


def pipeline(spark: Any, broker: str, place: Path, kind: str, *settings: str) -> None:
    from lapwing.spark.pipelines.run.runner import PipelineRun, RunRequest
    from lapwing.spark.pipelines.settings import spec

    running = PipelineRun(spec.load(kind, settings, {"nsqd": [broker]}), RunRequest(place / "data", once=True))
    running.check()
    if not running.run(spark, lambda progress: None):
        raise RuntimeError(running.jobs[0].progress.error)


def run_cell(python: str, pyspark: Path, kind: str, broker: str, scratch: Path) -> dict[str, str]:
    place = scratch / f"{kind}-{pyspark.name}-{Path(python).parent.parent.name}".replace(".", "_")
    place.mkdir()
    bodies = b"\n".join(b"%d" % number for number in range(COUNT))
    urllib.request.urlopen(f"http://{broker}/mpub?topic={place.name}", data=bodies, timeout=30).close()
    env = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_HOME", "PYSPARK"))}
    env |= {"PYTHONPATH": f"{pyspark}{os.pathsep}{SOURCES}", "SPARK_LOCAL_IP": "127.0.0.1", "LAPWING_PURE": "1"}
    command = [python, str(HERE), "--cell", kind, broker, str(place)]
    done = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True, timeout=900, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {"start": " ".join(done.stderr.split())[-600:]}


def version(python: str, pyspark: Path | None = None) -> str:
    module, value = ("pyspark", "__version__") if pyspark else ("platform", "python_version()")
    code = f"import {module}; print({module}.{value})"
    env = {**os.environ, "PYTHONPATH": str(pyspark or "")}
    return subprocess.run([python, "-c", code], env=env, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cell", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--pyspark", nargs="+", type=Path, default=[])
    parser.add_argument("--python", nargs="+", default=[sys.executable])
    parser.add_argument("--kinds", nargs="+", default=["classic", "connect"])
    arguments = parser.parse_args()
    if arguments.cell:
        kind, broker, place = arguments.cell
        print(json.dumps(cell(kind, broker, Path(place))))
        return
    sys.path.insert(0, str(HERE.parents[1]))
    from daemons import nsqd

    bad = 0
    print(f"| PySpark | Python | | {' | '.join(STEPS)} |")
    print(f"|---|---|---{'|---' * len(STEPS)}|", flush=True)
    with nsqd("--node-id=1") as broker, tempfile.TemporaryDirectory(prefix="lapwing-versions-") as scratch:
        for pyspark in arguments.pyspark:
            for python in arguments.python:
                for kind in arguments.kinds:
                    found = run_cell(python, pyspark.resolve(), kind, broker.http, Path(scratch))
                    words = [found.get(step, "") for step in STEPS]
                    wrong = {step: text for step, text in found.items() if text not in ("yes", "no")}
                    bad += len(wrong)
                    shown = [word if word in ("yes", "no", "") else "FAILED" for word in words]
                    about = [version(python, pyspark.resolve()), version(python), kind]
                    print(f"| {' | '.join([*about, *shown])} |", flush=True)
                    for step, text in wrong.items():
                        print(f"{' '.join(about)}: {step}: {text}", file=sys.stderr, flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
