"""Makes the class cache with which Spark starts in a third of the time: `python -m lapwing.spark.warm`.

A small session does what sessions here usually do (batch, stream, Parquet, Python workers), and its JVM writes the
classes it has loaded and linked when it ends. Takes a minute or two, once per Java and pyspark.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from lapwing.spark import java as javas
from lapwing.spark.session import prepare, session_builder

_WORKLOAD: Final = "--workload"
_BACKGROUND: Final = "--background"
_MOST_SECONDS: Final = 600.0
_MOST_TEXT: Final = 4000  # characters of a failure that are kept


class _Numbers(DataSource):
    """The smallest Python data source."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "number int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _NumbersReader()


class _NumbersReader(DataSourceReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        return iter([(number,) for number in range(10)])


def warm() -> Path | None:
    """Make the class cache if it is missing; return it, or None when another process is at it or the JVM made none."""
    setup = prepare()
    if setup.classes.exists():
        return setup.classes
    with open(setup.home / "warm.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
        draft = setup.classes.with_name(f"{setup.classes.name}.new")
        _clear(draft)
        # a child in a session of its own: the JVM writes the cache after its Python has gone, and we can wait for both
        try:
            done = subprocess.run(
                [sys.executable, "-m", "lapwing.spark.warm", _WORKLOAD, str(draft)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # held open by the JVM too: run() returns when all of them have ended
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_MOST_SECONDS,
                check=False,
            )
            if done.returncode == 0 and draft.exists():
                draft.replace(setup.classes)
                setup.failed.unlink(missing_ok=True)
            else:
                javas.write_text(setup.failed, f"exit status {done.returncode}\n{done.stdout[-_MOST_TEXT:]}")
        except (subprocess.TimeoutExpired, OSError) as error:
            javas.write_text(setup.failed, f"{error}\n")
        finally:
            _clear(draft)  # what the JVM records is as large as the cache
    return setup.classes if setup.classes.exists() else None


def _clear(draft: Path) -> None:
    """Delete what an attempt has left: the draft, and the JVM's own files beside it."""
    for path in draft.parent.glob(f"{draft.name}*"):
        path.unlink(missing_ok=True)


def _workload(output: Path) -> None:
    setup = prepare()
    recording = f"{setup.settings['spark.driver.extraJavaOptions']} {javas.recording_options(setup.java, output)}"
    builder = session_builder("warm", master="local[2]", conf={"spark.driver.extraJavaOptions": recording})
    spark = builder.getOrCreate()
    with tempfile.TemporaryDirectory() as scratch:
        rows = spark.range(1000).selectExpr("id", "string(id) as text", "cast(string(id) as binary) as body")
        rows.write.parquet(f"{scratch}/rows")
        back = spark.read.parquet(f"{scratch}/rows")
        back.createOrReplaceTempView("rows")
        spark.sql("select text, count(*) c, max(id) m from rows group by text order by c limit 10").collect()
        spark.dataSource.register(_Numbers)
        spark.read.format("numbers").load().count()
        stream = spark.readStream.schema(back.schema).parquet(f"{scratch}/rows")
        query = (
            stream.groupBy("text").count().writeStream.outputMode("complete").format("noop")
            .option("checkpointLocation", f"{scratch}/counts").trigger(availableNow=True).start()
        )
        query.awaitTermination()
        query = (
            stream.writeStream.format("parquet").option("path", f"{scratch}/copy")
            .option("checkpointLocation", f"{scratch}/copies").trigger(availableNow=True).start()
        )
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:2] == [_WORKLOAD]:
        _workload(Path(sys.argv[2]))
    else:
        if sys.argv[1:] == [_BACKGROUND]:
            os.nice(10)
        made = warm()
        failed = prepare().failed
        print(made or (f"no class cache was made; {failed} has the reason" if failed.exists() else
                       "no class cache was made: another process is making it"))
        sys.exit(0 if made else 1)
