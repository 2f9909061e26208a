"""What a pipeline keeps beside its data: checkpoint, progress and status."""

import json

import pytest

from lapwing.errors import ConfigError
from lapwing.spark.files import LocalFiles
from lapwing.spark.pipelines.kinds.publish import options
from lapwing.spark.pipelines.run.checkpoint import Checkpoint
from lapwing.spark.pipelines.run.context import RunContext
from lapwing.spark.pipelines.run.home import PipelineHome
from lapwing.spark.pipelines.run.progress import PipelineProgress, from_spark
from lapwing.spark.pipelines.settings.kind_settings import ArchiveSettings, TableSettings


def until(sequence):
    return {"orders": {"1": {"log_id": "log", "sequence": sequence}}}


def test_a_checkpoint_says_what_cannot_be_changed_and_what_to_do(tmp_path):
    checkpoint = Checkpoint(LocalFiles(tmp_path))
    before = TableSettings(name="r", topics=("a",), partition="day")
    checkpoint.check(before)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n" + json.dumps(until(5)))

    checkpoint.check(TableSettings(name="r", topics=("a",), partition="day", trigger=9.0))
    with pytest.raises(ConfigError, match=r"partition was 'day' and is now 'hour', and files of both") as caught:
        checkpoint.check(TableSettings(name="r", topics=("a",), partition="hour"))
    with pytest.raises(ConfigError, match="the checkpoint of a pipeline of kind table, not archive"):
        checkpoint.check(ArchiveSettings(name="r", topics=("a",)))

    assert "another --checkpoint" in str(caught.value)
    assert checkpoint.offsets(0) == until(5)
    assert checkpoint.unfinished


def test_brokers_to_publish_at_change_between_batches_and_are_added_while_one_is_unfinished(tmp_path):
    context = RunContext(None, None, Checkpoint(LocalFiles(tmp_path)), ("a:1",))

    def sink(*brokers, **more):
        context.brokers = brokers
        found = options(TableSettings(name="r", topics=("a",), **more), context, streaming=True)
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
