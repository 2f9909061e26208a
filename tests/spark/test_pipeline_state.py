"""What a pipeline keeps beside its data: checkpoint, progress, status, and the lines of Spark that it lets through."""

import json

import pytest

from lapwing.errors import ConfigError
from lapwing.spark.files import LocalFiles
from lapwing.spark.pipelines.kinds.publish import options
from lapwing.spark.pipelines.run.checkpoint import Checkpoint
from lapwing.spark.pipelines.run.context import RunContext
from lapwing.spark.pipelines.run.home import PipelineHome
from lapwing.spark.pipelines.run.progress import PipelineProgress, from_spark
from lapwing.spark.pipelines.run.stderr_filter import meaningful
from lapwing.spark.pipelines.settings.kind_settings import ArchiveSettings, RollupSettings


def until(sequence):
    return {"orders": {"1": {"log_id": "log", "sequence": sequence}}}


def test_a_checkpoint_says_what_cannot_be_changed_and_what_to_do(tmp_path):
    checkpoint = Checkpoint(LocalFiles(tmp_path))
    before = RollupSettings(name="r", topics=("a",), values={"n": "count"}, window=60.0, to="b")
    checkpoint.check(before)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n" + json.dumps(until(5)))

    checkpoint.check(RollupSettings(name="r", topics=("a",), values={"n": "count"}, window=60.0, to="b", trigger=9.0))
    with pytest.raises(ConfigError, match=r"window was 60\.0 and is now 30\.0, and the checkpoint") as caught:
        checkpoint.check(RollupSettings(name="r", topics=("a",), values={"n": "count"}, window=30.0, to="b"))
    with pytest.raises(ConfigError, match="the checkpoint of a pipeline of kind rollup, not archive"):
        checkpoint.check(ArchiveSettings(name="r", topics=("a",)))

    assert "another --checkpoint" in str(caught.value)
    assert checkpoint.offsets(0) == until(5)
    assert checkpoint.unfinished


def test_brokers_to_publish_at_change_between_batches_and_are_added_while_one_is_unfinished(tmp_path):
    context = RunContext(None, None, Checkpoint(LocalFiles(tmp_path)), ("a:1",))

    def sink(*brokers, **more):
        context.brokers = brokers
        found = options(RollupSettings(name="r", topics=("a",), values={"n": "count"}, **more), context, streaming=True)
        return found["nsqd"], found.get("acceptDoubles")

    assert sink("a:1") == ("a:1", "true")
    for folder, names in (("offsets", "01"), ("commits", "0")):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).touch()
    assert sink("b:1") == ("a:1,b:1", None)
    assert sink("c:1") == ("a:1,b:1,c:1", None)
    assert sink("c:1", options={"acceptDoubles": "true"}) == ("c:1", "true")
    assert sink("b:1") == ("c:1,b:1", None)
    (tmp_path / "commits" / "1").touch()
    assert sink("b:1") == ("b:1", "true")


def test_lag_and_rates_come_from_what_spark_tells():
    told = {
        "batchId": 3, "inputRowsPerSecond": 5.04, "processedRowsPerSecond": "NaN", "batchDuration": 120,
        "sources": [{
            "numInputRows": 14,
            "startOffset": {"orders": {"1": {"log_id": "x", "sequence": 5}, "2": {"log_id": "old", "sequence": 7}}},
            "endOffset": {"orders": {"1": {"log_id": "x", "sequence": 10}, "2": {"log_id": "old", "sequence": 9}}},
            "latestOffset": {"orders": {"1": {"log_id": "x", "sequence": 15}, "2": {"log_id": "new", "sequence": 4}}},
        }],
    }  # fmt: skip

    once = from_spark(PipelineProgress("p", "archive", ("orders",), "p"), told)
    twice = from_spark(once, told)

    assert (once.lag, once.rows_in, once.input_rate, once.processed_rate, once.batch_ms) == (9, 7, 5.0, 0.0, 120)
    assert twice.rows_in == 7


