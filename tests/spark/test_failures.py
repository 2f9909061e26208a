"""The reason of a failure in one line."""

import os

import pytest

from daemons import until
from lapwing.errors import ConfigError, LapwingError
from lapwing.spark import reason
from lapwing.spark.brokers import http
from lapwing.spark.files import LocalFiles
from lapwing.spark.pipelines.kinds.messages import brokers
from lapwing.spark.pipelines.run.checkpoint import Checkpoint
from lapwing.spark.pipelines.run.runner import PipelineRun, RunRequest, StoppedEarly
from lapwing.spark.pipelines.settings import spec

HEAD = "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_EXCEPTION] An exception was thrown: "
TRACE = (
    "Traceback (most recent call last):\n"
    '  File "/x/lib/python3.11/site-packages/pyspark/worker.py", line 1, in main\n    process()\n'
    '  File "{path}", line 7, in gross\n    return rates[country]\n           ~~~~~^^^^^^^^^\n'
    '  File "/usr/lib/python3.11/decimal.py", line 3, in f\n    raise\n'
)


def test_what_a_users_function_raises_is_given_with_the_line_of_its_file():
    text = HEAD + TRACE.format(path="/home/me/orders.py") + "KeyError: 'xx'\n SQLSTATE: 38000\n\tat org.apache.Foo(Bar)"

    assert reason(Exception(text)) == "/home/me/orders.py:7: KeyError: 'xx'"


def test_a_path_is_given_as_seen_from_here():
    text = HEAD + TRACE.format(path=os.path.abspath("orders.py")) + "ZeroDivisionError: division by zero\n"

    assert reason(Exception(text)) == "orders.py:7: ZeroDivisionError: division by zero"


def test_of_several_traces_the_last_counts_and_one_of_our_own_errors_beats_them():
    first = HEAD + TRACE.format(path="/a.py") + "ValueError: first\n\nDuring handling of it, another occurred:\n\n"
    second = TRACE.format(path="/b.py") + "mine.Custom: second\n"

    assert reason(Exception(first + second)) == "/b.py:7: mine.Custom: second"
    ours = first + second + "lapwing.spark.source.losses.DataLoss: topic t, node 1: gone\n"
    assert reason(Exception(ours)) == "topic t, node 1: gone"


def test_an_error_without_a_trace_is_its_first_sentence():
    assert reason(Exception("[TABLE_NOT_FOUND] The table is not there. SQLSTATE: 42P01")) == "The table is not there."
    assert reason(KeyError()) == "KeyError"


def test_an_error_of_java_or_of_spark_that_no_line_of_a_user_raised_is_the_last_cause():
    called = HEAD + 'Traceback (most recent call last):\n  File "/x/lib/python3.11/site-packages/a.py", line 1, in f\n'
    java = (
        "py4j.protocol.Py4JJavaError: An error occurred while calling o4710.parquet.\n"
        ": org.apache.spark.SparkException: Job aborted.\n\tat org.apache.Foo(Bar)\n"
        "Caused by: org.apache.hadoop.fs.FSError: java.io.IOException: No space left on device\n"
        "Caused by: java.io.IOException: No space left on device\n"
    )

    assert reason(Exception(called + java)) == "No space left on device"
    sql = "pyspark.errors.exceptions.captured.AnalysisException: [AMBIGUOUS] `a` is ambiguous. SQLSTATE: 42704\n"
    assert reason(Exception(called + sql)) == "`a` is ambiguous."


def test_a_start_waits_for_the_broker_as_long_as_retry_says(broker, tmp_path):
    broker.daemon.kill()
    [found] = spec.load("archive", ["retry=30s"], {"nsqd": [broker.address]})
    paused = []

    def restart(record):
        if not paused:
            paused.append(record.getMessage())
            broker.daemon.restart()
        return True

    http.logger.addFilter(restart)
    try:
        assert brokers(found.settings) == (broker.address,)
    finally:
        http.logger.removeFilter(restart)
    assert "is it running?" in paused[0]


def test_a_tcp_port_is_named_at_once(broker, tmp_path):
    [found] = spec.load("archive", ["retry=30s"], {"nsqd": [broker.daemon.tcp]})

    with pytest.raises(ConfigError, match=r"this is the TCP port of an nsqd; the HTTP port is needed"):
        PipelineRun([found], RunRequest(tmp_path)).check()


def test_relative_and_absolute_paths_of_one_place_are_the_same(broker, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out in ("lake", str(tmp_path / "lake"), f"{tmp_path}/x/../lake/"):
        [found] = spec.load("archive", [f"out={out}"], {"nsqd": [broker.address]})

        assert found.settings.out == str(tmp_path / "lake")
    checkpoint = Checkpoint(LocalFiles(tmp_path / "checkpoint"))
    LocalFiles(tmp_path / "checkpoint").write("offsets/0", b"v1")
    checkpoint.pin(kind="archive", settings={"out": "lake"})  # noted by an earlier version, as it was written
    checkpoint.check(found.settings)
    with pytest.raises(ConfigError, match=r"out was .* and is now"):
        checkpoint.check(spec.load("archive", ["out=other"], {"nsqd": [broker.address]})[0].settings)
    [found] = spec.load("archive", ["out=s3a://bucket/lake/"], {"nsqd": [broker.address]})
    assert found.settings.out == "s3a://bucket/lake"


def test_brokers_learn_that_a_pipeline_starts_and_that_spark_does_not(broker, tmp_path, monkeypatch):
    [found] = spec.load("archive", [], {"nsqd": [broker.address], "out": str(tmp_path / "lake")})
    running = PipelineRun([found], RunRequest(tmp_path))
    running.check()

    def states():
        return [each["state"] for each in broker.ask("/pipelines")["pipelines"] if each["name"] == "archive"]

    def refuse(self):
        until(lambda: states() == ["starting"], what="the report")
        raise LapwingError("no Java")

    monkeypatch.setattr(PipelineRun, "_session", refuse)
    with pytest.raises(LapwingError, match="no Java"):
        running.session()

    assert states() == ["failed"]


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "refused"), LapwingError("Java is gone"), KeyboardInterrupt()]
)
def test_a_signal_that_ends_the_start_of_spark_is_no_failure(broker, tmp_path, monkeypatch, error):
    [found] = spec.load("archive", [], {"nsqd": [broker.address], "out": str(tmp_path / "lake")})
    running = PipelineRun([found], RunRequest(tmp_path))
    running.check()

    def interrupted(self):
        if not isinstance(error, KeyboardInterrupt):
            running.ask_to_stop()
        raise error

    monkeypatch.setattr(PipelineRun, "_session", interrupted)
    with pytest.raises(StoppedEarly):
        running.session()

    assert [each["state"] for each in broker.ask("/pipelines")["pipelines"]] == ["stopped"]
