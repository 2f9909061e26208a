"""A table to which batches are added once, whatever is interrupted, and the proof of what it holds."""

import json
import random

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from lapwing.errors import ConfigError
from lapwing.spark.pipelines import manifest_table as tables
from lapwing.spark.pipelines import verify as v
from lapwing.spark.pipelines.checkpoint import Checkpoint
from lapwing.spark.pipelines.compact import choose, over
from lapwing.spark.pipelines.files import LocalFiles
from lapwing.spark.pipelines.manifest_table import ManifestTable, TableDamaged
from lapwing.spark.pipelines.pipeline_home import PipelineHome
from lapwing.spark.pipelines.pipeline_settings import ArchiveSettings, RollupSettings
from lapwing.spark.pipelines.progress import PipelineProgress, from_spark
from lapwing.spark.pipelines.publish import options
from lapwing.spark.pipelines.run_context import RunContext
from lapwing.spark.pipelines.stderr_filter import meaningful
from lapwing.spark.pipelines.verify import proof_text

FOLDER = "topic=orders/date=2026-11-15/hour=10"


def rows(first, stop, node=1, log_id="log"):
    count = stop - first
    return pa.table({
        "node": pa.array([node] * count, pa.int32()),
        "log_id": pa.array([log_id] * count),
        "sequence": pa.array(range(first, stop), pa.int64()),
    })  # fmt: skip


def writing(*parts, folder=FOLDER):
    def write(place):
        from pathlib import Path

        Path(place, folder).mkdir(parents=True)
        for index, part in enumerate(parts):
            parquet.write_table(part, f"{place}/{folder}/part-{index}.parquet")

    return write


def until(sequence, log_id="log"):
    return {"orders": {"1": {"log_id": log_id, "sequence": sequence}}}


@pytest.fixture
def table(tmp_path):
    made = ManifestTable(LocalFiles(tmp_path / "archive"))
    made.open()
    return made


def reopened(table):
    table._files.release()
    again = ManifestTable(LocalFiles(table.root))
    again.open()
    return again


def test_a_batch_counts_once(table):
    table.add("q", 0, until(10), writing(rows(0, 10)))

    assert table.has("q", 0)
    assert not table.has("q", 1)
    assert not table.has("other", 0)
    assert reopened(table).has("q", 0)
    assert v.verify(table.root).sound


def test_files_without_an_entry_are_as_if_they_were_not_there(table, monkeypatch):
    monkeypatch.setattr(table._files, "write", lambda *_, **__: (_ for _ in ()).throw(OSError("killed here")))
    with pytest.raises(OSError, match="killed here"):
        table.add("q", 0, until(10), writing(rows(0, 10)))

    again = reopened(table)
    again.add("q", 0, until(10), writing(rows(0, 10)))

    assert v.verify(table.root).rows == 10
    assert v.verify(table.root).sound


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_moves_that_a_crash_interrupts_are_finished_by_the_next_who_opens(table, monkeypatch, moved):
    table.add("q", 0, until(4), writing(rows(0, 2), rows(2, 4)))
    move, calls = table._files.move, []

    def dying(path, target):
        if len(calls) == moved:
            raise OSError("killed here")
        calls.append(path)
        move(path, target)

    monkeypatch.setattr(table._files, "move", dying)
    if moved < 2:
        with pytest.raises(OSError, match="killed here"):
            table.add("q", 1, until(8), writing(rows(4, 6), rows(6, 8)))
    else:
        table.add("q", 1, until(8), writing(rows(4, 6), rows(6, 8)))

    again = reopened(table)

    assert again.has("q", 1)
    assert v.verify(table.root).rows == 8
    assert v.verify(table.root).sound


def test_merging_refuses_to_change_the_rows(table):
    table.add("q", 0, until(5), writing(rows(0, 5)))
    table.add("q", 1, until(10), writing(rows(5, 10)))

    with pytest.raises(TableDamaged, match="would change their rows"):
        table.merge(sorted(table.contents.parts), writing(rows(0, 9), folder=""))

    assert v.verify(table.root).rows == 10


