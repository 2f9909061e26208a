"""Workers that are not read to their end: they leave without a trace, and real errors keep theirs."""

import importlib.util
import os
import subprocess
import sys

import pytest

from lapwing.spark.java import install_python
from lapwing.spark.source_worker import RUNNER

WORKER = """
import sys
from lapwing.spark import worker_daemon

def work(sock, authenticated):
    raise {error}

def manager():
    daemon.worker(None, True)

daemon = worker_daemon.daemon
daemon.worker, daemon.manager = work, manager
worker_daemon.main()
"""


def run(error, **environment):
    """A worker that fails like this: its exit status, and what it prints."""
    variables = {key: value for key, value in os.environ.items() if key != "LAPWING_TRACE"}
    done = subprocess.run(
        [sys.executable, "-c", WORKER.format(error=error)],
        capture_output=True, text=True, check=False, env={**variables, **environment},
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("error", ["BrokenPipeError", "ConnectionResetError"])
def test_a_worker_that_is_not_read_to_its_end_leaves_in_silence(error):
    assert run(error) == (1, "")


def test_other_errors_and_a_wanted_trace_are_printed():
    assert "ValueError" in run("ValueError")[1]
    assert "BrokenPipeError" in run("BrokenPipeError", LAPWING_TRACE="1")[1]


def test_the_session_runs_its_daemons_so(tmp_path):
    """Spark starts several: for tasks, and for plans, where no setting names another module."""
    path = tmp_path / "package" / "lapwing" / "spark"
    path.mkdir(parents=True)
    for package in (path, path.parent):
        (package / "__init__.py").touch()
    (path / "worker_daemon.py").write_text("import sys; print(sys.argv[1:])")
    (path / "source_worker.py").write_text("import sys; print('source', sys.argv[1:])")
    python = install_python(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "package")}
    command = [python, "-m", "pyspark.daemon", "pyspark.worker"]

    assert subprocess.check_output(command, text=True, env=environment) == "['pyspark.worker']\n"
    command = [python, "-m", RUNNER]
    assert subprocess.check_output(command, text=True, env=environment) == "source []\n"


@pytest.mark.parametrize("trace", ["", "1"])
def test_a_source_whose_spark_has_gone_ends_in_silence(trace):
    """Spark names a socket that is not there any more."""
    gone = {"PYTHON_WORKER_FACTORY_SOCK_PATH": "/nonexistent/socket", "LAPWING_TRACE": trace}
    environment = {**os.environ, **gone}
    done = subprocess.run(
        [sys.executable, "-m", "lapwing.spark.source_worker"], env=environment, stderr=subprocess.PIPE, text=True
    )

    assert done.returncode == 1
    assert ("CANNOT_OPEN_SOCKET" in done.stderr) is bool(trace)
    assert bool(done.stderr) is bool(trace)


def test_the_process_of_a_source_is_pysparks_own():
    assert importlib.util.find_spec(RUNNER) is not None


@pytest.mark.spark
def test_a_read_is_whole_after_readers_that_needed_less(spark, broker):
    broker.publish("orders", *(b"%d" % number for number in range(30_000)))
    frame = spark.read.format("lapwing").options(nsqd=broker.address, topic="orders").load()

    assert len(frame.take(3)) == 3
    assert frame.limit(5).count() == 5
    assert frame.count() == 30_000