def test_what_spark_says_between_two_batches_is_no_batch():
    def source(start, end):
        places = [{"orders": {"1": {"log_id": "x", "sequence": place}}} for place in (start, end)]
        return [{"startOffset": places[0], "endOffset": places[1], "latestOffset": places[1]}]

    worked = {"addBatch": 80, "triggerExecution": 100}
    first = {"batchId": 1, "durationMs": worked, "sources": source(0, 5)}
    idle = {"batchId": 2, "durationMs": {"latestOffset": 1003, "triggerExecution": 1005}, "sources": source(5, 5)}
    second = {"batchId": 2, "durationMs": worked, "sources": source(5, 8)}

    progress = PipelineProgress("p", "archive", ("orders",), "p")
    seen = [progress := from_spark(progress, told) for told in (first, idle, idle, second)]

    assert [(each.batch_id, each.batch_ms, each.rows_in) for each in seen] == [
        (1, 100, 5), (1, 100, 5), (1, 100, 5), (2, 100, 8)
    ]  # fmt: skip


def test_a_pipeline_runs_once_at_a_time_and_its_death_is_noticed(tmp_path):
    home = PipelineHome(tmp_path / "archive")
    presence = home.enter()
    presence.write_status({"name": "archive", "kind": "archive", "state": "running"})

    with pytest.raises(ConfigError, match="running already"):
        home.enter()
    assert home.running() is not None
    assert home.status()["state"] == "running"
    presence.leave()
    assert home.running() is None
    assert home.status()["state"] == "dead"
    assert home.stop(wait=0)


def test_only_what_means_something_is_let_through_of_what_spark_writes():
    leaving = [
        "Traceback (most recent call last):\n",
        '  File "/x/site-packages/pyspark/daemon.py", line 264, in manager\n',
        "EOFError\n",
        "\n",
        "During handling of the above exception, another exception occurred:\n",
        "\n",
        "Traceback (most recent call last):\n",
        '  File "/x/site-packages/pyspark/worker_util.py", line 1, in f\n',
        "BrokenPipeError: [Errno 32] Broken pipe\n",
    ]
    own = ["Traceback (most recent call last):\n", '  File "mine.py", line 1\n', "ValueError: no\n"]
    java = ["2026-11-15 ERROR Thing: it broke\n", "\tat org.apache.spark.Thing.do(Thing.scala:1)\n", "\t... 14 more\n"]

    found = list(meaningful([*leaving, *own, *java, "a line\n", "Traceback (most recent call last):\n"]))

    assert found == [*own, java[0], "a line\n", "Traceback (most recent call last):\n"]
    amid = "2026-11-15 16:25:55 ERROR TaskSetManager: Task 0 in stage 1.0 failed 4 times; aborting job\n"
    assert list(meaningful([*leaving[:1], amid, *leaving[1:]])) == [amid]


def test_what_spark_says_again_of_a_failure_is_left_out():
    error = "org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] boom SQLSTATE: P0001\n"
    frames = ["\tat org.apache.spark.Thing.do(Thing.scala:1)\n"]
    told = ["2026-11-15 16:20:34 ERROR Executor: Exception in task 0.0 in stage 1.0 (TID 1)\n", error]
    python = [
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n",
        '  File "/x/site-packages/lapwing/spark/reader.py", line 1, in f\n',
        "ConnectionRefusedError: [Errno 111] Connection refused\n",
        "\n",
        "The above exception was the direct cause of the following exception:\n",
        "\n",
        "Traceback (most recent call last):\n",
        '  File "/x/site-packages/lapwing/spark/reader.py", line 2, in g\n',
        "lapwing.spark.reader.DataLoss: gone\n",
        " SQLSTATE: 38000\n",
    ]
    again = [
        "2026-11-15 16:20:34 ERROR Utils: Aborting task\n", error, *frames,
        "2026-11-15 16:20:35 ERROR Executor: Exception in task 0.1 in stage 1.0 (TID 3)\n", error, *frames,
        "2026-11-15 16:20:36 ERROR Executor: Exception in task 12.3 in stage 1.0 (TID 5)\n", *python, *frames,
        "2026-11-15 16:20:34 ERROR DataWritingSparkTask: Aborting commit for partition 0 (task 1, attempt 0)\n",
        "2026-11-15 16:20:34 ERROR DataWritingSparkTask: Aborted commit for partition 0 (task 1, attempt 0)\n",
        "2026-11-15 16:20:39 ERROR WriteToDataSourceV2Exec: Data source write support MicroBatchWrite is aborting.\n",
        "2026-11-15 16:20:39 ERROR MicroBatchExecution: Query g6 [id = d, runId = c] terminated with error\n",
        *python, *frames,
    ]  # fmt: skip
    own = ["topic t, node 1: broken off at 7; trying again in 0.1 s\n"]

    assert list(meaningful([*again, *told, *frames, *again, *own])) == [*told, *own]