def test_many_entries_fold_into_a_snapshot(table):
    for batch in range(105):
        table.add("q", batch, until(batch + 1), writing(rows(batch, batch + 1)))

    names = LocalFiles(table.root).names("_manifest")

    assert [name for name in names if "snapshot" in name] == ["00000100.snapshot.json"]
    assert len([name for name in names if name.endswith(".json")]) == 6
    assert sum(part.rows for part in reopened(table).contents.parts.values()) == 105
    assert v.verify(table.root).sound


def test_only_one_pipeline_writes_to_a_table(table):
    with pytest.raises(ConfigError, match="another pipeline is writing here"):
        ManifestTable(LocalFiles(table.root)).open()


def test_a_proof_names_what_is_missing_what_is_there_twice_and_what_is_strange(table, tmp_path):
    table.add("q", 0, until(10), writing(rows(0, 10)))
    table.add("q", 1, until(30), writing(rows(12, 20), rows(18, 25)))
    stray = tmp_path / "archive" / FOLDER / "stray.parquet"
    parquet.write_table(rows(0, 1), stray)

    proof = v.verify(table.root, published={("orders", 1, "log"): (0, 42)})

    [log] = proof.logs
    assert log.missing == [(10, 12), (25, 30)]
    assert log.twice == [(18, 20)]
    assert log.waiting == 12
    assert not proof.sound
    text = proof_text(proof)
    assert "MISSING  topic orders, node 1, log log: 7 messages: 10 .. 11, 25 .. 29" in text
    assert "TWICE    topic orders, node 1, log log: 2 messages: 18 .. 19" in text
    assert "stray.parquet: a file that the manifest does not know" in text


def test_a_proof_of_some_sequences_looks_at_those_only(table):
    table.add("q", 0, until(100), writing(rows(0, 40), rows(50, 100)))

    assert v.verify(table.root, span=(0, 40)).sound
    assert v.verify(table.root, span=(60, 100)).sound
    assert v.verify(table.root, span=(30, 60)).logs[0].missing == [(40, 50)]
    assert v.verify(table.root, span=(90, 110)).logs[0].missing == [(100, 110)]


def test_a_lost_or_cut_file_is_a_fault(table):
    table.add("q", 0, until(20), writing(rows(0, 10), rows(10, 20)))
    first, second = sorted(table.contents.parts)
    LocalFiles(table.root).delete(first)
    LocalFiles(table.root).write(second, b"PAR1 and no more")

    proof = v.verify(table.root)

    assert len(proof.faults) == 2
    assert proof.logs[0].missing == [(0, 20)]


def test_a_log_that_was_made_anew_is_another_log(table):
    table.add("q", 0, until(10), writing(rows(0, 10)))
    table.add("q", 1, until(3, "new"), writing(rows(0, 3, log_id="new")))

    proof = v.verify(table.root)

    assert [(log.log_id, log.rows) for log in proof.logs] == [("log", 10), ("new", 3)]
    assert proof.sound


def test_runs_are_found_in_any_order_of_rows():
    picked = random.Random(7)
    for _ in range(50):
        sequences = [picked.randrange(60) for _ in range(picked.randrange(1, 40))]
        found = v.runs(pa.array(sequences, pa.int64()))

        assert sorted(each for low, high in found for each in range(low, high)) == sorted(sequences)


def test_small_files_are_chosen_up_to_the_size_of_a_large_one():
    parts = [tables.DataFile(f"f/{n}", 1, 40) for n in range(5)]

    assert choose(parts, 100) == ["f/0", "f/1"]
    assert tables.small([*parts, tables.DataFile("f/big", 1, 400)], 50) == {"f": parts}


def test_an_hour_is_over_a_while_after_it_has_ended():
    from datetime import UTC, datetime

    assert not over(FOLDER, datetime(2026, 11, 15, 11, 4, tzinfo=UTC))
    assert over(FOLDER, datetime(2026, 11, 15, 11, 6, tzinfo=UTC))
    assert over("date=2026-11-14", datetime(2026, 11, 15, 0, 6, tzinfo=UTC))
    assert not over("", datetime(2026, 11, 15, tzinfo=UTC))


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
