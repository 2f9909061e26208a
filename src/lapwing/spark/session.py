"""Spark sessions that start without a system Java, quickly and quietly.

    from lapwing.spark.session import local_session
    spark = local_session()

`environment` gives the same set-up to programs that start Spark themselves (`spark-pipelines`, `spark-submit`).
"""

import atexit
import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lapwing.errors import ConfigError
from lapwing.spark import _pyspark_4_1 as pyspark_41
from lapwing.spark import java as javas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# One machine, small batches: what the numbers in docs/spark.md were measured with.
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
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything a Spark process on this machine is started with."""

    java: javas.Java
    home: Path  # the Java home Spark is given
    conf: Path  # the configuration directory Spark is given
    python: Path  # what runs as a Python worker
    classes: Path  # the class cache; there once `lapwing.spark.warm` has run
    settings: dict[str, str]

    @property
    def failed(self) -> Path:
        """The file with the reason why the last attempt has made no class cache."""
        return self.classes.with_name(f"{self.classes.name}.failed")

    @property
    def lacks_classes(self) -> bool:
        """Whether the class cache is missing, and an attempt to make it has not failed before."""
        return not self.classes.exists() and not self.failed.exists()

    def variables(self) -> dict[str, str]:
        """Return the environment variables that hand it to Spark."""
        return {
            "JAVA_HOME": str(self.home),
            "SPARK_CONF_DIR": str(self.conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),  # also runs the planning workers beside the driver
        }


def prepare(settings: Mapping[str, str] | None = None) -> Setup:
    """Find a Java and write what Spark needs into the cache directory; touches nothing else.

    `settings` are added to `SETTINGS`. Each set of settings has a configuration directory of its own.
    """
    import pyspark

    from lapwing.spark import _pyspark_4_0 as pyspark_40

    java = _java()
    files = javas.cache_directory()
    home = javas.install(java, files)
    classes = javas.class_cache(java, home, Path(pyspark.__file__).parent / "jars")
    wanted = {**SETTINGS, **(settings or {})}
    if pyspark_40.IS_USED:
        wanted["spark.sql.streaming.checkpointFileManagerClass"] = pyspark_40.CHECKPOINTS
    options = f"-Dlog4j2.configurationFile={home / 'conf' / 'log4j2.properties'}"
    if classes.exists():
        options = f"{options} {javas.cached_options(java, classes)}"
    wanted["spark.driver.extraJavaOptions"] = f"{options} {wanted.get('spark.driver.extraJavaOptions', '')}".strip()
    # other settings, of this process or of another version of lapwing, do not change the file while Spark starts
    conf = home / f"conf-{javas.digest(*(f'{key}={value}' for key, value in sorted(wanted.items())))}"
    javas.write_text(conf / "spark-defaults.conf", "".join(f"{key} {value}\n" for key, value in sorted(wanted.items())))
    return Setup(java, home, conf, javas.install_python(files), classes, wanted)


def environment(settings: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a copy of this process's environment in which a program that starts Spark finds all of the above."""
    return {**os.environ, **prepare(settings).variables()}


def session_builder(
    app: str = "lapwing", *, master: str | None = None, conf: Mapping[str, str] | None = None
) -> "SparkSession.Builder":
    """Return a builder for a session on `master` (a URL; None: that of spark-submit, else all cores of this machine).

    For a local master the set-up above is put into this process's environment first. For a cluster nothing is assumed
    of the other machines: only Java and the Python of the driver are seen to.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise ConfigError(f"Spark is not installed; pip install 'lapwing[spark]' ({error.name} is missing)") from error

    builder: SparkSession.Builder = SparkSession.builder.appName(app)
    started_by_spark = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit runs us: the JVM is there already
    if not started_by_spark:
        builder = builder.master(master or "local[*]")
        local = (master or "local").startswith("local")
        _apply(local=local)
        if local:  # else it would be a folder in the current directory, made as soon as a query is compiled
            builder = builder.config("spark.sql.warehouse.dir", str(warehouse()))
    elif master is not None:
        builder = builder.master(master)
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    return builder


def local_session(
    app: str = "lapwing", *, cores: int | str = "*", conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """Return the session of this process, on this machine; the first call starts it, later ones get the same.

    When the class cache that makes starts quick does not exist yet, it is made in the background once this process has
    ended; `LAPWING_SPARK_WARM=0` forbids that. After a failure only `python -m lapwing.spark.warm` tries again.
    """
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # they repeat, in JSON, what is raised anyway
        logging.getLogger(name).setLevel(logging.CRITICAL)
    session = session_builder(app, master=f"local[{cores}]", conf=conf).getOrCreate()
    if os.environ.get("LAPWING_SPARK_WARM") != "0" and prepare().lacks_classes:
        atexit.unregister(_warm_later)
        atexit.register(_warm_later)
    return session


def warehouse() -> Path:
    """Return where tables go that a session on this machine saves by name: to nobody's current directory."""
    return javas.cache_directory() / "warehouse"


def activate(session: "SparkSession") -> None:
    """Make the session that of the calling thread: for a write, Spark looks for data sources of Python only there."""
    jvm = session._jvm
    session._get_j_spark_session_class(jvm).setActiveSession(session._jsparkSession)


@cache
def _java() -> javas.Java:
    """Return the Java to use; one probe a process, as it costs half a second."""
    given = dict(os.environ)
    if (home := given.get("JAVA_HOME")) and Path(home).is_relative_to(javas.cache_directory()):
        del given["JAVA_HOME"]  # our own, from an earlier call or a parent process
    return javas.find_java(given, newest=pyspark_41.NEWEST_JAVA)


def _apply(*, local: bool) -> None:
    setup = prepare()
    for name, value in setup.variables().items():
        if name == "JAVA_HOME":
            os.environ[name] = value  # find_java has already honoured what stood there
        elif name == "PYSPARK_PYTHON" and not local:
            os.environ.setdefault(name, sys.executable)  # other machines do not have our script
        elif local or name == "PYSPARK_DRIVER_PYTHON":
            os.environ.setdefault(name, value)


def _warm_later() -> None:
    if not prepare().lacks_classes:
        return  # another process has made it meanwhile, or has failed
    logger.info("making Spark's class cache in the background")
    with contextlib.suppress(OSError):  # an optimisation: a machine that cannot do it just starts more slowly
        subprocess.Popen(
            [sys.executable, "-m", "lapwing.spark.warm", "--background"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
