"""Topics in sessions that `lapwing.spark.session` does not start: Spark Connect, `spark-submit --py-files`, pipelines.

    python tests/soak/spark_submit.py [--only connect,py-files,pipelines]

`connect` runs the example of docs/reference/spark.md in a client of Spark Connect, whose packages have to be there
(`pip install 'pyspark[connect]'`). `py-files` runs the other one under a Python that has pyspark and not lapwing, which
comes as a zip file: batch reads and writes have to work, and a stream has to fail as the document describes it.
`pipelines` runs the declarative pipeline of docs/reference/pipelines.md (`pip install 'pyspark[pipelines]'`).
Takes about a minute; exits with 1 if something is not so.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyspark

from daemons import Daemon, nsqd
from documents import block
from lapwing.spark.session import environment

SOURCES = Path(__file__).resolve().parents[2] / "src"
PAGE = "docs/reference/spark.md"
MISSING = "No module named 'lapwing'"


def example(first: str, broker: Daemon, scratch: Path, page: str = PAGE) -> str:
    """Return the example of the document that begins with this line, for this broker and this directory."""
    return block(page, first).text.replace("127.0.0.1:4151", broker.http).replace("/data", str(scratch))


def run(command: list[str], env: dict[str, str], scratch: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, cwd=scratch, capture_output=True, text=True, check=False)


def rows(path: Path) -> int:
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    return sum(parquet.read_metadata(file).num_rows for file in path.glob("*.parquet"))


def bodies(broker: Daemon, topic: str) -> int:
    """Return how many messages a topic has."""
    with urllib.request.urlopen(f"{broker.url}/log/read?topic={topic}&from=0&limit=100", timeout=30) as answer:
        return answer.read().count(b'"sequence"')


def connect(broker: Daemon, scratch: Path) -> list[str]:
    """Return what is wrong with the example of Spark Connect."""
    code = example("from pyspark.sql import SparkSession", broker, scratch)
    code = code.replace("sc://127.0.0.1:15002", "local[2]")  # a server that lives as long as the client
    done = run([sys.executable, "-c", code], environment(), scratch)
    wrong = [] if "\n3\n" in f"\n{done.stdout}" else [f"the batch read printed {done.stdout!r}: {done.stderr[-2000:]}"]
    if (found := rows(scratch / "connected")) != 3:
        wrong.append(f"the stream wrote {found} rows: {done.stderr[-2000:]}")
    return wrong


def py_files(broker: Daemon, scratch: Path) -> list[str]:
    """Return what is wrong with the example of `--py-files`."""
    packages = scratch / "packages"
    packages.mkdir()
    for entry in Path(pyspark.__file__).parents[1].iterdir():
        if "lapwing" not in entry.name:
            (packages / entry.name).symlink_to(entry)
    zipped = scratch / "zipped"
    for name in ("lapwing", "pyspark_lapwing"):
        shutil.copytree(SOURCES / name, zipped / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.make_archive(str(scratch / "lapwing"), "zip", zipped)
    script = scratch / "job.py"
    code = example("from lapwing.spark.data_source import LapwingSource", broker, scratch)
    stream = (
        "spark.readStream.format('lapwing').options(nsqd='{0}', topic='orders', startingOffsets='earliest').load()"
        ".writeStream.format('noop').option('checkpointLocation', '{1}/c').trigger(availableNow=True).start()"
        ".awaitTermination()\n"
    )
    script.write_text(code + stream.format(broker.http, scratch))
    python = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("PYSPARK", "SPARK"))}
    env = {**plain, "JAVA_HOME": environment()["JAVA_HOME"], "PYTHONPATH": str(packages), "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    done = run([submit, "--master", "local[2]", "--py-files", str(scratch / "lapwing.zip"), str(script)], env, scratch)
    wrong = []
    if "\n3\n" not in f"\n{done.stdout}" or bodies(broker, "copies") != 3:
        wrong.append(f"printed {done.stdout!r}, {bodies(broker, 'copies')} copies: {done.stderr[-3000:]}")
    if done.returncode == 0 or MISSING not in done.stderr:
        wrong.append(f"the stream ended with status {done.returncode}, without {MISSING!r}: {done.stderr[-2000:]}")
    return wrong


def pipelines(broker: Daemon, scratch: Path) -> list[str]:
    """Return what is wrong with the declarative pipeline."""
    (scratch / "transformations").mkdir()
    for name in ("spark-pipeline.yml", "transformations/orders.py"):
        (scratch / name).write_text(example(f"# {name}", broker, scratch, "docs/reference/pipelines.md"))
    publish(broker, *(b'{"amount": %d}' % amount for amount in (50, 150, 250)))
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines")
    done = run([program, "run", "--spec", "spark-pipeline.yml"], environment(), scratch)
    wrong = [] if done.returncode == 0 else [f"ended with status {done.returncode}: {done.stderr[-3000:]}"]
    if (found := bodies(broker, "orders.large")) != 2:
        wrong.append(f"{found} messages were published instead of 2: {done.stderr[-3000:]}")
    return wrong


def publish(broker: Daemon, *messages: bytes) -> None:
    for message in messages:
        urllib.request.urlopen(f"{broker.url}/pub?topic=orders", data=message, timeout=30).close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="connect,py-files,pipelines")
    arguments = parser.parse_args()
    good = True
    for name, check in (("connect", connect), ("py-files", py_files), ("pipelines", pipelines)):
        if name not in arguments.only.split(","):
            continue
        scratch = Path(tempfile.mkdtemp(prefix=f"lapwing-{name}-"))
        with nsqd("--node-id=1") as broker:
            publish(broker, b"0", b"1", b"2")
            wrong = check(broker, scratch)
        print("\n".join([f"{name}: {'as documented' if not wrong else 'FAILED'}", *wrong]), flush=True)
        shutil.rmtree(scratch, ignore_errors=True)
        good = good and not wrong
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
